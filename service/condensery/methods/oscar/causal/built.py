"""What a pair is built from, before any directory is opened."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from condensery.errors import InputError, StoreError
from condensery.networks.oscar_causal_shape import Layout
from condensery.store.cocom import USER
from condensery.store.language_models import ChatPrompt, LanguageModel
from condensery.store.published_pairs import SYSTEM

PATHS = ("generator", "compressor", "bert")
SOURCES = ("compressor", "layers", "every_nth", "bert")


AUTOENCODE, SEPARATOR = "<AE>", "<SEP>"
LAYOUT = ("auto", "pair", "joined", "lines")


def compressor_layout(layout: str, tokenizer: Tokenizer, *, own_layers: bool) -> Layout:
    """Return how question and passage stand in the compressor's text.

    As in the published pairs: first layers read ``joined``, other models ``pair``, if their
    tokenizer puts anything between two texts; where it does not, question and passage would run
    into each other.
    """
    if layout == "pair":
        return "pair"
    if layout == "lines":
        return "lines"
    if layout == "auto" and not own_layers and tokenizer.num_special_tokens_to_add(is_pair=True):
        return "pair"
    return "joined"


def generator_prompt(base: LanguageModel, kind: str) -> ChatPrompt:
    """Return the texts around passages and question.

    ``chat`` is the prompt of published pairs, in the base's own template (OSCAR, figure 14);
    ``plain`` is for bases that have none and were never told to be an assistant.

    Raises:
        StoreError: ``chat`` is asked for, and there is no template that holds it.
    """
    if kind != "plain":
        try:
            return base.prompt(SYSTEM, USER)
        except StoreError:
            if kind == "chat":
                raise
    try:
        start = base.special("bos_token")
    except StoreError:  # some have none
        start = ""
    return ChatPrompt(f"{start}Background:\n", "\n\nQuestion: ", "\nAnswer:\n", strip=True)


@dataclass(frozen=True, slots=True)
class PairSources:
    """What a pair is built from.

    Attributes:
        generator: Directory of a causal language model.
        compressor: Directory of another, read whole, with a mapping (OSCAR-llama).
        layers: Or the generator's first so many layers (OSCAR-N-layers).
        every_nth: Or every so manieth of its layers, from the first on.
        bert: Or the directory of a BERT encoder, with a mapping (appendix J).
        memory_tokens: Vectors a passage becomes.
        passage_tokens: Longest passage beside the longest question.
        query_tokens: Longest question.
        mapping_size: Hidden size of the mapping, where there is one (Table 7).
        rerank: Whether there is a rerank token; a BERT always has one.
        separator: Whether a separator token follows each passage's vectors.
        layout: Of the compressor's text; ``auto``: ``pair`` where its tokenizer marks two texts,
            else ``joined``; first layers: ``joined``.
        prompt: ``chat``, by the generator's template; ``plain``, without; ``auto``: ``chat``
            where there is one.
        positions: Longest prompt with its answer; 0: all that the generator has.
    """

    generator: Path
    compressor: Path | None = None
    layers: int = 0
    every_nth: int = 0
    bert: Path | None = None
    memory_tokens: int = 8
    passage_tokens: int = 128
    query_tokens: int = 64
    mapping_size: int = 8096
    rerank: bool = True
    separator: bool = True
    layout: str = "auto"
    prompt: str = "auto"
    positions: int = 0

    def __post_init__(self) -> None:
        """Refuse what names no compressor, or several.

        Raises:
            InputError: Names fields and values.
        """
        sources = {name: getattr(self, name) for name in SOURCES if getattr(self, name)}
        if len(sources) != 1:
            raise InputError(
                f"compressor: give one of {', '.join(SOURCES)}, not {sources or 'none'}",
                field="compressor",
                value=str(sources),
            )
        sizes = ("memory_tokens", "passage_tokens", "query_tokens", "mapping_size")
        for name, least in (*((n, 1) for n in sizes), *((n, 0) for n in SOURCES[1:3])):
            if getattr(self, name) < least:
                value = getattr(self, name)
                raise InputError(f"{name}={value}: too small", field=name, value=value)
        for name, choices in (("layout", LAYOUT), ("prompt", ("auto", "chat", "plain"))):
            if (value := getattr(self, name)) not in choices:
                raise InputError(f"{name}={value!r}: none of {choices}", field=name, value=value)

    @property
    def own_layers(self) -> bool:
        """Whether the compressor is layers of the generator."""
        return bool(self.layers or self.every_nth)

    def to_dict(self) -> dict[str, Any]:
        """Return what ``from_dict`` reads, in JSON's types; paths in full."""
        return {
            name: str(value.resolve()) if isinstance(value, Path) else value
            for name, value in asdict(self).items()
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "PairSources":
        """Build from what ``to_dict`` gave; paths that no longer exist are found later."""
        names = {field.name for field in fields(cls)}
        read: dict[str, Any] = {
            name: Path(value) if name in PATHS and value else value
            for name, value in values.items()
            if name in names
        }
        return cls(**read)
