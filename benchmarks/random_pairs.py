"""Halves of pairs with random weights, of any size, made where they run.

Imports no more than torch and transformers: GPU machines may have nothing else.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, MistralConfig, PretrainedConfig

from condensery.networks.accounting import DecoderShape
from condensery.networks.decoders import build, fill_buffers, headless, put
from condensery.networks.linear import prepack_linears
from condensery.networks.oscar_causal import CausalGenerator
from condensery.networks.oscar_causal_compressor import CausalCompressor
from condensery.networks.oscar_causal_shape import CompressorShape
from condensery.networks.oscar_interface import PassageWindow

MEMORY = 8
STANDARD_DEVIATION = 0.02


def config_of(shape: DecoderShape, kind: type[PretrainedConfig] = LlamaConfig) -> PretrainedConfig:
    """Return the configuration of a model of these dimensions."""
    extra = {"sliding_window": None} if kind is MistralConfig else {}
    return kind(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.mlp_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        head_dim=shape.head_size,
        max_position_embeddings=4096,
        tie_word_embeddings=shape.tied,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
        **extra,
    )


def fill(module: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    """Give each parameter random weights, norms 1, one at a time; what is tied stays tied."""
    source = torch.Generator(device).manual_seed(0)
    for name, weight in list(module.named_parameters()):
        if "norm" in name:
            made = torch.ones(weight.shape, dtype=dtype, device=device)
        else:
            made = torch.empty(weight.shape, dtype=dtype, device=device)
            made.normal_(0.0, STANDARD_DEVIATION, generator=source)
        put(module, name, made)


def random_generator(
    config: PretrainedConfig, device: torch.device, dtype: torch.dtype
) -> CausalGenerator:
    """Make a generator."""
    network = build(config)
    fill(network, device, dtype)
    network.tie_weights()
    fill_buffers(network, device)
    return CausalGenerator(network).eval()


def random_compressor(
    config: PretrainedConfig,
    written: int,
    device: torch.device,
    dtype: torch.dtype,
    *,
    mapping: int = 0,
    final_norm: bool = True,
) -> CausalCompressor:
    """Make a compressor of 8 memory tokens, without a rerank head, for generators so wide."""
    shape = CompressorShape(
        *("pair", 512), query_tokens=128, mapping_size=mapping, final_norm=final_norm
    )
    backbone = headless(build(config), final_norm=final_norm)
    with torch.device("meta"):
        half = CausalCompressor(backbone, shape, written)
    fill(half, device, dtype)
    fill_buffers(half.backbone, device)
    half.make_ready()
    prepack_linears(half)
    return half.eval()


def reading_of(question: Sequence[int], passage: Sequence[int], vocabulary: int) -> PassageWindow:
    """Return a reading of these tokens, taken into a vocabulary."""
    ids = [token % vocabulary for token in (*question, *passage)]
    return PassageWindow(ids, len(question), 0, MEMORY, 0, 0)


@torch.inference_mode()
def compress_all(compressor: Any, readings: Sequence[PassageWindow], most: int) -> list[Tensor]:
    """Compress readings in forward passes of at most ``most`` positions; vectors of each."""
    memories: list[Tensor] = []
    batch: list[PassageWindow] = []
    taken = 0
    for reading in readings:
        cost = compressor.cost(reading)
        if batch and taken + cost > most:
            memories += compressor.compress(batch).split()
            batch, taken = [], 0
        batch.append(reading)
        taken += cost
    return memories + list(compressor.compress(batch).split())
