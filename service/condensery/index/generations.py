"""Which files are an index's: those it was made with, or those of what took its place.

``<index>/`` holds the files of the index as it was made. What takes its place, restored or
rebuilt, has a folder ``<index>/gen-<hex>/`` of its own, and the file ``<index>/current`` names the
one that serves: to replace that small file is to replace the index, at one moment, whatever ends
the process before or after.
"""

import contextlib
import re
import secrets
from collections.abc import Collection
from pathlib import Path

from condensery.atomic_files import replace_atomically, sync_path
from condensery.errors import StorageError
from condensery.index.vector_database import BINDING, VectorDatabases

CURRENT = "current"
_GENERATION = re.compile(r"gen-[0-9a-f]{16}")


def current(index: Path) -> Path:
    """Return the folder of the files that serve.

    Raises:
        StorageError: The file that names it is damaged, or names what is not there.
        OSError: It can't be read.
    """
    try:
        name = (index / CURRENT).read_text(encoding="utf-8", errors="replace").strip()
    except FileNotFoundError:
        return index
    if not _GENERATION.fullmatch(name) or not (index / name).is_dir():
        raise StorageError(f"indexes/{index.name}/{CURRENT} is damaged: it names no generation.")
    return index / name


def new_path(index: Path) -> Path:
    """Return a path for a new generation; the caller makes the folder."""
    return index / f"gen-{secrets.token_hex(8)}"


def point(index: Path, generation: Path) -> None:
    """Name the generation that serves from the next start on; synced on return.

    Raises:
        OSError: The disk refused; the one before goes on.
    """
    for path in generation.iterdir():
        with contextlib.suppress(FileNotFoundError):  # a cache file that was renamed into place
            sync_path(path)
    for path in (generation, index):
        sync_path(path)
    replace_atomically(index / CURRENT, f"{generation.name}\n")


def tidy(index: Path, databases: VectorDatabases, keep: Collection[str] = ()) -> None:
    """Remove generations that no longer serve, and files that a crash left.

    Args:
        index: Its folder.
        databases: Where they may have collections.
        keep: Generations that are being made.
    """
    serving = current(index)
    for path in index.iterdir():
        if path.is_dir() and _GENERATION.fullmatch(path.name):
            if path != serving and path.name not in keep:
                databases.remove(path)
        elif serving != index and path.name.startswith(("index.sqlite3", "vectors.", BINDING)):
            if path.name == BINDING and not databases.forget(path):
                continue  # the next start tries again
            with contextlib.suppress(OSError):
                path.unlink()
