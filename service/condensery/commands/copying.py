"""``condensery index copy``: an index's vectors moved into a database, or out of one."""

import argparse
import logging
import sys
from dataclasses import asdict
from pathlib import Path

from tqdm import tqdm

from condensery.commands.common import (
    Parsers,
    add_action,
    add_json_argument,
    print_note,
    print_result,
    require_extra,
)
from condensery.errors import InputError

LEAST_TIMEOUT_SECONDS = 60.0  # nobody waits for a reply but us


def add_copy(actions: Parsers) -> None:
    """Add ``copy``."""
    description = (
        "Make an index of another one's documents, with its vectors in a database, or in FAISS."
        " It works on the data directory: its server must be stopped, or goes on with --ahead,"
        " which sends what there is now and puts nothing in place. A run that was cut short goes"
        " on where it was when it is repeated. Before the copy is put in place it is compared:"
        " counts, and what queries find, of which 99 in 100 must be the nearest there are. The key"
        " of the database is read from CONDENSERY_INDEX_DATABASE_KEY."
    )
    help = "move an index's vectors into a database, or out of one"
    with add_action(actions, "copy", run_copy, help, description, add_where=add_where) as copy:
        copy.add_argument("name", metavar="NAME", help="the index, or an alias of it")
        copy.add_argument("new", metavar="NEW", help="the copy's name")
        copy.add_argument(
            "--to",
            required=True,
            metavar="ADDRESS",
            help="faiss, qdrant://host:6333 or milvus://host:19530 (qdrant+https:// for TLS)",
        )
        ahead_help = "send what there is, beside a server that goes on; put nothing in place"
        copy.add_argument("--ahead", action="store_true", help=ahead_help)
        copy.add_argument(
            "--queries",
            type=int,
            default=200,
            metavar="N",
            help="how many to compare by; default: %(default)s",
        )
        add_json_argument(copy)


def add_where(parser: argparse.ArgumentParser) -> None:
    """Add the argument that says which data directory."""
    data_help = "the server's; default: as `condensery serve` has it"
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help=data_help)


def run_copy(args: argparse.Namespace) -> int:
    """Copy an index."""
    from condensery.settings import read_settings

    logging.getLogger("condensery").addHandler(logging.NullHandler())  # errors say it
    if args.queries < 0:
        raise InputError(f"--queries: {args.queries} is not at least 0")
    settings = read_settings({"data_dir": args.data_dir})
    with require_extra("serve"):
        from condensery.index.copying import copy_index
        from condensery.index.vector_database import DatabaseConfig, VectorDatabases, read_target

    backend, url = read_target(args.to)
    config = None
    if backend != "faiss":
        key = settings.index_database_key
        config = DatabaseConfig(
            backend,
            url,
            key=None if key is None else key.get_secret_value(),
            timeout_seconds=max(LEAST_TIMEOUT_SECONDS, settings.index_database_timeout),
            prefix=settings.index_database_prefix,
        )
    with tqdm(unit="passage", desc=args.new, disable=None, file=sys.stderr) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(max(0, done - bar.n))

        copied = copy_index(
            settings.data_dir,
            args.name,
            args.new,
            VectorDatabases(config, backend),
            ahead=args.ahead,
            queries=args.queries,
            progress=show,
        )
    where = backend if copied.collection is None else f"{backend}, collection {copied.collection}"
    text = (
        f"{copied.name}: {copied.passages} passages in {where}, {copied.sent} sent; "
        f"{copied.queries} queries find {copied.recall:.4f} of the nearest"
    )
    print_result(args, text, asdict(copied))
    if not copied.placed:
        print_note(f"{copied.name}: not in place yet; run this without --ahead when it is to be")
    elif config is not None:
        print_note(
            f"{copied.name}: served with --index-backend {backend} --index-database {config.url}"
        )
    return 0
