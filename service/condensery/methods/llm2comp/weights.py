"""What training makes of a base: memory tokens, adapters, perhaps its embedding table."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from condensery.errors import InputError
from condensery.methods.trainer.publishing import CARD_FIGURES, MODEL
from condensery.networks.adapters import DOWN, UP, Adapters
from condensery.networks.llm2comp import ROWS

WEIGHTS = "weights.safetensors"


@dataclass(frozen=True, slots=True)
class MemoryWeights:
    """What a training made of a base.

    Attributes:
        memory: Embeddings of the memory tokens, (k, hidden).
        adapters: By the base model's layers: ``layers.0.self_attn.q_proj``.
        table: The embedding table, (vocabulary, hidden), if it was trained too.
    """

    memory: Tensor
    adapters: Adapters = field(default_factory=Adapters)
    table: Tensor | None = None

    def tensors(self, table: str) -> dict[str, Tensor]:
        """Return all of it by the names it is stored under; ``table`` is the table's."""
        tensors = {ROWS: self.memory}
        tensors |= {f"{layer}{DOWN}": factor for layer, factor in self.adapters.down.items()}
        tensors |= {f"{layer}{UP}": factor for layer, factor in self.adapters.up.items()}
        return tensors if self.table is None else {**tensors, table: self.table}


@dataclass(frozen=True, slots=True)
class StageResult:
    """A stage that is done, as its run's ``model`` folder holds it.

    Attributes:
        weights: What was trained, all earlier stages included.
        scale: What its adapters' products are scaled by.
        card: What ``card.json`` says.
    """

    weights: MemoryWeights
    scale: float
    card: Mapping[str, Any]


def stacked(earlier: Adapters, later: Adapters, ratio: float) -> Adapters:
    """Return adapters whose products are the sums of both's.

    Stages each train an adapter of their own over the earlier ones; beside a base they are one,
    of the ranks' sum: ``[up1 up2] @ [down1; down2]``.

    Args:
        earlier: Of the stages before.
        later: Of the last.
        ratio: The earlier scale over the later one, which the result has.
    """
    down, up = dict(later.down), dict(later.up)
    for layer in earlier.layers:
        first_down, first_up = earlier.down[layer], ratio * earlier.up[layer]
        if layer in later.layers:
            down[layer] = torch.cat([first_down, down[layer]])
            up[layer] = torch.cat([first_up, up[layer]], dim=1)
        else:
            down[layer], up[layer] = first_down, first_up
    return Adapters(down, up)


def save_weights(folder: Path, weights: MemoryWeights, table: str) -> None:
    """Write what was trained as ``weights.safetensors``; ``table`` is the table's name."""
    content = {n: t.detach().cpu().contiguous() for n, t in weights.tensors(table).items()}
    save_file(content, folder / WEIGHTS, metadata={"format": "pt"})


def load_stage(run: Path) -> StageResult:
    """Read what a finished stage wrote.

    Args:
        run: Its folder.

    Raises:
        InputError: It is not finished, or its files can't be read.
    """
    folder = run / MODEL
    try:
        card = json.loads((folder / CARD_FIGURES).read_text(encoding="utf-8"))
        tensors = load_file(folder / WEIGHTS)
        scale = float(card["scale"])
        memory = tensors.pop(ROWS)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise InputError(
            f"start: {run} is no finished stage of LLM2Comp: {error}", field="start", value=str(run)
        ) from error
    adapters = Adapters()
    rest = {name: tensor for name, tensor in tensors.items() if not adapters.take(name, tensor)}
    if len(rest) > 1:
        raise InputError(f"start: {folder / WEIGHTS} holds {min(rest)}", field="start")
    table = next(iter(rest.values()), None)
    return StageResult(MemoryWeights(memory, adapters, table), scale, card)
