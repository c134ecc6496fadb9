"""What commands print alike."""

import argparse
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from condensery.errors import CondenseryError


class Parsers(Protocol):
    """Where a command's parser is added (argparse's own class has no public name)."""

    def add_parser(
        self,
        name: str,
        *,
        help: str | None = ...,
        description: str | None = ...,
        add_help: bool = ...,
    ) -> argparse.ArgumentParser:
        """Add one, and return it."""
        ...


def say(message: str) -> None:
    """Tell the person at the terminal something that is not the command's output."""
    print(message, file=sys.stderr)


def shorten_line(text: str, width: int | None = None) -> str:
    """Return ``text`` on one line, cut to what a terminal's line has left."""
    width = width or max(40, shutil.get_terminal_size().columns - 30)
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as aligned columns; the last column is as wide as it is."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Turn a missing package into the error that says which extra brings it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise CondenseryError(
            f"the package {error.name} is missing: pip install 'condensery[{name}]'"
        ) from error
