"""``condensery chat``: one question after another, at a prompt or from a pipe."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import suppress

from condensery.commands.ask import (
    add_question_arguments,
    print_json,
    print_place,
    print_stream,
    read_options,
)
from condensery.commands.common import (
    AnyClient,
    Parsers,
    add_json_argument,
    ask_server,
    print_note,
)
from condensery.documents.records import STDIN, open_lines
from condensery.errors import CondenseryError, Unavailable

PROMPT = "> "


def add_chat(parsers: Parsers) -> None:
    """Add ``chat``."""
    parser = parsers.add_parser(
        "chat",
        help="ask an index one question after another",
        description="Ask one question after another, a line each, and print the answers and where"
        " they stand. Each is asked by itself: what came before is not read. Ctrl-C ends an"
        " answer, Ctrl-D the chat.",
    )
    add_question_arguments(parser)
    parser.add_argument(
        "--no-compress", action="store_true", help="read the passages' own tokens instead"
    )
    add_json_argument(parser, "one JSON object an answer")
    ask_server(parser, run_chat)


def run_chat(args: argparse.Namespace, client: AnyClient) -> None:
    """Answer line by line; at a prompt the chat goes on after a question that can't be answered."""
    at_prompt = sys.stdin.isatty()
    for question in read_questions(at_prompt=at_prompt):
        try:
            answer_one(args, client, question)
        except Unavailable:
            raise
        except CondenseryError as error:
            if not at_prompt:
                raise
            print_note(f"condensery: {error.message}")
        except KeyboardInterrupt:
            if not at_prompt:
                raise
            print()


def answer_one(args: argparse.Namespace, client: AnyClient, question: str) -> None:
    """Ask, and print the answer as it comes, and the sentence that it stands in."""
    if args.json:
        print_json(client.answer(question, **read_options(args)))
        return
    print_place(print_stream(client.answer_stream(question, **read_options(args))))
    print()


def read_questions(*, at_prompt: bool) -> Iterator[str]:
    """Yield the lines of standard input that are not empty."""
    if not at_prompt:
        with open_lines(STDIN) as lines:
            yield from (line.text for line in lines if line.text.strip())
        return
    with suppress(ImportError):
        import readline  # noqa: F401 - gives the prompt its keys and what was asked before
    with suppress(EOFError):
        while True:
            if question := input(PROMPT).strip():
                yield question
    print()
