"""The FAISS cache of an open index: searched by many, changed alone, saved at times."""

import sqlite3
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np

from condensery.errors import CondenseryError
from condensery.index import kinds, passages, recovery
from condensery.index.database import IndexSettings
from condensery.index.passages import Rows, Stamp
from condensery.index.recovery import Report
from condensery.index.rwlock import ReadWriteLock
from condensery.values import Floats

# Vectors added to FAISS between two chances for queries: an HNSW insert takes about 1 ms.
_ADD_BLOCK = 64


class VectorIndex:
    """Finds the rows nearest to a vector. Whoever changes it holds the index's writing lock.

    Args:
        connection: That writes the index's SQLite file, which it is kept in line with.
        settings: Of the index.
        file: Where it is saved.
        every: Changed passages after which it is; a quarter of the index if that is more.
        report: Told what was amiss and mended.

    Attributes:
        cache: The vectors.
        saved: Number of the write that the file holds; 0 without a file.

    Raises:
        StorageError: SQLite's own content contradicts itself.
        sqlite3.Error: SQLite can't be read.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        settings: IndexSettings,
        file: Path,
        *,
        every: int,
        report: Report,
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._file = file
        self._every = every
        self._report = report
        self._sharing = ReadWriteLock()
        self._written = passages.latest_write(connection)
        restored = recovery.restore(connection, settings, file, report)
        self.cache = restored.cache
        self.saved = restored.saved
        self._unsaved = restored.unsaved  # passages changed since

    def unchanged(self) -> AbstractContextManager[None]:
        """Keep every change out, but no other search."""
        return self._sharing.shared()

    def alone(self) -> AbstractContextManager[None]:
        """Keep everyone else out."""
        return self._sharing.exclusive()

    def search(
        self, reader: sqlite3.Connection, vector: Floats, k: int, allowed: Rows | None
    ) -> tuple[list[int], list[float], bool]:
        """Return the nearest rows, their scores, and whether there may be more.

        The caller holds ``unchanged``, from before the read that fixes its SQLite snapshot.
        """
        if not self.cache.approximates:
            rows, scores = self.cache.search(vector, k, allowed)
            return rows, scores, len(rows) == k
        count = kinds.candidates_for(k)
        if allowed is not None and len(allowed) <= count:
            near = allowed.tolist()
        else:
            near, _ = self.cache.search(vector, count, allowed)
        rows, scores = passages.rank(reader, near, vector, self._settings.metric)
        return rows[:k], scores[:k], len(near) == count

    def last_row(self) -> int:
        """Return the highest row id there is, tombstones included; 0 if there is none."""
        held = self.cache.rows()
        return int(held.max()) if len(held) else 0

    def add(self, rows: Rows, vectors: Floats) -> None:
        """Add vectors, a few at a time: queries go between."""
        for start in range(0, len(rows), _ADD_BLOCK):
            block = slice(start, start + _ADD_BLOCK)
            with self.alone():
                self.cache.add(rows[block], vectors[block])

    def take_back(self, rows: Rows) -> None:
        """Bury those of the rows that were added."""
        self._discard(np.intersect1d(self.cache.rows(), rows).tolist())

    def settle(self, stamp: Stamp, added: int, gone: Sequence[int]) -> None:
        """Follow a write that was committed, and do what is due. Never fails: it is acknowledged.

        Args:
            stamp: The write's.
            added: How many rows it added.
            gone: Those it removed.
        """
        self._discard(gone)
        self._written = stamp
        self._unsaved += added + len(gone)
        try:
            if self.cache.needs_training:
                self._rebuild()
            elif self.cache.needs_compaction:
                self._compact()
            if self._unsaved >= max(self._every, self.cache.live // 4):
                self.save()
        except (CondenseryError, sqlite3.Error, MemoryError, RuntimeError) as error:
            self._report("index_cache_upkeep_failed", reason=str(error))

    def save(self) -> None:
        """Write the file, if anything has changed; a disk that refuses is reported, no more."""
        if not self._unsaved:
            return
        try:
            if self.cache.searched_as == "flat":
                with self.alone():
                    self.cache.compact()
            self.cache.save(self._file, self._written)
        except (OSError, MemoryError, RuntimeError) as error:
            self._report("index_cache_not_saved", reason=str(error))
        else:
            self.saved = self._written.sequence
        self._unsaved = 0  # also after a failure: try again after as many changes, not at each

    def _discard(self, rows: Sequence[int]) -> None:
        if rows:
            with self.alone():
                self.cache.discard(rows)

    def _compact(self) -> None:
        if self.cache.searched_as == "flat":
            with self.alone():
                self.cache.compact()
            return
        self._rebuild()

    def _rebuild(self) -> None:
        # beside the old one, which goes on answering
        fresh = recovery.build(self._connection, self._settings)
        with self.alone():
            self.cache = fresh
