"""What commands share: printing, which server they ask, documents read from files."""

import argparse
import itertools
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypeAlias

from condensery.client.transports import DEFAULT_URL
from condensery.errors import CondenseryError, InputError, shorten
from condensery.values import Document

if TYPE_CHECKING:
    from condensery.client.grpc import GrpcClient
    from condensery.client.rest import Client


# What a command's parser is added to; argparse has no public name for it.
Parsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def print_note(message: str) -> None:
    """Print a message that is not the command's output, on standard error."""
    print(message, file=sys.stderr)


def shorten_line(text: str, width: int | None = None) -> str:
    """Return ``text`` on one line, cut to fit the terminal."""
    width = width or max(40, shutil.get_terminal_size().columns - 30)
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


@contextmanager
def require_extra(name: str) -> Iterator[None]:
    """Turn a missing package into the error that says which extra brings it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise CondenseryError(
            f"the package {error.name} is missing: pip install 'condensery[{name}]'"
        ) from error


API_KEY_VARIABLE = "CONDENSERY_API_KEY"
AnyClient: TypeAlias = "Client | GrpcClient"


def add_server_arguments(parser: argparse.ArgumentParser, *, needed: bool = True) -> None:
    """Add the arguments that choose the server.

    Args:
        needed: Whether there is a default server; else ``args.url`` is None.
    """
    group = parser.add_argument_group("server")
    address = group.add_mutually_exclusive_group()
    address.add_argument(
        "--url",
        default=os.environ.get("CONDENSERY_URL", DEFAULT_URL) if needed else None,
        help="where the service answers REST"
        + (" (default: $CONDENSERY_URL or %(default)s)" if needed else ""),
    )
    address.add_argument("--grpc", metavar="ADDRESS", help="use gRPC, at host:port, instead")
    group.add_argument(
        "--timeout", type=float, default=120.0, metavar="SECONDS", help="default: %(default)s"
    )
    group.add_argument(
        "--api-key",
        metavar="KEY",
        help=f"a key, if the server wants one (default: ${API_KEY_VARIABLE}, which is private)",
    )
    group.add_argument("--tls", action="store_true", help="with --grpc: expect a certificate")
    group.add_argument(
        "--ca", metavar="FILE", help="certificates to trust instead of the usual ones, PEM"
    )


@contextmanager
def add_action(
    actions: Parsers,
    name: str,
    run: Callable[..., int | None],
    help: str,
    description: str | None = None,
    *,
    add_where: Callable[[argparse.ArgumentParser], None] | None = None,
) -> Iterator[argparse.ArgumentParser]:
    """Add an action; the block adds its own arguments, and ``add_where`` those of where it acts.

    By default it asks a server (``ask_server``).
    """
    parser = actions.add_parser(name, help=help, description=description)
    yield parser
    if add_where is None:
        ask_server(parser, run)
    else:
        parser.set_defaults(run=run)
        add_where(parser)


def ask_server(parser: argparse.ArgumentParser, run: Callable[..., int | None]) -> None:
    """Let a command ask a server: ``run`` gets a client too, and returns the status, None for 0."""

    def run_connected(args: argparse.Namespace) -> int:
        with connect(args) as client:
            return run(args, client) or 0

    parser.set_defaults(run=run_connected)
    add_server_arguments(parser)


def connect(args: argparse.Namespace) -> AnyClient:
    """Open a client of the server in ``args``; close it, or use ``with``."""
    # Each late: what asks no server, `--help` too, starts in half the time.
    api_key = args.api_key or os.environ.get(API_KEY_VARIABLE) or None
    if args.grpc:
        from condensery.client.grpc import GrpcClient

        return GrpcClient(
            args.grpc, timeout=args.timeout, api_key=api_key, tls=args.tls, ca=args.ca
        )
    from condensery.client.rest import Client

    return Client(args.url, timeout=args.timeout, api_key=api_key, ca=args.ca)


FileFormat = Literal["jsonl", "text"]
JSON_SUFFIXES = (".jsonl", ".ndjson")
STDIN = "-"


def add_document_arguments(parser: argparse.ArgumentParser, dest: str, **count: Any) -> None:
    """Add the arguments of a file of documents, or (``nargs``) of several."""
    parser.add_argument(
        dest,
        metavar="FILE",
        help="JSON lines with id, text and perhaps metadata (.jsonl, .ndjson); or plain text,"
        " a document a paragraph; - is standard input",
        **count,
    )
    parser.add_argument("--format", choices=("jsonl", "text"), help="default: by the file's suffix")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a file, without its end."""

    source: str
    number: int
    text: str
    end: int  # bytes read so far

    def fail(self, problem: str) -> InputError:
        """Return the error that says what is wrong with this line."""
        return InputError(f"{self.source}, line {self.number}: {problem}")


@contextmanager
def open_lines(path: str) -> Iterator[Iterator[Line]]:
    """Read a UTF-8 file, or standard input, line by line.

    Raises:
        InputError: The file can't be read; on iteration, a line is not UTF-8.
    """
    if path == STDIN:
        yield _read_lines(sys.stdin.buffer, "standard input")
        return
    with ExitStack() as stack:
        try:
            file = stack.enter_context(Path(path).open("rb"))
        except OSError as error:
            raise InputError(f"{path}: can't be read: {error.strerror or error}") from error
        yield _read_lines(file, path)


@contextmanager
def open_documents(
    path: str, form: FileFormat | None, *, stdin_prefix: str = "stdin"
) -> Iterator[Iterator[tuple[Document, int]]]:
    """Read a file's documents, each with the bytes read so far.

    Args:
        stdin_prefix: Of the ids of paragraphs from standard input; a file's is its name.

    Raises:
        InputError: The file is empty, or can't be read; on iteration, a line is no document.
    """
    with open_lines(path) as lines:
        first = next(lines, None)
        if first is None:
            raise InputError(f"{path}: is empty")
        prefix = stdin_prefix if path == STDIN else Path(path).stem
        form = form or guess_format(path, first)
        yield parse_documents(itertools.chain([first], lines), form, prefix)


def parse_documents(
    lines: Iterable[Line], form: FileFormat, prefix: str
) -> Iterator[tuple[Document, int]]:
    """Yield each document and the bytes read so far.

    Args:
        form: ``jsonl``: one object a line, with ``id``, ``text`` and perhaps ``metadata``; what
            other fields it has become metadata. ``text``: one document a paragraph; paragraphs
            end at empty lines.
        prefix: Of the ids of paragraphs: ``prefix-1``, ``prefix-2``, ...

    Raises:
        InputError: A line is no document; the message names file, line and field.
    """
    return _parse_json(lines) if form == "jsonl" else _parse_text(lines, prefix)


def guess_format(path: str, first: Line | None) -> FileFormat:
    """Guess the format by the file's name, or for standard input by the first line."""
    if path == STDIN:
        return "jsonl" if first is not None and first.text.lstrip().startswith("{") else "text"
    return "jsonl" if Path(path).suffix.lower() in JSON_SUFFIXES else "text"


def _read_lines(file: BinaryIO, source: str) -> Iterator[Line]:
    end = 0
    try:
        for number, raw in enumerate(file, 1):
            end += len(raw)
            try:
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{source}, line {number}: not UTF-8 at byte {error.start + 1} of the line"
                ) from error
            yield Line(source, number, text.rstrip("\r\n"), end)
    except OSError as error:  # a directory opens, and fails when read
        raise InputError(f"{source}: can't be read: {error.strerror or error}") from error


def _parse_json(lines: Iterable[Line]) -> Iterator[tuple[Document, int]]:
    for line in lines:
        if not line.text.strip():
            continue
        try:
            entry = json.loads(line.text, parse_constant=_refuse_constant)
        except ValueError as error:
            raise line.fail(f"not JSON: {error}") from error
        yield _read_entry(line, entry), line.end


def _read_entry(line: Line, entry: Any) -> Document:
    if not isinstance(entry, dict):
        raise line.fail(f"a document is an object with id and text, not {shorten(entry)}")
    for name in ("id", "text"):
        if name not in entry:
            raise line.fail(f"{name}: is missing")
        if not isinstance(entry[name], str):
            raise line.fail(f"{name}: must be a string, not {shorten(entry[name])}")
    metadata = entry.get("metadata", {})
    if not isinstance(metadata, dict):
        raise line.fail(f"metadata: must be an object, not {shorten(metadata)}")
    others = {
        name: value for name, value in entry.items() if name not in ("id", "text", "metadata")
    }
    return Document(entry["id"], entry["text"], {**others, **metadata})


def _parse_text(lines: Iterable[Line], prefix: str) -> Iterator[tuple[Document, int]]:
    paragraph: list[str] = []
    number, end = 0, 0
    for line in lines:
        end = line.end
        if line.text.strip():
            paragraph.append(line.text)
        elif paragraph:
            number += 1
            yield Document(f"{prefix}-{number}", "\n".join(paragraph)), end
            paragraph = []
    if paragraph:
        yield Document(f"{prefix}-{number + 1}", "\n".join(paragraph)), end


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")
