"""A language model's card, for people."""

from collections.abc import Mapping
from typing import Any


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
        f"| {says} | {found['perplexity']:.1f} | {found['bits_per_byte']:.3f} |"
        for key, says in (("held_out", "as trained"), ("held_out_int8", "as stored, int8"))
        if (found := quality.get(key))
    ]
    curve = [
        f"| {row['step']} | {row['perplexity']:.1f} | {row['bits_per_byte']:.3f} |"
        for row in card["figures"]["while_training"]
    ]
    held = data["held_out"]
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
            f"Text held out: {held if isinstance(held, str) else ', '.join(held)}.",
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
