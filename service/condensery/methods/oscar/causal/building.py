"""From directories of models to a pair: its shape, its tokenizers, its first weights."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from torch import Tensor
from transformers import BertConfig, PretrainedConfig

from condensery.errors import InputError, StoreError
from condensery.networks.decoders import layer_name, read_config, resized, with_layers
from condensery.networks.oscar_bert import BertWindows
from condensery.networks.oscar_causal_shape import (
    CausalShape,
    CompressorShape,
    GeneratorShape,
    Layout,
)
from condensery.networks.oscar_shape import BertShape
from condensery.networks.oscar_texts import CausalTexts, CompressorTexts, GeneratorTexts
from condensery.store.cocom import USER
from condensery.store.language_models import ChatPrompt, LanguageModel
from condensery.store.published_pairs import SYSTEM

PATHS = ("generator", "compressor", "bert")
SOURCES = ("compressor", "layers", "every_nth", "bert")
AUTOENCODE, SEPARATOR = "<AE>", "<SEP>"
LAYOUT = ("auto", "pair", "joined", "lines")
WEIGHTS = (".safetensors", ".bin")
ROOM = {"pair": 3}  # what a layout takes beside the two texts; others 8


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


class Bases:
    """The directories that a pair begins with, and the pair they make.

    Args:
        built: What it is built from.

    Raises:
        InputError: A directory is missing or not what it should be, a tokenizer is not its
            network's, or the halves don't match.
    """

    def __init__(self, built: PairSources) -> None:
        self.built = built
        self._generator = _open(built.generator, "generator")
        other = built.compressor or built.bert
        role = "bert" if built.bert else "compressor"
        self._compressor = self._generator if other is None else _open(other, role)
        try:
            self._make()
        except (StoreError, ValueError, TypeError, AttributeError) as error:
            # transformers raises the last two for a configuration that lacks something.
            raise InputError(str(error), field="generator", value=str(built.generator)) from error

    def _make(self) -> None:
        built = self.built
        names = tuple(f"<MEM{i}>" for i in range(built.memory_tokens))
        extra = (*names, AUTOENCODE, *([SEPARATOR] if built.separator else []))
        self.base_config = read_config(self._generator.config)
        _check_tokens(self._generator, self._generator.tokenizer(), self.base_config.vocab_size)
        self.tokenizer = self._generator.tokenizer(*extra)
        last = max(self.tokenizer.get_vocab(with_added_tokens=True).values())
        # Bases may have spare rows, which the new tokens take; the table never shrinks.
        self.rows = max(int(self.base_config.vocab_size), last + 1)
        config = resized(self.base_config, self.rows)
        self.kept: range = range(0)
        self.reading = self._compressor.tokenizer()
        read, own = self._compressor_half()
        _check_tokens(self._compressor, self.reading, int(read.vocab_size))
        self.configs = (read, config)
        most = int(config.max_position_embeddings)
        if built.positions > most:
            raise InputError(
                f"positions={built.positions}: the generator has {most}",
                field="positions",
                value=built.positions,
            )
        prompt = generator_prompt(self._generator, built.prompt)
        self.shape = CausalShape(
            own,
            GeneratorShape(
                before=prompt.before,
                between=prompt.between,
                after=prompt.after,
                strip=prompt.strip,
                memory=names,
                stop=self._generator.stop,
                passage_after=SEPARATOR if built.separator else "",
                positions=built.positions or most,
            ),
        )
        self.new_ids = sorted(self.id_of(name) for name in extra)
        self.texts  # noqa: B018  # built now: it refuses tokenizers that lack a token

    def _compressor_half(self) -> tuple[PretrainedConfig, CompressorShape | BertShape]:
        """Return the compressor's configuration and its shape; also sets which layers it keeps."""
        built = self.built
        if built.bert:
            if self._compressor.config.get("model_type") != "bert":
                kind = self._compressor.config.get("model_type")
                raise InputError(f"bert: model_type {kind!r} is no BERT encoder", field="bert")
            return BertConfig.from_dict(dict(self._compressor.config)), BertShape(
                memory_tokens=built.memory_tokens,
                query_tokens=built.query_tokens,
                passage_tokens=built.passage_tokens,
                mapping_size=built.mapping_size,
            )
        config = self.base_config
        if built.compressor:
            config = read_config(self._compressor.config)
        self.kept = self._layers(int(config.num_hidden_layers))
        layout = compressor_layout(built.layout, self.reading, own_layers=built.own_layers)
        return with_layers(config, self.kept), CompressorShape(
            layout=layout,
            query_tokens=built.query_tokens,
            text_tokens=built.passage_tokens + built.query_tokens + ROOM.get(layout, 8),
            memory_tokens=built.memory_tokens,
            memory_rows=built.memory_tokens,
            rerank=built.rerank,
            final_norm=not built.own_layers,
            mapping_size=0 if built.own_layers else built.mapping_size,
        )

    def _layers(self, layers: int) -> range:
        """Return which layers of a model the compressor runs.

        Raises:
            InputError: It has fewer.
        """
        built = self.built
        if built.layers > layers or built.every_nth > layers:
            name = "layers" if built.layers else "every_nth"
            value = getattr(built, name)
            raise InputError(
                f"{name}={value}: the generator has {layers} layers", field=name, value=value
            )
        if built.layers:
            return range(built.layers)
        return range(0, layers, built.every_nth or 1)

    @cached_property
    def texts(self) -> CausalTexts:
        """What both halves read, as serving makes it."""
        own = self.shape.compressor
        return CausalTexts(
            BertWindows(self.reading, own)
            if isinstance(own, BertShape)
            else CompressorTexts(self.reading, own),
            GeneratorTexts(self.tokenizer, self.shape.generator),
            self.shape,
        )

    def id_of(self, token: str) -> int:
        """Return the id of a token that the generator's tokenizer has."""
        number = self.tokenizer.token_to_id(token)
        assert number is not None
        return number

    @property
    def end(self) -> int:
        """The token that ends a label: the tokenizer's own, where answers may stop there."""
        stop = self.shape.generator.stop
        try:
            own = self.tokenizer.token_to_id(self._generator.special("eos_token"))
        except StoreError:  # it names none
            own = None
        return own if own in stop else stop[0]

    @property
    def start(self) -> list[int]:
        """The token that a text begins with, if there is one."""
        try:
            own = self.tokenizer.token_to_id(self._generator.special("bos_token"))
        except StoreError:
            own = None
        return [] if own is None else [own]

    @property
    def autoencode(self) -> int:
        """The token that asks for a piece of text to be said again."""
        return self.id_of(AUTOENCODE)

    @property
    def separator(self) -> list[int]:
        """The token after each passage's vectors, if there is one."""
        return [self.id_of(SEPARATOR)] if self.built.separator else []

    @property
    def licences(self) -> dict[str, str]:
        """Of the bases, as their cards say."""
        halves = {"generator": self._generator, "compressor": self._compressor}
        return {name: half.licence for name, half in halves.items()}

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """sha256 of each base's configuration, tokenizer and weights."""
        digests = {"generator": _digest(self._generator)}
        if self._compressor is not self._generator:
            digests["compressor"] = _digest(self._compressor)
        return digests

    def generator_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the generator's weights by transformers' names, its table not yet grown."""
        for name, tensor in self._generator.tensors():
            # A base without its head is written without this prefix.
            headed = name.startswith(("model.", "lm_head."))
            yield name if headed else f"model.{name}", tensor

    def compressor_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights of the compressor's backbone."""
        final = self.built.bert or not self.built.own_layers
        for name, tensor in self._compressor.tensors():
            short = name.removeprefix("bert." if self.built.bert else "model.")
            kept = short if self.built.bert else layer_name(short, self.kept)
            if kept is None or kept.startswith(("lm_head.", "cls.", "pooler.")):
                continue
            if kept != "embeddings.position_ids" and (final or kept != "norm.weight"):
                yield kept, tensor


def _open(path: Path, role: str) -> LanguageModel:
    try:
        model = LanguageModel(path, role)
        model.config  # noqa: B018  # read now, to refuse it now
    except StoreError as error:
        raise InputError(error.message, field=role, value=str(path)) from error
    return model


def _check_tokens(model: LanguageModel, tokenizer: Tokenizer, rows: int) -> None:
    """Refuse a tokenizer that is another model's.

    Raises:
        InputError: It has tokens that the network has no rows for.
    """
    last = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    if last >= rows:
        raise InputError(
            f"{model.role}: {model.path.name}/tokenizer.json has tokens up to {last}, and its "
            f"network {rows} rows: they don't match",
            field=model.role,
            value=last,
        )


def _digest(model: LanguageModel) -> str:
    digest = hashlib.sha256()
    weights = sorted(path.name for path in model.path.iterdir() if path.suffix in WEIGHTS)
    for name in ("config.json", "tokenizer.json", *weights):
        digest.update(name.encode())
        with (model.path / name).open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
