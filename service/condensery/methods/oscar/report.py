"""Measure a pair: answers in many settings, what they cost, and when it should not answer."""

import argparse
import json
import logging
import os
import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from condensery.atomic_files import write_atomically
from condensery.errors import InputError
from condensery.methods.oscar.evaluating.asking import ANSWER_TOKENS
from condensery.methods.oscar.evaluating.evaluation import Evaluation
from condensery.methods.oscar.evaluating.judging import Judge
from condensery.methods.oscar.evaluating.parts import machine, read_parts, training_curve
from condensery.methods.oscar.evaluating.questions import sample_questions
from condensery.methods.oscar.evaluating.settings import FAMILIES, FIXED, PASSAGES
from condensery.methods.ranking.retrieval import MODES
from condensery.methods.ranking.sets import read_corpus
from condensery.methods.trainer.publishing import versions
from condensery.methods.trainer.reports import command_line
from condensery.networks.quantised import EncoderWeights
from condensery.parsers import Parser
from condensery.runtime.device import (
    WeightsSetting,
    choose_device,
    choose_dtype,
    prepare_process,
)
from condensery.runtime.encoder import Encoder
from condensery.runtime.oscar import OscarModel
from condensery.runtime.queue import BatchLimits, default_limits
from condensery.runtime.workers import Workers
from condensery.store.importing import MINILM
from condensery.store.store import ModelStore, shipped_store

log = logging.getLogger(__name__)
FORMAT = 2
JUDGE_KEY = "CONDENSERY_JUDGE_KEY"


def unlimited_queue(device: torch.device) -> BatchLimits:
    """Return limits under which whoever asks for everything at once is not refused."""
    return replace(default_limits(device), queue_tokens=1 << 40, queue_seconds=float("inf"))


@contextmanager
def opened(
    store: ModelStore,
    name: str,
    device: torch.device,
    dtype: torch.dtype,
    encoder: str | None,
    weights: WeightsSetting = "float",
    compressor_weights: EncoderWeights = "float",
) -> Iterator[tuple[OscarModel, Encoder | None]]:
    """Run a stored pair, and an encoder by its side if one is named.

    ``weights`` is what its generator's are held as, ``compressor_weights`` what its compressor's.
    """
    with ExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor(2))
        stack.enter_context(torch.inference_mode())
        workers = Workers(None, device)
        stack.callback(workers.close)
        stored = store.open(name)
        base = store.open_base(stored) if stored.manifest.base else None
        embeds = None
        if encoder is not None:
            embeds = Encoder.load(
                store.open(encoder),
                workers,
                dtype=dtype,
                limits=unlimited_queue(device),
                threads=threads,
            )
            stack.callback(embeds.close)
        model = OscarModel.load(
            stored,
            base,
            workers,
            dtype=dtype,
            threads=threads,
            limits=unlimited_queue,
            generator_weights=weights,
            compressor_weights=compressor_weights,
        )
        stack.callback(model.close)
        yield model, embeds


def table(report: dict[str, Any]) -> str:
    """Return the settings' figures, a line each."""
    head = f"{'setting':26}{'read':>6}{'EM':>7}{'F1':>7}{'match':>7}{'s':>9}{'GFLOPs':>9}"
    rows = [
        f"{key:26}{setting['read']:6.1f}{setting['em']['mean']:7.1f}{setting['f1']['mean']:7.1f}"
        f"{setting['match']['mean']:7.1f}{setting['seconds']:9.3f}{1000 * setting['tflops']:9.2f}"
        for key, setting in report["settings"].items()
    ]
    return "\n".join([head, *rows])


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of ``condensery eval oscar``."""
    parser = Parser(prog="condensery eval oscar", description=__doc__)
    add = parser.add_argument
    add("--model", default="oscar-mini", help="a pair's name in the store")
    add("--store", type=Path, required=True, help="root that holds its base too")
    add("--shipped", type=Path, default=shipped_store(), help="a second root (the shipped one)")
    add("--questions", type=Path, required=True, help="JSONL: question, answers, context, title")
    add("--corpus", type=Path, help="JSONL of {id, title, text} to retrieve from")
    add("--retrieval", choices=MODES, default="bm25", help="how passages are found (bm25)")
    add("--encoder", default=MINILM, help=f"stored encoder for dense and hybrid ({MINILM})")
    names = ", ".join((*(setting.key for setting in FIXED), *FAMILIES))
    add("--settings", default="", help=f"some of {names}, or plain_5 and the like (all)")
    add("--passages", default=",".join(map(str, PASSAGES)), help="numbers retrieved (%(default)s)")
    add("--read", type=int, help="how many are read where the best are chosen (the pair's top_n)")
    add("--count", type=int, default=500, help="questions sampled (500)")
    add("--seed", type=int, default=17)
    add("--at-once", type=int, default=16, help="questions under way at once; 1 for latency (16)")
    add("--answer-tokens", type=int, default=ANSWER_TOKENS, help="most of an answer (%(default)s)")
    add("--judge", help=f"URL of an OpenAI-compatible API; its key in {JUDGE_KEY}")
    add("--judge-model", help="the judge's name there")
    add("--part", type=Path, action="append", default=[], help="a part of the report to merge")
    add("--run", type=Path, help="the training run's folder, for its curve")
    add("--device", default="auto", help="cpu, cuda (auto)")
    add("--dtype", default="auto", help="float32, bfloat16 (auto)")
    add("--out", type=Path, help="the report (JSON); answers are kept beside it and gone on with")
    return parser


def read_evaluation(args: argparse.Namespace) -> Evaluation:
    """Read and check what is to be measured.

    Raises:
        InputError: Something of it is of no use; names field and value.
    """
    for field in ("at_once", "answer_tokens"):
        if getattr(args, field) < 1:
            value = getattr(args, field)
            raise InputError(f"{field}: {value} is less than 1", field=field, value=value)
    if bool(args.judge) != bool(args.judge_model):
        raise InputError("judge: --judge and --judge-model go together", field="judge")
    try:
        passages = tuple(dict.fromkeys(int(number) for number in args.passages.split(",")))
    except ValueError as error:
        raise InputError(
            f"passages: {args.passages!r} is no list of numbers", field="passages"
        ) from error
    if args.out is not None and not args.out.parent.is_dir():
        raise InputError(f"out: {args.out.parent} is no folder", field="out", value=str(args.out))
    judge = None
    if args.judge:
        judge = Judge(args.judge, args.judge_model, os.environ.get(JUDGE_KEY, ""))
    return Evaluation(
        questions=sample_questions(args.questions, args.count, args.seed),
        corpus=read_corpus(args.corpus) if args.corpus else None,
        mode=args.retrieval,
        names=tuple(name for name in args.settings.replace(" ", "").split(",") if name),
        passages=passages,
        read=args.read,
        seed=args.seed,
        at_once=args.at_once,
        max_tokens=args.answer_tokens,
        judge=judge,
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Run ``condensery eval oscar``."""
    argv = sys.argv[1:] if argv is None else list(argv)
    args = make_parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each request
    parts = read_parts(args.part)
    curve = {"training": training_curve(args.run)} if args.run else {}
    evaluation = read_evaluation(args)
    prepare_process()
    device = choose_device(args.device)
    dtype = choose_dtype(device, args.dtype)
    measured_by = machine(device, dtype)
    evaluation = replace(evaluation, depends=(("machine", measured_by),))
    store = ModelStore(args.shipped, args.store)
    encoder = args.encoder if args.corpus and args.retrieval != "bm25" else None
    with ExitStack() as stack:
        model, embeds = stack.enter_context(opened(store, args.model, device, dtype, encoder))
        if args.out is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        else:
            folder = args.out.with_name(f"{args.out.stem}.answers")
        try:
            figures = evaluation.run(model, folder, embeds)
        except KeyboardInterrupt:
            if args.out is not None:
                log.info("stopped; answers so far are in %s, the same command goes on", folder)
            raise
    report = {
        "format": FORMAT,
        "command": command_line("eval oscar", argv),
        "machine": measured_by,
        "versions": {"python": platform.python_version(), **versions()},
        **figures,
        **parts,
        **curve,
    }
    if args.out is None:
        sys.stdout.write(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    else:
        write_atomically(args.out, json.dumps(report, indent=1, ensure_ascii=False) + "\n")
        sys.stdout.write(f"{table(report)}\n")


if __name__ == "__main__":
    main()
