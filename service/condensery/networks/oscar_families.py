"""What compressors a causal pair may have: of each family its shape, network, texts and cost.

A manifest's ``shape`` names its ``family``. Another one is a row of ``FAMILIES``
(``oscar_causal_shape``) and one of ``COMPRESSORS``; ``building.register_method`` adds both.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import BertConfig, PretrainedConfig

from condensery.networks.accounting import CausalPairCost, DecoderShape, InferenceCosts, PairCost
from condensery.networks.decoders import build, headless, read_config
from condensery.networks.last_layer import trims
from condensery.networks.oscar_bert import BertHalf, BertWindows
from condensery.networks.oscar_causal_compressor import CausalCompressor
from condensery.networks.oscar_causal_shape import FAMILIES, CompressorShape
from condensery.networks.oscar_compressor import Compressor
from condensery.networks.oscar_shape import BertShape
from condensery.networks.oscar_texts import CompressorTexts


@dataclass(frozen=True, slots=True)
class CompressorFamily:
    """How a family's compressors are read, built, fed and counted.

    A family of its own has classes that extend these: a shape with more fields, say, and a network
    that computes otherwise.

    Attributes:
        shape: The block ``compressor`` of the manifest's shape.
        read_config: Makes a configuration of what its ``config.json`` holds; raises ValueError.
        build: Makes the network, its weights on ``meta``, of a configuration, a shape and the
            generator's hidden size; raises ValueError.
        windows: Makes what cuts questions and passages, of a tokenizer and a shape.
        cost: Counts a pair's FLOPs, of the network and the generator's dimensions.
    """

    shape: type[CompressorShape] | type[BertShape]
    read_config: Callable[[Mapping[str, Any]], PretrainedConfig]
    build: Callable[[PretrainedConfig, Any, int], CausalCompressor | BertHalf]
    windows: Callable[[Tokenizer, Any], CompressorTexts | BertWindows]
    cost: Callable[[Any, DecoderShape], InferenceCosts]


def decoder_shape(config: PretrainedConfig) -> DecoderShape:
    """Return a decoder's dimensions, for its cost.

    Raises:
        ValueError: One is missing from its configuration.
    """
    return DecoderShape.from_config(config.to_dict(), trimmed=trims(config.model_type))


def bert_sizes(compressor: Compressor) -> dict[str, int]:
    """Return a BERT-size compressor's dimensions, for its cost."""
    config = compressor.backbone.config
    return {
        "hidden_size": config.hidden_size,
        "mlp_size": config.intermediate_size,
        "layers": config.num_hidden_layers,
    }


def build_causal(
    config: PretrainedConfig, shape: CompressorShape, generator_width: int
) -> CausalCompressor:
    """Build a compressor that is a causal language model, its weights still nowhere."""
    backbone = headless(build(config), final_norm=shape.final_norm)
    with torch.device("meta"):
        return CausalCompressor(backbone, shape, generator_width)


def count_causal(compressor: CausalCompressor, generator: DecoderShape) -> InferenceCosts:
    """Count what a pair of causal language models costs."""
    shape = compressor.shape
    return CausalPairCost.of(
        decoder_shape(compressor.backbone.config),
        generator,
        memory_tokens=shape.memory_tokens,
        memory_rate=shape.memory_rate,
        mapping_size=shape.mapping_size,
        rerank=shape.rerank,
        specials=shape.specials,
        question=shape.question,
    )


def read_bert(values: Mapping[str, Any]) -> PretrainedConfig:
    """Read a BERT encoder's configuration; raises ValueError for another's."""
    kind = values.get("model_type")
    if kind != "bert":
        raise ValueError(f"model_type {kind!r} is no BERT encoder")
    return BertConfig.from_dict(dict(values))


def build_bert(config: PretrainedConfig, shape: BertShape, generator_width: int) -> BertHalf:
    """Build a BERT-size compressor, its weights still nowhere."""
    if not isinstance(config, BertConfig) or config.is_decoder:
        raise ValueError(
            f"halves that don't match: a {config.model_type!r} model is no BERT encoder"
        )
    with torch.device("meta"):
        return BertHalf(deepcopy(config), shape, generator_width)


def count_bert(compressor: BertHalf, generator: DecoderShape) -> InferenceCosts:
    """Count what a pair with a BERT-size compressor beside a causal language model costs."""
    return PairCost.beside(compressor.shape, generator, **bert_sizes(compressor))


COMPRESSORS: dict[str, CompressorFamily] = {
    "causal": CompressorFamily(
        FAMILIES["causal"], read_config, build_causal, CompressorTexts, count_causal
    ),
    "bert-causal": CompressorFamily(
        FAMILIES["bert-causal"], read_bert, build_bert, BertWindows, count_bert
    ),
}
