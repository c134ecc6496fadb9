"""``condensery keys``: keys for a server; nothing here needs a running one."""

import argparse
import os
import stat
from pathlib import Path

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
        description="Add the line that knows a fresh key to a keys file, or print it; and say on "
        "standard error, this once, the key.",
    )
    new.add_argument("name", metavar="NAME", help="who will hold it: in logs and messages")
    new.add_argument(
        "--scopes",
        required=True,
        metavar="SCOPE,...",
        help="what it may do: infer (embed, rerank, answer, search), index-write, admin (all)",
    )
    new.add_argument(
        "--keys-file",
        type=Path,
        metavar="FILE",
        help="add the line to this file, which only its owner may read if it is new "
        "(default: print the line)",
    )
    new.set_defaults(run=run_new)


def run_new(args: argparse.Namespace) -> int:
    """Tell a fresh key, and add its line to a file or print it."""
    from condensery.keys import add_line, make_key, parse_name, parse_scopes

    try:
        name = parse_name(args.name)
    except ValueError as error:
        raise InputError(f"NAME: {shorten(args.name)} is not allowed: {error}") from error
    try:
        scopes = parse_scopes(args.scopes)
    except ValueError as error:
        raise InputError(f"--scopes: {shorten(args.scopes)} is not allowed: {error}") from error
    key, line = make_key(name, scopes)
    if args.keys_file is None:
        print(line, flush=True)
        mode = os.fstat(1).st_mode  # of a file that a shell made, by a umask that lets all read
        if stat.S_ISREG(mode) and mode & (stat.S_IROTH | stat.S_IWOTH):
            say("that file can be read by all users of this machine; no server takes it so:")
            say("`chmod 600` it, or let --keys-file make it")
    else:
        add_line(args.keys_file, line)
    say(f"the key, which is not shown again: {key}")
    return 0
