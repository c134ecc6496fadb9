"""``condensery serve``, ``settings`` and ``keys``: running a server on this machine.

Modules are imported where they are used, since ``condensery --help`` and clients need none of them.
"""

import argparse
import json
import os
import stat
import sys
from pathlib import Path
from typing import NoReturn

from condensery.commands.common import Parsers, format_table, print_note, require_extra
from condensery.errors import InputError, shorten
from condensery.parsers import Parser


def add_serve(parsers: Parsers) -> None:
    """Add ``serve``; its flags are made when it runs, as importing the settings takes 0.1 s."""
    parser = parsers.add_parser("serve", help="serve models over REST and gRPC", add_help=False)
    parser.set_defaults(run=run_serve, takes_rest=True)


def run_serve(args: argparse.Namespace) -> NoReturn:
    """Serve until a signal ends it."""
    from condensery.commands.flags import FLAGS_EXPLANATION, FLAGS_USAGE, add_flags, read_flags
    from condensery.settings import read_settings

    parser = Parser(
        prog="condensery serve",
        usage=FLAGS_USAGE,
        description=f"Serve models over REST and gRPC. {FLAGS_EXPLANATION}",
        epilog="`condensery settings`, with the same flags, prints what holds and where from.",
    )
    add_flags(parser)
    settings = read_settings(read_flags(parser.parse_args(args.rest)))
    with require_extra("serve"):  # after the settings: wrong ones are refused at once
        from condensery.server import serve
    status = serve(settings)
    # All is closed and synced. Python would take 4 s to unload PyTorch's modules.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def add_settings(parsers: Parsers) -> None:
    """Add ``settings``, whose flags are made when it runs, as those of ``serve``."""
    parser = parsers.add_parser(
        "settings", help="print each setting and where it comes from", add_help=False
    )
    parser.set_defaults(run=run_settings, takes_rest=True)


def run_settings(args: argparse.Namespace) -> int:
    """Print the settings, or refuse them as ``serve`` would."""
    from condensery.api.ports import check_keys_for_host
    from condensery.auth import Keys, reload_keys
    from condensery.commands.flags import (
        FLAGS_EXPLANATION,
        FLAGS_USAGE,
        add_flags,
        format_setting,
        read_flags,
    )
    from condensery.settings import is_secret, trace_settings

    parser = Parser(
        prog="condensery settings",
        usage=FLAGS_USAGE,
        description="Print each setting, its value and where it comes from, as `condensery serve` "
        f"with the same flags would take it; a wrong one is refused. {FLAGS_EXPLANATION}",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    add_flags(parser)
    flags = parser.parse_args(args.rest)
    settings, origins = trace_settings(read_flags(flags))
    keys = Keys()
    reload_keys(keys, settings.keys_file, settings.api_key)  # refuses a keys file that is wrong
    makes_key = settings.make_key or settings.allow_no_keys
    check_keys_for_host(settings.host, keys, allow_no_keys=makes_key)
    if flags.json:
        values = {
            name: format_setting(name, value) if is_secret(name) else value
            for name, value in settings.model_dump(mode="json").items()
        }
        content = {name: {"value": values[name], "from": origins[name]} for name in origins}
        print(json.dumps(content, indent=2, ensure_ascii=False))
    else:
        rows = [
            (name, format_setting(name, getattr(settings, name)), origins[name]) for name in origins
        ]
        print(format_table([("SETTING", "VALUE", "FROM"), *rows]))
    return 0


def add_keys(parsers: Parsers) -> None:
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
    new.set_defaults(run=run_new_key)


def run_new_key(args: argparse.Namespace) -> int:
    """Make a key: print it, and add its line to a file or print that."""
    from condensery.auth import add_key_line, make_key, parse_key_name, parse_scopes

    try:
        name = parse_key_name(args.name)
    except ValueError as error:
        raise InputError(f"NAME: {shorten(args.name)} is not allowed: {error}") from error
    try:
        scopes = parse_scopes(args.scopes)
    except ValueError as error:
        raise InputError(f"--scopes: {shorten(args.scopes)} is not allowed: {error}") from error
    key, line = make_key(name, scopes)
    if args.keys_file is None:
        print(line, flush=True)
        mode = os.fstat(1).st_mode  # a file made by a shell may be readable by all
        if stat.S_ISREG(mode) and mode & (stat.S_IROTH | stat.S_IWOTH):
            print_note("that file can be read by all users of this machine; no server takes it so:")
            print_note("`chmod 600` it, or let --keys-file make it")
    else:
        add_key_line(args.keys_file, line)
    print_note(f"the key, which is not shown again: {key}")
    return 0
