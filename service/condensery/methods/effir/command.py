"""``condensery effir build``: a smaller retriever from a stored encoder, in one command."""

import argparse
import logging
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import torch

from condensery.errors import InputError
from condensery.methods.effir.analysis import SAMPLES
from condensery.methods.effir.building import BuildInputs, BuildPlan, build
from condensery.methods.effir.importance import Depth
from condensery.methods.effir.measuring import MeasuringSetup
from condensery.methods.effir.slimming import Width
from condensery.methods.effir.speed import ROUNDS
from condensery.methods.ranking.sets import read_sets
from condensery.methods.retriever.publishing import StoredDType, Storing
from condensery.methods.retriever.recipe import RetrieverRecipe
from condensery.methods.trainer.arguments import add_fields, add_machine, open_setup, read_fields
from condensery.runtime.device import choose_dtype
from condensery.store.store import ModelStore, shipped_store

log = logging.getLogger(__name__)


def make_parser() -> argparse.ArgumentParser:
    """Return the command's flags."""
    parser = argparse.ArgumentParser(prog="condensery effir build", description=__doc__)
    add = parser.add_argument
    add("--model", required=True, help="the parent's name in the stores")
    add("--store", type=Path, required=True, help="your own store; it receives the model")
    add("--name", required=True, help="what the model is called")
    add("--out", type=Path, required=True, help="folder for what is measured and trained; "
        "run again to go on")  # fmt: skip
    depth = parser.add_argument_group("depth")
    for name, meaning in (
        ("mlp", "MLPs to drop, the least important ones"),
        ("attention", "attentions to drop, the least important ones"),
        ("blocks", "whole layers to drop, the least important ones"),
        ("last", "whole layers to drop from the end"),
    ):
        depth.add_argument(
            f"--drop-{name}", type=int, default=0, metavar="N", help=f"{meaning} (0)"
        )
    depth.add_argument("--text", type=Path, nargs="+", default=(), help="calibration text")
    depth.add_argument("--samples", type=int, default=SAMPLES, help=f"blocks of it ({SAMPLES})")
    depth.add_argument("--block", type=int, help="tokens of one (2048, or the model's positions)")
    add_fields(parser.add_argument_group("width"), Width())
    tuning = parser.add_argument_group("tuning")
    tuning.add_argument(
        "--rows", type=Path, nargs="+", default=(), help="query, positive, negatives"
    )
    tuning.add_argument("--licence", default="", help="of the weights (the parent's)")
    add_fields(tuning, RetrieverRecipe())
    measured = parser.add_argument_group("measuring")
    measured.add_argument(
        "--set",
        dest="sets",
        nargs="+",
        default=(),
        metavar="DIR[:SPLIT]",
        help="corpus.jsonl.gz, queries.jsonl.gz, qrels.SPLIT.tsv (test)",
    )
    measured.add_argument(
        "--set-queries", type=int, default=0, help="of each set, at random (0: all)"
    )
    measured.add_argument(
        "--set-others",
        type=int,
        help="passages of each corpus, at random, beside the relevant ones (all)",
    )
    measured.add_argument(
        "--work",
        type=Path,
        help="folder for importance and figures on sets that several runs share (RUN, RUN/quality)",
    )
    measured.add_argument("--workers", type=int, help="threads of one each on a CPU (a core each)")
    measured.add_argument(
        "--measure-dtype",
        default="auto",
        choices=("auto", "float32", "bfloat16"),
        help="what it computes in when measured (auto: as it would serve here)",
    )
    measured.add_argument(
        "--rounds", type=int, default=ROUNDS, help=f"of timing, medians; 0: untimed ({ROUNDS})"
    )
    storing = parser.add_argument_group("storing")
    storing.add_argument(
        "--stored",
        default="float32",
        choices=get_args(StoredDType),
        help="what weights are stored in, and measured as (float32); int8: matrices",
    )
    storing.add_argument(
        "--share-embeddings",
        action="store_true",
        help="embeddings don't learn, and stay with the parent, as all that is equal to its own; "
        "the model then needs the parent in its store",
    )
    add_machine(parser, dtype="float32", every=250)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Run ``condensery effir build``."""
    argv = sys.argv[1:] if argv is None else argv
    args = make_parser().parse_args(argv)
    with open_setup(args, f"condensery effir build {shlex.join(argv)}") as setup:
        plan = BuildPlan(
            Depth(args.drop_attention, args.drop_mlp, args.drop_blocks, args.drop_last),
            read_fields(args, Width),
            read_fields(args, RetrieverRecipe),
            args.samples,
            args.block,
            Storing(args.stored, args.share_embeddings),
        )
        store = ModelStore(shipped_store(), args.store)
        parent = store.open(args.model)
        if parent.manifest.kind != "encoder":
            raise InputError(
                f"model: {args.model!r} is of kind {parent.manifest.kind!r}, not an encoder",
                field="model",
                value=args.model,
            )
        sets = read_sets(args.sets, queries=args.set_queries, others=args.set_others)
        inputs = BuildInputs(args.text, args.rows, sets, args.work, args.licence, setup.command)
        if args.rounds < 0:
            raise InputError(
                f"rounds: {args.rounds}: must be at least 0", field="rounds", value=args.rounds
            )
        where = MeasuringSetup(
            setup.device,
            choose_dtype(setup.device, args.measure_dtype),
            args.workers or torch.get_num_threads(),
            args.rounds,
        )
        made = build(parent, store, args.name, plan, inputs, args.out, where, setup=setup)
    if made is not None:
        log.info("%s version %s is in %s", made.name, made.version, made.path)


if __name__ == "__main__":
    main()
