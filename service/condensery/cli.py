"""The command line: ``condensery``."""

import argparse
import os
import sys
from collections.abc import Sequence

from condensery import __version__
from condensery.commands import ask, cost, embed, index, methods, models, serve
from condensery.commands.common import print_note
from condensery.errors import CondenseryError, InputError, shorten

FAILED_STATUS = 1
INTERRUPTED_STATUS, BROKEN_PIPE_STATUS = 130, 141  # as a shell reports them


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
        print_note(f"condensery: {error.message}")
        return FAILED_STATUS
    except KeyboardInterrupt:
        return INTERRUPTED_STATUS
    except BrokenPipeError:
        # The reader of our output has gone; Python must not fail on that again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE_STATUS
    return status


def check_text(arguments: Sequence[str]) -> None:
    """Refuse bytes that are not UTF-8, which Python passes on as lone surrogates.

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
    serve.add_serve(parsers)
    ask.add_ask(parsers)
    ask.add_compress(parsers)
    embed.add_embed_and_rerank(parsers)
    index.add_index(parsers)
    models.add_models(parsers)
    serve.add_settings(parsers)
    serve.add_keys(parsers)
    methods.add_methods(parsers)
    cost.add_cost(parsers)
    return parser
