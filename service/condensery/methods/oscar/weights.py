"""Measure what a generator with fewer bits a weight costs a pair's answers, on a CPU.

The same questions, each with its own passage, are answered with the weights as floats and with
those of 8 and of 4 bits. What is written is a part of a report (``condensery eval oscar --part``),
and ``--generator-weights auto`` goes by it. With ``--of compressor`` it is the compressor's that
are rounded; of that no report has a part.
"""

import argparse
import asyncio
import logging
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from condensery.agreement import exact_match
from condensery.errors import InputError
from condensery.methods.oscar.evaluating.asking import ANSWER_TOKENS, Outcome
from condensery.methods.oscar.evaluating.figures import interval
from condensery.methods.oscar.evaluating.measuring import QuestionRunner
from condensery.methods.oscar.evaluating.parts import machine
from condensery.methods.oscar.evaluating.placing import Row
from condensery.methods.oscar.evaluating.questions import Questions, sample_questions
from condensery.methods.oscar.evaluating.saving import Answers, lock_folder
from condensery.methods.oscar.evaluating.settings import FIXED
from condensery.methods.oscar.report import opened
from condensery.methods.ranking.parts import check_out, write_part
from condensery.methods.trainer.reports import command_line, paired_bootstrap
from condensery.networks.dtypes import dtype_name
from condensery.networks.quantised import EncoderWeights, Weights, smallest
from condensery.parsers import Parser
from condensery.runtime.device import (
    WEIGHTS,
    check_weights,
    choose_dtype,
    prepare_process,
)
from condensery.store.store import ModelStore, shipped_store

Held = Weights | EncoderWeights
log = logging.getLogger(__name__)
ALL = 1_000_000
CPU = torch.device("cpu")
GOLD = next(setting for setting in FIXED if setting.key == "gold")
EXACT: Literal["float"] = "float"
GENERATOR, COMPRESSOR = "generator", "compressor"
# What figures of each are called, and the weights that ``opened`` is given.
PARTS = {GENERATOR: "weights", COMPRESSOR: "compressor_weights"}


def compare(rows: Sequence[Row], outcomes: Mapping[Held, Sequence[Outcome]]) -> dict[str, Any]:
    """Return what answers are worth by the weights that gave them, and what rounding costs.

    Args:
        rows: The questions.
        outcomes: Of each, by what the weights were held as; ``EXACT`` is among them.

    Returns:
        By weights: ``em``, percent, with its 95% interval; of rounded ones ``em_lost``, the mean
        difference to floats on the same questions, its interval, and ``changed``, the percentage of
        answers that are others.
    """
    scores = {
        weights: [exact_match(o.answer, row["answers"]) for o, row in zip(its, rows, strict=True)]
        for weights, its in outcomes.items()
    }
    figures: dict[str, Any] = {}
    for weights, its in outcomes.items():
        figures[weights] = {"em": interval(scores[weights])}
        if weights == EXACT:
            continue
        lost, low, high = paired_bootstrap(scores[EXACT], scores[weights])
        pairs = zip(its, outcomes[EXACT], strict=True)
        changed = sum(rounded.answer != exact.answer for rounded, exact in pairs)
        figures[weights] |= {
            "em_lost": round(100 * lost, 2),
            "em_lost_low_95": round(100 * low, 2),
            "em_lost_high_95": round(100 * high, 2),
            "changed": round(100 * changed / len(rows), 2),
        }
    return figures


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of ``condensery eval weights``."""
    parser = Parser(prog="condensery eval weights", description=__doc__)
    add = parser.add_argument
    add("--model", default="oscar-mini", help="a pair's name in the store")
    add("--store", type=Path, required=True, help="root that holds its base too")
    add("--shipped", type=Path, default=shipped_store(), help="a second root (the shipped one)")
    add("--questions", type=Path, required=True, help="JSONL: question, answers, context, title")
    add("--of", choices=tuple(PARTS), default=GENERATOR, help="whose (%(default)s's)")
    add("--weights", help="beside floats (int8,int4; of a compressor int8, and int16 if named)")
    add("--count", type=int, default=ALL, help="questions sampled (all)")
    add("--seed", type=int, default=17)
    add("--at-once", type=int, default=16, help="questions under way at once (16)")
    add("--dtype", default="auto", help="of floats: float32, bfloat16 (auto)")
    add("--out", type=Path, help="the part (JSON); answers are kept beside it and gone on with")
    return parser


def read_weights(text: str | None, of: str = GENERATOR) -> list[Held]:
    """Read which weights are to be measured, floats first; None is all of 8 bits and fewer.

    Raises:
        InputError: One is unknown.
    """
    can: tuple[Held, ...] = WEIGHTS if of == GENERATOR else get_args(EncoderWeights)
    usual = [known for known in can if known != "int16"]
    names = usual if text is None else [name for name in text.replace(" ", "").split(",") if name]
    for name in names:
        if name not in can:
            raise InputError.at("weights", f"{name!r} is not one of {', '.join(can)}", name)
    return [known for known in can if known in (EXACT, *names)]


def answer_all(
    args: argparse.Namespace,
    questions: Questions,
    weights: Held,
    folder: Path,
    dtype: torch.dtype,
) -> list[Outcome]:
    """Answer every question that was not answered before with such weights."""
    store = ModelStore(args.shipped, args.store)
    held: dict[str, Any] = {PARTS[args.of]: weights}
    with opened(store, args.model, CPU, dtype, None, **held) as (model, _):
        about = {
            "model": model.info.name,
            "fingerprint": model.info.fingerprint,
            "questions": questions.sha256,
            "at_once": args.at_once,
            "machine": machine(CPU, dtype),
        }
        answers = Answers(folder, about)
        runner = QuestionRunner(model, answers, args.at_once, ANSWER_TOKENS)
        texts = [[row["context"]] for row in questions.rows]
        kind = weights if args.of == GENERATOR or weights == EXACT else f"{args.of}-{weights}"
        log.info("%s: %d questions", weights, len(texts))

        async def ask() -> list[Outcome]:
            await model.warm_up()
            return await runner.ask_all(questions.rows, texts, GOLD, f"{GOLD.asks}-{kind}")

        return asyncio.run(ask())


def main(argv: Sequence[str] | None = None) -> None:
    """Run ``condensery eval weights``."""
    argv = sys.argv[1:] if argv is None else list(argv)
    args = make_parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    named = read_weights(args.weights, args.of)
    check_out(args.out)
    questions = sample_questions(args.questions, args.count, args.seed)
    if not questions.with_gold:
        raise InputError("questions: each needs its passage (context)", field="questions")
    prepare_process()
    dtype = choose_dtype(CPU, args.dtype)
    for weights in named:  # refused before anything is answered
        check_weights(f"{args.of}_weights", CPU, weights)
    with ExitStack() as stack:
        if args.out is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        else:
            folder = args.out.with_name(f"{args.out.stem}.answers")
        stack.enter_context(lock_folder(folder))
        outcomes = {
            weights: answer_all(args, questions, weights, folder, dtype) for weights in named
        }
    part = {
        "questions": len(questions.rows),
        "file": questions.file,
        "dtype": dtype_name(dtype),
        # Of a compressor whole layers are rounded, whatever their size.
        **({"smallest": smallest(dtype)} if args.of == GENERATOR else {}),
        **compare(questions.rows, outcomes),
    }
    made = {"command": command_line("eval weights", argv), "machine": machine(CPU, dtype)}
    name = PARTS[args.of]
    sys.stdout.write(write_part({name: part, "made": {name: made}}, args.out))


if __name__ == "__main__":
    main()
