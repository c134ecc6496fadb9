"""One SQLite file an index: how it is made, opened, migrated, and how its failures are named."""

import errno
import json
import logging
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from condensery.errors import StorageError, StorageFull, StorageReadOnly
from condensery.index import bm25, fields
from condensery.values import IndexPrompts, IndexSpec

Migration = Callable[[sqlite3.Connection], None]

APPLICATION_ID = 0x434E4459  # "CNDY"


def _add_options(connection: sqlite3.Connection) -> None:
    """Let settings hold the kind's options: from format 3 to format 4."""
    connection.execute("ALTER TABLE settings ADD COLUMN options TEXT NOT NULL DEFAULT '{}'")


def _add_prompts(connection: sqlite3.Connection) -> None:
    """Let settings hold the prompts: from format 4 to format 5.

    They stay unknown (NULL) of an index that is there: what the texts were depends on its encoder.
    """
    for name in ("query_prompt", "passage_prompt"):
        connection.execute(f"ALTER TABLE settings ADD COLUMN {name} TEXT")


def _add_headings(connection: sqlite3.Connection) -> None:
    """Let passages have a heading, the first characters of their document: from format 5 to 6.

    Those that are there have none, as they were embedded.
    """
    connection.execute("ALTER TABLE passages ADD COLUMN heading_chars INTEGER NOT NULL DEFAULT 0")


# MIGRATIONS[i] brings a file from format i + 1 to i + 2, inside a transaction.
MIGRATIONS: tuple[Migration, ...] = (
    bm25.create,
    fields.create,
    _add_options,
    _add_prompts,
    _add_headings,
)

BUSY_SECONDS = 10.0  # for a lock
# Of the write-ahead log: what is left of it when it begins anew, and from where on that is forced.
LOG_BYTES, MOST_LOG_BYTES = 64 * 2**20, 256 * 2**20
LOG_SECONDS = 2.0  # for those who read then: a query, and not a copy of the whole
# In so many tries: one that begins while others read may wait for all of its time in vain, though
# they have ended, and the next succeeds at once.
LOG_TRIES = 10

_log = logging.getLogger(__name__)

# Format 1; what came later is made by the migrations.
# passages: AUTOINCREMENT keeps a row id from ever naming a second passage, also in a stale cache.
# vectors: a table of their own, so that passages stays small to scan and join.
# writes: one row a transaction; its random stamp tells a cache of this history from one of
# another (a restored copy, say) with the same sequence number.
_SCHEMA = """
CREATE TABLE settings (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    encoder TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    dims INTEGER NOT NULL,
    metric TEXT NOT NULL,
    kind TEXT NOT NULL
);
CREATE TABLE documents (
    row INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    text TEXT NOT NULL,
    metadata TEXT NOT NULL
);
CREATE TABLE passages (
    row INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    document INTEGER NOT NULL REFERENCES documents (row) ON DELETE CASCADE,
    start_char INTEGER NOT NULL,
    end_char INTEGER NOT NULL,
    metadata TEXT
);
CREATE INDEX passages_document ON passages (document);
CREATE TABLE vectors (
    passage INTEGER PRIMARY KEY REFERENCES passages (row) ON DELETE CASCADE,
    vector BLOB NOT NULL
);
CREATE TABLE writes (sequence INTEGER PRIMARY KEY AUTOINCREMENT, stamp INTEGER NOT NULL);
INSERT INTO writes (stamp) VALUES (random());
"""


def to_record(spec: IndexSpec) -> dict[str, Any]:
    """Return a specification flat, as index files, snapshots and plans of rebuilds keep it."""
    record = asdict(spec)
    prompts = record.pop("prompts") or {}
    record["options"] = json.dumps(spec.options or {}, sort_keys=True)
    return {
        **record,
        "query_prompt": prompts.get("query"),
        "passage_prompt": prompts.get("passage"),
    }


def from_record(record: Mapping[str, Any]) -> IndexSpec:
    """Return the specification of a record; without prompts where it is from before they were kept.

    Raises:
        TypeError, ValueError: It is no record of this version.
    """
    own = dict(record)
    options = json.loads(own.pop("options", "{}"))
    query, passage = own.pop("query_prompt", None), own.pop("passage_prompt", None)
    prompts = None if query is None or passage is None else IndexPrompts(query, passage)
    return IndexSpec(**own, options=options, prompts=prompts)


def create(path: Path, spec: IndexSpec) -> None:
    """Make the file and close it; synced, but for the entry in its directory."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        _prepare(connection)
        connection.execute("PRAGMA journal_mode = WAL")
        with transaction(connection):
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute("PRAGMA user_version = 1")
            for statement in _SCHEMA.split(";"):
                connection.execute(statement)
            record = tuple(to_record(spec).values())
            first, later = record[:5], record[5:]
            connection.execute("INSERT INTO settings VALUES (1, ?, ?, ?, ?, ?)", first)
        _migrate(connection, path, MIGRATIONS)
        connection.execute(
            "UPDATE settings SET options = ?, query_prompt = ?, passage_prompt = ?", later
        )
    finally:
        connection.close()


def open_writer(path: Path, *, migrations: Sequence[Migration] = MIGRATIONS) -> sqlite3.Connection:
    """Open the connection that writes, after bringing the file to this version's format.

    Raises:
        StorageError: The file is of a newer format, or is not an index.
        sqlite3.Error: The disk refused.
    """
    connection = _connect(path, "rw")
    try:
        _prepare(connection)
        if _migrate(connection, path, migrations):
            _log.info("index_migrated", extra={"path": where(path), "format": 1 + len(migrations)})
        # a file copied from elsewhere may have lost the mode; asking again costs nothing
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise StorageError(f"{where(path)} can't be put in WAL mode, it stays in {mode}.")
    except BaseException:
        connection.close()
        raise
    return connection


def open_reader(path: Path) -> sqlite3.Connection:
    """Open a connection that can't write. Any thread may use it, one at a time."""
    connection = _connect(path, "ro")
    connection.execute("PRAGMA temp_store = MEMORY")
    return connection


def read_spec(connection: sqlite3.Connection) -> IndexSpec:
    """Read what the index was made with."""
    cursor = connection.execute("SELECT * FROM settings")
    columns = [name for name, *_ in cursor.description]
    record = dict(zip(columns, cursor.fetchone(), strict=True))
    del record["id"]
    return from_record(record)


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit at the end of the block, synced; or roll back and leave everything as it was."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # on a full disk SQLite may have rolled back by itself
            connection.execute("ROLLBACK")
        raise


class LogShortener:
    """Begins an index's write-ahead log anew once it is long.

    SQLite does so by itself only when a write comes while nobody reads. Where somebody always does,
    the log grows for ever: to 4 GB while a quarter of five million passages were deleted beside one
    thread that searched them without a pause.

    Args:
        path: Of the database.
    """

    def __init__(self, path: Path) -> None:
        self._log = path.with_name(f"{path.name}-wal")
        self._tried_at = 0  # its bytes, where the last try was in vain

    def look(self, connection: sqlite3.Connection) -> None:
        """After a commit: wait for those who read now, if it is long; not for those who come.

        Args:
            connection: That which writes, with nothing under way.

        Raises:
            sqlite3.Error: The disk refused; what was committed is.
        """
        try:
            size = self._log.stat().st_size
        except OSError:
            return
        self._tried_at = min(self._tried_at, size)  # SQLite may have begun it anew by itself
        if size < self._tried_at + MOST_LOG_BYTES:
            return
        connection.execute(f"PRAGMA busy_timeout = {round(1000 * LOG_SECONDS / LOG_TRIES)}")
        try:
            for _ in range(LOG_TRIES):
                busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                if not busy:
                    break
        finally:
            connection.execute(f"PRAGMA busy_timeout = {round(1000 * BUSY_SECONDS)}")
        self._tried_at = size if busy else 0


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn what SQLite and the file system raise over ``path`` into our errors."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", None)
        if code is None:  # raised by Python's module, not by SQLite: a mistake of ours
            raise
        raise _from_sqlite(error, code, path) from error
    except OSError as error:
        raise _from_system(error, path) from error


def where(path: Path) -> str:
    """Name ``path`` for a caller: from the data directory down."""
    parts = path.parts
    tops = [place for place, part in enumerate(parts) if part in ("indexes", "snapshots")]
    return "/".join(parts[tops[-1] if tops else -1 :])


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=BUSY_SECONDS,
    )


def _prepare(connection: sqlite3.Connection) -> None:
    # FULL syncs the log at every commit; in WAL mode NORMAL would not. fullfsync is for macOS,
    # whose fsync leaves data in the drive's cache.
    for pragma in ("synchronous = FULL", "fullfsync = ON", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}")
    # deletes and temporary structures must not need room on a disk that is full
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")


def _migrate(connection: sqlite3.Connection, path: Path, migrations: Sequence[Migration]) -> bool:
    """Bring a file to the newest format, one transaction a step; returns whether it was older."""
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise StorageError(f"{where(path)} is not an index of this service.")
    newest = 1 + len(migrations)
    current = connection.execute("PRAGMA user_version").fetchone()[0]
    if current > newest:
        raise StorageError(
            f"{where(path)} has format {current}, written by a newer version; this one reads up to "
            f"format {newest}. Nothing was changed."
        )
    for version in range(current, newest):
        with transaction(connection):
            migrations[version - 1](connection)
            connection.execute(f"PRAGMA user_version = {version + 1}")
    return bool(current < newest)


def _from_sqlite(error: sqlite3.Error, code: int, path: Path) -> StorageError:
    primary = code & 0xFF  # the higher bytes hold the extended code
    if primary == sqlite3.SQLITE_FULL:
        return StorageFull(f"The disk under {where(path)} is full ({error}).")
    if primary == sqlite3.SQLITE_READONLY:
        return StorageReadOnly(f"{where(path)} can't be written ({error}).")
    if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StorageError(f"{where(path)} is corrupt ({error}).")
    if primary in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        # SQLite keeps errno to itself (only ENOSPC has a code), so ask the disk again
        refusal = _try_to_write(path)
        if refusal is not None:
            return _from_system(refusal, path)
    return StorageError(f"{where(path)} can't be used ({error}, {error.sqlite_errorname}).")


def _from_system(error: OSError, path: Path) -> StorageError:
    reason = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return StorageFull(f"The disk under {where(path)} is full ({reason}).")
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return StorageReadOnly(f"{where(path)} can't be written ({reason}).")
    return StorageError(f"{where(path)} can't be used ({reason}).")


def _try_to_write(path: Path) -> OSError | None:
    """Return what the system says to a file beside ``path`` a little larger than it."""
    try:
        sizes = [file.stat().st_size for file in path.parent.glob(f"{path.name}*")]
        with tempfile.TemporaryFile(dir=path.parent) as probe:
            probe.write(bytes(2**16))
            probe.flush()
            os.pwrite(probe.fileno(), b"\0", max(sizes, default=0) + 2**16)  # sparse
            os.fsync(probe.fileno())
    except OSError as error:
        return error
    return None
