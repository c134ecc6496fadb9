"""Train an OSCAR pair whose generator is a causal language model."""

import argparse
import logging
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from torch import Tensor

from condensery.errors import InputError
from condensery.methods.oscar.causal.building import PATHS, Bases, PairSources
from condensery.methods.oscar.causal.data import Data, Files, load
from condensery.methods.oscar.causal.items import Batches, Item
from condensery.methods.oscar.causal.losses import loss
from condensery.methods.oscar.causal.network import groups, new_pair
from condensery.methods.oscar.causal.recipe import CHOICES, CausalRecipe
from condensery.methods.oscar.causal.runs import Run, last_checkpoint, open_bases, read_run, restore
from condensery.methods.oscar.causal.validation import validate
from condensery.methods.trainer.arguments import (
    add_fields,
    add_flags,
    add_machine,
    given_flags,
    open_setup,
    read_fields,
)
from condensery.methods.trainer.method import Draw, Loss, Method, TrainingSetup, learning_state
from condensery.methods.trainer.optimizer import Group
from condensery.methods.trainer.publishing import versions
from condensery.methods.trainer.trainer import run_training
from condensery.networks.dtypes import dtype_name
from condensery.networks.oscar_causal import CausalPair
from condensery.parsers import Parser

log = logging.getLogger(__name__)


class CausalTraining(Method[CausalPair, list[Item]]):
    """The training of a pair of causal language models, measured on rows held out.

    Args:
        bases: The directories it is built from.
        data: The rows.
        recipe: How to train.
        setup: Where.
        answers: Held-out questions that are answered at each checkpoint.
        beginning: A run whose weights to begin with, and what is said of it.
    """

    def __init__(
        self,
        bases: Bases,
        data: Data,
        recipe: CausalRecipe,
        setup: TrainingSetup,
        answers: int,
        beginning: tuple[Path, dict[str, Any]] | None = None,
    ) -> None:
        self._bases, self._data, self._answers, self._own_recipe = bases, data, answers, recipe
        self.recipe = recipe.trainer(len(data.train), setup.every, setup.processes.count)
        self.module = new_pair(bases, recipe, device=setup.device, dtype=setup.dtype)
        if beginning is not None:
            restore(self.module, last_checkpoint(beginning[0]).weights(), beginning[0])
        taught = data.scored and bases.shape.compressor.rerank
        self.rerank_weight = recipe.weight() if taught else 0.0
        self._batches = Batches(data.train, recipe)
        self.identity = {
            "shape": bases.shape.to_dict(),
            "recipe": {k: v for k, v in asdict(recipe).items() if k != "checkpoint_layers"},
            "bases": bases.fingerprints,
            "data": data.report["sha256"],
            "begun": beginning and beginning[1],
            "dtype": dtype_name(setup.dtype),
        }

    def batch(self, draw: Draw) -> list[Item]:
        """Return rows as the texts that serving reads."""
        return self._batches(draw)

    def loss(self, batch: list[Item]) -> Loss:
        """Return the label's cross-entropy and the relevance's squared error."""
        return loss(self.module, batch, self._bases.texts, self.rerank_weight)

    def groups(self) -> list[Group]:
        """Return what learns of the compressor and of the generator."""
        layers = self._bases.built.own_layers
        return groups(self.module, self._own_recipe, layers=layers)

    def names(self, batch: list[Item]) -> list[str]:
        """Return the rows' files, lines and questions."""
        return [item.name for item in batch]

    def weights(self) -> dict[str, Tensor]:
        """Return what learns: adapters, new tokens' rows, the compressor."""
        return learning_state(self.module)

    def evaluate(self) -> dict[str, object] | None:
        """Return losses on the rows held out, and EM and F1 of some answers."""
        rows = self._data.held_out
        if rows is None:
            return None
        return validate(self.module, self._bases, rows, self._own_recipe, answers=self._answers)


def train(
    built: PairSources | None,
    files: Files,
    out: Path,
    recipe: CausalRecipe,
    *,
    begin: Path | None = None,
    moved: dict[str, Path] | None = None,
    answers: int = 16,
    setup: TrainingSetup | None = None,
) -> CausalPair:
    """Train, with a checkpoint and a validation every so many steps; resumes from ``out``.

    Args:
        built: What the pair is built from; None: what ``begin``'s is.
        files: The rows.
        out: Folder for checkpoints, log and ``run.json``.
        recipe: How to train.
        begin: Folder of a run whose weights to begin with: pretraining's, to fine-tune.
        moved: Where directories are that have moved since that run.
        answers: Held-out questions that are answered at each checkpoint.
        setup: Where, and how often it saves; default: the CPU.

    Raises:
        InputError: A directory, a row or the recipe is of no use; nothing was trained.
        TrainingStopped: As ``run_training`` says.
    """
    setup = setup or TrainingSetup()
    earlier = None if begin is None else read_run(begin, moved)
    bases = _open_bases(built, earlier, begin)
    data = load(files, bases, recipe)
    beginning = None
    if begin is not None and earlier is not None:
        beginning = (begin, earlier.summary(last_checkpoint(begin).step))
    method = CausalTraining(bases, data, recipe, setup, answers, beginning)
    if setup.is_first:
        out.mkdir(parents=True, exist_ok=True)
        Run(
            built=bases.built,
            recipe=recipe,
            bases=bases.fingerprints,
            data=data.report,
            reranks=bool(method.rerank_weight) or bool(earlier and earlier.reranks),
            begun=beginning and beginning[1],
            command=setup.command,
            versions=versions("peft"),
        ).write(out)
    log.info("%d rows, %d steps of %d", len(data.train), method.recipe.steps, recipe.batch)
    return run_training(method, out, setup.processes)


def _open_bases(built: PairSources | None, earlier: Run | None, begin: Path | None) -> Bases:
    """Open the directories that are named, or those of the run to begin from.

    Raises:
        InputError: Neither is given, or they differ.
    """
    if earlier is None:
        if built is None:
            raise InputError(
                "generator: name its directory, or a run to begin from", field="generator"
            )
        return Bases(built)
    if built is not None and built != earlier.built:
        raise InputError(
            f"from: the pair of {begin} is built otherwise; leave out what it is built from",
            field="from",
            value=str(begin),
        )
    return open_bases(earlier)


def main(argv: list[str] | None = None) -> None:
    """Run ``condensery train oscar-causal``."""
    parser = Parser(prog="condensery train oscar-causal", description=__doc__)
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
    sizes = {f.name: f.default for f in fields(PairSources) if f.name not in PATHS}
    add_flags(shape, sizes)
    add_fields(parser, CausalRecipe(), CHOICES)
    argv = sys.argv[1:] if argv is None else argv
    args = parser.parse_args(argv)
    with open_setup(args, f"{parser.prog} {shlex.join(argv)}") as setup:
        recipe = read_fields(args, CausalRecipe)
        built, moved = _built(args, list(sizes))
        train(
            built,
            _files(args),
            args.out,
            recipe,
            begin=args.begin,
            moved=moved,
            answers=args.answers,
            setup=setup,
        )


def _built(
    args: argparse.Namespace, sizes: Sequence[str]
) -> tuple[PairSources | None, dict[str, Path] | None]:
    """Return what to build, or where a begun run's directories are now.

    Raises:
        InputError: Sizes are given beside a run to begin from, which has its own.
    """
    chosen, paths = given_flags(args, sizes), given_flags(args, PATHS)
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
