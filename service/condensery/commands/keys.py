"""``condensery keys``: keys for a server; nothing here needs a running one."""

import argparse

from condensery.commands.printing import Parsers, say
from condensery.errors import InputError, shorten


def add_parser(parsers: Parsers) -> None:
    """Add ``keys`` and its action."""
    keys = parsers.add_parser(
        "keys", help="make a key for a server", description="Make keys for a server's keys file."
    )
    actions = keys.add_subparsers(dest="action", metavar="ACTION", required=True)
    new = actions.add_parser(
        "new",
        help="make a key",
        description="Print the line that knows a fresh key, for the file that --keys-file names; "
        "and on standard error, this once, the key. "
        "So: condensery keys new NAME --scopes infer >> FILE",
    )
    new.add_argument("name", metavar="NAME", help="who will hold it: in logs and messages")
    new.add_argument(
        "--scopes",
        required=True,
        metavar="SCOPE,...",
        help="what it may do: infer (embed, rerank, answer, search), index-write, admin (all)",
    )
    new.set_defaults(run=run_new)


def run_new(args: argparse.Namespace) -> int:
    """Print a fresh key, and its line."""
    from condensery.keys import make_key, parse_name, parse_scopes

    try:
        name = parse_name(args.name)
    except ValueError as error:
        raise InputError(f"NAME: {shorten(args.name)} is not allowed: {error}") from error
    try:
        scopes = parse_scopes(args.scopes)
    except ValueError as error:
        raise InputError(f"--scopes: {shorten(args.scopes)} is not allowed: {error}") from error
    key, line = make_key(name, scopes)
    print(line, flush=True)
    say(f"the key, which is not shown again: {key}")
    return 0
