"""The folder of each index: made, opened, moved and thrown away so that a crash leaves it whole.

``<root>/<name>/`` holds an index's SQLite file and its FAISS cache, or generations of both. A file
for each index, not one for all: writers of different indexes do not wait for each other, a corrupt
file takes one index down, a drop frees its disk space, and a snapshot of one is a copy of one file.
"""

import secrets
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from condensery.atomic_files import sync_path
from condensery.index import database, generations, rebuilding
from condensery.index.database import storage_errors
from condensery.index.index import DATABASE, Index
from condensery.index.vector_database import VectorDatabases
from condensery.values import IndexSpec

NEW = ".new-"
DROPPED = ".dropped-"


@dataclass(frozen=True)
class Folders:
    """The folders of a store's indexes.

    Args:
        root: Holds one for each index.
        cache_every: Changed passages after which an index's FAISS cache file is written.
        databases: Where vectors are that are not in FAISS.
    """

    root: Path
    cache_every: int
    databases: VectorDatabases

    def names(self) -> Iterator[str]:
        """Yield the name of every index's folder, sorted; remove what a crash left."""
        for path in sorted(self.root.iterdir()):
            if path.name.startswith((NEW, DROPPED)):
                self.databases.remove(path)
            elif path.is_dir():
                yield path.name

    def open(self, name: str) -> Index:
        """Open the index of a folder.

        Raises:
            StorageError: It is broken, or the disk refused.
        """
        folder = self.root / name
        with storage_errors(folder):
            generations.tidy(folder, self.databases, keep=rebuilding.unfinished(folder))
            return Index(
                name,
                generations.current(folder),
                cache_every=self.cache_every,
                databases=self.databases,
            )

    def make(self, name: str, spec: IndexSpec) -> Index:
        """Make an index aside and rename it into place, so that it is there whole or not at all."""
        with storage_errors(self.root / name):
            aside = Path(tempfile.mkdtemp(prefix=NEW, dir=self.root))
            try:
                database.create(aside / DATABASE, spec)
                self.databases.bind(aside, name)
                sync_path(aside)
                return self.place(aside, name)
            except BaseException:
                self.databases.remove(aside)
                raise

    def place(self, aside: Path, name: str) -> Index:
        """Rename an index's folder into place and open it, synced on return, or undo it."""
        self._move(aside, self.root / name)
        try:
            return self.open(name)
        except BaseException:
            self._move(self.root / name, aside)
            raise

    def throw_away(self, name: str) -> Path:
        """Rename an index's folder out of the way, synced on return, or undo it.

        A rename works on a full disk too. Returns what is to be deleted; the next start does it
        if the caller can't.
        """
        trash = self.root / f"{DROPPED}{secrets.token_hex(8)}"
        self._move(self.root / name, trash)
        return trash

    def _move(self, folder: Path, to: Path) -> None:
        folder.rename(to)
        try:
            sync_path(self.root)
        except BaseException:
            to.rename(folder)
            raise
