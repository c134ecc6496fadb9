"""Command lines as cards tell them: without what is one machine's alone."""

import shlex
from pathlib import Path


def without_folders(command: str) -> str:
    """Shorten the paths from the root in a command line.

    Of a folder its last part stays; of a file its folder too, by which its set is known.

    Raises:
        ValueError: A quotation is not closed.
    """
    return shlex.join(map(_shorten, shlex.split(command)))


def _shorten(word: str) -> str:
    path = Path(word)
    if not path.is_absolute() and ".." not in path.parts:
        return word
    return f"{path.parent.name}/{path.name}" if "." in path.name else path.name
