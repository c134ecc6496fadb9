"""An index's vectors in a database: searched by many at once, kept in line with SQLite by a thread.

How they agree is what ``index`` says of FAISS, with a database that may be slow, down, or behind:
a write (1) sends its vectors, and is refused if the database does not take them; (2) commits in
SQLite, which is when it is acknowledged; (3) has the rows it replaced deleted later, by the
thread, once no query that might show them goes on. So the database never lacks what was
acknowledged, unless it lost it; and what it has too much SQLite does not show, and queries skip.

What it lost, and what was left over, is found by comparing row ids, as for the FAISS cache: at a
start, where it counts otherwise after a fault, and now and then. Row 0 of a collection spares a
start that where nothing was sent since it was settled, at the write that SQLite too has last.
"""

import logging
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from condensery.errors import (
    CondenseryError,
    StorageError,
    StorageFull,
    VectorDatabaseFault,
    VectorDatabaseUnavailable,
)
from condensery.index import database as sqlite_file
from condensery.index import fields, passages, selecting
from condensery.index.filters import Filter
from condensery.index.passages import Rows, Stamp
from condensery.index.read_write_lock import ReadWriteLock
from condensery.index.restoring import Report
from condensery.index.vector_database import (
    CollectionMissing,
    Point,
    Settled,
    Shape,
    VectorDatabase,
)
from condensery.index.vector_index import Search, VectorStatus
from condensery.request_context import served_request
from condensery.values import Floats, IndexSpec

QUIET_SECONDS = 1.0  # without a write, after which a collection is settled
CHECK_SECONDS = 30.0  # between looks at a database that nobody complains of
FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 0.1, 2.0

_log = logging.getLogger(__name__)

_Refusal = VectorDatabaseUnavailable | VectorDatabaseFault | StorageFull


class RemoteVectors:
    """Finds the rows nearest to a vector, in a database. One writer at a time, as the index has it.

    Args:
        connection: That writes the index's SQLite file.
        spec: Of the index.
        file: The SQLite file, which the thread reads by a connection of its own.
        database: Where the vectors are.
        collection: Its name there.
        wait_seconds: How long a call waits for a database that is being brought up to date.
        report: Called with what was amiss and mended.
        note_fault: Called with why the vectors can't be had, or None once they can.

    Attributes:
        collection: Its name.
        database: Where the vectors are.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        spec: IndexSpec,
        file: Path,
        database: VectorDatabase,
        collection: str,
        *,
        wait_seconds: float,
        report: Report,
        note_fault: Callable[[str | None], None],
    ) -> None:
        self.collection = collection
        self.database = database
        self._connection = connection
        self._spec = spec
        self._file = file
        self._wait_seconds = wait_seconds
        self._report = report
        self._note_fault = note_fault
        self._lock = ReadWriteLock()
        self._sending = threading.Lock()  # over what begins a write, or settles the collection
        self._changed = threading.Condition()  # over all that follows
        self._reading: Counter[int] = Counter()  # queries by the epoch they began in
        self._epoch = 0
        self._written = passages.latest_write(connection)
        self._written_at = 0.0
        self._settled_at = Stamp(0, 0)  # the write that row 0 says; unknown as yet
        self._pending: set[int] = set()  # rows to be deleted
        self._writing: Rows | None = None  # rows sent, and not committed yet
        self._clean = False  # row 0 says so
        self._suspect = False  # a call was refused: whether all is well is to be looked at
        self._agrees = False
        self._fault: _Refusal | None = None
        self._sent = 0
        self._progress = (0, 0)  # passages sent of those that the database lacked
        self._failing_seconds = FIRST_RETRY_SECONDS
        self._checked_at = 0.0
        self._closed = False
        self._thread = threading.Thread(
            target=self._run, name=f"condensery-{collection}", daemon=True
        )
        self._thread.start()

    @property
    def status(self) -> VectorStatus:
        """How it is searched, and what it has too much."""
        return VectorStatus(self._spec.kind, None, len(self._pending))

    @property
    def behind(self) -> int:
        """Return 0: there is no file."""
        return 0

    @property
    def saved(self) -> int:
        """Number of the write that the collection was last settled at; 0 if unknown."""
        return self._settled_at.sequence

    @property
    def sent(self) -> int:
        """How many passages were sent because the database lacked them."""
        return self._sent

    @property
    def progress(self) -> tuple[int, int]:
        """Passages that were sent of those that the database lacked."""
        return self._progress

    @contextmanager
    def read_lock(self) -> Iterator[None]:
        """Keep what a query's SQLite snapshot shows from being deleted until the end."""
        with self._lock.shared():
            with self._changed:
                epoch = self._epoch
                self._reading[epoch] += 1
            try:
                yield
            finally:
                with self._changed:
                    self._reading[epoch] -= 1
                    self._changed.notify_all()

    def write_lock(self) -> AbstractContextManager[None]:
        """Keep every query out."""
        return self._lock.exclusive()

    def prepare(self, reader: sqlite3.Connection, filter: Filter | None) -> Search:
        """Return what searches, and fix the reader's SQLite snapshot.

        The caller holds ``read_lock``. The database must not be asked before the snapshot is fixed:
        what is written in between would be found by neither.

        Raises:
            VectorDatabaseUnavailable, VectorDatabaseFault, StorageFull: As the message says; the
                search too.
        """
        self._check_agrees()
        passages.latest_write(reader)
        if filter is None or self.database.can_filter(filter):
            return partial(self._search, filter)
        return partial(self._search, selecting.passage_rows(reader, filter))

    def _search(
        self, chosen: Filter | Rows | None, vector: Floats, k: int
    ) -> tuple[list[int], list[float], bool]:
        with self._faults_noted():
            rows, scores = self.database.search(self.collection, self._spec, vector, k, chosen)
        return rows, scores, len(rows) == k

    def last_row(self) -> int:
        """Return 0: rows that only the database has are deleted before anything is written."""
        return 0

    def add(self, rows: Rows, vectors: Floats) -> None:
        """Send vectors; their passages are in the connection's transaction already.

        Raises:
            VectorDatabaseUnavailable, VectorDatabaseFault, StorageFull: The database did not take
                them, or not for certain; ``undo_add`` then.
        """
        with self._sending, self._changed:
            self._check_agrees()
            self._writing = rows
            was_clean, self._clean = self._clean, False
            unsettled = self._settled(self._settled_at, clean=False) if was_clean else None
        points = make_points(self._connection, rows)
        with self._faults_noted():
            self.database.upsert(self.collection, points, vectors, unsettled)

    def undo_add(self, _rows: Rows) -> None:
        """Have those rows deleted that were sent, whether they arrived or not."""
        with self._changed:
            if self._writing is not None:
                self._pending.update(self._writing.tolist())
            self._writing = None
            self._changed.notify_all()

    def after_commit(self, stamp: Stamp, added: int, removed: Sequence[int]) -> None:
        """Follow a write that was committed. Never fails: it is acknowledged."""
        with self._changed:
            self._written = stamp
            self._written_at = time.monotonic()
            self._writing = None
            self._pending.update(removed)
            self._changed.notify_all()

    def save(self) -> None:
        """Do nothing: the thread settles the collection when it ends."""

    def wait_until_agreed(self, seconds: float | None = None) -> None:
        """Wait until the database holds what SQLite does.

        Raises:
            VectorDatabaseUnavailable: Not within so many seconds; or it is down.
            VectorDatabaseFault, StorageFull: It can't.
        """
        self._check_agrees(seconds, given=True)

    def close(self) -> None:
        """Let the thread do what is left to do, if the database answers, and end it."""
        with self._changed:
            self._closed = True
            self._note_fault(None)
            self._changed.notify_all()
        self._thread.join(3 * self._wait_seconds + 1)

    def _check_agrees(self, seconds: float | None = None, *, given: bool = False) -> None:
        if not given:
            request = served_request()
            left = self._wait_seconds if request is None else request.seconds_left
            seconds = max(0.0, min(self._wait_seconds, left))
        with self._changed:
            self._changed.wait_for(
                lambda: self._agrees or self._fault is not None or self._closed, seconds
            )
            if self._fault is not None:  # a new one: it gets the traceback of who raises it
                raise type(self._fault)(self._fault.message)
            if not self._agrees:
                done, total = self._progress
                raise VectorDatabaseUnavailable(
                    f"{self.database.where} is being brought up to date: it got {done} of {total} "
                    "passages that it lacked."
                )

    @contextmanager
    def _faults_noted(self) -> Iterator[None]:
        """Let the thread look after the database where a call to it failed."""
        try:
            yield
        except CollectionMissing as error:
            raise self._lose() from error
        except VectorDatabaseUnavailable as error:
            self._set_fault(error)
            raise
        except VectorDatabaseFault:  # of this call, or of all
            with self._changed:
                self._suspect = True
                self._changed.notify_all()
            raise

    def _lose(self) -> VectorDatabaseUnavailable:
        """Let the thread make the collection again, which is not there; returns the error."""
        message = f"{self.database.where} has lost collection {self.collection!r}."
        fault = VectorDatabaseUnavailable(message)
        with self._changed:
            self._agrees = False
        self._set_fault(fault)
        return fault

    def _set_fault(self, fault: _Refusal) -> None:
        with self._changed:
            if not self._closed:
                self._note_fault(fault.message)
            fresh = self._fault is None or self._fault.message != fault.message
            self._fault = fault
            self._changed.notify_all()
        if fresh and not self._closed:
            self._report("index_database_failed", reason=fault.message)

    # The thread

    def _run(self) -> None:
        last = False
        while not last:
            try:
                with closing(sqlite_file.open_reader(self._file)) as reader:
                    while not last:
                        last = self._wait_for_work()
                        if not last or (self._agrees and self._fault is None):
                            self._work_once(reader, last=last)
            except sqlite3.Error as error:
                self._set_fault(VectorDatabaseFault(f"The index can't be read: {error}."))
                last = last or self._wait_for_work()

    def _wait_for_work(self) -> bool:
        """Wait until something is to be done; returns whether it is the last time."""
        with self._changed:
            if self._fault is not None:
                self._changed.wait_for(lambda: self._closed, self._failing_seconds)
                self._failing_seconds = min(2 * self._failing_seconds, LAST_RETRY_SECONDS)
                return self._closed
            while self._is_idle():
                now = time.monotonic()
                due = self._checked_at + CHECK_SECONDS
                settled = self._clean and self._settled_at == self._written
                if not settled and self._writing is None:
                    due = min(due, self._written_at + QUIET_SECONDS)
                if due <= now:
                    break
                self._changed.wait(due - now)
            return self._closed

    def _is_idle(self) -> bool:
        amiss = self._fault is not None or self._suspect or not self._agrees
        return not (self._closed or amiss or self._pending)

    def _work_once(self, reader: sqlite3.Connection, *, last: bool) -> None:
        check = time.monotonic() >= self._checked_at + CHECK_SECONDS
        unsure = not self._agrees or self._fault is not None or self._suspect
        try:
            if unsure or (check and self._clean):
                self._agree(reader)
            self._delete_pending()
            self._settle(at_once=last)
            if check:
                self._checked_at = time.monotonic()
        except CollectionMissing:
            self._lose()
        except StorageFull as error:
            if not self._agrees or self._fault is not None:
                self._set_fault(error)
            else:  # to tidy up can wait: searches go on, and writes hear it themselves
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, LAST_RETRY_SECONDS)
        except (VectorDatabaseUnavailable, VectorDatabaseFault) as error:
            self._set_fault(error)
        except CondenseryError as error:
            self._set_fault(VectorDatabaseFault(error.message))
        except sqlite3.Error:
            raise
        except Exception as error:  # a bug, ours or the client's: nobody else mends the index
            _log.exception("index_database_bug")
            kind = type(error).__name__
            self._set_fault(VectorDatabaseFault(f"{self.database.where}: unexpected {kind}."))
        finally:
            if reader.in_transaction:
                reader.execute("ROLLBACK")

    def _agree(self, reader: sqlite3.Connection) -> None:
        """Bring the database in line with SQLite, or find that it is."""
        with self._changed:
            agreed = self._agrees
            # where no write is under way, and none can begin, rows that SQLite lacks are too many
            bounded = self._writing is not None or (agreed and self._fault is None)
            quiet = not bounded and not self._pending
        reader.execute("BEGIN")
        now = passages.latest_write(reader)
        settled = self._open_collection(reader, now)
        expected = passages.count(reader)[1]
        same = settled.clean and settled.write == now
        added = removed = 0
        known = same or (agreed and quiet)
        if not known or self.database.count(self.collection) != expected:
            added, removed = self._compare(reader, bounded=bounded)
        reader.execute("COMMIT")
        with self._changed:
            mended = self._fault is not None
            self._agrees, self._fault, self._suspect = True, None, False
            untouched = settled.clean and not added and not removed
            self._clean = untouched and (self._clean if agreed else same)
            if not agreed:
                self._settled_at = settled.write
            self._checked_at = time.monotonic()
            self._failing_seconds = FIRST_RETRY_SECONDS
            self._note_fault(None)
            self._changed.notify_all()
        if mended or added or removed:
            self._report("index_database_caught_up", added=added, removed=removed)

    def _open_collection(self, reader: sqlite3.Connection, now: Stamp) -> Settled:
        """Return what the collection says of itself, after making it if need be.

        Raises:
            VectorDatabaseFault: It is of another shape, another encoder, or none of ours.
        """
        name, spec, where = self.collection, self._spec, self.database.where
        shape = self.database.describe(name)
        if shape is None:
            return self._make_collection(now)
        if shape != Shape(spec.dims, spec.metric):
            raise VectorDatabaseFault(
                f"{where}: collection {name!r} is of {shape.dims} dimensions and metric "
                f"{shape.metric}, not of {spec.dims} and {spec.metric}."
            )
        settled = self.database.settled(name)
        if settled is None:
            if held := self.database.count(name):
                raise VectorDatabaseFault(
                    f"{where}: collection {name!r} holds {held} points and does not say whose."
                )
            settled = self._settled(now, clean=False)
            self.database.settle(name, settled)
            return settled
        if settled.fingerprint != spec.fingerprint:
            raise VectorDatabaseFault(
                f"{where}: collection {name!r} holds vectors of encoder {settled.encoder!r} with "
                f"fingerprint {settled.fingerprint}, not of {spec.encoder!r} with "
                f"{spec.fingerprint}."
            )
        if not passages.knows_write(reader, settled.write):
            # of a copy of this index that went another way: its rows are other passages
            self._report("index_collection_remade", collection=name)
            self.database.drop(name)
            return self._make_collection(now)
        return settled

    def _make_collection(self, now: Stamp) -> Settled:
        settled = self._settled(now, clean=False)
        self.database.create(self.collection, self._spec)
        self.database.settle(self.collection, settled)
        return settled

    def _compare(self, reader: sqlite3.Connection, *, bounded: bool) -> tuple[int, int]:
        """Send what the database lacks, delete what it has too much; returns how many of each."""
        stored, last = passages.passage_rows(reader), passages.last_row(reader)
        blocks = [
            np.array(block, dtype=np.int64) for block in self.database.scroll(self.collection)
        ]
        held = np.concatenate([np.zeros(0, dtype=np.int64), *blocks])
        missing, extra = np.setdiff1d(stored, held), np.setdiff1d(held, stored)
        if bounded:
            extra = extra[extra <= last]
        self._progress = (0, len(missing))
        if len(extra):
            self._wait_for_readers()
            self.database.delete(self.collection, extra.tolist())
        done = 0
        for rows, vectors in passages.vector_blocks(reader, self._spec.dims, missing):
            self.database.upsert(self.collection, make_points(reader, rows), vectors)
            done += len(rows)
            self._sent += len(rows)
            self._progress = (done, len(missing))
            if self._closed:
                raise VectorDatabaseUnavailable("The index was closed meanwhile.")
        return len(missing), len(extra)

    def _delete_pending(self) -> None:
        with self._changed:
            rows = list(self._pending)
        if rows:
            self._wait_for_readers()
            self.database.delete(self.collection, rows)
            with self._changed:
                self._pending.difference_update(rows)

    def _settle(self, *, at_once: bool) -> None:
        """Note in the collection the write that it is settled at, if none is under way."""
        with self._sending:
            with self._changed:
                quiet = at_once or time.monotonic() >= self._written_at + QUIET_SECONDS
                written = self._written
                due = not self._clean or written != self._settled_at
                if not due or not quiet or self._pending or self._writing is not None:
                    return
            self.database.settle(self.collection, self._settled(written, clean=True))
            with self._changed:
                self._clean, self._settled_at = True, written

    def _settled(self, write: Stamp, *, clean: bool) -> Settled:
        spec = self._spec
        return Settled(spec.encoder, spec.fingerprint, write.sequence, write.value, clean)

    def _wait_for_readers(self) -> None:
        """Wait until every query has ended that began before."""
        with self._changed:
            self._epoch += 1
            now = self._epoch
            self._changed.wait_for(
                lambda: not any(count for epoch, count in self._reading.items() if epoch < now)
            )
            self._reading = +self._reading


def make_points(connection: sqlite3.Connection, rows: Rows) -> list[Point]:
    """Return passages' points, in the order of their rows, as far as a connection sees them."""
    documents = passages.documents_of(connection, rows.tolist())
    values = {metadata: tuple(fields.values_of(metadata)) for _, metadata in documents.values()}
    points = []
    for row in rows.tolist():
        if row not in documents:
            raise StorageError(f"The index is corrupt: there is no passage of row {row}.")
        identity, metadata = documents[row]
        points.append(Point(row, identity, values[metadata]))
    return points
