"""A stored causal pair's files, as networks and texts that run."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from tokenizers import Tokenizer
from torch import Tensor

from condensery.networks.accounting import CausalPairCost, DecoderShape
from condensery.networks.decoders import read_config
from condensery.networks.oscar_causal import CPU, HALVES, CausalPair
from condensery.networks.oscar_causal_shape import FAMILY, CausalShape
from condensery.networks.oscar_texts import CausalTexts, CompressorTexts, GeneratorTexts


def is_causal(shape: Mapping[str, Any]) -> bool:
    """Tell whether a manifest's ``shape`` is of a pair of causal language models."""
    return shape.get("family") == FAMILY


def open_texts(directory: Path, shape: CausalShape) -> CausalTexts:
    """Read both tokenizers.

    Raises:
        ValueError: One is missing, can't be read, or is not the shape's.
    """
    compressor, generator = (_tokenizer(directory / half / "tokenizer.json") for half in HALVES)
    return CausalTexts(
        CompressorTexts(compressor, shape.compressor),
        GeneratorTexts(generator, shape.generator),
        shape,
    )


def open_networks(
    directory: Path,
    shape: CausalShape,
    tensors: Iterable[tuple[str, Tensor]],
    *,
    compressor: torch.device = CPU,
    generator: torch.device = CPU,
    dtype: torch.dtype = torch.float32,
) -> CausalPair:
    """Build both halves and fill them, one tensor at a time.

    Args:
        directory: The stored model's.
        shape: Of its manifest.
        tensors: By name, in any order, adapters among them.
        compressor: Where that half is to run.
        generator: Where the other is.
        dtype: What to compute in.

    Raises:
        ValueError: A configuration or the weights are not the shape's.
    """
    values = [json.loads((directory / half / "config.json").read_bytes()) for half in HALVES]
    try:
        configs = [read_config(config) for config in values]
    except (TypeError, AttributeError, StrictDataclassError) as error:
        raise ValueError(f"config.json: {error}") from error
    pair = CausalPair(shape, *configs)
    return pair.load(tensors, compressor=compressor, generator=generator, dtype=dtype)


def cost_of(pair: CausalPair) -> CausalPairCost:
    """Return what a pair costs, from its dimensions.

    Raises:
        ValueError: A dimension is missing from its configuration.
    """
    backbone, network = pair.compressor.backbone, pair.generator.network
    shape = pair.shape.compressor
    return CausalPairCost.of(
        DecoderShape.from_config(backbone.config.to_dict()),
        DecoderShape.from_config(network.config.to_dict()),
        memory_tokens=shape.memory_tokens,
        memory_rate=shape.memory_rate,
        mapping_size=shape.mapping_size,
        rerank=shape.rerank,
        specials=3 if shape.layout == "pair" else 8,
    )


def _tokenizer(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:  # tokenizers raises nothing more precise
        raise ValueError(f"{path.parent.name}/tokenizer.json: {error}") from error
