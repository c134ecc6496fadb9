"""Rows to train tiny pairs of causal language models on, and what stands in for training."""

import json
from pathlib import Path
from typing import Any

import torch

from condensery.methods.trainer.method import learning_state
from condensery.networks.oscar_causal import CausalPair

NAMES = ["Anna", "Bert", "Cora", "Dora", "Emil", "Fritz", "Gerda", "Hanna", "Ida", "Jonas"]


def some_rows(count: int, *, scores: bool = True) -> list[dict[str, Any]]:
    """Write questions whose answer their passages alone tell: every fifth asks the same."""
    rows: list[dict[str, Any]] = []
    for i in range(count):
        person, town, other = NAMES[i % 5], NAMES[(3 * i + i // 5) % 10], NAMES[(i + 3) % 10]
        gold = f"{person} lives by the river of {town}."
        others = [f"The mill stands by bridge {i + 7}.", f"{other} lived in the old market {i}."]
        passages = [*others[: i % 3], gold, *others[i % 3 :]]
        row: dict[str, Any] = {
            "question": f"Where does {person} live?",
            "passages": passages,
            "answers": [town],
            "label": town,
        }
        if scores:
            row["scores"] = [4.0 if text == gold else -3.5 + i % 2 / 2 for text in passages]
        rows.append(row)
    return rows


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def disturb(pair: CausalPair, seed: int = 7) -> None:
    """Move every weight that learns, adapters among them, as training would."""
    source = torch.Generator().manual_seed(seed)
    for weight in learning_state(pair).values():
        size = weight.std(correction=0).clamp_min(0.1)
        weight.add_(0.2 * size * torch.randn(weight.shape, generator=source))
