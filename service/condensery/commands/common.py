"""What commands share: printing, which server they ask, arguments of documents."""

import argparse
import dataclasses
import errno
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias, get_args
from urllib.parse import urlsplit

from condensery import wire
from condensery.client.transports import DEFAULT_URL
from condensery.commands.terminal import paint
from condensery.documents.records import FileFormat
from condensery.errors import (
    AnswerServerUnavailable,
    CondenseryError,
    Unavailable,
    VectorDatabaseUnavailable,
)
from condensery.parsers import Parser

if TYPE_CHECKING:
    from condensery.client.grpc import GrpcClient
    from condensery.client.rest import Client


# What a command's parser is added to; argparse has no public name for it.
Parsers: TypeAlias = "argparse._SubParsersAction[Parser]"


def print_note(message: str) -> None:
    """Print a message that is not the command's output, on standard error."""
    print(message, file=sys.stderr)


def print_entry(**entry: Any) -> None:
    """Print an object on one line."""
    print(json.dumps(entry, default=json_fields, ensure_ascii=False))


def json_fields(value: Any) -> Any:
    """Return what ``json.dumps`` does not know as what it does: a dataclass by all its fields."""
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return wire.write(value)


def add_json_argument(parser: argparse._ActionsContainer, what: str = "one JSON object") -> None:
    """Add the argument that ``print_result`` reads."""
    help = f"print {what} instead, by the names that REST has"
    parser.add_argument("--json", action="store_true", help=help)


def print_result(args: argparse.Namespace, text: str, *results: Any) -> None:
    """Print ``text``; or with ``--json`` the results, each an object of one line."""
    if not args.json:
        print(text)
        return
    for result in results:
        print_entry(**(result if isinstance(result, dict) else json_fields(result)))


def shorten_line(text: str, width: int | None = None) -> str:
    """Return ``text`` on one line, cut to fit the terminal."""
    width = width or max(40, shutil.get_terminal_size().columns - 30)
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as aligned columns, the first as their head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    head, *lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
    return "\n".join([paint(head, "bold"), *lines])


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


def add_server_arguments(
    parser: argparse.ArgumentParser, *, needed: bool = True, grpc: bool = True
) -> None:
    """Add the arguments that choose the server.

    Args:
        needed: Whether there is a default server; else ``args.url`` is None.
        grpc: Whether it may be asked over gRPC, too.
    """
    group = parser.add_argument_group("server")
    address = group.add_mutually_exclusive_group()
    address.add_argument(
        "--url",
        default=(os.environ.get("CONDENSERY_URL") or DEFAULT_URL) if needed else None,
        help="where the service answers REST; http:// and the port may be left out"
        + (" (default: $CONDENSERY_URL or %(default)s)" if needed else ""),
    )
    if grpc:
        address.add_argument("--grpc", metavar="ADDRESS", help="use gRPC, at host:port, instead")
        group.add_argument("--tls", action="store_true", help="with --grpc: expect a certificate")
    else:
        parser.set_defaults(grpc=None)
    group.add_argument(
        "--timeout", type=float, default=120.0, metavar="SECONDS", help="default: %(default)s"
    )
    group.add_argument(
        "--api-key",
        metavar="KEY",
        help=f"a key, if the server wants one (default: ${API_KEY_VARIABLE}, which is private)",
    )
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


def ask_server(
    parser: argparse.ArgumentParser, run: Callable[..., int | None], *, grpc: bool = True
) -> None:
    """Let a command ask a server: ``run`` gets a client too, and returns the status, None for 0."""

    def run_connected(args: argparse.Namespace) -> int:
        with connect(args) as client:
            return run(args, client) or 0

    parser.set_defaults(run=run_connected)
    add_server_arguments(parser, grpc=grpc)


REFUSED_HELP = (
    "no server listens there: `condensery serve` starts one on this machine, and --url, --grpc or"
    " $CONDENSERY_URL name another"
)


@contextmanager
def connect(args: argparse.Namespace) -> Iterator[AnyClient]:
    """Open a client of the server in ``args``, and close it after the block.

    Raises:
        Unavailable: By the block, where nobody listens: the message says how to start a server.
    """
    try:
        with open_client(args) as client:
            yield client
    except Unavailable as error:
        refused = os.strerror(errno.ECONNREFUSED) in error.message
        behind = isinstance(error, AnswerServerUnavailable | VectorDatabaseUnavailable)
        if behind or not refused:
            raise
        raise Unavailable(f"{error.message}; {REFUSED_HELP}") from error


def open_client(args: argparse.Namespace) -> AnyClient:
    """Return a client of the server in ``args``, which ``with`` closes."""
    # Each late: what asks no server, `--help` too, starts in half the time.
    api_key = args.api_key or os.environ.get(API_KEY_VARIABLE) or None
    if args.grpc:
        from condensery.client.grpc import GrpcClient

        return GrpcClient(
            args.grpc, timeout=args.timeout, api_key=api_key, tls=args.tls, ca=args.ca
        )
    from condensery.client.rest import Client

    url = complete_url(args.url, "https" if args.ca else "http")
    return Client(url, timeout=args.timeout, api_key=api_key, ca=args.ca)


def complete_url(address: str, scheme: str) -> str:
    """Return an address with a scheme, and with our port if it had neither.

    One with a scheme is whole: its port, if not written, is the scheme's.
    """
    if "://" in address:
        return address
    host, slash, path = address.partition("/")
    port = "" if re.search(r":\d+$", host) else f":{urlsplit(DEFAULT_URL).port}"
    return f"{scheme}://{host}{port}{slash}{path}"


def add_document_arguments(parser: argparse.ArgumentParser, dest: str, **count: Any) -> None:
    """Add the arguments of a file of documents, or (``nargs``) of several."""
    parser.add_argument(
        dest,
        metavar="FILE",
        help="JSON lines with id, text and perhaps metadata (.jsonl, .ndjson); or plain text,"
        " a document a paragraph; - is standard input",
        **count,
    )
    add_format_argument(parser)


def add_format_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument that says how a file is to be read."""
    parser.add_argument(
        "--format",
        choices=get_args(FileFormat),
        help="of the file; default: by its suffix, of standard input by its first line",
    )
