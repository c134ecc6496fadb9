"""A pair's card: what it is, what it was made from, how well it answers."""

from collections.abc import Sequence
from typing import Any

SETTINGS = {
    "gold": "its passage alone",
    "gold_among_five": "its passage among five (four others of the same article), all read",
    "gold_among_five_best_one": "the same five, the generator reads the best scored one",
    "no_passage": "no passage",
    "others_passages": "five passages of other articles",
    "gold_plain": "its passage alone, uncompressed (plain text)",
}


def quality(report: dict[str, Any]) -> dict[str, Any]:
    """Return the figures that go into the manifest."""
    return {
        "measured_on": f"{report['questions']} questions of SQuAD v1.1 dev (seed {report['seed']})",
        **{name: {k: s[k] for k in ("em", "f1")} for name, s in report["settings"].items()},
        "gold_ranked_first_among_five": report["gold_ranked_first_among_five"],
        "replaced": report["replaced"],
    }


def card(
    name: str,
    report: dict[str, Any],
    *,
    command: str,
    data: Sequence[str],
    counts: dict[str, int],
) -> str:
    """Write the card as Markdown.

    Args:
        name: The pair's.
        report: What ``condensery eval oscar`` measured.
        command: The command line that trained it.
        data: The data sets with their licences.
        counts: Examples of each, and what was left out as too like the evaluation text.
    """
    rows = [
        f"| {text} | {report['settings'][key]['em']:.1f} | {report['settings'][key]['f1']:.1f} |"
        for key, text in SETTINGS.items()
    ]
    differences = [
        f"- {key.replace('_', ' ')}: {d['f1']:.1f} F1, 95% interval {d['low_95']:.1f} to "
        f"{d['high_95']:.1f} (paired bootstrap, 10,000 samples)"
        for key, d in report["differences"].items()
    ]
    swapped = report["replaced"]
    examples = [
        f"| {e['question']} | {e['answer'] or '(nothing)'} | {e['gold'][0]} |"
        for e in report["examples"]
    ]
    return "\n".join(
        [
            f"# {name}",
            "",
            "A small OSCAR pair (arXiv:2504.07109): a compressor, started from all-MiniLM-L6-v2,",
            "turns a question with a passage of up to 128 tokens into 8 vectors and a relevance",
            "score in one forward pass; a generator of 4 layers answers from the vectors.",
            "Extractive: it answers, in lower case, with words of the passages. Long, composed or",
            "yes/no answers are beyond it. The word embeddings are minilm-l6's.",
            "",
            "## How well it answers",
            "",
            f"{report['questions']} questions of SQuAD v1.1 dev (seed {report['seed']}); the",
            "stored int8 weights, run by the service's own code. Passages over 128 tokens are",
            "read in windows. EM and F1 in percent, SQuAD's normalisation.",
            "",
            "| the generator is given | EM | F1 |",
            "|---|---|---|",
            *rows,
            "",
            (
                f"The rerank head puts the right one of the five first for "
                f"{report['gold_ranked_first_among_five']:.1f}% of the questions."
            ),
            "",
            *differences,
            "",
            "Where the answer's string is replaced in the passage (questions answered right):",
            (
                f"{swapped['follows_em']}% of {swapped['questions']} answers become the new "
                f"string, {swapped['keeps_old_answer']}% stay the old one."
            ),
            "",
            "| question | its answer (among five) | gold |",
            "|---|---|---|",
            *examples,
            "",
            "## What it was made from",
            "",
            *(f"- {line}" for line in data),
            "",
            "No text of SQuAD dev was seen: passages that share ten words in a row with one of its",
            "paragraphs were left out, and Wikipedia passages of its articles' titles too. Counts:",
            f"{counts}.",
            "",
            f"    {command}",
            "",
            "## Licence",
            "",
            "CC BY-SA 4.0, as SQuAD's text asks; all-MiniLM-L6-v2 is Apache-2.0.",
            "",
        ]
    )
