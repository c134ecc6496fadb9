"""What the two published layouts of OSCAR pairs have in common, and how any pair is written.

The layouts themselves are in ``cocom`` and ``pisco``.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from tokenizers import Tokenizer
from torch import Tensor
from transformers import PretrainedConfig

from condensery.errors import StoreError, shorten
from condensery.networks.adapters import Adapters
from condensery.networks.decoders import build, read_config, resized, with_layers
from condensery.networks.dtypes import dtype_name
from condensery.networks.oscar_causal import HALVES, CausalPair
from condensery.networks.oscar_causal_shape import CausalShape
from condensery.networks.oscar_loading import read_configs
from condensery.store.language_models import LanguageModel, named_directory
from condensery.store.pair_options import PairOptions
from condensery.store.refusals import (
    HalvesMismatch,
    MisshapenTensors,
    MissingTensors,
    UnknownTensors,
    listed,
)
from condensery.store.sharding import write_shards
from condensery.store.writing import name_of

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
SCALE = 2.0  # alpha is twice the rank wherever these were trained
SYSTEM = (
    "You are a helpful assistant. Your task is to extract relevant information from provided "
    "documents and to answer to questions as briefly as possible."
)
ADAPTER = re.compile(r"^(.+)\.lora_([AB])(?:\.[^.]+)?\.weight$")
QUESTION_ROOM = 64  # tokens, beside a passage's, where the question is read too
PREFIXES = ("base_model.model.", "custom_model.")

Named = Iterator[tuple[str, Tensor]]


@dataclass(frozen=True, slots=True)
class PublishedPair:
    """A published pair in our words; ``tensors`` are read as they are asked for.

    Attributes:
        shape: The pair's.
        configs: Of the compressor's backbone, with the layers it runs, and of the generator.
        tokenizers: In the same order.
        tensors: By the names that ``CausalPair`` has, adapters among them.
        ranks: Of the adapters that each half must have on every linear layer; 0 is none.
        notes: What was decided or ignored, one sentence each.
        files: Where the tensors are from, for messages: a file, or a base model's directory, by
            what their names begin with; adapters' by ``lora.`` and their half.
    """

    shape: CausalShape
    configs: tuple[dict[str, Any], dict[str, Any]]
    tokenizers: tuple[Tokenizer, Tokenizer]
    tensors: Named
    ranks: tuple[int, int] = (0, 0)
    notes: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)

    def place(self, name: str, *, adapter: bool = False) -> str:
        """Return a tensor's name with the file that has it, or should have it."""
        full_name = f"lora.{name}" if adapter else name
        prefix = max(
            (start for start in self.files if full_name.startswith(start)), key=len, default=""
        )
        return f"{self.files[prefix]}: {name}" if prefix else name


@dataclass(slots=True)
class Written:
    """What ``write_pair`` wrote: files by the name to store them under, and what they hold."""

    files: dict[str, Path] = field(default_factory=dict)
    parameters: int = 0
    dtypes: Counter[str] = field(default_factory=Counter)

    @property
    def dtype(self) -> str:
        """Of most weights."""
        return self.dtypes.most_common(1)[0][0]


def write_pair(pair: PublishedPair, directory: Path) -> Written:
    """Check a pair's weights against its networks, and write all of it as we store it.

    Raises:
        StoreError: A configuration is of no network that we can run.
        HalvesMismatch: The compressor's vectors are not what the generator reads.
        MissingTensors: Weights are missing; likewise UnknownTensors and MisshapenTensors.
    """
    try:
        configs = read_configs(pair.shape, *pair.configs)
    except ValueError as error:
        raise StoreError(str(error)) from error
    try:
        network = CausalPair(pair.shape, *configs)
    except ValueError as error:
        raise HalvesMismatch(str(error)) from error
    written = Written()
    tensors = _checked(pair, network, written)
    for number, (path, _) in enumerate(write_shards(tensors, directory), start=1):
        written.files[f"model-{number:05}.safetensors"] = path
    for half, config, tokenizer in zip(HALVES, configs, pair.tokenizers, strict=True):
        contents = {
            "config.json": json.dumps(config.to_dict(), indent=2, sort_keys=True),
            "tokenizer.json": tokenizer.to_str(),
        }
        for name, content in contents.items():
            path = directory / f"{half}-{name}"
            path.write_text(content, encoding="utf-8")
            written.files[f"{half}/{name}"] = path
    return written


def _checked(pair: PublishedPair, network: CausalPair, written: Written) -> Named:
    """Hand tensors on; after the last, say what was wrong with them."""
    expected = network.expected()
    adapters = {half: Adapters() for half in HALVES}
    misshapen, unknown = [], []
    for name, tensor in pair.tensors:
        if not bool(torch.isfinite(tensor).all()):
            where = pair.place(name, adapter=".lora_" in name)
            raise StoreError(f"{where}: holds values that are not finite")
        half, _, rest = name.partition(".")
        if not adapters[half].take(rest, tensor):
            shape = expected.pop(name, None)
            if shape is None:
                unknown.append(name)
            elif shape != tuple(tensor.shape):
                misshapen.append(f"{pair.place(name)} is {tuple(tensor.shape)}, not {shape}")
        written.parameters += tensor.numel()
        written.dtypes[dtype_name(tensor.dtype)] += tensor.numel()
        yield name, tensor
    missing = [pair.place(name) for name in expected]
    for half, rank in zip(HALVES, pair.ranks, strict=True):
        factors, module = adapters[half], network.get_submodule(half)
        missing += [
            pair.place(f"{half}.{layer}.lora_*", adapter=True)
            for layer in _lacking(factors, module, rank)
        ]
        misshapen += [
            pair.place(f"{half}.{problem}", adapter=True) for problem in factors.problems(module)
        ]
        misshapen += [
            pair.place(f"{half}.{layer}.lora_A", adapter=True)
            + f" has rank {len(down)}, not {rank}"
            for layer, down in factors.down.items()
            if len(down) != rank
        ]
    for kind, names in (
        (MisshapenTensors, misshapen),
        (
            UnknownTensors,
            [f"{pair.place(name)}: the network has no place for it" for name in unknown],
        ),
        (MissingTensors, [f"{name} is missing" for name in missing]),
    ):
        if names:
            raise kind(f"the checkpoint does not fit its network: {listed(names)}")


def _lacking(adapters: Adapters, module: torch.nn.Module, rank: int) -> list[str]:
    """Return the layers that should have an adapter and have not: all linear ones, or none."""
    if not rank:
        return []
    return [
        name
        for name, layer in module.named_modules()
        if isinstance(layer, torch.nn.Linear)
        and ".layers." in f".{name}"
        and name not in adapters.layers
    ]


def base_of(
    path: Path | None, config: Mapping[str, Any], key: str, field: str, directory: Path
) -> LanguageModel:
    """Find a base model's directory: the one of the flag, or the one the layout names.

    Args:
        path: By the import's flag, or None.
        config: The layout's ``config.json``.
        key: Of it, names the base model.
        field: The flag's, and what the base is for.
        directory: The layout's.

    Raises:
        StoreError: Neither is there.
    """
    path = path or named_directory(config.get(key), directory)
    if path is None:
        raise StoreError(
            f"{name_of(directory / 'config.json')}: {key} {shorten(config.get(key))} is a base "
            "model that is neither in the directory nor beside it, and nothing is downloaded: "
            f"name its own directory by --{field.replace('_', '-')}",
            field=field,
            value=config.get(key),
        )
    return LanguageModel(path, field)


def positive(file: Path, config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """Return a positive integer of what ``file`` holds; raises StoreError if it is none."""
    value = config.get(name, default)
    if type(value) is not int or value < 1:  # True is an int too
        raise StoreError(f"{name_of(file)}: {name} {shorten(value)} is no positive integer")
    return value


def lengths(options: PairOptions, passage: int) -> tuple[int, int]:
    """Return the longest question and passage together, and the longest question, tokens.

    Args:
        options: The import's; its ``max_length`` means this of every layout.
        passage: Tokens of a passage that the layout was trained on.
    """
    length = options.max_length or passage + (QUESTION_ROOM if options.asks else 0)
    return length, min(QUESTION_ROOM, max(1, length // 3))


def plain(name: str) -> str:
    """Return a weight's name without what wrapped its network: PEFT, or a trimmed model."""
    while prefix := next((p for p in PREFIXES if name.startswith(p)), None):
        name = name.removeprefix(prefix)
    return name


def adapters_of(
    content: Iterable[tuple[str, Any]], file: str, prefix: str, *, model: bool
) -> Named:
    """Yield adapters by our names, whatever their adapter was called.

    Args:
        content: A file's tensors.
        file: Its name.
        prefix: Of the network they adapt.
        model: Whether that network's names begin with ``model.``.

    Raises:
        UnknownTensors: A tensor is no adapter's.
    """
    for name, tensor in content:
        match = ADAPTER.match(plain(name))
        if match is None:
            raise UnknownTensors(f"{file}: {name}: is no adapter's tensor")
        layer = match[1] if model else match[1].removeprefix("model.")
        yield f"{prefix}{layer}.lora_{match[2]}", tensor


def renamed(tensors: Iterable[tuple[str, Tensor]]) -> Named:
    """Yield a compressor's weights by our names; its head, if it has one, is left out."""
    for name, tensor in tensors:
        short = plain(name).removeprefix("model.")
        if short != HEAD:
            yield f"compressor.backbone.{short}", tensor


def generator_tensors(
    base: LanguageModel, ends: dict[str, Tensor], file: str, *, tied: bool
) -> Named:
    """Yield the generator's weights: its base's, but for both ends, which were trained.

    Args:
        base: Its base model.
        ends: Embeddings and head.
        file: That has them.
        tied: Whether the head is the embeddings.

    Raises:
        MissingTensors: The head is not tied to the embeddings, and not among the ends.
    """
    for name in (EMBED,) if tied else (EMBED, HEAD):
        if name not in ends:
            raise MissingTensors(
                f"{file}: {name} is missing: the vocabulary has grown, and it with it"
            )
        yield f"generator.network.{name}", ends[name]
    for name, tensor in base.tensors():
        if name not in (EMBED, HEAD):
            yield f"generator.network.{name}", tensor


def chain(*streams: Named) -> Named:
    """Yield what each stream has, in turn."""
    for stream in streams:
        yield from stream


def vocabulary(
    config: dict[str, Any], file: Path, rows: int, tokenizer: Tokenizer, what: str
) -> dict[str, Any]:
    """Return a configuration for a table of so many rows, which its tokenizer must fit.

    Args:
        config: The base model's.
        file: Its ``config.json``.
        rows: Of the table.
        tokenizer: With the tokens that were added.
        what: Which file has the table, and whose it is.

    Raises:
        MisshapenTensors: The tokenizer has another number of tokens.
        StoreError: The configuration is of no causal language model.
    """
    tokens = tokenizer.get_vocab_size(with_added_tokens=True)
    if rows != tokens:
        raise MisshapenTensors(
            f"{what} has {rows} rows, and its tokenizer {tokens} tokens with the added ones"
        )
    values: dict[str, Any] = resized(configuration(config, file), rows).to_dict()
    return values


def configuration(
    values: Mapping[str, Any],
    file: Path,
    kept: Callable[[int], Sequence[int]] | None = None,
) -> PretrainedConfig:
    """Make a causal language model's configuration.

    Args:
        values: Its ``config.json``.
        file: Which that is, for messages.
        kept: Which layers are left, by how many there are; None is all.

    Raises:
        StoreError: It is of no causal language model that we can run, or has no such layers.
    """
    try:
        config = read_config(values)
        return with_layers(config, (kept or range)(config.num_hidden_layers))
    except (ValueError, TypeError, AttributeError, StrictDataclassError) as error:
        raise StoreError(f"{name_of(file)}: {error}") from error


def is_tied(config: dict[str, Any]) -> bool:
    """Tell whether a network's head is its embedding table."""
    model = build(read_config(config))
    return model.get_output_embeddings().weight is model.get_input_embeddings().weight
