"""The card of a pair of causal language models: what it is, what it was made from, and how."""

import json
from collections.abc import Sequence
from typing import Any

from condensery.networks.oscar_causal_shape import CausalShape

NAMES = {
    "label": "cross-entropy of held-out labels, nats a token",
    "rerank": "mean squared error of the relevance",
    "first": "questions whose best passage is the teacher's too",
    "em": "exact match with the given answers, %",
    "f1": "F1 with them, %",
}


def card(
    name: str,
    told: dict[str, Any],
    shape: CausalShape,
    *,
    licence: str,
    notes: Sequence[str],
    measured: Sequence[str] = (),
) -> str:
    """Write the card as Markdown.

    Args:
        name: The pair's.
        told: What ``publishing.told_of`` gives.
        shape: As published.
        licence: Of its weights.
        notes: What else to say, one sentence each.
        measured: Lines of a report.
    """
    own, figures, data = shape.compressor, told["figures"], told["data"]
    scores = "and a relevance score " if own.rerank and not notes else ""
    rows = [f"| {says} | {figures[key]:.3f} |" for key, says in NAMES.items() if key in figures]
    table = ["| held-out rows, at the last checkpoint | |", "|---|---|", *rows, ""] if rows else []
    counts = {k: v for k, v in data.items() if isinstance(v, int | dict)}
    before, begun = [], told["begun"]
    if begun:
        said = f"{', '.join(begun['data']['files'])} ({begun['data']['licence']})"
        before = [f"- before that, {begun['stage']}: {said}, {begun['step']} steps"]
    return "\n".join(
        [
            f"# {name}",
            "",
            "An OSCAR pair (arXiv:2504.07109): a compressor turns a question with a passage into",
            f"{own.vectors[0]} vectors {scores}in one forward pass; a causal language model",
            "answers from the vectors.",
            "",
            *table,
            *(f"{note}\n" for note in notes),
            *measured,
            "## What it was made from",
            "",
            *(f"- {half}: {base}" for half, base in told["bases"].items()),
            f"- data: {', '.join(data['files'])} ({data['licence']}); {json.dumps(counts)}",
            *before,
            "",
            f"{told['steps_done']} steps, seed {told['recipe']['seed']}:",
            "",
            f"    {told['command']}",
            "",
            "## Licence",
            "",
            licence,
            "",
        ]
    )
