"""Tiny memory encoders in training, and plain computations of what they are to compute."""

from pathlib import Path
from typing import Any

import torch
from tiny_memory import write_language_model
from torch import Tensor
from transformers import AutoModel, AutoModelForCausalLM

from condensery.methods.llm2comp.network import MemoryNetwork, open_base
from condensery.methods.llm2comp.recipe import NetworkShape
from condensery.methods.llm2comp.weights import MemoryWeights
from condensery.networks.weight_files import ModelFolder

K = 3
LENGTHS = (30, 24, 50)
SPLITS = (12, 10, 31)


def token_rows(lengths: tuple[int, ...] = LENGTHS, start: int | None = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(5)
    rows = [torch.randint(5, 60, (n,), generator=generator).tolist() for n in lengths]
    return [row if start is None else [start, *row[1:]] for row in rows]


def tiny_network(
    folder: Path,
    kind: str = "llama",
    *,
    start: int | None = 0,
    dtype: torch.dtype = torch.float32,
    moved: bool = True,
    shape: NetworkShape | None = None,
    **how: Any,
) -> MemoryNetwork:
    """Build a network over a tiny base in ``folder``; adapters and words moved from their start."""
    if not (folder / "config.json").exists():
        write_language_model(folder, kind)
    shape = shape or NetworkShape(memory_tokens=K, lora_rank=2, lora_alpha=4, lora_dropout=0.0)
    base = open_base(ModelFolder.of(folder), dtype=dtype)
    network = MemoryNetwork(base, shape, start, **how)
    network.backbone.set_attn_implementation("eager")
    generator = torch.Generator().manual_seed(9)
    for name, parameter in network.named_parameters():
        if moved and parameter.requires_grad and (".lora_B." in name or name == "words"):
            parameter.data.add_(torch.randn(parameter.shape, generator=generator).to(dtype) * 0.2)
    return network.eval()


def plain_encoder(folder: Path, weights: MemoryWeights, scale: float = 2.0) -> Any:
    """Return transformers' base model of a directory, adapters and memory rows written into it."""
    model: Any = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    table = model.get_input_embeddings().weight.data if weights.table is None else weights.table
    whole = torch.cat([table, weights.memory])
    model.set_input_embeddings(torch.nn.Embedding.from_pretrained(whole))
    for layer, down in weights.adapters.down.items():
        model.get_submodule(layer).weight.data += scale * weights.adapters.up[layer] @ down
    return model


def plain_memory(encoder: Any, ids: list[int], k: int = K) -> Tensor:
    """Return one text's memory states (k, hidden), unpadded, under a mask that hides nothing."""
    first = len(encoder.get_input_embeddings().weight) - k
    whole = torch.tensor([[*ids, *range(first, first + k)]])
    mask = torch.zeros(1, 1, whole.shape[1], whole.shape[1])
    return encoder(input_ids=whole, attention_mask=mask).last_hidden_state[0, -k:]


def plain_reader(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
