"""``condensery serve``."""

import argparse
import os
import sys
from typing import NoReturn

from condensery.commands.printing import Parsers, extra


def add_parser(parsers: Parsers) -> None:
    """Add ``serve``; its flags are made when it runs, as importing the settings takes 0.1 s."""
    parser = parsers.add_parser("serve", help="serve models over REST and gRPC", add_help=False)
    parser.set_defaults(run=run, takes_rest=True)


def run(args: argparse.Namespace) -> NoReturn:
    """Serve until told to stop."""
    from condensery.commands.flags import EXPLANATION, USAGE, add_flags, read_flags
    from condensery.settings import read_settings

    parser = argparse.ArgumentParser(
        prog="condensery serve",
        usage=USAGE,
        description=f"Serve models over REST and gRPC. {EXPLANATION}",
        epilog="`condensery settings`, with the same flags, prints what holds and where from.",
    )
    add_flags(parser)
    settings = read_settings(read_flags(parser.parse_args(args.rest)))
    with extra("serve"):  # after the settings: a wrong one is told at once
        from condensery.server import serve
    status = serve(settings)
    # All is closed and synced. Taking PyTorch's modules apart would hold up the end by 4 s.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
