"""The FAISS cache of an open index: searched by many at once, changed by one, saved at times.

At a start it is loaded as it was saved and brought in line with SQLite, or built from SQLite. What
takes long is done aside, in threads, of which those that train, build and save let queries go
first where all cores are busy:

- training, and building a graph: the cache that there is, or a flat one in its place, answers and
  is written to until the new one is ready;
- saving: a write takes note of what there is, and goes on; a compaction gives it up;
- reading many vectors at a start: they are searched in their file until they are in memory, which
  the first write waits for.
"""

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from condensery.errors import CondenseryError, IndexClosed, StorageError
from condensery.index import passages, selecting
from condensery.index.cache_file import CacheUnusable
from condensery.index.filters import Filter
from condensery.index.passages import Rows, Stamp
from condensery.index.read_write_lock import ReadWriteLock
from condensery.index.restoring import Report, begin_cache, check_count, restore
from condensery.index.vectors import Cut, VectorCache
from condensery.threads import lower_priority
from condensery.values import Floats, IndexSpec

# Takes a vector, (dims,), and how many rows; returns the nearest rows, their scores, and whether
# there may be more.
Search = Callable[[Floats, int], tuple[list[int], list[float], bool]]

# Rows, and their vectors.
Block = tuple[Rows, Floats]

# Vectors that are read first of those that are near by their codes, or four times those wanted.
_READ_FIRST = 40
# Different scores whose codes' errors are to be known before reading stops. Of a few, or of copies
# of one vector, the deviation says nothing.
_LEAST_KNOWN = 20
# After a failure a cache is not made anew before the index has grown by so much.
_GROWN = 1.1


@dataclass(frozen=True, slots=True)
class VectorStatus:
    """How vectors are searched: ``IndexInfo`` says what each is."""

    searched_as: str
    trains_at: int | None
    tombstones: int


class VectorIndex:
    """Finds the rows nearest to a vector. Whoever changes it holds the index's write lock.

    Args:
        connection: That writes the index's SQLite file, which it is kept in line with.
        spec: Of the index.
        file: Where it is saved.
        save_every: Changed passages after which it is; a quarter of the index if that is more.
        report: Called with what was amiss and mended.
        open_reader: Opens a connection that reads the index's SQLite file.
        writing: Keeps all writes to the index out; raises IndexClosed once it is closed.
        count: Passages that SQLite has.

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
        spec: IndexSpec,
        file: Path,
        save_every: int,
        report: Report,
        open_reader: Callable[[], sqlite3.Connection],
        writing: Callable[[], AbstractContextManager[None]],
        count: int,
    ) -> None:
        self._connection = connection
        self._open_reader = open_reader
        self._writing = writing
        self._closed = threading.Event()
        self._given_up = threading.Event()  # saving, by whoever wants to save or close now
        self._maker: threading.Thread | None = None  # of a new cache, aside: the latest
        self._making = False  # and it is at work
        self._saver: threading.Thread | None = None
        self._owner: threading.Thread | None = None  # brings mapped vectors into memory
        self._discarded: list[int] = []  # rows, since it began
        self._failed_at = 0  # passages that there were when it last failed
        self._spec = spec
        self._file = file
        self._save_every = save_every
        self._report = report
        self._lock = ReadWriteLock()
        self._written = passages.latest_write(connection)
        restored = restore(connection, spec, file, report, count)
        self.cache = restored.cache
        self.saved = restored.saved
        # passages changed, and how many of them the file has; saving was last tried at so many
        self._changes, self._changes_saved, self._changes_tried = restored.unsaved, 0, 0
        self._save_is_due = False  # for another reason
        self._uncompacted = 0  # tombstones that there were when a compaction last failed
        with contextlib.suppress(OSError):
            file.with_suffix(".new").unlink()  # left by a process that was killed
        if self.cache.mapped:
            owner = threading.Thread(target=self._own_aside, name="index-own", daemon=True)
            with contextlib.suppress(RuntimeError):  # no thread: then the first write does it
                owner.start()
                self._owner = owner
        if self.cache.needs_training:
            self._begin_anew()

    @property
    def status(self) -> VectorStatus:
        """How it is searched, and what it has too much."""
        cache = self.cache
        return VectorStatus(cache.searched_as, cache.trains_at, cache.tombstones)

    @property
    def behind(self) -> int:
        """Passages changed since the file was written."""
        return self._changes - self._changes_saved

    def read_lock(self) -> AbstractContextManager[None]:
        """Keep out every change that a search could see half of, but no other search."""
        return self._lock.shared()

    def write_lock(self) -> AbstractContextManager[None]:
        """Keep everyone else out."""
        return self._lock.exclusive()

    def prepare(self, reader: sqlite3.Connection, filter: Filter | None) -> Search:
        """Return what searches among a filter's passages, and fix the reader's SQLite snapshot.

        The caller holds ``read_lock``. Vectors must not be searched before the snapshot is fixed:
        what is written in between would be found by neither.
        """
        passages.latest_write(reader)
        allowed = None if filter is None else selecting.passage_rows(reader, filter)
        return lambda vector, k: self.search(reader, vector, k, allowed)

    def search(
        self, reader: sqlite3.Connection, vector: Floats, k: int, allowed: Rows | None
    ) -> tuple[list[int], list[float], bool]:
        """Return the nearest rows, their scores, and whether there may be more.

        The caller holds ``read_lock``, and its SQLite snapshot is fixed.
        """
        if not self.cache.approximates:
            rows, scores = self.cache.search(vector, k, allowed)
            return rows, scores, len(rows) == k
        count = self.cache.candidates_for(k)
        read = partial(passages.score, reader, vector=vector, metric=self._spec.metric)
        if allowed is not None and len(allowed) <= count:
            more = len(allowed) == count
            found, exact = read(allowed.tolist())
        else:
            near, by_code = self.cache.search(vector, count, allowed)
            more = len(near) == count
            found, exact = read_nearest(read, near, by_code, k)
        best = np.lexsort((found, -exact))[:k]
        return found[best].tolist(), exact[best].tolist(), more

    def last_row(self) -> int:
        """Return the highest row id there is, tombstones included; 0 if there is none."""
        return self.cache.last_row

    def add(self, rows: Rows, vectors: Floats) -> None:
        """Add vectors: beside queries, or a few at a time, and those that wait go between.

        Raises:
            StorageError: Those that there are can't be brought into memory; there is no room.
        """
        self._have_in_memory()
        try:
            self.cache.make_room(len(rows), self.write_lock)
        except (MemoryError, RuntimeError) as error:
            raise StorageError(f"There is no memory for more vectors: {error}.") from error
        if self.cache.added_to_while_searched:
            self.cache.add(rows, vectors)  # which a query's SQLite snapshot does not have
            return
        for block in _split(len(rows), self.cache.block_size):
            with self.write_lock():
                self.cache.add(rows[block], vectors[block])

    def undo_add(self, rows: Rows) -> None:
        """Make tombstones of those of the rows that were added."""
        self._discard(np.intersect1d(self.cache.rows(), rows).tolist())

    def after_commit(self, stamp: Stamp, added: int, removed: Sequence[int]) -> None:
        """Follow a write that was committed, and do what is due. Never fails: it is acknowledged.

        Args:
            stamp: The write's.
            added: How many rows it added.
            removed: Those it removed.
        """
        self._discard(removed)
        self._written = stamp
        self._changes += added + len(removed)
        for due in (self._tidy, self._save_if_due):
            try:
                due()
            except (CondenseryError, sqlite3.Error, MemoryError, RuntimeError) as error:
                self._report("index_cache_upkeep_failed", reason=str(error))

    def save(self) -> None:
        """Write the file now, if anything has changed; a disk that refuses is reported, no more."""
        self._give_up_saving()
        if self.behind and not self.cache.mapped:
            self._save(self.cache, self.cache.cut(self._written), self._changes, self._lock_to_save)

    def close(self) -> None:
        """Let what is being done aside go; ``save`` was called, or is not wanted.

        The file is not touched any more on return: its place may be another index's then.
        """
        self._closed.set()
        self._give_up_saving()
        if self._owner is not None:
            self._owner.join()

    def wait_until_agreed(self, seconds: float | None = None) -> None:
        """Wait for what is being done aside, for so many seconds at most each.

        It agrees with SQLite from the start: what was there before answers until then.
        """
        owner, maker = self._owner, None
        if owner is not None:
            owner.join(seconds)
        while maker is not self._maker:  # one may begin the next at its end, or a saver
            maker = self._maker
            if maker is not None:
                maker.join(seconds)
        if self._saver is not None:
            self._saver.join(seconds)

    def _discard(self, rows: Sequence[int]) -> None:
        if rows:
            with self.write_lock():
                self.cache.discard(rows)
            if self._making:
                self._discarded += rows

    def _tidy(self) -> None:
        if self.cache.needs_training:
            self._begin_anew()
        elif self.cache.needs_compaction:
            self._compact()

    def _save_if_due(self) -> None:
        changes = self._changes - self._changes_tried
        if self._save_is_due or changes >= max(self._save_every, self.cache.live // 4):
            self._begin_save()

    def _compact(self) -> None:
        if self.cache.searched_as != "flat":
            self._begin_anew()
            return
        if self.cache.mapped or self.cache.tombstones < self._uncompacted * _GROWN:
            return  # after one of the next writes
        self._uncompacted = self.cache.tombstones  # if there is no memory for it
        if self._is_saving:  # what is soon no more; and two copies at once are slow
            self._give_up_saving()
            self._save_is_due = True
        # beside the old one: moving what follows a tombstone would keep queries out as long
        old, fresh = self.cache, self.cache.compacted()
        with self.write_lock():
            self.cache = fresh
        self._uncompacted = 0
        old.let_go()

    # The file, aside

    @property
    def _is_saving(self) -> bool:
        return self._saver is not None and self._saver.is_alive()

    def _begin_save(self) -> None:
        """Save in a thread what there is now; the caller lets nobody write meanwhile.

        Vectors that are mapped are not written back: nobody has looked yet whether they are right.
        """
        if self._is_saving or self.cache.mapped:
            return
        self._changes_tried, self._save_is_due = self._changes, False
        work = (self.cache, self.cache.cut(self._written), self._changes, self._paced_lock())

        def save() -> None:
            lower_priority()
            self._save(*work)

        saver = threading.Thread(target=save, name="index-save", daemon=True)
        saver.start()
        self._saver = saver

    def _save(
        self,
        cache: VectorCache,
        cut: Cut,
        changes: int,
        read_lock: Callable[[], AbstractContextManager[None]],
    ) -> None:
        try:
            cache.save(self._file, cut, read_lock)
        except IndexClosed:
            return
        except (OSError, MemoryError, RuntimeError) as error:
            self._report("index_cache_not_saved", reason=str(error))
        else:
            self.saved, self._changes_saved = cut.stamp.sequence, changes

    def _lock_to_save(self) -> AbstractContextManager[None]:
        if self._given_up.is_set():
            raise IndexClosed("What is to be saved is no longer this.")
        return self.read_lock()

    def _paced_lock(self) -> Callable[[], AbstractContextManager[None]]:
        """Return a ``_lock_to_save`` that leaves others the processor half of its thread's time."""
        before = 0.0

        def lock() -> AbstractContextManager[None]:
            nonlocal before
            used = time.thread_time()
            self._given_up.wait(used - before)
            before = used
            return self._lock_to_save()

        return lock

    def _give_up_saving(self) -> None:
        """Return when no thread writes the file."""
        if self._saver is not None:
            self._given_up.set()
            self._saver.join()
            self._given_up.clear()

    # Vectors that are mapped

    def _own_aside(self) -> None:
        with contextlib.suppress(IndexClosed, CondenseryError):  # the first write tries again
            self._own()

    def _own(self) -> None:
        """Bring mapped vectors into memory; from SQLite, if the file is damaged.

        Raises:
            IndexClosed: The index was closed meanwhile.
            StorageError: Neither can be read, or there is no room.
        """
        cache = self.cache
        try:
            try:
                vectors = cache.in_memory(self._check_open)
            except CacheUnusable as error:
                self._report("index_cache_rebuilt", reason=str(error), passages=cache.live)
                self._check_open()
                # never mapped again
                with contextlib.suppress(OSError):
                    self._file.unlink(missing_ok=True)
                self.saved = 0
                self._changes_saved = self._changes_tried = -cache.live
                with closing(self._open_reader()) as reader:
                    blocks = passages.vectors_after(reader, self._spec.dims, 0)
                    vectors = cache.read_anew(self._while_open(blocks))
        except (sqlite3.Error, MemoryError, RuntimeError) as error:
            message = f"The index's vectors can't be brought into memory: {error}."
            raise StorageError(message) from error
        with self.write_lock():
            cache.take(vectors)

    def _have_in_memory(self) -> None:
        """Wait until vectors can be added."""
        if self._owner is not None:
            self._owner.join()
            self._owner = None
        if self.cache.mapped:
            self._own()

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise IndexClosed("The index was closed.")

    def _while_open(self, blocks: Iterable[Block]) -> Iterator[Block]:
        for block in blocks:
            self._check_open()
            yield block

    # A cache made anew, aside

    def _begin_anew(self) -> None:
        """Make a new cache in a thread. Nobody writes meanwhile, or the caller does."""
        if self._making or self.cache.live < self._failed_at * _GROWN:
            return
        self._discarded.clear()
        maker = threading.Thread(target=self._make_anew, name="index-anew", daemon=True)
        before, self._maker, self._making = self._maker, maker, True  # until its end
        try:
            maker.start()
        except RuntimeError:
            self._maker, self._making = before, False
            raise

    def _make_anew(self) -> None:
        """Fill a cache from SQLite while writes go on, and at the end let nobody write."""
        lower_priority()
        try:
            with closing(self._open_reader()) as reader:
                fresh = begin_cache(reader, self._spec)
                # outgrown by what is written meanwhile: too few cells, so once more
                while not self._fill(fresh, reader):
                    fresh = begin_cache(reader, self._spec)
            with self._writing():
                self._fill(fresh, self._connection, whole=True)
                fresh.discard(np.intersect1d(fresh.rows(), self._discarded).tolist())
                check_count(fresh, passages.count(self._connection)[1])
                old = self.cache
                with self.write_lock():
                    self.cache = fresh
                if not self._is_saving:  # which reads it
                    old.let_go()
                del old
                self._making, self._failed_at = False, 0
                self._changes += 1  # the file has the old one
                if fresh.needs_training:
                    self._begin_anew()
                else:
                    self._save_is_due = True
                    self._begin_save()
        except IndexClosed:
            return
        except Exception as error:  # whatever it is: else none would be made until a restart
            self._report("index_cache_upkeep_failed", reason=str(error))
            with contextlib.suppress(IndexClosed), self._writing():
                self._making, self._failed_at = False, self.cache.live

    def _fill(
        self, fresh: VectorCache, connection: sqlite3.Connection, *, whole: bool = False
    ) -> bool:
        """Add the rows over those that a cache holds; returns whether it then has all.

        Args:
            whole: Go on, too, once it holds so much that it is to be trained anew.

        Raises:
            IndexClosed: The index was closed meanwhile.
        """
        for rows, vectors in passages.vectors_after(connection, self._spec.dims, fresh.last_row):
            for block in _split(len(rows), fresh.block_size):
                self._check_open()
                fresh.add(rows[block], vectors[block])
            if fresh.needs_training and not whole:
                return False
        return True


def read_nearest(
    read: Callable[[Sequence[int]], tuple[Rows, Floats]],
    near: Sequence[int],
    by_code: Sequence[float],
    k: int,
) -> tuple[Rows, Floats]:
    """Score rows by their vectors, as far down as one of the ``k`` nearest may stand.

    That is until the next one by its code would need an error of the code three standard deviations
    over the mean of those seen, to come before the ``k``-th nearest so far. Of texts' vectors a
    quarter of ``near`` is read so, and as many of the nearest are found as in all of it. Copies of
    a vector, which have all the same error, count once.

    Args:
        read: Returns those of the rows that exist, and their scores.
        near: Rows, the nearest by their codes first.
        by_code: Their scores by code.
        k: How many are wanted.
    """
    code_of = dict(zip(near, by_code, strict=True))
    found, exact = np.empty(0, np.int64), np.empty(0, np.float32)
    errors = exact
    start, step = 0, max(_READ_FIRST, 4 * k)
    while start < len(near):
        if len(found) >= k:
            needed = np.partition(exact, -k)[-k] - by_code[start]
            if _is_unlikely(needed, errors):  # and then without copies, which takes longer to see
                known = errors[_distinct(exact)]
                if len(known) >= _LEAST_KNOWN and _is_unlikely(needed, known):
                    break
        rows, scores = read(near[start : start + step])
        codes = np.array([code_of[row] for row in rows.tolist()], dtype=np.float32)
        found, exact = np.concatenate([found, rows]), np.concatenate([exact, scores])
        errors = np.concatenate([errors, scores - codes])
        start, step = start + step, 2 * step
    return found, exact


def _is_unlikely(error: float, errors: Floats) -> bool:
    return bool(error > errors.mean() + 3 * errors.std())


def _distinct(scores: Floats) -> Rows:
    """Return a place of each different score; those within rounding are the same."""
    wide = scores.astype(np.float64)
    unit = 1e-6 * np.abs(wide).max() or 1.0
    places: Rows = np.unique(np.round(wide / unit), return_index=True)[1]
    return places


def _split(count: int, size: int) -> Iterator[slice]:
    """Yield parts of so many rows, of at most ``size``."""
    for start in range(0, count, size):
        yield slice(start, start + size)
