"""``condensery train oscar``: train an OSCAR pair whose compressor starts from an encoder."""

import argparse
import logging
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path

from condensery.errors import InputError
from condensery.methods.oscar.packs import Start, open_pack, write_pack
from condensery.methods.oscar.recipe import Recipe
from condensery.methods.oscar.sampling import Mix
from condensery.methods.oscar.starting import encoder_shape, language_model_shape
from condensery.methods.oscar.training import VALIDATED, train
from condensery.methods.trainer.arguments import add_flags, add_machine, given_flags, open_setup
from condensery.networks.oscar_shape import OscarShape
from condensery.parsers import Parser

log = logging.getLogger(__name__)
SHAPE = [f.name for f in fields(OscarShape) if f.name not in ("copy", "fewer", "quote")]
# Cloze questions are made from texts of --data.
NO_CLOZE = {"cloze": 0, "cloze_share": 0.0, "cloze_only": 0}
# What only the making of a run's beginning takes; a pack has it already.
BUILDING_FLAGS = (
    *("base", "data", "questions", "reader", "reader_share", "language_model"),
    *("start_generator", "start", "start_model", "start_share", "store", "pack"),
)


def parser() -> argparse.ArgumentParser:
    """Return what reads the command line; recipe, mix and shape are None where not given."""
    parser = Parser(prog="condensery train oscar", description=__doc__)
    add = parser.add_argument
    add("--base", type=Path, help="encoder directory (BERT)")
    add(
        "--data",
        type=Path,
        help="folder of the data sets: what is kept out and validated on, texts for cloze "
        "questions; without it there is none of these, and --questions is needed",
    )
    add("--questions", nargs="+", help="FILE[:SHARE] to train on, not the usual sets of --data")
    add(
        "--reader",
        type=Path,
        nargs="+",
        help="model folder of train extractive-reader, for the compressor; of several the mean",
    )
    add("--reader-share", type=float, help="of it in each weight, the rest is --start's (1)")
    add(
        "--teacher",
        type=Path,
        help="model folder of train extractive-reader to learn from: each span of each passage",
    )
    add("--language-model", type=Path, help="model folder of train lm, for the generator")
    add("--start-generator", type=Path, help="run of train oscar, whose generator to go on from")
    add(
        "--start",
        type=Path,
        nargs="+",
        help="run of train oscar, or its weights, to go on from; of several the mean",
    )
    add("--start-model", help="stored pair to go on from")
    add("--start-share", type=float, help="of --start in each weight, the rest is --start-model's")
    add("--store", type=Path, help="root of the stored models")
    add("--pack", type=Path, help="write what the run needs into this folder, and stop")
    add("--packed", type=Path, help="train from such a folder")
    add("--out", type=Path, help="folder for checkpoints and log")
    add_machine(parser, dtype="bfloat16", every=500)
    add(
        "--limit",
        type=int,
        default=VALIDATED,
        help=f"questions of a validation ({VALIDATED}); 0: none",
    )
    for part, names in _parts():
        group = parser.add_argument_group(type(part).__name__.lower())
        add_flags(group, {name: getattr(part, name) for name in names})
    return parser


def _parts() -> list[tuple[Recipe | Mix | OscarShape, Sequence[str]]]:
    recipe, mix = Recipe(), Mix()
    return [(recipe, list(asdict(recipe))), (mix, list(asdict(mix))), (OscarShape(), SHAPE)]


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def check(args: argparse.Namespace) -> None:
    """Refuse arguments that don't go together.

    Raises:
        InputError: Names the flag that is missing or too many.
    """
    needs = [] if args.packed else ["base"]
    needs += [] if args.packed or args.questions else ["data"]
    needs += [] if args.pack else ["out"]
    for name in needs:
        if getattr(args, name) is None:
            other = ", or --questions" if name == "data" else ""
            raise InputError(f"{_flag(name)}{other} is missing", field=name)
    if args.packed:
        extra = list(given_flags(args, (*BUILDING_FLAGS, *SHAPE)))
        if extra:
            raise InputError(f"{_flag(extra[0])}: --packed has it already", field=extra[0])
    if args.start and args.start_model and args.start_share is None:
        raise InputError(
            "--start-model: --start names other weights, and no --start-share says how to mix them",
            field="start_model",
        )
    if args.start_share is not None and not (args.start and args.start_model):
        raise InputError(
            "--start-share: needs --start, and --start-model for the rest", field="start_share"
        )
    if args.reader_share is not None and not (args.reader and (args.start or args.start_model)):
        raise InputError(
            "--reader-share: needs --reader, and --start or --start-model for the rest",
            field="reader_share",
        )
    for name in ("start_share", "reader_share"):
        share = getattr(args, name)
        if share is not None and not 0 < share <= 1:
            raise InputError(
                f"{_flag(name)} {share}: must be above 0, to 1", field=name, value=share
            )
    if args.two_way and args.language_model:
        raise InputError(
            "--language-model: a two-way generator starts from the encoder", field="language_model"
        )
    if args.start_generator and args.language_model:
        raise InputError(
            "--start-generator: the generator comes from --language-model", field="start_generator"
        )


def beginning(args: argparse.Namespace) -> Start:
    """Prepare what the run begins with, or read it from a pack."""
    recipe, mix = (
        given_flags(args, [field.name for field in fields(part)]) for part in (Recipe, Mix)
    )
    if args.packed:
        start = open_pack(args.packed)
        return replace(start, recipe=replace(start.recipe, **recipe), mix=replace(start.mix, **mix))
    if args.data is None:
        recipe = NO_CLOZE | recipe
    # Late: these need pydantic, which a machine that trains from a pack may not have.
    from condensery.methods.oscar.preparing import Origins, prepare
    from condensery.methods.oscar.sets import Source

    shape = given_flags(args, SHAPE)
    if shape.get("two_way"):
        shape = {**encoder_shape(args.base), **shape}
    if args.language_model:
        shape = {**language_model_shape(args.language_model), **shape}
    try:
        own = OscarShape(**shape)
    except ValueError as error:
        raise InputError(str(error)) from error
    origins = Origins(
        base=args.base,
        readers=tuple(args.reader or ()),
        reader_share=1.0 if args.reader_share is None else args.reader_share,
        language_model=args.language_model,
        start_generator=args.start_generator,
        starts=tuple(args.start or ()),
        start_model=args.start_model,
        start_share=1.0 if args.start_share is None else args.start_share,
        store=args.store,
    )
    return prepare(
        origins,
        args.data,
        own,
        Recipe(**recipe),
        mix=Mix(**mix),
        sources=[Source.parse(text) for text in args.questions or ()],
    )


def main(argv: list[str] | None = None) -> None:
    """Run ``condensery train oscar``."""
    argv = sys.argv[1:] if argv is None else argv
    args = parser().parse_args(argv)
    check(args)
    with open_setup(args, f"condensery train oscar {shlex.join(argv)}") as setup:
        start = beginning(args)
        if args.pack:
            write_pack(args.pack, start)
            log.info("the pack is in %s", args.pack)
            return
        train(start, args.out, limit=args.limit, setup=setup, teacher=args.teacher)


if __name__ == "__main__":
    main()
