"""``condensery shrp build``: heads as experts, pruned to a static network, in one command."""

import argparse
import logging
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from condensery.methods.ranking.sets import RankingSet
from condensery.methods.ranking.similarities import read_similarities
from condensery.methods.retriever.batches import read_examples as read_ranked
from condensery.methods.retriever.measuring import add_measuring, read_measuring
from condensery.methods.retriever.publishing import Storing, add_storing
from condensery.methods.shrp.building import build
from condensery.methods.shrp.classification import Example, label_names, read_examples
from condensery.methods.shrp.recipe import BuildInputs, BuildPlan, Order, ShrpRecipe
from condensery.methods.trainer.arguments import add_fields, add_machine, open_setup, read_fields
from condensery.methods.trainer.texts import read_texts
from condensery.parsers import Parser
from condensery.store.manifest import StoredModel
from condensery.store.store import ModelStore, shipped_store

log = logging.getLogger(__name__)


def make_parser() -> argparse.ArgumentParser:
    """Return the command's flags."""
    parser = Parser(prog="condensery shrp build", description=__doc__)
    add = parser.add_argument
    add("model", help="the parent's name in the stores: encoder, classifier or reranker")
    add("--store", type=Path, required=True, help="your own store; it receives the model")
    add("--name", required=True, help="what the model is called")
    add("--out", type=Path, required=True, help="folder for what is trained and measured; "
        "run again to go on")  # fmt: skip
    _add_layers(parser.add_argument_group("layers"))
    _add_data(parser.add_argument_group("data"))
    add_fields(parser.add_argument_group("training"), ShrpRecipe())
    add_measuring(parser.add_argument_group("measuring"))
    add_storing(parser.add_argument_group("storing"))
    add_machine(parser, dtype="float32", every=0)
    return parser


def _add_layers(group: "argparse._ArgumentGroup") -> None:
    add = group.add_argument
    add("--convert", type=int, default=1, metavar="N", help="layers to convert (1)")
    add("--order", choices=get_args(Order), default="last", help="which go first (last)")
    add("--layers", type=int, nargs="+", default=(), metavar="NUMBER",
        help="their numbers instead, from 0, in the order in which they go")  # fmt: skip
    add("--keep", type=int, default=1, help="experts that stay of each; one needs no gate (1)")
    add("--licence", default="", help="of the weights (the parent's)")


def _add_data(group: "argparse._ArgumentGroup") -> None:
    for name, says in (
        ("train", "labelled rows (text, or text1 and text2; label) to learn from"),
        ("validation", "labelled rows on which experts' use is counted"),
        ("test", "labelled rows that the report is of (the validation rows)"),
        ("text", "embeddings: JSONL rows or plain text"),
        ("rows", "query, positive, negatives: for rerankers, and --contrast"),
        ("pairs", "embeddings: text1, text2, score, to measure correlations on"),
    ):
        group.add_argument(f"--{name}", type=Path, nargs="+", default=(), help=says)
    group.add_argument(
        "--sentences", action="store_true", help="learn each sentence of the texts as well"
    )
    group.add_argument(
        "--most-texts", type=int, default=0, metavar="N", help="of them at random (0: all)"
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Run ``condensery shrp build``."""
    argv = sys.argv[1:] if argv is None else argv
    args = make_parser().parse_args(argv)
    with open_setup(args, f"condensery shrp build {shlex.join(argv)}") as setup:
        plan = BuildPlan(
            args.convert,
            args.order,
            args.layers,
            args.keep,
            read_fields(args, ShrpRecipe),
            Storing(args.stored, args.share_embeddings),
        )
        store = ModelStore(shipped_store(), args.store)
        parent = store.open(args.model)
        sets, where = read_measuring(args, setup.device)
        inputs = _read_inputs(args, parent, sets, setup.command)
        built = build(parent, store, args.name, plan, inputs, args.out, where, setup=setup)
    if built is not None:
        for made in {built.parent.name: built.parent, built.model.name: built.model}.values():
            log.info("%s version %s is in %s", made.name, made.version, made.path)


def _read_inputs(
    args: argparse.Namespace, parent: StoredModel, sets: Sequence[RankingSet], command: str
) -> BuildInputs:
    files = [*args.train, *args.validation, *args.test, *args.text, *args.rows]
    train, validation, test = _read_labelled(args, parent)
    return BuildInputs(
        train=train,
        validation=validation,
        test=test,
        texts=read_texts(args.text, sentences=args.sentences, most=args.most_texts, seed=args.seed),
        rows=read_ranked(args.rows) if args.rows else (),
        similarities=[read_similarities(path) for path in args.pairs],
        sets=sets,
        licence=args.licence,
        data=tuple(f"{path.parent.name}/{path.name}" for path in files),
        command=command,
    )


def _read_labelled(args: argparse.Namespace, parent: StoredModel) -> list[list[Example]]:
    """Read labelled rows; their labels are a classifier's own, or those of the training rows."""
    own = parent.manifest.shape.get("labels")
    labels = [str(label) for label in own] if isinstance(own, list) else None
    train = read_examples(args.train, labels) if args.train else []
    if train and labels is None:
        labels = [*label_names(train)]
    others = [
        read_examples(paths, labels) if paths else [] for paths in (args.validation, args.test)
    ]
    return [train, *others]


if __name__ == "__main__":
    main()
