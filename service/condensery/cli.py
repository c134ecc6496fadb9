"""The command line: ``condensery``."""

import argparse
import os
import sys
from collections.abc import Sequence

from condensery import __version__
from condensery.commands import (
    ask,
    bench,
    chat,
    classify,
    cost,
    embed,
    index,
    methods,
    models,
    plan,
    ray,
    serve,
)
from condensery.commands.common import Parsers, print_note
from condensery.commands.terminal import paint
from condensery.errors import CondenseryError, InputError, shorten
from condensery.parsers import Parser, complete_line, is_completing, list_commands

SHELLS = ("bash", "zsh")
FAILED_STATUS = 1
INTERRUPTED_STATUS, BROKEN_PIPE_STATUS = 130, 141  # as a shell reports them


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    words = sys.argv[1:] if argv is None else argv
    parser = make_parser()
    if is_completing():
        complete_line(parser)
    if not words:
        parser.print_help()
        return 0
    args, rest = parser.parse_known_args(words)
    args.rest = rest  # of a command with a parser of its own; others have refused it
    try:
        check_text(words)
        status: int = args.run(args)
        sys.stdout.flush()
    except CondenseryError as error:
        print_note(f"{paint('condensery:', 'red', sys.stderr)} {error.message}")
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


def make_parser() -> Parser:
    """Make the parser of the whole command line."""
    parser = Parser(
        prog="condensery",
        description="Compress language models, and serve them: embeddings, reranking, and answers"
        " from compressed passages.",
    )
    version = f"condensery {__version__}"
    parser.add_argument("-V", "--version", action="version", version=version)
    parsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    serve.add_serve(parsers)
    ask.add_ask(parsers)
    chat.add_chat(parsers)
    ask.add_compress(parsers)
    embed.add_embed_and_rerank(parsers)
    classify.add_classify_and_tokenize(parsers)
    index.add_index(parsers)
    models.add_models(parsers)
    serve.add_settings(parsers)
    serve.add_keys(parsers)
    ray.add_ray(parsers)
    methods.add_methods(parsers)
    cost.add_cost(parsers)
    bench.add_bench(parsers)
    plan.add_plan(parsers)
    add_own_commands(parsers)
    return parser


def add_own_commands(parsers: Parsers) -> None:
    """Add the commands about the command line itself."""
    helping = parsers.add_parser("help", help="explain a command, as its --help does")
    words = helping.add_argument("words", nargs="*", metavar="COMMAND")
    words.completer = list_topics  # type: ignore[attr-defined]  # as argcomplete is handed it
    helping.set_defaults(run=lambda args: main([*args.words, "--help"]))
    version = parsers.add_parser("version", help="print the version, as --version does")
    version.set_defaults(run=lambda args: main(["--version"]))
    completion = parsers.add_parser(
        "completion",
        help="print what lets a shell complete commands and flags",
        description="Print the lines that let a shell complete commands, actions and flags at the"
        ' tab key. In ~/.bashrc: eval "$(condensery completion bash)"; in ~/.zshrc, after compinit:'
        ' eval "$(condensery completion zsh)".',
    )
    completion.add_argument("shell", choices=SHELLS)
    completion.set_defaults(run=run_completion)


def list_topics(parsed_args: argparse.Namespace, **_: object) -> list[str]:
    """Return the commands that `condensery help` explains, after the words that are there."""
    parser: argparse.ArgumentParser = make_parser()
    for word in parsed_args.words or ():
        parser = list_commands(parser).get(word, parser)
    return list(list_commands(parser))


def run_completion(args: argparse.Namespace) -> int:
    """Print the shell's script, which calls this command with the line that it completes."""
    from argcomplete.shell_integration import shellcode

    print(shellcode(["condensery"], shell=args.shell))
    return 0
