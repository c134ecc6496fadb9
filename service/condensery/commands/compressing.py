"""``condensery compress``: documents read for a question; the server keeps their vectors."""

import argparse
import dataclasses
import itertools
import json
import time
from pathlib import Path

from condensery.answers import Compressed, CompressedDocument
from condensery.commands.asking import describe_compression
from condensery.commands.connecting import add_server, connect
from condensery.commands.documents import STDIN, Format, guess_format, open_lines, parse
from condensery.commands.printing import Parsers, table
from condensery.errors import InputError
from condensery.values import Document

HEAD = ("PLACE", "SCORE", "TOKENS", "VECTORS", "WINDOWS", "STATUS", "ID")


def add_parser(parsers: Parsers) -> None:
    """Add ``compress``."""
    parser = parsers.add_parser(
        "compress",
        help="compress documents for a question, to answer it later",
        description="Compress and score documents for a question in one pass, and print what became"
        " of each. The server keeps the vectors for a while: `condensery ask QUESTION --context"
        " HANDLE` answers from them.",
    )
    parser.add_argument("question")
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        help="JSON lines with id, text and perhaps metadata (.jsonl, .ndjson); or plain text,"
        " a document a paragraph; - is standard input",
    )
    parser.add_argument("--format", choices=("jsonl", "text"), help="default: by the file's suffix")
    parser.add_argument("--model", help="name of a pair; the server's default else")
    parser.add_argument(
        "--rate",
        type=int,
        metavar="N",
        help="tokens a vector, of the rates that the pair has (default: the finest)",
    )
    parser.add_argument(
        "--ttl",
        type=float,
        metavar="SECONDS",
        help="how long the server keeps the vectors (default: its own ten minutes)",
    )
    parser.add_argument(
        "--keep",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="keep the vectors, and print their handle (default)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    add_server(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Compress, and print what became of each document, and the handle."""
    documents = [document for file in args.files for document in read(file, args.format)]
    with connect(args) as client:
        found = client.compress(
            args.question,
            documents,
            model=args.model,
            rate=args.rate,
            ttl_seconds=args.ttl,
            keep=args.keep,
        )
    if args.json:
        print(json.dumps(dataclasses.asdict(found), ensure_ascii=False))
        return 0
    print(table([HEAD, *map(describe_document, found.documents)]))
    print(describe_compression(found.compression))
    if found.context is not None:
        print(describe_context(found))
    return 0


def read(file: str, form: Format | None) -> list[Document]:
    """Read a file's documents."""
    with open_lines(file) as lines:
        first = next(lines, None)
        if first is None:
            raise InputError(f"{file}: is empty")
        form = form or guess_format(file, first)
        prefix = "stdin" if file == STDIN else Path(file).stem
        return [document for document, _ in parse(itertools.chain([first], lines), form, prefix)]


def describe_document(found: CompressedDocument) -> tuple[str, ...]:
    """Return a document's row."""
    score = "-" if found.relevance_score is None else f"{found.relevance_score:.3f}"
    status = f"{found.status} ({found.reason})" if found.reason else found.status
    counts = (found.tokens_in, found.vectors_out, found.windows)
    return (str(found.index), score, *map(str, counts), status, found.id)


def describe_context(found: Compressed) -> str:
    """Return the line that names the handle, and says how long it holds."""
    until = ""
    if found.expires_at is not None:
        until = f" (until {time.strftime('%H:%M:%S', time.localtime(found.expires_at))})"
    return f"context: {found.context}{until}"
