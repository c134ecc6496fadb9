"""Tiny networks of experts: made by converting, kept by head, written as they are stored."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from condensery.networks.shrp import Experts, convert_layer

Heads = tuple[tuple[int, ...] | None, ...]


def to_experts(model: PreTrainedModel, heads: Heads) -> PreTrainedModel:
    """Convert layers and keep these heads of each; every value of theirs then matters."""
    base: Any = model.base_model
    generator = torch.Generator().manual_seed(5)
    for number, kept in enumerate(heads):
        if kept is None:
            continue
        layer = convert_layer(base, number)
        with torch.no_grad():
            for parameter in layer.parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.add_(noise * (0.25 if parameter.ndim == 2 else 0.2))
        layer.keep(kept)
    model.eval()
    return model


def write_experts(folder: Path, model: PreTrainedModel, heads: Heads) -> Path:
    """Write a converted model's weights and configuration into a directory."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    config = model.config.to_dict() | Experts(heads).to_config()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@torch.inference_mode()
def padded(model: PreTrainedModel, texts: list[list[int]], types: list[list[int]] | None) -> Any:
    """Run sequences in one padded batch with a mask, as transformers does."""
    length, empty = max(map(len, texts)), model.config.pad_token_id

    def row(values: list[int], fill: int) -> list[int]:
        return values + [fill] * (length - len(values))

    inputs: dict[str, Tensor] = {
        "input_ids": torch.tensor([row(ids, empty) for ids in texts]),
        "attention_mask": torch.tensor([row([1] * len(ids), 0) for ids in texts]),
    }
    if types is not None:
        inputs["token_type_ids"] = torch.tensor([row(text_types, 0) for text_types in types])
    return model(**inputs)
