"""Measure an extractive reader on a pair's questions, with the very same passages."""

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from condensery.agreement import exact_match, f1_score
from condensery.errors import InputError
from condensery.methods.oscar.evaluating.measuring import choose_passages
from condensery.methods.oscar.evaluating.questions import Questions, sample_questions
from condensery.methods.oscar.evaluating.settings import FIXED
from condensery.methods.ranking.parts import (
    StoredRows,
    check_out,
    fingerprint,
    write_part,
)
from condensery.methods.reader.span_reader import SpanReader, find_reader
from condensery.methods.trainer.arguments import add_machine, begin
from condensery.methods.trainer.reports import bootstrap, command_line
from condensery.networks.dtypes import dtype_name
from condensery.parsers import Parser
from condensery.runtime.device import choose_dtype

log = logging.getLogger(__name__)
NAME = "extractive_reader"
KEYS = ("gold", "gold_among_five", "others_passages")
SETTINGS = tuple(
    sorted((setting for setting in FIXED if setting.key in KEYS), key=lambda s: KEYS.index(s.key))
)
BLOCK = 16  # questions read together


def measure(
    reader: SpanReader, questions: Questions, seed: int, work: Path, about: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """Read every question in every setting of ``SETTINGS``.

    It always answers, as a pair does; ``no_answer`` is how often (percent) it would rather not
    have: "no answer" had the higher score. Spans are compared over all passages of a question.

    Args:
        reader: A trained one.
        questions: As ``eval oscar`` samples them.
        seed: Of the passages; that of ``eval oscar`` gives the same.
        work: Folder for answers: those that are there are not made again.
        about: What the answers depend on beside questions and passages.

    Returns:
        For each setting EM and F1 in percent with 95% intervals (bootstrap over questions).

    Raises:
        InputError: A question has no passage, there are too few passages, or ``work`` holds
            another evaluation's answers.
        StorageError: The disk refuses.
    """
    rows = questions.rows
    if not questions.with_gold:
        raise InputError(
            f"questions: {questions.file}: not every question has its passage (context)",
            field="questions",
            value=questions.file,
        )
    chosen = choose_passages(rows, SETTINGS, seed, {})
    depends = {"questions": questions.sha256, "seed": seed, **about}
    figures = {}
    for setting in SETTINGS:
        passages = chosen.passages[setting.source]
        stored = StoredRows(work / f"{setting.key}.jsonl", depends)
        missing = [place for place in range(len(rows)) if str(place) not in stored.found]
        for start in range(0, len(missing), BLOCK):
            places = missing[start : start + BLOCK]
            answers = reader.read(
                [rows[place]["question"] for place in places], [passages[place] for place in places]
            )
            for place, answer in zip(places, answers, strict=True):
                stored.add(str(place), answer=answer.text, score=answer.score, at=answer.passage)
            log.info("%s: %d of %d questions", setting.key, start + len(places), len(missing))
        answered = [stored.found[str(place)] for place in range(len(rows))]
        figures[setting.key] = {
            **_figures(answered, rows, seed),
            "passages": setting.count,
            "questions": len(rows),
            "seed": seed,
        }
        if setting.source == "five":
            first = [row["at"] == at for row, at in zip(answered, chosen.gold_at, strict=True)]
            figures[setting.key]["read_from_gold"] = round(100 * fmean(first), 2)
    return figures


def _figures(
    answered: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]], seed: int
) -> dict[str, Any]:
    scores = [
        [100 * metric(answer["answer"], row["answers"]) for metric in (exact_match, f1_score)]
        for answer, row in zip(answered, rows, strict=True)
    ]
    estimates = bootstrap(scores, seed=seed)
    bounds = {"mean": estimates.mean, "low": estimates.low, "high": estimates.high}
    return {
        **{
            name: {bound: round(float(values[i]), 2) for bound, values in bounds.items()}
            for i, name in enumerate(("em", "f1"))
        },
        "no_answer": round(100 * fmean(answer["score"] < 0 for answer in answered), 2),
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Run ``condensery eval extractive-reader``."""
    parser = Parser(prog="condensery eval extractive-reader", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="the training run, or its model")
    parser.add_argument("--questions", type=Path, required=True, help="as for eval oscar")
    parser.add_argument("--count", type=int, default=500, help="questions sampled (500)")
    parser.add_argument("--seed", type=int, default=17, help="of questions and passages (17)")
    add_machine(parser)
    parser.add_argument(
        "--work", type=Path, required=True, help="folder for answers; run again to go on"
    )
    parser.add_argument("--out", type=Path, help="where to write the report's part (JSON)")
    words = sys.argv[1:] if argv is None else list(argv)
    args = parser.parse_args(words)
    device = begin(args)
    check_out(args.out)
    dtype = choose_dtype(device, args.dtype)
    questions = sample_questions(args.questions, args.count, args.seed)
    folder = find_reader(args.run)
    reader = SpanReader.open(folder, device=device, dtype=dtype)
    about = {"model": fingerprint(folder), "dtype": dtype_name(dtype)}
    part = {
        "baselines": {NAME: measure(reader, questions, args.seed, args.work, about)},
        "made": {
            **about,
            "file": questions.file,
            "command": command_line("eval extractive-reader", words),
        },
    }
    sys.stdout.write(write_part(part, args.out))


if __name__ == "__main__":
    main()
