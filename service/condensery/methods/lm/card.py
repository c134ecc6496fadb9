"""A language model's card: what it was made from and how, its figures, and both for people."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from condensery.methods.lm.model import LmShape
from condensery.methods.lm.recipe import LmRecipe
from condensery.methods.lm.text import Stream, Texts
from condensery.methods.trainer.method import TrainingSetup
from condensery.methods.trainer.progress import validation_curve
from condensery.methods.trainer.publishing import training_facts


def make_card(
    texts: Texts,
    recipe: LmRecipe,
    shape: LmShape,
    stream: Stream,
    documents: tuple[int, int],
    setup: TrainingSetup,
) -> dict[str, Any]:
    """Say what a model was made from and how.

    Args:
        texts: Its files; only their names are told.
        recipe: How it was trained.
        shape: Its dimensions.
        stream: The text it was trained on.
        documents: How many it was trained on, and measured on.
        setup: Of the run.
    """
    facts = training_facts(recipe, setup)
    return {
        "architecture": "Llama, causal language model",
        **facts,
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
            "tokens_seen": recipe.steps * recipe.rows * facts["batches_a_step"] * shape.length,
        },
    }


def figures(out: Path, held_out: dict[str, float]) -> dict[str, Any]:
    """Return the figures on held-out text, with those of each checkpoint."""
    return {"held_out": held_out, "while_training": validation_curve(out)}


def card_text(name: str, card: Mapping[str, Any], quality: Mapping[str, Any]) -> str:
    """Write the card as Markdown.

    Args:
        name: The model's.
        card: ``card.json`` of the run.
        quality: Its figures, ``held_out`` and, of the stored weights, ``held_out_int8``.
    """
    shape, data = card["shape"], card["data"]
    shared = "words" in card
    rows = [
        f"| {label} | {figure['perplexity']:.1f} | {figure['bits_per_byte']:.3f} |"
        for key, label in (("held_out", "as trained"), ("held_out_int8", "as stored, int8"))
        if (figure := quality.get(key))
    ]
    curve = [
        f"| {row['step']} | {row['perplexity']:.1f} | {row['bits_per_byte']:.3f} |"
        for row in card["figures"]["while_training"]
    ]
    held_out = data["held_out"]
    return "\n".join(
        [
            f"# {name}",
            "",
            f"A small {card['architecture']}: {shape['layers']} layers of width {shape['width']},",
            f"{shape['heads']} heads, MLPs of {shape['mlp_width']}, {shape['length']} positions;",
            f"{card['parameters'] / 1e6:.1f} million parameters, word embeddings included"
            + (" (which are minilm-l6's, standardised)." if shared else "."),
            "It is a backbone to train retrievers, compressors and generators from; what it writes",
            "by itself is not worth reading.",
            "",
            "## How well it predicts",
            "",
            f"Text held out: {held_out if isinstance(held_out, str) else ', '.join(held_out)}.",
            "",
            "| weights | perplexity a token | bits a byte |",
            "|---|---|---|",
            *rows,
            "",
            "While it was trained (the first windows of that text):",
            "",
            "| step | perplexity | bits a byte |",
            "|---|---|---|",
            *curve,
            "",
            "## What it was made from",
            "",
            f"{', '.join(data['train'])}: {data['documents']} documents, {data['tokens']} tokens,",
            f"of which training saw {data['tokens_seen']} (with repeats). Left out:",
            f"{', '.join(data['without']) or 'nothing by field'}; what is like",
            f"{', '.join(data['not_like']) or 'nothing named'}.",
            f"Licence of the text: {data['licence']}. Seed {card['seed']}.",
            "",
            f"    {card['command']}",
            "",
        ]
    )
