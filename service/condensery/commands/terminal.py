"""What a command does only where a person reads it: colours, and questions before it deletes."""

import os
import sys
from typing import Literal, TextIO

Style = Literal["bold", "dim", "red"]
CODES: dict[Style, str] = {"bold": "1", "dim": "2", "red": "1;31"}


def paint(text: str, style: Style, stream: TextIO | None = None) -> str:
    """Return ``text`` as it is to be written to ``stream``, in colour if that shows colours.

    Args:
        stream: Standard output if None.
    """
    shown = text and shows_colours(sys.stdout if stream is None else stream)
    return f"\x1b[{CODES[style]}m{text}\x1b[0m" if shown else text


def shows_colours(stream: TextIO) -> bool:
    """Whether a stream is a terminal with colours, and nobody asked for none (no-color.org)."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "") in ("", "dumb")
    return stream.isatty() and not plain


def confirm(question: str) -> bool:
    """Ask on the terminal, and return whether the answer was yes."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        print(file=sys.stderr)  # the input ended within the line
    return answer.strip().lower() in ("y", "yes")
