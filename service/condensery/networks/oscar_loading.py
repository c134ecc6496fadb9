"""A stored pair's files, as networks and texts that run.

A manifest's shape with a ``family`` is of a pair whose generator is a causal language model, and
whose compressor is of that family (``oscar_families``); without one, of a pair that shares the word
table of its base, which ``runtime.oscar_pair`` loads.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from tokenizers import Tokenizer
from torch import Tensor
from transformers import PretrainedConfig

from condensery.networks.accounting import InferenceCosts, PairCost
from condensery.networks.decoders import read_config
from condensery.networks.oscar import OscarPair
from condensery.networks.oscar_bert import BertTexts
from condensery.networks.oscar_causal import CPU, HALVES, CausalPair
from condensery.networks.oscar_causal_shape import CausalShape
from condensery.networks.oscar_families import COMPRESSORS, bert_sizes, decoder_shape
from condensery.networks.oscar_interface import PairTexts
from condensery.networks.oscar_shape import OscarShape
from condensery.networks.oscar_texts import CausalTexts, GeneratorTexts
from condensery.networks.quantised import EncoderWeights, Weights


def read_shape(values: Mapping[str, Any]) -> OscarShape | CausalShape:
    """Read a manifest's ``shape``, of any kind of pair.

    Raises:
        ValueError: A name is unknown or missing, or a value is of the wrong kind.
    """
    if "family" in values:
        return CausalShape.from_dict(values)
    try:
        return OscarShape.from_dict(values)
    except TypeError as error:  # an unknown name
        raise ValueError(f"OscarShape: {error}") from error


def open_texts(directory: Path, shape: Mapping[str, Any]) -> PairTexts:
    """Read a pair's tokenizers.

    Args:
        directory: The stored model's.
        shape: Of its manifest, any kind of pair.

    Raises:
        ValueError: The shape is none, or a tokenizer is missing, can't be read, is not the
            shape's, or has other tokens than the network has rows for.
    """
    read = read_shape(shape)
    if isinstance(read, OscarShape):
        return BertTexts(_tokenizer(directory), read)
    compressor, generator = (_tokenizer(directory / half) for half in HALVES)
    windows = COMPRESSORS[read.family].windows(compressor, read.compressor)
    return CausalTexts(windows, GeneratorTexts(generator, read.generator), read)


def open_networks(
    directory: Path,
    shape: Mapping[str, Any],
    tensors: Iterable[tuple[str, Tensor]],
    *,
    compressor: torch.device = CPU,
    generator: torch.device = CPU,
    dtype: torch.dtype = torch.float32,
    weights: Weights = "float",
    compressor_weights: EncoderWeights = "float",
    generates: bool = True,
) -> CausalPair:
    """Build both halves and fill them, one tensor at a time.

    Args:
        directory: The stored model's.
        shape: Of its manifest.
        tensors: By name, in any order, adapters among them.
        compressor: Where that half is to run.
        generator: Where the other is.
        dtype: What to compute in.
        weights: What the generator's are held as.
        compressor_weights: And the compressor's.
        generates: Whether the generator is to generate here (``CausalPair.load``).

    Raises:
        ValueError: The shape is none with a family, or a configuration or the weights are not
            the shape's.
    """
    read = CausalShape.from_dict(shape)
    values = [_json(directory / half / "config.json") for half in HALVES]
    pair = CausalPair(read, *read_configs(read, *values))
    devices = {"compressor": compressor, "generator": generator}
    return pair.load(
        tensors,
        dtype=dtype,
        weights=weights,
        compressor_weights=compressor_weights,
        generates=generates,
        **devices,
    )


def read_configs(
    shape: CausalShape, compressor: Mapping[str, Any], generator: Mapping[str, Any]
) -> tuple[PretrainedConfig, PretrainedConfig]:
    """Make both halves' configurations of what their ``config.json`` hold.

    Raises:
        ValueError: One is of no model that its half can be; the half is named.
    """
    readers = (COMPRESSORS[shape.family].read_config, read_config)
    configs: list[PretrainedConfig] = []
    for half, read, values in zip(HALVES, readers, (compressor, generator), strict=True):
        try:
            configs.append(read(values))
        except (ValueError, TypeError, AttributeError, StrictDataclassError) as error:
            raise ValueError(f"{half}/config.json: {error}") from error
    return configs[0], configs[1]


def cost_of(pair: OscarPair | CausalPair) -> InferenceCosts:
    """Return what a pair costs, from its dimensions.

    Raises:
        ValueError: A dimension is missing from its configuration.
    """
    if isinstance(pair, OscarPair):
        return PairCost.of(
            pair.shape, **bert_sizes(pair.compressor), vocabulary=len(pair.generator.words)
        )
    count = COMPRESSORS[pair.shape.family].cost
    return count(pair.compressor, decoder_shape(pair.generator.network.config))


def _json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path.parent.name}/{path.name}: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path.parent.name}/{path.name}: holds no object")
    return values


def _tokenizer(directory: Path) -> Tokenizer:
    """Read a tokenizer, neither cutting nor padding, whose tokens the network beside it knows."""
    path = directory / "tokenizer.json"
    name = f"{directory.name}/{path.name}"
    try:
        tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:  # tokenizers raises nothing more precise
        raise ValueError(f"{name}: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    rows = _json(directory / "config.json").get("vocab_size")
    last = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    if type(rows) is not int or last >= rows:
        raise ValueError(f"{name}: has tokens up to {last}, and its network {rows} rows")
    return tokenizer
