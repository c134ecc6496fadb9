"""A disk that refuses: full, read-only, failing, corrupt."""

import random
import sqlite3
from pathlib import Path

import pytest
from tests.unit.index.conftest import (
    SETTINGS,
    Disk,
    assert_agrees,
    events,
    make_batch,
    make_vectors,
    open_store,
)

from condensery.errors import (
    StorageError,
    StorageFull,
    StorageReadOnly,
)
from condensery.index.store import IndexStore
from condensery.metrics import Metrics
from condensery.values import IndexSpec


@pytest.mark.parametrize(
    ("operation", "code", "kind"),
    [
        ("write", sqlite3.SQLITE_FULL, StorageFull),
        ("write", sqlite3.SQLITE_READONLY, StorageReadOnly),
        ("write", sqlite3.SQLITE_IOERR_WRITE, StorageError),
        ("sync", sqlite3.SQLITE_IOERR_FSYNC, StorageError),
    ],
)
@pytest.mark.parametrize("index_kind", ["flat", "hnsw"])
def test_a_failure_at_any_write_or_sync_leaves_the_index_as_it_was(
    disk: Disk,
    store: IndexStore,
    data_dir: Path,
    operation: str,
    code: int,
    kind: type[StorageError],
    index_kind: str,
) -> None:
    store.create("other", IndexSpec(**{**SETTINGS, "kind": index_kind}))
    make_batch(["a", "b", "c"], seed=1).upsert(store, "other")
    query = make_vectors(1, seed=4)[0]
    refused = 0
    while True:
        left = refused

        def refuse(asked: str, path: Path) -> int:
            nonlocal left
            if asked != operation:
                return 0
            left -= 1
            return code if left < 0 else 0

        before = store.query("other", query, top_k=10)
        disk.refuse = refuse
        try:
            make_batch(["b", f"new{refused}"], seed=refused).upsert(store, "other")
        except StorageError as error:
            raised = error
        else:
            break
        finally:
            # while the disk still refuses, queries are answered
            assert refused > 100 or store.query("other", query, top_k=10)
            assert refused > 100 or store.query("other", "first of b", top_k=10)
            disk.refuse = lambda asked, path: 0
        refused += 1
        assert type(raised) is kind
        assert "other/index.sqlite3" in raised.message
        assert store.query("other", query, top_k=10) == before
        assert_agrees(store, data_dir, "other")
    assert refused >= (1 if operation == "sync" else 5)
    disk.refuse = lambda asked, path: 0
    make_batch(["b", "last"], seed=77).upsert(store, "other")
    assert_agrees(store, data_dir, "other")


def test_a_full_database_says_so_and_goes_on(store: IndexStore, data_dir: Path) -> None:
    make_batch(["a"]).upsert(store)
    writer = store.find("kb")._writer
    pages = writer.execute("PRAGMA page_count").fetchone()[0]
    writer.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(StorageFull, match=r"indexes/kb/index\.sqlite3 is full"):
        make_batch([f"d{n}" for n in range(200)], seed=1).upsert(store)
    assert store.count("kb") == (1, 2)
    assert_agrees(store, data_dir)
    assert store.delete("kb", ["a"]) == 1
    writer.execute("PRAGMA max_page_count = 1000000")
    make_batch(["a"], seed=2).upsert(store)
    assert_agrees(store, data_dir)


def test_a_read_only_database_says_so_and_answers(store: IndexStore, data_dir: Path) -> None:
    make_batch(["a"]).upsert(store)
    writer = store.find("kb")._writer
    writer.execute("PRAGMA query_only = ON")
    with pytest.raises(StorageReadOnly, match=r"index\.sqlite3 can't be written"):
        make_batch(["b"]).upsert(store)
    with pytest.raises(StorageReadOnly):
        store.delete("kb", ["a"])
    assert_agrees(store, data_dir)
    writer.execute("PRAGMA query_only = OFF")
    make_batch(["b"], seed=2).upsert(store)
    assert_agrees(store, data_dir)


def test_a_cache_that_cannot_be_saved_is_logged_and_costs_nothing(
    data_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (data_dir / "indexes").mkdir(parents=True)
    metrics = Metrics()

    def behind() -> float | None:
        name = "condensery_index_cache_behind_passages"
        return metrics.registry.get_sample_value(name, {"index": "kb"})

    with open_store(data_dir, cache_every=1, metrics=metrics) as store:
        store.create("kb", IndexSpec(**SETTINGS))
        assert behind() == 0
        (data_dir / "indexes" / "kb" / "vectors.new").mkdir()
        written = make_batch(["a"])
        written.upsert(store)
        store.find("kb").wait_until_agreed(60)
        assert [event for event, _ in events(caplog)] == ["index_cache_not_saved"]
        assert behind() == len(written.passages)
        assert_agrees(store, data_dir)
    with open_store(data_dir, cache_every=1, metrics=metrics) as store:
        assert_agrees(store, data_dir)
        assert behind() == len(written.passages)
        (data_dir / "indexes" / "kb" / "vectors.new").rmdir()
        make_batch(["b"]).upsert(store)
        store.find("kb").wait_until_agreed(60)
        assert behind() == 0
        store.drop("kb")
        assert behind() is None


def test_a_corrupt_page_is_an_error_that_names_the_file(data_dir: Path) -> None:
    with open_store(data_dir) as store:
        store.create("kb", IndexSpec(**SETTINGS))
        make_batch([f"d{n}" for n in range(200)]).upsert(store)
    path = data_dir / "indexes" / "kb" / "index.sqlite3"
    connection = sqlite3.connect(path)
    root = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'documents'")
    page = root.fetchone()[0]
    connection.close()
    data = bytearray(path.read_bytes())
    data[(page - 1) * 4096 : page * 4096] = random.Random(0).randbytes(4096)
    path.write_bytes(data)
    with (
        open_store(data_dir) as store,
        pytest.raises(StorageError, match=r"kb/index\.sqlite3 is corrupt"),
    ):
        store.query("kb", make_vectors(1)[0], top_k=5)
