"""Files that are whole or not there: written aside, synced, renamed into place."""

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PRIVATE = 0o077  # the umask that keeps what is made to its owner


@contextmanager
def umask(mask: int) -> Iterator[int]:
    """Make files and folders by a umask of the whole process; gives the one of before."""
    before = os.umask(mask)
    try:
        yield before
    finally:
        os.umask(before)


def keep_private(*paths: Path) -> None:
    """Take from group and others what they may do with files, and with folders and all in them.

    What belongs to somebody else stays as it is, and so does what a link inside leads to.
    """
    for path in paths:
        _take_away(path)
        for folder, folders, files in os.walk(path):
            for one in (*folders, *files):
                if not (inside := Path(folder, one)).is_symlink():
                    _take_away(inside)


def _take_away(path: Path) -> None:
    with contextlib.suppress(OSError):
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & PRIVATE:
            path.chmod(mode & ~PRIVATE)


def sync(path: Path) -> None:
    """Wait until a file, or a folder's list of names, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_whole(path: Path, text: str) -> None:
    """Write a file in place of one that is there; OSError if the disk refuses.

    Whatever ends the process meanwhile, the old file is there or the new one.
    """
    aside = path.with_name(f"{path.name}.partial")
    aside.write_text(text, encoding="utf-8")
    sync(aside)
    aside.replace(path)
    sync(path.parent)


def swap_whole(path: Path, text: str) -> None:
    """Write a file as ``write_whole`` does; if the disk refuses, it stays what it was.

    The last sync may fail with the new file in place, while whoever hears of it goes on with what
    the old one said.
    """
    before = path.read_text(encoding="utf-8") if path.exists() else None
    try:
        write_whole(path, text)
    except OSError:
        with contextlib.suppress(OSError):
            if before is None:
                path.unlink(missing_ok=True)
            else:
                write_whole(path, before)
        raise


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Give a folder to write files to, and put it in place of one that is there.

    A kill may leave ``.partial`` and ``.removed`` beside it; the next time clears them away.
    """
    aside, old = (path.with_name(f"{path.name}.{end}") for end in ("partial", "removed"))
    for leftover in (aside, old):
        shutil.rmtree(leftover, ignore_errors=True)
    aside.mkdir(parents=True)
    yield aside
    for one in (*aside.iterdir(), aside):
        sync(one)
    if path.exists():
        path.rename(old)
    aside.rename(path)
    sync(path.parent)
    shutil.rmtree(old, ignore_errors=True)
