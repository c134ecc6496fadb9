"""``condensery effir build``: a smaller retriever from a stored encoder, in one command."""

import argparse
import logging
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from condensery.errors import InputError
from condensery.methods.effir.analysis import SAMPLES
from condensery.methods.effir.building import BuildInputs, BuildPlan, build
from condensery.methods.effir.importance import Depth
from condensery.methods.effir.slimming import Width
from condensery.methods.retriever.measuring import add_measuring, read_measuring
from condensery.methods.retriever.publishing import Storing, add_storing
from condensery.methods.retriever.recipe import RetrieverRecipe
from condensery.methods.trainer.arguments import add_fields, add_machine, open_setup, read_fields
from condensery.parsers import Parser
from condensery.store.store import ModelStore, shipped_store

log = logging.getLogger(__name__)


def make_parser() -> argparse.ArgumentParser:
    """Return the command's flags."""
    parser = Parser(prog="condensery effir build", description=__doc__)
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
    add_measuring(measured)
    measured.add_argument(
        "--work",
        type=Path,
        help="folder for importance and figures on sets that several runs share (RUN, RUN/quality)",
    )
    add_storing(parser.add_argument_group("storing"))
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
        if parent.manifest.method == "llm2comp":
            raise InputError(
                f"model: {args.model!r} was made by 'llm2comp', whose memory tokens are not trained"
                " here: prune its language model first",
                field="model",
                value=args.model,
            )
        sets, where = read_measuring(args, setup.device)
        inputs = BuildInputs(args.text, args.rows, sets, args.work, args.licence, setup.command)
        made = build(parent, store, args.name, plan, inputs, args.out, where, setup=setup)
    if made is not None:
        log.info("%s version %s is in %s", made.name, made.version, made.path)


if __name__ == "__main__":
    main()
