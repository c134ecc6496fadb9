"""Files that are whole or not there: written aside, synced, renamed into place."""

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PRIVATE_UMASK = 0o077  # files and folders are their owner's alone


@contextmanager
def umask(mask: int) -> Iterator[int]:
    """Set the umask of the whole process within the block; yields the previous one."""
    before = os.umask(mask)
    try:
        yield before
    finally:
        os.umask(before)


def make_private(*paths: Path) -> None:
    """Take away what group and others may do with files, and with folders and all in them.

    Somebody else's files stay as they are, and so does what a link inside leads to.
    """
    for path in paths:
        _remove_group_access(path)
        for folder, folders, files in os.walk(path):
            for name in (*folders, *files):
                if not (inside := Path(folder, name)).is_symlink():
                    _remove_group_access(inside)


def _remove_group_access(path: Path) -> None:
    with contextlib.suppress(OSError):
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & PRIVATE_UMASK:
            path.chmod(mode & ~PRIVATE_UMASK)


def sync_path(path: Path) -> None:
    """Wait until a file, or a folder's list of names, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomically(path: Path, text: str) -> None:
    """Write a file in place of one that is there; OSError if the disk refuses.

    Whatever ends the process meanwhile, the old file is there or the new one.
    """
    aside = path.with_name(f"{path.name}.partial")
    aside.write_text(text, encoding="utf-8")
    sync_path(aside)
    aside.replace(path)
    sync_path(path.parent)


def replace_atomically(path: Path, text: str) -> None:
    """Write a file as ``write_atomically`` does; if the disk refuses, it stays what it was.

    The last sync may fail with the new file in place, while the caller goes on with what the old
    file held.
    """
    before = path.read_text(encoding="utf-8") if path.exists() else None
    try:
        write_atomically(path, text)
    except OSError:
        with contextlib.suppress(OSError):
            if before is None:
                path.unlink(missing_ok=True)
            else:
                write_atomically(path, before)
        raise


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a folder to write files to, and put it in place of one that is there.

    A kill may leave ``.partial`` and ``.removed`` beside it; the next time clears them away.
    """
    aside, old = (path.with_name(f"{path.name}.{end}") for end in ("partial", "removed"))
    for leftover in (aside, old):
        shutil.rmtree(leftover, ignore_errors=True)
    aside.mkdir(parents=True)
    yield aside
    for written in (*aside.iterdir(), aside):
        sync_path(written)
    if path.exists():
        path.rename(old)
    aside.rename(path)
    sync_path(path.parent)
    shutil.rmtree(old, ignore_errors=True)
