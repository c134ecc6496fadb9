"""The command line: ``condensery``."""

import argparse
import os
import sys
from collections.abc import Sequence

from condensery import __version__
from condensery.commands import (
    asking,
    compressing,
    costing,
    embedding,
    indexing,
    keys,
    models,
    serving,
    settings,
    training,
)
from condensery.commands.printing import say
from condensery.errors import CondenseryError, InputError, shorten

USAGE, FAILED, INTERRUPTED, BROKEN_PIPE = 2, 1, 130, 141  # the last two as a shell reports them


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = make_parser()
    args, rest = parser.parse_known_args(argv)
    if getattr(args, "takes_rest", False):
        args.rest = rest
    elif rest:
        parser.error(f"unknown arguments: {' '.join(rest)}")
    try:
        check_text(sys.argv[1:] if argv is None else argv)
        status: int = args.run(args)
        sys.stdout.flush()
    except CondenseryError as error:
        say(f"condensery: {error.message}")
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone; Python must not find that out again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    return status


def check_text(arguments: Sequence[str]) -> None:
    """Refuse bytes that are no text: Python hands them on as halves of a character.

    Raises:
        InputError: An argument is not UTF-8.
    """
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"the argument {shorten(argument)} is not UTF-8") from error


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="condensery",
        description="Compress language models, and serve them: embeddings, reranking, and answers"
        " from compressed passages.",
    )
    parser.add_argument("--version", action="version", version=f"condensery {__version__}")
    parsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    serving.add_parser(parsers)
    asking.add_parser(parsers)
    compressing.add_parser(parsers)
    embedding.add_parsers(parsers)
    indexing.add_parser(parsers)
    models.add_parser(parsers)
    settings.add_parser(parsers)
    keys.add_parser(parsers)
    training.add_parsers(parsers)
    costing.add_parser(parsers)
    return parser
