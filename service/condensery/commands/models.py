"""``condensery models``: what the stores hold, and (``swapping``) what a server runs of it."""

import argparse
import json
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from condensery.commands import reporting, swapping
from condensery.commands.printing import Parsers, extra, say, table
from condensery.durable import PRIVATE, umask
from condensery.errors import InputError

if TYPE_CHECKING:
    from condensery.settings import Settings
    from condensery.store.store import ModelStore


def add_parser(parsers: Parsers) -> None:
    """Add ``models`` and its actions."""
    models = parsers.add_parser(
        "models",
        help="list, show, verify and import stored models; load and unload them in a server",
        description="Work with the model stores, the one that is shipped and your own, and with"
        " the models that a server runs.",
    )
    actions = models.add_subparsers(dest="action", metavar="ACTION", required=True)

    listing = actions.add_parser("list", help="list the stored models, broken ones with the reason")
    listing.set_defaults(run=run_list)

    show = actions.add_parser("show", help="print what a model says of itself, as JSON")
    show.add_argument("name", metavar="NAME")
    show.set_defaults(run=run_show)

    verify = actions.add_parser("verify", help="hash a model's files again, or every model's")
    verify.add_argument("name", metavar="NAME", nargs="?")
    verify.set_defaults(run=run_verify)

    report = actions.add_parser(
        "report",
        help="print what a model was measured at: JSON, or its card",
        description="Print what a model was measured at when it was published: from the stores,"
        " or from a running server.",
    )
    reporting.add_arguments(report)

    take = actions.add_parser(
        "import",
        help="import a model's directory",
        description="Import a sentence-transformers model, a Hugging Face encoder, a language"
        " model as a retriever (LLM-Drop's directories, LoRA directories), a published OSCAR pair"
        " (naver/oscar-*, naver/pisco-*), or a stored model, from its directory.",
    )
    take.add_argument("path", type=Path, metavar="PATH")
    take.add_argument("--name", required=True, help="the model's name in the store")
    take.add_argument(
        "--pooling",
        choices=("mean", "cls", "last"),
        help="how tokens' vectors become a text's, of an encoder or language model whose directory"
        " does not say (default: last of a causal language model, mean of others)",
    )
    take.add_argument(
        "--normalize",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="scale vectors to length 1, likewise (default: yes)",
    )
    retrievers = take.add_argument_group("retrievers made of language models")
    retrievers.add_argument(
        "--base",
        type=Path,
        metavar="DIR",
        help="a LoRA directory's base model (default: the directory that it names, looked for in"
        " it, then from here, then beside it)",
    )
    retrievers.add_argument(
        "--query-prompt",
        metavar="TEXT",
        help="put before queries (default: EffiR's for a LoRA directory, else none)",
    )
    retrievers.add_argument(
        "--max-tokens",
        type=int,
        metavar="TOKENS",
        help="longest input (default: what network and tokenizer allow; 512 of a LoRA directory)",
    )
    retrievers.add_argument(
        "--add-eos",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="end each text with the end token where the tokenizer does not (default: no for a LoRA"
        " directory, as the published code reads it; else where the last token is the vector)",
    )
    pairs = take.add_argument_group("published OSCAR pairs")
    for half in ("generator", "compressor"):
        pairs.add_argument(
            f"--{half}-base",
            type=Path,
            metavar="DIR",
            help=f"the {half}'s base model (default: the directory that config.json names,"
            " looked for as for --base)",
        )
    pairs.add_argument(
        "--questions",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="whether the compressor reads the question (default: yes; naver/pisco-*'s do not)",
    )
    pairs.add_argument(
        "--max-length",
        type=int,
        metavar="TOKENS",
        help="of question and passage together, or of the passage where no question is read, beside"
        " what the layout puts around them (default: a passage as in training, and 64 for the"
        " question where it is read; the published code takes 128)",
    )
    pairs.add_argument(
        "--rounded-rope",
        action="store_true",
        default=None,
        help="round the compressor's rotary frequencies to bf16, as the published code does",
    )
    take.set_defaults(run=run_import)

    swapping.add_actions(actions)
    for action in (listing, show, verify, report, take):
        action.add_argument(
            "--store", type=Path, metavar="DIR", help="your own store (default: DATA_DIR/models)"
        )
        action.add_argument("--data-dir", type=Path, metavar="DIR", help="as in condensery serve")


def open_store(args: argparse.Namespace) -> "ModelStore":
    """Open the shipped store and the own one that ``args`` or the environment name."""
    with extra("serve"):
        from condensery.store.store import ModelStore, shipped_store
    return ModelStore(shipped_store(), _read_settings(args).own_store)


def _read_settings(args: argparse.Namespace) -> "Settings":
    with extra("serve"):
        from condensery.settings import read_settings
    return read_settings({"store": args.store, "data_dir": args.data_dir})


def run_list(args: argparse.Namespace) -> int:
    """Print a line a model, and on stderr a line a broken one."""
    from condensery.store.manifest import StoredModel

    store = open_store(args)
    rows = [("NAME", "VERSION", "KIND", "METHOD", "DTYPE", "MiB", "LICENCE", "STORE")]
    broken = []
    for entry in store.list():
        if not isinstance(entry, StoredModel):
            broken.append(f"{entry.name}: refused: {entry.reason} ({entry.path})")
            continue
        manifest = entry.manifest
        size = sum((entry.path / file).stat().st_size for file in manifest.files) / 2**20
        where = "shipped" if entry.root == store.shipped else "own"
        rows.append(
            (
                entry.name,
                entry.version,
                manifest.kind,
                manifest.method,
                manifest.dtype,
                f"{size:.1f}",
                manifest.licence,
                where,
            )
        )
    print(table(rows))
    for line in broken:
        say(line)
    return 0


def run_show(args: argparse.Namespace) -> int:
    """Print a manifest."""
    stored = open_store(args).open(args.name, check=False)
    content = stored.manifest.model_dump(mode="json") | {"path": str(stored.path)}
    print(json.dumps(content, indent=2, ensure_ascii=False))
    return 0


def run_verify(args: argparse.Namespace) -> int:
    """Hash one model's files, or all; 1 if any is not whole."""
    from condensery.store.manifest import StoredModel

    store = open_store(args)
    entries = [store.verify(args.name)] if args.name else store.list()
    whole = True
    for entry in entries:
        if isinstance(entry, StoredModel):
            files = len(entry.manifest.files)
            print(f"{entry.name} version {entry.version}: {files} files as they should be")
        else:
            whole = False
            print(f"{entry.name}: broken: {entry.reason}")
    return 0 if whole else 1


def run_import(args: argparse.Namespace) -> int:
    """Import a directory."""
    with extra("serve"):
        from condensery.store.importing import import_model
        from condensery.store.pair_options import Options
        from condensery.store.retriever_options import RetrieverOptions
    for flag, value in (("--max-length", args.max_length), ("--max-tokens", args.max_tokens)):
        if value is not None and value < 8:
            raise InputError(f"{flag}: {value} is not allowed: at least 8")
    with umask(PRIVATE) if _read_settings(args).store_is_private else nullcontext():
        stored = import_model(
            open_store(args),
            args.path,
            args.name,
            pooling=args.pooling,
            normalize=args.normalize,
            pair=Options(
                generator_base=args.generator_base,
                compressor_base=args.compressor_base,
                questions=args.questions,
                max_length=args.max_length,
                rounded_rope=args.rounded_rope,
            ),
            retriever=RetrieverOptions(args.base, args.query_prompt, args.max_tokens, args.add_eos),
        )
    print(f"{stored.name} version {stored.version} ({stored.manifest.kind}): {stored.path}")
    for note in stored.manifest.provenance.notes:
        say(f"note: {note}")
    return 0
