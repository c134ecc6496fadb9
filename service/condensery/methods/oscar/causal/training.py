"""Train an OSCAR pair whose generator is a causal language model."""

import argparse
import logging
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from condensery.errors import InputError
from condensery.methods.oscar.causal.building import Bases
from condensery.methods.oscar.causal.built import PATHS, PairSources
from condensery.methods.oscar.causal.data import Files, load
from condensery.methods.oscar.causal.items import Batches, Item
from condensery.methods.oscar.causal.losses import loss
from condensery.methods.oscar.causal.network import groups, new_pair, trained
from condensery.methods.oscar.causal.recipe import CHOICES, CausalRecipe
from condensery.methods.oscar.causal.runs import (
    Run,
    last_checkpoint,
    open_bases,
    read_run,
    restore,
)
from condensery.methods.oscar.causal.validation import validate
from condensery.methods.trainer.arguments import add_fields, add_machine, begin, read_fields
from condensery.methods.trainer.plots import plot
from condensery.methods.trainer.processes import Processes, joined
from condensery.methods.trainer.trainer import Trainer
from condensery.networks.dtypes import dtype_name
from condensery.networks.oscar_causal import CausalPair
from condensery.runtime.device import choose_dtype

log = logging.getLogger(__name__)
VERSIONS = ("condensery", "torch", "transformers", "peft")


def train(
    built: PairSources | None,
    files: Files,
    out: Path,
    recipe: CausalRecipe,
    *,
    begin: Path | None = None,
    moved: dict[str, Path] | None = None,
    device: torch.device | None = None,
    dtype: torch.dtype | None = None,
    every: int = 500,
    answers: int = 16,
    command: str = "",
    processes: Processes | None = None,
) -> CausalPair:
    """Train, with a checkpoint and a validation every ``every`` steps; resumes from ``out``.

    Args:
        built: What the pair is built from; None: what ``begin``'s is.
        files: The rows.
        out: Folder for checkpoints, log and ``run.json``.
        recipe: How to train.
        begin: Folder of a run whose weights to begin with: pretraining's, to fine-tune.
        moved: Where directories are that have moved since that run.
        device: Where; default: the CPU.
        dtype: Of the weights in the forward pass; default: what the device multiplies best.
        every: Steps between checkpoints.
        answers: Held-out questions that are answered at each checkpoint.
        command: For the card.
        processes: Those that train together.

    Raises:
        InputError: A directory, a row or the recipe is of no use; nothing was trained.
        TrainingStopped: As the trainer says.
    """
    processes = processes or Processes()
    device = device or torch.device("cpu")
    dtype = dtype or choose_dtype(device)
    earlier = None if begin is None else read_run(begin, moved)
    if earlier is not None:
        if built is not None and built != earlier.built:
            raise InputError(
                f"from: the pair of {begin} is built otherwise; leave out what it is built from",
                field="from",
                value=str(begin),
            )
        bases = open_bases(earlier)
    elif built is not None:
        bases = Bases(built)
    else:
        raise InputError("generator: name its directory, or a run to begin from", field="generator")
    data = load(files, bases, recipe)
    settings = recipe.trainer(len(data.train), every, processes.count)
    layers = bases.built.own_layers
    pair = new_pair(bases, recipe, device=device, dtype=dtype)
    begun: dict[str, Any] | None = None
    if begin is not None and earlier is not None:
        checkpoint = last_checkpoint(begin)
        restore(pair, checkpoint.weights(), begin)
        begun = {
            "stage": earlier.recipe.stage,
            "step": checkpoint.step,
            "data": earlier.data,
            "command": earlier.command,
            "begun": earlier.begun,
        }
    weight = recipe.weight() if data.scored and bases.shape.compressor.rerank else 0.0
    about = {
        "shape": bases.shape.to_dict(),
        "recipe": {k: v for k, v in asdict(recipe).items() if k != "checkpoint_layers"},
        "bases": bases.fingerprints,
        "data": data.report["sha256"],
        "begun": begun,
        "dtype": dtype_name(dtype),
    }

    def names(items: Sequence[Item]) -> list[str]:
        return [item.name for item in items]

    def measure(pair: CausalPair) -> dict[str, object]:
        assert data.held_out is not None
        return validate(pair, bases, data.held_out, recipe, answers=answers)

    trainer = Trainer[CausalPair, list[Item]](
        pair,
        lambda pair, items: loss(pair, items, bases.texts, weight),
        Batches(data.train, recipe),
        settings,
        out,
        groups=groups(pair, recipe, layers=layers),
        names=names,
        weights=trained,
        about=about,
        validate=measure if data.held_out is not None else None,
        processes=processes,
    )
    if processes.rank == 0:
        out.mkdir(parents=True, exist_ok=True)
        Run(
            built=bases.built,
            recipe=recipe,
            bases=bases.fingerprints,
            data=data.report,
            reranks=bool(weight) or bool(earlier and earlier.reranks),
            begun=begun,
            command=command,
            versions={name: version(name) for name in VERSIONS},
        ).write(out)
    log.info("%d rows, %d steps of %d", len(data.train), settings.steps, recipe.batch)
    trainer.run()
    if processes.rank == 0:
        plot(out)
    return pair


def main(argv: list[str] | None = None) -> None:
    """Run ``condensery train oscar-causal``."""
    parser = argparse.ArgumentParser(prog="condensery train oscar-causal", description=__doc__)
    parser.add_argument("--data", type=Path, nargs="+", help="questions with passages and labels")
    parser.add_argument("--text", type=Path, nargs="+", help="plain text, for --stage pretrain")
    parser.add_argument("--held-out", type=Path, nargs="+", default=(), help="to measure on")
    parser.add_argument("--share", type=float, default=0.02, help="held out where none is given")
    parser.add_argument("--licence", default="not stated", help="the data's, for the card")
    parser.add_argument("--leave-out", action="store_true", help="leave wrong rows out, counted")
    parser.add_argument("--out", type=Path, required=True, help="folder for checkpoints and log")
    parser.add_argument("--from", dest="begin", type=Path, help="a run to begin from")
    parser.add_argument("--generator", type=Path, help="directory of a causal language model")
    parser.add_argument("--compressor", type=Path, help="directory of another, as compressor")
    parser.add_argument("--bert", type=Path, help="directory of a BERT encoder, as compressor")
    add_machine(parser, every=500)
    parser.add_argument("--answers", type=int, default=16, help="held-out questions answered")
    shape = parser.add_argument_group("the pair")
    sizes = [field for field in fields(PairSources) if field.name not in PATHS]
    add_sizes(shape, sizes)
    add_fields(parser, CausalRecipe(), CHOICES)
    given = sys.argv[1:] if argv is None else list(argv)
    args = parser.parse_args(given)
    device = begin(args)
    recipe = read_fields(args, CausalRecipe)
    built, moved = _built(args, [field.name for field in sizes])
    with joined(device) as processes:
        train(
            built,
            _files(args),
            args.out,
            recipe,
            begin=args.begin,
            moved=moved,
            device=device,
            dtype=choose_dtype(device, args.dtype),
            every=args.every,
            answers=args.answers,
            command=f"condensery train oscar-causal {shlex.join(given)}",
            processes=processes,
        )


def add_sizes(parser: Any, sizes: Sequence[Any]) -> None:
    """Add a flag for each size of a pair; what is not given stays None, to tell that it is not."""
    for field in sizes:
        flag, default = "--" + field.name.replace("_", "-"), field.default
        if isinstance(default, bool):
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, help=f"({default})")
        else:
            parser.add_argument(flag, type=type(default), help=f"({default})")


def _built(
    args: argparse.Namespace, sizes: Sequence[str]
) -> tuple[PairSources | None, dict[str, Path] | None]:
    """Return what to build, or where a begun run's directories are now.

    Raises:
        InputError: Sizes are given beside a run to begin from, which has its own.
    """
    chosen = {name: value for name in sizes if (value := getattr(args, name)) is not None}
    paths = {name: path for name in PATHS if (path := getattr(args, name)) is not None}
    if args.begin is not None:
        if chosen:
            name = next(iter(chosen))
            raise InputError(f"{name}={chosen[name]!r}: the run of --from has its own", field=name)
        return None, paths
    if "generator" not in paths:
        raise InputError("generator: name its directory", field="generator")
    return PairSources(**paths, **chosen), None


def _files(args: argparse.Namespace) -> Files:
    """Return where the rows are.

    Raises:
        InputError: What the stage reads is not given.
    """
    wanted, other = ("text", "data") if args.stage == "pretrain" else ("data", "text")
    if getattr(args, wanted) is None or getattr(args, other) is not None:
        raise InputError(f"{wanted}: is what stage={args.stage!r} reads", field=wanted)
    return Files(
        getattr(args, wanted),
        args.held_out,
        share=args.share,
        licence=args.licence,
        wrong="leave_out" if args.leave_out else "refuse",
    )


if __name__ == "__main__":
    main()
