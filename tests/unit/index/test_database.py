import errno
import resource
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from condensery.errors import StorageError, StorageFull, StorageReadOnly
from condensery.index import database
from condensery.values import IndexSpec

SETTINGS = IndexSpec("e", "f", 4, "ip", "flat", {})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "index.sqlite3"
    database.create(path, SETTINGS)
    return path


def test_what_was_made_opens_with_its_settings(path: Path) -> None:
    writer = database.open_writer(path)
    assert database.read_spec(writer) == SETTINGS
    writer.close()


def test_the_writer_syncs_every_commit_and_keeps_foreign_keys(path: Path) -> None:
    writer = database.open_writer(path)
    pragma = {
        name: writer.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("journal_mode", "synchronous", "foreign_keys", "fullfsync")
    }
    assert pragma == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "fullfsync": 1}
    writer.close()


def test_a_reader_cannot_write(path: Path) -> None:
    reader = database.open_reader(path)
    with pytest.raises(StorageReadOnly), database.storage_errors(path):
        reader.execute("DELETE FROM documents")
    reader.close()


def test_a_newer_format_is_refused_and_left_as_it_is(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 9")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StorageError, match=r"format 9, written by a newer version.*format \d"):
        database.open_writer(path)
    assert path.read_bytes() == before


def test_an_older_format_is_migrated_once(path: Path) -> None:
    ran = []

    def add_column(connection: sqlite3.Connection) -> None:
        ran.append(connection.execute("PRAGMA user_version").fetchone()[0])
        connection.execute("ALTER TABLE documents ADD COLUMN language TEXT")

    for _ in range(2):
        writer = database.open_writer(path, migrations=(*database.MIGRATIONS, add_column))
        newest = 1 + len(database.MIGRATIONS)
        assert writer.execute("PRAGMA user_version").fetchone()[0] == newest + 1
        writer.execute("SELECT language FROM documents")
        writer.close()
    assert ran == [newest]
    with pytest.raises(StorageError, match="newer"):
        database.open_writer(path)


def test_a_migration_that_fails_leaves_the_old_format(path: Path) -> None:
    def fail(connection: sqlite3.Connection) -> None:
        connection.execute("DROP TABLE writes")
        connection.execute("SELECT nonsense")

    with pytest.raises(StorageError, match="nonsense"), database.storage_errors(path):
        database.open_writer(path, migrations=(*database.MIGRATIONS, fail))
    writer = database.open_writer(path)
    assert writer.execute("SELECT count(*) FROM writes").fetchone() == (1,)
    writer.close()


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b"", None])
def test_a_file_that_is_no_index_is_refused_by_name(path: Path, content: bytes | None) -> None:
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(StorageError, match=r"index\.sqlite3"), database.storage_errors(path):
        database.open_writer(path)


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, StorageFull),
        (errno.EDQUOT, StorageFull),
        (errno.EFBIG, StorageFull),
        (errno.EROFS, StorageReadOnly),
        (errno.EACCES, StorageReadOnly),
        (errno.EIO, StorageError),
    ],
)
def test_what_the_system_refuses_has_a_kind_of_its_own(
    number: int, kind: type[StorageError], tmp_path: Path
) -> None:
    with pytest.raises(StorageError) as caught, database.storage_errors(tmp_path / "x.sqlite3"):
        raise OSError(number, "refused")
    assert type(caught.value) is kind
    assert "x.sqlite3" in caught.value.message


def test_a_mistake_of_ours_is_not_blamed_on_the_disk(path: Path) -> None:
    reader = database.open_reader(path)
    reader.close()
    with pytest.raises(sqlite3.ProgrammingError), database.storage_errors(path):
        reader.execute("SELECT 1")


def test_a_log_that_sqlite_began_anew_is_watched_from_its_new_length(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "MOST_LOG_BYTES", 2**20)
    monkeypatch.setattr(database, "LOG_BYTES", 2**18)
    monkeypatch.setattr(database, "LOG_SECONDS", 0.01)
    writer = database.open_writer(path)
    shortener, log = database.LogShortener(path), path.with_name(f"{path.name}-wal")
    tried: list[int] = []
    writer.set_trace_callback(
        lambda statement: tried.append(log.stat().st_size) if "checkpoint" in statement else None
    )

    def write(times: int) -> None:
        for _ in range(times):
            with database.transaction(writer):
                writer.execute("UPDATE settings SET encoder = hex(randomblob(50000))")
            shortener.look(writer)

    def read() -> sqlite3.Connection:
        reader = sqlite3.connect(path, isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT encoder FROM settings").fetchone()
        return reader

    first = read()
    write(50)
    assert tried  # in vain, and the log is long
    first.close()
    write(2)
    assert log.stat().st_size < 2**20  # by SQLite itself, which found nobody reading
    tried.clear()
    second = read()
    write(50)
    second.close()
    writer.close()
    assert tried
    assert tried[0] < 3 * 2**20  # not once it is longer than ever before


FILL = """
import resource, sqlite3, sys
from pathlib import Path
from condensery.errors import StorageFull
from condensery.index import database
path = Path(sys.argv[1])
writer = database.open_writer(path)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
done = 0
try:
    with database.storage_errors(path):
        while done < 1000:
            with database.transaction(writer):
                writer.execute("INSERT INTO documents (id, text, metadata) VALUES (?, ?, '')",
                               (str(done), "x" * 5000))
            done += 1
except StorageFull as error:
    print(error.message)
assert not writer.in_transaction
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert writer.execute("SELECT count(*) FROM documents").fetchone() == (done,), done
with database.transaction(writer):
    writer.execute("INSERT INTO documents (id, text, metadata) VALUES ('more', '', '')")
print(done > 5)
"""


def test_a_write_that_the_kernel_refuses_is_full_and_the_next_works(path: Path) -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    done = subprocess.run(
        [sys.executable, "-c", FILL, str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    message, enough = done.stdout.splitlines()
    assert "is full (File too large)" in message
    assert enough == "True"
