"""Train one stage of a memory encoder: compress texts, then tell them from others."""

import argparse
import logging
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from condensery.errors import InputError
from condensery.methods.llm2comp.recipe import (
    CHOICES,
    RECIPES,
    STAGES,
    NetworkShape,
    Stage,
    StageRecipe,
)
from condensery.methods.llm2comp.sources import Base, directory_base, stored_base
from condensery.methods.llm2comp.training import HELD_OUT, StageData, train
from condensery.methods.llm2comp.weights import load_stage
from condensery.methods.ranking.similarities import read_similarities
from condensery.methods.retriever.batches import Example, read_examples
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

log = logging.getLogger(__name__)
COMMAND = "condensery train llm2comp"
CONFIG = "config.json"


def make_parser(stage: Stage) -> argparse.ArgumentParser:
    """Return the flags of a stage."""
    parser = Parser(prog=COMMAND, description=__doc__)
    add = parser.add_argument
    add("model", help="the language model: its name in the stores, or a directory")
    add("--stage", choices=STAGES, required=True, help="the flags below are this stage's")
    add("--out", type=Path, required=True, help="folder for checkpoints, log, plots and result; "
        "run again to go on")  # fmt: skip
    add("--store", type=Path, help="your own store, beside the shipped models")
    add("--start", type=Path, help="the stage before: its --out (the language model itself)")
    add_data(parser.add_argument_group("data"))
    # Not given they stay None: the stage before decides, or the defaults.
    add_flags(parser.add_argument_group("network"), asdict(NetworkShape()), CHOICES)
    add_fields(parser.add_argument_group("training"), RECIPES[stage](), CHOICES)
    add_machine(parser, every=200)
    return parser


def add_data(group: "argparse._ArgumentGroup") -> None:
    """Add the flags of what stages are trained and watched on."""
    add = group.add_argument
    add("--text", type=Path, nargs="+", default=(), help="JSONL rows or lines of plain text, for "
        "the first two stages")  # fmt: skip
    add("--sentences", action="store_true", help="each sentence of the texts as well")
    add("--most-texts", type=int, default=0, metavar="N", help="of them at random (0: all)")
    add("--rows", nargs="+", default=(), metavar="FILE[=INSTRUCTION]", help="query, positive, "
        "negatives, perhaps instruction, for the supervised stage; a file's instruction is that "
        "of rows without one")  # fmt: skip
    add("--instruction", default="", help="of queries without any")
    add("--held-out-text", type=Path, nargs="+", default=(), help="to look at embeddings of "
        "(some of the texts, which are then not trained on)")  # fmt: skip
    add("--held-out", type=int, default=HELD_OUT, metavar="N", help=f"how many ({HELD_OUT})")
    add("--pairs", type=Path, nargs="+", default=(), help="text1, text2, score, to measure on")


def read_rows_flag(values: Sequence[str]) -> list[Example]:
    """Read rows from files, each perhaps with the instruction of rows that have none.

    Raises:
        InputError: A file can't be read, or a row is wrong; names file, line and field.
    """
    examples: list[Example] = []
    for value in values:
        path, _, instruction = value.partition("=")
        rows = read_examples([Path(path)])
        examples += [
            replace(row, instruction=row.instruction or instruction) if instruction else row
            for row in rows
        ]
    return examples


def read_data(args: argparse.Namespace) -> StageData:
    """Read what ``add_data``'s flags name.

    Raises:
        InputError: A file can't be read, or holds nothing of use; named.
    """
    how = {"sentences": args.sentences, "most": args.most_texts, "seed": args.seed}
    if args.held_out < 0:
        raise InputError(
            f"held_out: {args.held_out}: must be at least 0", field="held_out", value=args.held_out
        )
    held = read_texts(args.held_out_text)[: args.held_out] if args.held_out_text else []
    return StageData(
        texts=read_texts(args.text, **how),
        examples=read_rows_flag(args.rows),
        instruction=args.instruction,
        held_out=held,
        held=args.held_out,
        similarities=[read_similarities(path) for path in args.pairs],
    )


def open_source(name: str, store: Path | None) -> Base:
    """Open the language model that a flag names: a directory, or one of the stores.

    Raises:
        InputError: It is no causal language model.
        ModelNotFound: There is no such directory, and the stores have no such model.
    """
    if (Path(name) / CONFIG).is_file():
        return directory_base(Path(name))
    # Late: the store needs pydantic, which is absent where runs are only trained.
    from condensery.store.store import ModelStore, shipped_store

    shipped = shipped_store()
    own = store or shipped  # the shipped models serve alone too
    if own is None:
        raise InputError(f"store: {name!r} is looked for in a store; none is given", field="store")
    return stored_base(ModelStore(shipped, own).open(name))


def _shape(args: argparse.Namespace) -> NetworkShape:
    """Return the shape that flags give, over that of the stage before."""
    known = asdict(NetworkShape())
    if args.start is not None:
        before: dict[str, Any] = dict(load_stage(args.start).card.get("shape", {}))
        known |= {name: value for name, value in before.items() if name in known}
    return NetworkShape(**known | given_flags(args, known))


def _stage_of(argv: Sequence[str]) -> Stage:
    """Return the stage that arguments name: which flags there are depends on it."""
    for place, word in enumerate(argv):
        flag, _, value = word.partition("=")
        named = value or next(iter(argv[place + 1 :]), "")
        if flag == "--stage" and named in RECIPES:
            return named
    return "pretext"


def main(argv: Sequence[str] | None = None) -> None:
    """Run ``condensery train llm2comp``."""
    argv = sys.argv[1:] if argv is None else argv
    stage = _stage_of(argv)
    args = make_parser(stage).parse_args(argv)
    recipe: StageRecipe = read_fields(args, RECIPES[stage])
    with open_setup(args, f"{COMMAND} {shlex.join(argv)}") as setup:
        base = open_source(args.model, args.store)
        train(
            base, _shape(args), recipe, read_data(args), args.out,
            start=args.start, setup=setup,
        )  # fmt: skip


if __name__ == "__main__":
    main()
