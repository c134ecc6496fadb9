"""Make OSCAR's distillation data: retrieved passages, labels, and a cross-encoder's scores."""

import argparse
import logging
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, get_args

import torch

from condensery.errors import InputError
from condensery.methods.distil import teacher
from condensery.methods.distil.corpus import build_corpus, judged_questions
from condensery.methods.distil.distillation import (
    Gold,
    RowBuilder,
    RowPlan,
    Unsupported,
    fingerprint,
)
from condensery.methods.distil.journal import Journal, Line
from condensery.methods.distil.summary import WATCHED, Summary
from condensery.methods.distil.teacher import Teacher
from condensery.methods.ranking import retrieval
from condensery.methods.ranking.retrieval import MODES, Retriever
from condensery.methods.ranking.sets import parse_set, read_set
from condensery.methods.rerank.negatives import open_encoder
from condensery.methods.rerank.scoring import CrossEncoder
from condensery.methods.trainer.arguments import add_machine
from condensery.methods.trainer.questions import Rules, TrainingQuestion, Wrong, read_questions
from condensery.methods.trainer.texts import open_tokenizer
from condensery.networks.dtypes import dtype_name
from condensery.parsers import Parser
from condensery.runtime.device import choose_device, choose_dtype, tune_allocator

log = logging.getLogger(__name__)


def make(args: argparse.Namespace, plan: RowPlan) -> dict[str, Any]:
    """Make the rows that the arguments ask for; goes on where a killed run was.

    Returns:
        What there is to say of them; empty if they were there already.

    Raises:
        InputError: Something is wrong with the data, the models or the settings; named.
        TrainingStopped: The disk refused.
    """
    questions, bad = read(args, plan)
    sets = [read_set(*parse_set(text)) for text in args.retrieval_set]
    questions += [question for ranking_set in sets for question in judged_questions(ranking_set)]
    corpus = build_corpus(questions, args.corpus)  # searched whole, also where few are asked
    for passage in (passage for ranking_set in sets for passage in ranking_set.passages):
        corpus.add(retrieval.titled_text(passage))
    questions = questions[: args.limit]
    device = choose_device(args.device)
    dtype = choose_dtype(device, args.dtype)
    labeller: Teacher | None = None
    scorer: CrossEncoder | None = None
    if args.teacher is not None:
        labeller = Teacher.open(
            args.teacher,
            device=device,
            dtype=dtype,
            max_tokens=plan.label_tokens,
            batch=args.batch,
        )
    if args.cross_encoder is not None:
        scorer = CrossEncoder.open(args.cross_encoder, device=device, dtype=dtype)
    summary = Summary(len(questions), args.most_unlabelled)
    with ExitStack() as stack:
        encoder = None
        if plan.mode != "bm25":
            encoder = stack.enter_context(open_encoder(args.encoder, device, dtype))
        about = {
            "questions": fingerprint(questions),
            "corpus": retrieval.fingerprint(corpus.passages),
            "plan": asdict(plan),
            "teacher": _of(args.teacher),
            "cross_encoder": _of(args.cross_encoder),
            "encoder": encoder.info.fingerprint if encoder else None,
            "dtype": dtype_name(dtype) if encoder or labeller or scorer else None,
        }
        journal = stack.enter_context(Journal(args.out, about, summary.see))
        if journal.done:
            return {}
        if journal.count:
            log.info("going on after %d of %d questions", journal.count, len(questions))
        retriever = stack.enter_context(
            Retriever.build(corpus.passages, args.index_folder, encoder=encoder)
        )
        builder = RowBuilder(corpus, retriever, plan, labeller, scorer)
        builder.write(questions, journal, summary, block=args.every)
        figures = {"rows_not_read": bad, **summary.figures()}
        if not figures["rows"]:
            raise InputError(f"no row is left: {figures['left_out']}", field="questions")
        journal.finish(_rows, {"figures": figures})
    return figures


def read(args: argparse.Namespace, plan: RowPlan) -> tuple[list[TrainingQuestion], dict[str, int]]:
    """Read and check the questions; returns what was left out as well."""
    own_labels = args.teacher is None
    rules = Rules(
        answers=own_labels,
        answer_in_passages=False,  # those found count, not only those given
        label_tokens=plan.label_tokens if own_labels else None,
        passages=False,
        ranked=own_labels,
    )
    if not args.questions:
        return [], {}
    count = counter(args.tokenizer)
    return read_questions(args.questions, rules, split=args.split, count=count, wrong=args.wrong)


def counter(path: Path | None) -> Callable[[str], int]:
    """Return what counts a text's tokens, by a ``tokenizer.json`` or its folder; None counts words.

    Raises:
        InputError: There is none, or it can't be read.
    """
    if path is None:
        return lambda text: len(text.split())
    tokenizer = open_tokenizer(path)
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def _of(path: Path | None) -> str | None:
    return None if path is None else teacher.fingerprint(path)


def _rows(line: Line) -> list[Line]:
    return [] if "left_out" in line else [line]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``make`` reads."""
    plan = RowPlan()
    add = parser.add_argument
    add("--questions", type=Path, nargs="+", default=(), help="JSONL, folders, datasets")
    add(
        "--retrieval-set",
        nargs="+",
        default=(),
        metavar="DIR:SPLIT",
        help="corpora with judgements; the passages judged to answer are gold",
    )
    add("--split", help="of datasets folders that have several")
    add("--wrong", choices=get_args(Wrong), default="refuse", help="rows (refuse)")
    add("--limit", type=int, help="take the first so many questions")
    add("--corpus", type=Path, nargs="+", default=(), help="more passages: rows with a text")
    add("--index-folder", type=Path, required=True, help="keeps the index of the passages")
    add("--mode", choices=MODES, default=plan.mode, help=f"how to search ({plan.mode})")
    add("--encoder", type=Path, help="a sentence encoder's directory, for dense and hybrid")
    add("--top", type=int, default=plan.top, help=f"passages of a row ({plan.top})")
    add("--gold", choices=get_args(Gold), default=plan.gold, help=f"({plan.gold})")
    labels = parser.add_mutually_exclusive_group(required=True)
    labels.add_argument("--teacher", type=Path, help="a causal language model's directory")
    labels.add_argument(
        "--labels", choices=["given"], help="the rows' own labels, answers, or gold passages alone"
    )
    add(
        "--unsupported",
        choices=get_args(Unsupported),
        default=plan.unsupported,
        help=f"rows whose given answer stands in no passage ({plan.unsupported})",
    )
    add("--label-tokens", type=int, default=plan.label_tokens, help=f"({plan.label_tokens})")
    add("--tokenizer", type=Path, help="counts given labels' tokens; without it, words count")
    add("--batch", type=int, default=16, help="prompts that the teacher reads at once (16)")
    add(
        "--most-unlabelled",
        type=float,
        default=0.2,
        help=f"share of the first {WATCHED} questions that a teacher may make no label of (0.2)",
    )
    add("--cross-encoder", type=Path, help="directory of what scores the passages")
    add("--every", type=int, default=64, help="questions between syncs to the disk (64)")
    add_machine(parser)
    add("--out", type=Path, required=True, help="the rows: FILE.jsonl")


def check(args: argparse.Namespace) -> None:
    """Refuse what no run can be made of.

    Raises:
        InputError: Names the setting and its value.
    """
    if not args.questions and not args.retrieval_set:
        raise InputError("questions: there are none, nor a retrieval set", field="questions")
    for name, least in (("limit", 1), ("top", 1), ("label_tokens", 1), ("batch", 1), ("every", 1)):
        value = getattr(args, name)
        if value is not None and value < least:
            raise InputError(f"{name}: {value} is less than {least}", field=name, value=value)
    if not 0 <= args.most_unlabelled <= 1:
        raise InputError(
            f"most_unlabelled: {args.most_unlabelled} is no share from 0 to 1",
            field="most_unlabelled",
            value=args.most_unlabelled,
        )
    if args.mode != "bm25" and args.encoder is None:
        raise InputError(f"encoder: mode {args.mode} needs one", field="encoder")


def main(argv: list[str] | None = None) -> None:
    """Run ``condensery distil oscar``."""
    parser = Parser(prog="condensery distil oscar", description=__doc__)
    add_arguments(parser)
    args = parser.parse_args(sys.argv[1:] if argv is None else argv)
    check(args)
    torch.set_num_threads(args.threads)
    tune_allocator()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    figures = make(
        args, RowPlan(**{field.name: getattr(args, field.name) for field in fields(RowPlan)})
    )
    log.info("%s", figures or "it was there already, made of the same")
    log.info("the rows are in %s", args.out)


if __name__ == "__main__":
    main()
