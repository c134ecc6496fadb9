import errno
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.unit.index.conftest import (
    FINGERPRINT,
    SETTINGS,
    Disk,
    assert_agrees,
    make_batch,
    make_vectors,
)

from condensery.errors import (
    DataDirTaken,
    EmptyInput,
    IndexExists,
    IndexNotFound,
    InputError,
    LimitReached,
    StorageError,
    StorageFull,
    StorageReadOnly,
)
from condensery.index.lock import DataDirLock
from condensery.index.store import IndexStore
from condensery.metrics import Metrics
from condensery.values import IndexCaps, IndexInfo, IndexSpec


def test_a_created_index_is_listed_empty(store: IndexStore) -> None:
    expected = IndexInfo(
        name="kb",
        encoder="test-encoder",
        fingerprint=FINGERPRINT,
        dims=8,
        kind="flat",
        metric="ip",
        documents=0,
        passages=0,
        searched_as="flat",
    )
    assert store.list() == [expected]
    assert store.info("kb") == expected
    assert store.count("kb") == (0, 0)


def test_creating_it_again_with_the_same_settings_returns_it(store: IndexStore) -> None:
    make_batch(["a"]).upsert(store)
    assert store.create("kb", IndexSpec(**SETTINGS)).documents == 1


def test_creating_it_again_with_other_settings_names_them(store: IndexStore) -> None:
    with pytest.raises(IndexExists, match="dims is 8, not 9; kind is 'flat', not 'hnsw'"):
        store.create("kb", IndexSpec(**{**SETTINGS, "dims": 9, "kind": "hnsw"}))


def test_other_kinds_and_bad_names_are_refused(store: IndexStore) -> None:
    with pytest.raises(InputError, match="kind: 'ivf' is not one of flat, hnsw, ivf_pq"):
        store.create("other", IndexSpec(**{**SETTINGS, "kind": "ivf"}))
    with pytest.raises(InputError, match=r"index: '\.\./etc'"):
        store.create("../etc", IndexSpec(**SETTINGS))
    assert [index.name for index in store.list()] == ["kb"]


def test_as_many_indexes_are_made_as_there_may_be_however_many_are_made_at_once(
    data_dir: Path,
) -> None:
    with IndexStore(data_dir, caps=IndexCaps(indexes=3)) as store:
        store.create("kb", IndexSpec(**SETTINGS))
        made = store.maintenance.snapshot("kb")

        def make(number: int) -> str | None:
            try:
                if number % 2:
                    store.create(f"one-{number}", IndexSpec(**SETTINGS))
                else:  # which makes an index too
                    store.maintenance.restore("kb", made.id, f"one-{number}")
            except LimitReached as error:
                return error.message
            return None

        with ThreadPoolExecutor(8) as pool:
            refused = [reason for reason in pool.map(make, range(16)) if reason]
        assert (len(store.list()), len(refused)) == (3, 14)
        assert all("there may be 3 (max_indexes)" in reason for reason in refused)
        store.create("kb", IndexSpec(**SETTINGS))  # it is there
        store.maintenance.restore("kb", made.id)  # in its own place
        store.drop("kb")
        store.create("other", IndexSpec(**SETTINGS))
        with pytest.raises(LimitReached):
            store.create("kb", IndexSpec(**SETTINGS))
    with IndexStore(data_dir, caps=IndexCaps(indexes=1)) as store:  # what is there is opened
        assert len(store.list()) == 3
        with pytest.raises(LimitReached, match="there are 3 indexes, and there may be 1"):
            store.create("kb", IndexSpec(**SETTINGS))
    assert [path.name for path in (data_dir / "indexes").glob(".new-*")] == []


def test_an_unknown_index_is_named_beside_those_there_are(store: IndexStore) -> None:
    calls: list[Any] = [
        lambda: store.info("nope"),
        lambda: store.drop("nope"),
        lambda: store.count("nope"),
        lambda: store.get("nope", ["a"]),
        lambda: store.delete("nope", ["a"]),
        lambda: store.query("nope", make_vectors(1)[0], top_k=1),
        lambda: store.query("nope", "words", top_k=1),
        lambda: make_batch(["a"]).upsert(store, "nope"),
    ]
    for call in calls:
        with pytest.raises(IndexNotFound, match="no index 'nope'; there are: kb"):
            call()


def test_empty_lists_are_refused(store: IndexStore) -> None:
    with pytest.raises(EmptyInput, match="ids"):
        store.delete("kb", [])
    with pytest.raises(EmptyInput, match="documents"):
        store.upsert("kb", [], [], make_vectors(0), fingerprint=FINGERPRINT)
    assert store.get("kb", []) == []


def test_a_dropped_index_is_gone_and_its_name_free(store: IndexStore, data_dir: Path) -> None:
    make_batch(["a"]).upsert(store)
    store.drop("kb")
    assert store.list() == []
    assert list((data_dir / "indexes").iterdir()) == []
    store.create("kb", IndexSpec(**{**SETTINGS, "metric": "l2"}))
    assert store.count("kb") == (0, 0)
    make_batch(["b"]).upsert(store)
    assert_agrees(store, data_dir)


def test_a_drop_that_the_disk_refuses_leaves_the_index_in_use(
    store: IndexStore, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_batch(["a"]).upsert(store)

    def refuse(path: Path, target: Path) -> Path:
        raise OSError(errno.EROFS, "refused")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refuse)
        with pytest.raises(StorageReadOnly, match="indexes/kb can't be written"):
            store.drop("kb")
    make_batch(["b"], seed=1).upsert(store)
    assert store.count("kb") == (2, 4)
    assert_agrees(store, data_dir)


def test_a_second_store_on_a_directory_is_refused(store: IndexStore, data_dir: Path) -> None:
    with pytest.raises(DataDirTaken):
        IndexStore(data_dir)


def test_a_lock_that_the_caller_holds_is_used_and_kept(tmp_path: Path) -> None:
    with DataDirLock(tmp_path) as lock:
        IndexStore(tmp_path, lock=lock).close()
        with pytest.raises(DataDirTaken):
            IndexStore(tmp_path)


def test_leftovers_of_a_crash_are_cleared_away(data_dir: Path) -> None:
    for name in (".new-abc", ".dropped-abc"):
        (data_dir / "indexes" / name / "kb").mkdir(parents=True)
    with IndexStore(data_dir) as store:
        assert store.list() == []
    assert list((data_dir / "indexes").iterdir()) == []


def test_a_broken_index_is_named_and_the_others_serve(
    data_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with IndexStore(data_dir) as store:
        for name in ("bad", "good", "newer"):
            store.create(name, IndexSpec(**SETTINGS))
            make_batch(["a"]).upsert(store, name)
    (data_dir / "indexes" / "bad" / "index.sqlite3").write_bytes(b"rubbish" * 1000)
    (data_dir / "indexes" / "Not A Name").mkdir()
    with IndexStore(data_dir) as store:
        assert [index.name for index in store.list()] == ["good", "newer"]
        assert set(store.broken) == {"bad", "Not A Name"}
        with pytest.raises(StorageError, match=r"indexes/bad/index\.sqlite3 is corrupt"):
            store.query("bad", make_vectors(1)[0], top_k=1)
        with pytest.raises(StorageError, match="corrupt"):
            store.create("bad", IndexSpec(**SETTINGS))
        assert_agrees(store, data_dir, "good")
        store.drop("bad")
        store.create("bad", IndexSpec(**SETTINGS))
        assert store.count("bad") == (0, 0)
    assert [record.getMessage() for record in caplog.records].count("index_broken") == 2


def test_a_full_disk_at_creation_leaves_nothing_behind(
    disk: Disk, store: IndexStore, data_dir: Path
) -> None:
    disk.refuse = lambda operation, path: 13 if operation == "write" else 0  # SQLITE_FULL
    with pytest.raises(StorageFull, match="under indexes/other is full"):
        store.create("other", IndexSpec(**SETTINGS))
    disk.refuse = lambda operation, path: 0
    assert [index.name for index in store.list()] == ["kb"]
    assert [path.name for path in (data_dir / "indexes").iterdir()] == ["kb"]
    store.create("other", IndexSpec(**SETTINGS))


def read_gauge(metrics: Metrics, index: str) -> float | None:
    labels = {"index": index, "model": "test-encoder"}
    return metrics.registry.get_sample_value("condensery_index_passages", labels)


def test_the_gauge_counts_passages_from_opening_to_dropping(data_dir: Path) -> None:
    metrics = Metrics()
    with IndexStore(data_dir, metrics=metrics) as store:
        assert read_gauge(metrics, "kb") is None
        store.create("kb", IndexSpec(**SETTINGS))
        assert read_gauge(metrics, "kb") == 0
        make_batch(["a", "b"]).upsert(store)
        store.delete("kb", ["a"])
        assert read_gauge(metrics, "kb") == 2
    metrics = Metrics()
    with IndexStore(data_dir, metrics=metrics) as store:
        assert read_gauge(metrics, "kb") == 2
        store.drop("kb")
        assert read_gauge(metrics, "kb") is None


def test_two_processes_do_not_share_a_directory(data_dir: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from condensery.index.store import IndexStore\n"
        "store = IndexStore(Path(sys.argv[1])); print('up', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(data_dir)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        with pytest.raises(DataDirTaken, match=f"process {child.pid}"):
            IndexStore(data_dir)
        child.kill()
    started = time.monotonic()
    IndexStore(data_dir).close()
    assert time.monotonic() - started < 30
