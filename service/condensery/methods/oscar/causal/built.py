"""What a pair is built from, before any directory is opened."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from condensery.errors import InputError
from condensery.methods.oscar.causal.prompts import LAYOUT

PATHS = ("generator", "compressor", "bert")
SOURCES = ("compressor", "layers", "every_nth", "bert")


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
        given = {name: getattr(self, name) for name in SOURCES if getattr(self, name)}
        if len(given) != 1:
            raise InputError(
                f"compressor: give one of {', '.join(SOURCES)}, not {given or 'none'}",
                field="compressor",
                value=str(given),
            )
        sizes = ("memory_tokens", "passage_tokens", "query_tokens", "mapping_size")
        for name, least in (*((n, 1) for n in sizes), *((n, 0) for n in SOURCES[1:3])):
            if getattr(self, name) < least:
                value = getattr(self, name)
                raise InputError(f"{name}={value}: too small", field=name, value=value)
        for name, known in (("layout", LAYOUT), ("prompt", ("auto", "chat", "plain"))):
            if (value := getattr(self, name)) not in known:
                raise InputError(f"{name}={value!r}: none of {known}", field=name, value=value)

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
        known = {field.name for field in fields(cls)}
        read: dict[str, Any] = {
            name: Path(value) if name in PATHS and value else value
            for name, value in values.items()
            if name in known
        }
        return cls(**read)
