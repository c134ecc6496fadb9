"""A cross-encoder's card: its data, its command, its figures."""

from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from condensery.methods.rerank.recipe import RerankRecipe
from condensery.methods.rerank.sources import Sources
from condensery.methods.trainer.progress import read_log
from condensery.store.layouts import read_licence


def make_card(
    sources: Sources, base: Path, recipe: RerankRecipe, batches: int, command: str
) -> dict[str, Any]:
    """Say what a model was made from and how.

    Args:
        sources: Its data; only the names of files are told.
        base: What it started from.
        recipe: How it was trained.
        batches: Batches a step, of all processes.
        command: What made it.
    """
    return {
        "architecture": "BERT, sequence classification, one logit: relevance of a passage",
        "base": {"name": base.name, "licence": read_licence(base / "README.md")},
        "recipe": asdict(recipe),
        "batches_a_step": batches,
        "data": {
            "questions": [path.name for path in sources.questions],
            "retrieval_sets": [f"{path.name}:{split}" for path, split in sources.retrieval],
            "corpus": [path.name for path in sources.corpus],
            "kept_out": [f"{path.parent.name}/{path.name}" for path in sources.not_like],
            "licence": sources.licence,
        },
        "command": command,
        "seed": recipe.seed,
        "versions": {name: version(name) for name in ("condensery", "torch", "transformers")},
    }


def curve(out: Path) -> list[Mapping[str, Any]]:
    """Return the figures that were measured while it was trained."""
    return [
        {"step": row["step"], **row["validation"]} for row in read_log(out) if "validation" in row
    ]
