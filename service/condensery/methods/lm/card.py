"""A language model's card: its data, its command, its figures."""

from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from condensery.methods.lm.documents import Texts
from condensery.methods.lm.model import LmShape
from condensery.methods.lm.recipe import LmRecipe
from condensery.methods.lm.text import Stream
from condensery.methods.trainer.progress import read_log


def make_card(
    texts: Texts,
    recipe: LmRecipe,
    shape: LmShape,
    stream: Stream,
    documents: tuple[int, int],
    processes: int,
    command: str,
) -> dict[str, Any]:
    """Say what a model was made from and how.

    Args:
        texts: Its files; only their names are told.
        recipe: How it was trained.
        shape: Its dimensions.
        stream: The text it was trained on.
        documents: How many it was trained on, and measured on.
        processes: How many trained it.
        command: What made it.
    """
    batches = recipe.accumulate * processes
    return {
        "architecture": "Llama, causal language model",
        "recipe": asdict(recipe),
        "batches_a_step": batches,
        "data": {
            "train": [path.name for path in texts.train],
            "held_out": [path.name for path in texts.held_out]
            or f"{recipe.held_out:.1%} of the documents, by seed",
            "without": [f"{name}={value}" for name, value in texts.without],
            "not_like": [path.name for path in texts.not_like],
            "licence": texts.licence,
            "documents": documents[0],
            "held_out_documents": documents[1],
            "bytes": stream.size,
            "tokens": len(stream.ids),
            "tokens_seen": recipe.steps * recipe.rows * batches * shape.length,
        },
        "command": command,
        "seed": recipe.seed,
        "versions": {name: version(name) for name in ("condensery", "torch", "transformers")},
    }


def figures(out: Path, held_out: dict[str, float]) -> dict[str, Any]:
    """Return the figures on held-out text, with those of each checkpoint."""
    told = [row for row in read_log(out) if "validation" in row]
    return {
        "held_out": held_out,
        "while_training": [{"step": row["step"], **row["validation"]} for row in told],
    }
