"""``condensery llm2comp build``: an encoder made of a language model, in one command."""

import argparse
import logging
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import get_args

from condensery.errors import InputError
from condensery.methods.llm2comp.building import build
from condensery.methods.llm2comp.data import data_names
from condensery.methods.llm2comp.plan import BuildInputs, BuildPlan
from condensery.methods.llm2comp.recipe import (
    CHOICES,
    RECIPES,
    STAGES,
    NetworkShape,
    Stage,
    StageRecipe,
)
from condensery.methods.llm2comp.train_command import read_rows_flag
from condensery.methods.llm2comp.training import HELD_OUT
from condensery.methods.ranking.sets import RankingSet
from condensery.methods.ranking.similarities import read_similarities
from condensery.methods.retriever.measuring import add_measuring, read_measuring
from condensery.methods.retriever.publishing import StoredDType
from condensery.methods.trainer.arguments import (
    add_fields,
    add_flags,
    add_machine,
    given_flags,
    open_setup,
    read_fields,
)
from condensery.methods.trainer.texts import read_texts
from condensery.parsers import Parser
from condensery.store.store import ModelStore, shipped_store

log = logging.getLogger(__name__)
COMMAND = "condensery llm2comp build"
SHARED = {"seed": 42, "recompute": False}  # one flag for all stages


def make_parser() -> argparse.ArgumentParser:
    """Return the command's flags."""
    parser = Parser(prog=COMMAND, description=__doc__)
    add = parser.add_argument
    add("model", help="the language model's name in the stores")
    add("--store", type=Path, required=True, help="your own store; it receives the model")
    add("--name", required=True, help="what the model is called")
    add("--out", type=Path, required=True, help="folder for what is trained and measured; "
        "run again to go on")  # fmt: skip
    add("--stages", nargs="+", choices=STAGES, default=STAGES,
        help="those that are trained, in their order (all)")  # fmt: skip
    add("--licence", default="", help="of the weights (the language model's)")
    add("--note", nargs="+", default=(), help="sentences for the card: what the data is")
    _add_data(parser.add_argument_group("data"))
    add_fields(parser.add_argument_group("network"), NetworkShape(), CHOICES)
    add_flags(parser.add_argument_group("all stages"), SHARED)
    for stage in STAGES:
        group = parser.add_argument_group(f"{stage} stage")
        fields = _stage_fields(stage)
        choices = {name: CHOICES[field] for name, field in fields.items() if field in CHOICES}
        defaults = asdict(RECIPES[stage]())
        add_flags(group, {name: defaults[field] for name, field in fields.items()}, choices)
    measured = parser.add_argument_group("measuring")
    add_measuring(measured)
    measured.add_argument("--pairs", type=Path, nargs="+", default=(), help="text1, text2, score")
    _add_storing(parser.add_argument_group("storing"))
    add_machine(parser, every=200)
    return parser


def _add_data(group: "argparse._ArgumentGroup") -> None:
    add = group.add_argument
    add("--text", type=Path, nargs="+", default=(), help="JSONL rows or lines of plain text, to "
        "compress and to tell from others")  # fmt: skip
    add("--contrast-text", type=Path, nargs="+", default=(),
        help="texts to tell from others, in the place of those")  # fmt: skip
    add("--sentences", action="store_true", help="to tell from others: each sentence as well")
    add("--without", nargs="+", default=(), metavar="FIELD=VALUE", help="rows of texts left out")
    add("--most-texts", type=int, default=0, metavar="N", help="of either at random (0: all)")
    add("--held-out", type=int, default=HELD_OUT, metavar="N",
        help=f"texts to look at embeddings of ({HELD_OUT})")  # fmt: skip
    add("--rows", nargs="+", default=(), metavar="FILE[=INSTRUCTION]", help="query, positive, "
        "negatives, perhaps instruction; a file's is that of rows without one")  # fmt: skip
    add("--instruction", default="", help="of queries without any, and the prompt of queries that "
        "is published")  # fmt: skip


def _add_storing(group: "argparse._ArgumentGroup") -> None:
    add = group.add_argument
    add("--stored", default="bfloat16", choices=get_args(StoredDType),
        help="what trained weights are stored in (bfloat16); int8: matrices")  # fmt: skip
    add("--whole", action="store_true", help="a directory that needs no language model beside it")
    add("--max-tokens", type=int, default=0, metavar="N", help="longest input, memory tokens "
        "included (the language model's)")  # fmt: skip
    add("--normalize", action=argparse.BooleanOptionalAction, default=True,
        help="scale vectors to length 1 (True)")  # fmt: skip
    add("--merge-above", type=float, default=0.0, metavar="COSINE", help="of memory tokens that "
        "are more alike than this, one counts (0: all count; the paper's 0.9)")  # fmt: skip


def _stage_fields(stage: Stage) -> dict[str, str]:
    """Return a stage's flags, each with the field of its recipe."""
    names = [name for name in asdict(RECIPES[stage]()) if name not in SHARED]
    return {f"{stage}_{name}": name for name in names}


def read_plan(args: argparse.Namespace) -> BuildPlan:
    """Return what the flags make of a language model.

    Raises:
        InputError: A field holds a value that is not allowed; names both.
    """
    shared = given_flags(args, SHARED)
    recipes: dict[Stage, StageRecipe] = {}
    for stage in STAGES:
        if stage in args.stages:
            fields = _stage_fields(stage)
            given = {fields[name]: value for name, value in given_flags(args, fields).items()}
            recipes[stage] = RECIPES[stage](**given, **shared)
    return BuildPlan(
        read_fields(args, NetworkShape),
        recipes,
        args.max_tokens,
        args.merge_above,
        args.stored,
        args.whole,
        args.normalize,
    )


def read_inputs(args: argparse.Namespace, sets: Sequence[RankingSet], command: str) -> BuildInputs:
    """Read what the flags name.

    Raises:
        InputError: A file can't be read, or holds nothing of use; named.
    """
    if wrong := [text for text in args.without if "=" not in text]:
        raise InputError(
            f"without: {wrong[0]!r} is not FIELD=VALUE", field="without", value=wrong[0]
        )
    for name in ("held_out", "most_texts"):
        if getattr(args, name) < 0:
            value = getattr(args, name)
            raise InputError(f"{name}: {value}: must be at least 0", field=name, value=value)
    how = {
        "most": args.most_texts,
        "seed": SHARED["seed"] if args.seed is None else args.seed,
        "without": [tuple(text.split("=", 1)) for text in args.without],
    }
    contrasts = "unsupervised" in args.stages
    own_views = contrasts and (args.contrast_text or args.sentences)
    rows = [Path(value.partition("=")[0]) for value in args.rows]
    return BuildInputs(
        texts=read_texts(args.text, **how),
        views=read_texts(args.contrast_text or args.text, sentences=args.sentences, **how)
        if own_views
        else (),
        examples=read_rows_flag(args.rows),
        instruction=args.instruction,
        held=args.held_out,
        similarities=[read_similarities(path) for path in args.pairs],
        sets=sets,
        licence=args.licence,
        data=data_names([*args.text, *args.contrast_text, *rows]),
        notes=tuple(args.note),
        command=command,
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Run ``condensery llm2comp build``."""
    argv = sys.argv[1:] if argv is None else argv
    args = make_parser().parse_args(argv)
    with open_setup(args, f"{COMMAND} {shlex.join(argv)}") as setup:
        plan = read_plan(args)
        store = ModelStore(shipped_store(), args.store)
        parent = store.open(args.model)
        sets, where = read_measuring(args, setup.device)
        inputs = read_inputs(args, sets, setup.command)
        made = build(parent, store, args.name, plan, inputs, args.out, where, setup=setup)
    if made is not None:
        log.info("%s version %s is in %s", made.name, made.version, made.path)


if __name__ == "__main__":
    main()
