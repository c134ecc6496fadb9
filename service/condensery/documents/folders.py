"""Which files a folder holds: ignore files, globs, links, and what can't be read."""

import hashlib
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from pathspec import GitIgnoreSpec

from condensery.documents.files import (
    FileName,
    Problem,
    Reading,
    UnknownKind,
    escape_name,
    kind_of,
    reason_of,
    suffix_of,
)
from condensery.errors import InputError

IGNORE_FILES = (".gitignore", ".ignore")  # git's; ripgrep's and others'
_IGNORE_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file to read; ``named`` on the command line, or found in a folder."""

    path: Path
    name: FileName
    size: int  # bytes
    named: bool = False

    @property
    def source(self) -> str:
        """Its path, for messages."""
        return show(self.path)

    def open(self) -> BinaryIO:
        """Open it, from its first byte."""
        return self.path.open("rb")


@dataclass(frozen=True, slots=True)
class Root:
    """A folder whose files are read, and what it is called in an index."""

    path: Path
    folder: str
    source: str = ""


@dataclass(slots=True)
class Found:
    """What paths lead to.

    Attributes:
        others: How many files of each suffix are of no kind that is read.
        links: Links to folders, which are not followed.
        kept: Names of files that are there, and are not read: their documents stay.
        unread: Names of folders that could not be read, and of what may be below them.
    """

    files: list[FoundFile] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)
    links: int = 0
    kept: set[str] = field(default_factory=set)
    unread: list[str] = field(default_factory=list)

    def may_hold(self, name: str) -> bool:
        """Tell whether a file of this name is there, or may be."""
        return name in self.kept or any(name.startswith(f"{folder}/") for folder in self.unread)


def name_root(path: Path, prefix: str | None = None) -> Root:
    """Return what a folder is called: by its own name, or by ``prefix``.

    Raises:
        InputError: It has no name, as the root of a disk.
    """
    whole = path.resolve()
    if prefix is not None:
        return Root(whole, prefix.strip("/"))
    if not whole.name:
        raise InputError(f"{path}: has no name that ids could begin with; --prefix names one")
    digest = hashlib.sha256(os.fsencode(whole)).hexdigest()
    return Root(whole, escape_name(whole.name), digest[:12])


def check_roots(roots: Iterable[Root]) -> None:
    """Refuse folders of one name, whose documents would replace each other.

    Raises:
        InputError: Two are different folders of the same name.
    """
    seen: dict[str, Root] = {}
    for root in roots:
        other = seen.setdefault(root.folder, root)
        if other.path != root.path:
            raise InputError(
                f"{escape_name(str(other.path))} and {escape_name(str(root.path))} would both be"
                f" {root.folder!r} in ids: add them one by one, and name one of them with --prefix"
            )


def make_glob(patterns: Sequence[str]) -> GitIgnoreSpec | None:
    """Return which files are asked for; None is all.

    Args:
        patterns: As in ignore files, but of files to read: the last that matches counts, one that
            begins with ``!`` leaves files out.

    Raises:
        InputError: One is no pattern.
    """
    if not patterns:
        return None
    all_negative = all(pattern.startswith("!") for pattern in patterns)
    try:
        return GitIgnoreSpec.from_lines([*(["*"] if all_negative else []), *patterns])
    except ValueError as error:
        raise InputError(f"--glob: {error}") from error


def find_file(found: Found, path: Path, name: FileName, reading: Reading) -> None:
    """Add a file that was named, whatever ignore files say."""
    try:
        kind_of(path.name, reading)
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise InputError("no file and no folder")
    except (InputError, OSError) as error:
        found.problems.append(Problem(show(path), reason_of(error)))
        found.kept.add(name.whole)
        return
    found.files.append(FoundFile(path, name, status.st_size, named=True))


def find_files(
    found: Found, top: Path, root: Root, reading: Reading, glob: GitIgnoreSpec | None
) -> None:
    """Add the files of the folder ``top``, those of a folder in the order of their names.

    Hidden ones and those that ignore files leave out are passed over; links to files are followed,
    those to folders are not, so that a circle of them has an end.
    """
    waiting: list[tuple[str, list[tuple[str, GitIgnoreSpec]]]] = [("", [])]
    while waiting:  # no recursion: folders may be deeper than Python's stack
        inside, ignores = waiting.pop()
        folder = top / inside
        try:
            with os.scandir(folder) as listed:
                entries = sorted(listed, key=lambda entry: entry.name)
        except OSError as error:
            found.problems.append(Problem(show(folder), reason_of(error)))
            found.unread.append(FileName(root.folder, inside).whole.rstrip("/"))
            continue
        ignores = [*ignores, *_read_ignores(found, folder, inside)]
        below = []
        for entry in entries:
            path = inside + entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            if entry.name.startswith(".") or is_ignored(path + "/" * is_folder, ignores):
                continue
            if is_folder:
                below.append((f"{path}/", ignores))
            else:
                _add_entry(found, root, path, entry, reading, glob)
        waiting += reversed(below)


def _add_entry(
    found: Found,
    root: Root,
    path: str,
    entry: "os.DirEntry[str]",
    reading: Reading,
    glob: GitIgnoreSpec | None,
) -> None:
    name = FileName(root.folder, path, root.source)
    if glob is not None and not glob.match_file(path):
        found.kept.add(name.whole)
        return
    try:
        status = entry.stat()
        if stat.S_ISDIR(status.st_mode):
            found.links += 1
            found.unread.append(name.whole)
            return
        if not stat.S_ISREG(status.st_mode):
            raise UnknownKind("no file")
        kind_of(path, reading)
    except UnknownKind:
        found.others[suffix_of(path) or "(none)"] += 1
        found.kept.add(name.whole)
    except OSError as error:  # a link that leads nowhere, or in a circle
        found.problems.append(Problem(show(Path(entry.path)), reason_of(error)))
        found.kept.add(name.whole)
    else:
        found.files.append(FoundFile(Path(entry.path), name, status.st_size))


def _read_ignores(found: Found, folder: Path, inside: str) -> Iterator[tuple[str, GitIgnoreSpec]]:
    for name in IGNORE_FILES:
        path = folder / name
        if not path.is_file():
            continue
        try:
            with path.open("rb") as file:
                lines = file.read(_IGNORE_BYTES).decode("utf-8-sig", "surrogateescape").splitlines()
            yield inside, GitIgnoreSpec.from_lines(lines)
        except (OSError, ValueError) as error:
            found.problems.append(Problem(show(path), f"no ignore file: {reason_of(error)}"))


def is_ignored(path: str, ignores: Sequence[tuple[str, GitIgnoreSpec]]) -> bool:
    """Tell whether ignore files leave a path out: the nearest that knows it counts."""
    for inside, spec in reversed(ignores):
        include = spec.check_file(path.removeprefix(inside)).include
        if include is not None:
            return include
    return False


def show(path: Path) -> str:
    """Return a path for a message, on one line."""
    return escape_name(str(path))
