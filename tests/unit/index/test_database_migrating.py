"""Indexes of older formats: what is found in them, and what a migration cut short leaves."""

import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.index.conftest import (
    DIMS,
    FINGERPRINT,
    SETTINGS,
    Disk,
    assert_agrees,
    events,
    make_batch,
    make_vectors,
)

from condensery.errors import StorageError, StorageFull
from condensery.index import database
from condensery.index.store import IndexStore
from condensery.values import IndexSpec

# As it was written before passages could be found by their words.
FORMAT_1 = """
PRAGMA journal_mode = WAL;
PRAGMA application_id = 1129202777;
PRAGMA user_version = 1;
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


@pytest.fixture
def path(data_dir: Path) -> Path:
    """A file of format 1: twenty documents, of two passages each, written in an odd order."""
    path = data_dir / "indexes" / "kb" / "index.sqlite3"
    path.parent.mkdir(parents=True)
    connection = sqlite3.connect(path)
    connection.executescript(FORMAT_1)
    connection.execute(
        "INSERT INTO settings VALUES (1, 'test-encoder', ?, ?, 'ip', 'flat')", (FINGERPRINT, DIMS)
    )
    batch = make_batch([f"d{n}" for n in range(20)])
    rows = [(7 * n) % 40 + 1 for n in range(40)]
    for n, document in enumerate(batch.documents):
        connection.execute(
            "INSERT INTO documents VALUES (?, ?, ?, '{}')", (20 - n, document.id, document.text)
        )
    for row, passage, vector in zip(rows, batch.passages, batch.vectors, strict=True):
        document = 20 - int(passage.document_id[1:])
        connection.execute(
            "INSERT INTO passages VALUES (?, ?, ?, ?, ?, NULL)",
            (row, passage.id, document, passage.start, passage.end),
        )
        connection.execute("INSERT INTO vectors VALUES (?, ?)", (row, vector.tobytes()))
    connection.commit()
    connection.close()
    return path


def look(path: Path) -> tuple[int, set[str]]:
    """The file's format and its tables, as another process would find them after a crash."""
    connection = sqlite3.connect(path)
    format_ = connection.execute("PRAGMA user_version").fetchone()[0]
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    connection.close()
    return format_, names


def test_an_index_of_format_1_is_found_by_its_words(
    path: Path, data_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    vector = make_vectors(40)[6]
    with IndexStore(data_dir) as store:
        assert store.count("kb") == (20, 40)
        assert store.info("kb").prompts is None  # which its encoder's fingerprint tells
        assert [hit.passage.id for hit in store.query("kb", "second d3", top_k=1)] == ["d3#1"]
        assert store.query("kb", vector, top_k=1)[0].passage.id == "d3#0"
        assert_agrees(store, data_dir)
        make_batch(["d3", "new"], seed=2, tag=" again").upsert(store)
        store.delete("kb", ["d4"])
        assert store.query("kb", "d4", top_k=9) == []
        assert {hit.passage.id for hit in store.query("kb", "again", top_k=9)} == {
            *("d3#0", "d3#1", "new#0", "new#1")
        }
        assert_agrees(store, data_dir)
    with IndexStore(data_dir) as store:
        assert_agrees(store, data_dir)
    assert look(path)[0] == 1 + len(database.MIGRATIONS)
    assert [event for event, _ in events(caplog)].count("index_migrated") == 1


def test_an_index_made_now_and_one_migrated_have_the_same_tables(
    path: Path, data_dir: Path
) -> None:
    with IndexStore(data_dir) as store:
        store.create("fresh", IndexSpec(**SETTINGS))
    assert look(path) == look(data_dir / "indexes" / "fresh" / "index.sqlite3")


DIE = """
import os, signal, sys
from pathlib import Path
from condensery.index import database, bm25
insert, done = bm25.insert, []
def dying(connection, passages):
    insert(connection, passages)
    # as in a long migration, whose first pages reach the disk before its end
    connection.execute("INSERT INTO words (words) VALUES ('optimize')")
    done.append(1)
    if len(done) == 10:
        os.kill(os.getpid(), signal.SIGKILL)
def migrate(connection):
    connection.execute("PRAGMA cache_size = 1")
    bm25.create(connection)
bm25.insert = dying
database.open_writer(Path(sys.argv[1]), migrations=(migrate,))
"""


def test_a_kill_in_mid_migration_leaves_the_old_format(path: Path, data_dir: Path) -> None:
    before = look(path)
    log = path.with_name("index.sqlite3-wal")
    died = subprocess.run([sys.executable, "-c", DIE, str(path)], check=False)
    assert died.returncode == -9
    assert log.stat().st_size > 0  # it had begun to write
    assert look(path) == before
    with IndexStore(data_dir) as store:
        assert_agrees(store, data_dir)


def test_a_refusal_at_any_write_of_a_migration_leaves_the_old_format(
    disk: Disk, path: Path, data_dir: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    shutil.copytree(path.parent, kept)
    whole = []  # every format there was, as a migration leaves it
    for steps in range(len(database.MIGRATIONS) + 1):
        database.open_writer(path, migrations=database.MIGRATIONS[:steps]).close()
        whole.append(look(path))
    refused = 0
    while True:
        shutil.rmtree(path.parent)
        shutil.copytree(kept, path.parent)
        left = refused

        def refuse(operation: str, asked: Path) -> int:
            nonlocal left
            left -= operation == "write"
            return sqlite3.SQLITE_FULL if left < 0 else 0

        disk.refuse = refuse
        try:
            with database.storage_errors(path):
                database.open_writer(path).close()
        except StorageError as error:
            raised = error
        else:
            break
        finally:
            disk.refuse = lambda operation, asked: 0
        refused += 1
        assert type(raised) is StorageFull
        assert look(path) in whole[:-1]
    assert refused > 5
    with IndexStore(data_dir) as store:
        assert_agrees(store, data_dir)
