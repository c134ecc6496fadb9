"""The parser of every command line: it says what was meant, and what the shell may complete.

``condensery`` and each method's own command line make theirs of ``Parser``, so that a word or a
flag that does not exist gets the same message, and the tab key the same help, wherever it is.
"""

import argparse
import difflib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

USAGE_STATUS = 2
# Set by the script that argcomplete gives a shell, to the place of the command's name in the line.
COMPLETING = "_ARGCOMPLETE"


class Parser(argparse.ArgumentParser):
    """Suggests what is nearest to a word or flag that it does not know; completes lines."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:  # overloaded in argparse
        """Parse, or answer the shell that asks how a line may go on; that ends the process."""
        if is_completing():
            import argcomplete

            argcomplete.autocomplete(self)
        return super().parse_args(args, namespace)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, and refuse what is not known, unless the command reads it by a parser of its own.

        A command that only has others under it, and was given none, prints which.
        """
        words = sys.argv[1:] if args is None else list(args)
        if is_completing():
            return super().parse_known_args(words, namespace)
        if not words and list_commands(self):
            self.print_help(sys.stderr)
            self.exit(USAGE_STATUS, f"\n{self.prog}: error: one of these is wanted\n")
        found, rest = super().parse_known_args(words, namespace)
        if rest and not getattr(found, "takes_rest", False):
            self._refuse(rest)
        return found, rest

    def _refuse(self, words: Sequence[str]) -> NoReturn:
        flags = (word.partition("=")[0] for word in words if word.startswith("-"))
        hints = (suggest(flag, self._option_string_actions) for flag in flags)
        self.error(f"unknown arguments: {' '.join(words)}{next(filter(None, hints), '')}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            if hint := suggest(str(value), map(str, action.choices or ())):
                raise argparse.ArgumentError(action, f"invalid choice: {value!r}{hint}") from error
            raise


def suggest(word: str, known: Iterable[str]) -> str:
    """Return the end of a message that says what was perhaps meant; empty if nothing is near."""
    names = {name.lstrip("-"): name for name in known}  # dashes alone make no two flags alike
    near = difflib.get_close_matches(word.lstrip("-"), list(names), n=1)
    return f"; did you mean {names[near[0]]}?" if near else ""


def list_commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the commands under a parser, by name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def is_completing() -> bool:
    """Whether a shell started this process to ask how a line may go on."""
    return COMPLETING in os.environ


def complete_line(parser: argparse.ArgumentParser) -> NoReturn:
    """Answer the shell: print how its line may go on, and end the process.

    A command with a parser of its own (``takes_rest``) is begun, which answers where it would
    parse its arguments.
    """
    import argcomplete
    from argcomplete.lexers import split_line

    before = split_line(os.environ["COMP_LINE"], int(os.environ["COMP_POINT"]))[3]
    first = int(os.environ[COMPLETING])  # counted from 1
    for place, command in enumerate(_follow(parser, before[first:]), first + 1):
        if command.get_default("takes_rest"):
            os.environ[COMPLETING] = str(place)
            module = command.get_default("module")
            command.get_default("run")(argparse.Namespace(rest=[], module=module))
    argcomplete.autocomplete(parser)
    raise AssertionError("argcomplete ends the process")


def _follow(
    parser: argparse.ArgumentParser, words: Iterable[str]
) -> Iterator[argparse.ArgumentParser]:
    """Yield the commands that words lead to, each under the one before it."""
    for word in words:
        commands = list_commands(parser)
        if word not in commands:
            return
        parser = commands[word]
        yield parser
