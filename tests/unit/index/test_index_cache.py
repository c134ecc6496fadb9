"""What is done aside with the file of an index's vectors: saving it, reading it into memory."""

import gc
import shutil
import threading
import weakref
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.unit.index.conftest import (
    SETTINGS,
    assert_agrees,
    events,
    make_batch,
    make_vectors,
    open_store,
    wait_until,
)

from condensery.errors import StorageError
from condensery.index import restoring, vector_index
from condensery.index.vectors import VectorCache
from condensery.values import IndexSpec


@pytest.fixture
def file(data_dir: Path) -> Path:
    return data_dir / "indexes" / "kb" / "vectors.faiss"


@pytest.fixture(params=["flat", "hnsw"])
def filled(request: pytest.FixtureRequest, data_dir: Path) -> Path:
    """A data directory with an index of a hundred documents."""
    with open_store(data_dir) as store:
        store.create("kb", IndexSpec(**{**SETTINGS, "kind": request.param}))
        make_batch([f"d{n}" for n in range(100)]).upsert(store)
    return data_dir


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file is one whose vectors are searched in it at first."""
    monkeypatch.setattr(restoring, "_READ_AT_ONCE", 0)


class Gate:
    """Stops a method of the caches at its beginning until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        method = getattr(VectorCache, name)

        def gated(*args: Any) -> Any:
            self.reached.set()
            assert self.opened.wait(60)
            return method(*args)

        monkeypatch.setattr(VectorCache, name, gated)


# Saving


def test_writes_and_queries_go_on_while_the_file_is_written(
    data_dir: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashed = data_dir.with_name("crashed")
    with open_store(data_dir, cache_every=10) as store:
        store.create("kb", IndexSpec(**SETTINGS))
        gate = Gate(monkeypatch, "save")
        make_batch([f"d{n}" for n in range(10)]).upsert(store)
        assert gate.reached.wait(60)
        index = store.find("kb")
        behind = index.cache_behind
        make_batch(["d3", "x"], seed=1).upsert(store)
        store.delete("kb", ["d4"])
        assert_agrees(store, data_dir)
        more = index.cache_behind - behind
        assert more > 0
        assert not file.exists()
        gate.opened.set()
        index.wait_until_agreed(60)
        assert file.exists()
        assert index.cache_behind == more
        shutil.copytree(data_dir, crashed)
    with open_store(crashed) as store:
        assert_agrees(store, crashed)


def test_closing_gives_up_what_is_being_saved_and_saves_what_there_is(
    data_dir: Path, file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(data_dir, cache_every=10)
    store.create("kb", IndexSpec(**SETTINGS))
    vectors = store.find("kb")._vector_index
    lock, reached = vectors.read_lock, threading.Event()

    def wait() -> AbstractContextManager[None]:
        if threading.current_thread().name == "index-save":
            reached.set()
            wait_until(vectors._given_up.is_set)
        return lock()

    monkeypatch.setattr(vectors, "read_lock", wait)
    monkeypatch.setattr("condensery.index.vectors._COPIED", 4)
    make_batch([f"d{n}" for n in range(10)]).upsert(store)
    assert reached.wait(60)
    make_batch(["x"], seed=1).upsert(store)
    store.close()
    assert file.exists()
    assert not file.with_suffix(".new").exists()
    with open_store(data_dir) as store:
        assert_agrees(store, data_dir)
    assert events(caplog) == []  # what was saved is all there was


def test_a_compaction_gives_up_what_is_being_saved_and_saves_what_is_left(
    data_dir: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("condensery.index.vectors.MIN_DEAD", 10)
    monkeypatch.setattr("condensery.index.vectors._COPIED", 4)
    compacted, crashed = VectorCache.compacted, data_dir.with_name("crashed")
    saving: list[bool] = []
    with open_store(data_dir, cache_every=10) as store:
        store.create("kb", IndexSpec(**{**SETTINGS, "kind": "flat"}))
        index = store.find("kb")
        vectors = index._vector_index
        lock, reached = vectors.read_lock, threading.Event()

        def wait() -> AbstractContextManager[None]:
            if threading.current_thread().name == "index-save" and not reached.is_set():
                reached.set()
                wait_until(vectors._given_up.is_set)
            return lock()

        def compact(cache: VectorCache) -> VectorCache:
            saving.append(vectors._is_saving)
            if len(saving) == 1:
                raise MemoryError("none left")
            return compacted(cache)

        monkeypatch.setattr(vectors, "read_lock", wait)
        monkeypatch.setattr(VectorCache, "compacted", compact)
        make_batch([f"d{n}" for n in range(30)]).upsert(store)
        assert reached.wait(60)
        store.delete("kb", [f"d{n}" for n in range(10)])  # there is no memory to compact it
        index.wait_until_agreed(60)
        assert index.cache_behind == 0, "and it is saved for all that"
        assert store.info("kb").tombstones == 20
        store.delete("kb", ["d10"])
        assert store.info("kb").tombstones == 0
        assert saving == [False, False]
        index.wait_until_agreed(60)
        assert_agrees(store, data_dir)
        shutil.copytree(data_dir, crashed)
    with open_store(crashed) as store:
        assert_agrees(store, crashed)


def test_a_saver_leaves_the_processor_as_long_as_it_had_it(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(data_dir) as store:
        store.create("kb", IndexSpec(**SETTINGS))
        vectors = store.find("kb")._vector_index
        used = iter([1.0, 3.5, 4.0])
        pauses: list[float] = []
        monkeypatch.setattr(vector_index.time, "thread_time", lambda: next(used))
        monkeypatch.setattr(vectors._given_up, "wait", pauses.append)
        lock = vectors._paced_lock()
        for _ in range(3):
            with lock():
                pass
        assert pauses == [1.0, 2.5, 0.5]


# Reading at a start


@pytest.mark.usefixtures("large")
def test_a_large_file_is_searched_where_it_is_until_its_vectors_are_in_memory(
    filled: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate(monkeypatch, "in_memory")
    with open_store(filled) as store:
        assert gate.reached.wait(60)
        vectors = store.find("kb")._vector_index
        assert vectors.cache.mapped
        assert_agrees(store, filled)
        store.delete("kb", ["d7"])  # which waits for nothing
        assert_agrees(store, filled)
        writer = threading.Thread(target=make_batch(["d8", "x"], seed=1).upsert, args=(store,))
        writer.start()
        assert store.count("kb")[0] == 99
        assert store.query("kb", make_vectors(1)[0], top_k=3)
        gate.opened.set()
        writer.join()
        assert not vectors.cache.mapped
        assert_agrees(store, filled)
    with open_store(filled) as store:
        assert_agrees(store, filled)
    assert events(caplog) == []


@pytest.mark.usefixtures("large")
def test_a_damaged_large_file_is_found_out_aside_and_made_anew_from_the_index(
    filled: Path, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = bytearray(file.read_bytes())
    data[-40] ^= 0x40
    file.write_bytes(data)
    with open_store(filled) as store:
        store.delete("kb", ["d9"])
        store.find("kb").wait_until_agreed(60)
        assert events(caplog) == [("index_cache_rebuilt", "damaged")]
        assert_agrees(store, filled)
        make_batch(["x"], seed=1).upsert(store)
        assert_agrees(store, filled)
    caplog.clear()
    with open_store(filled) as store:
        store.find("kb").wait_until_agreed(60)
        assert_agrees(store, filled)
    assert events(caplog) == []


@pytest.mark.usefixtures("large")
def test_vectors_that_find_no_room_in_memory_refuse_writes_until_they_do(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise MemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(VectorCache, "in_memory", fail)
        store = open_store(filled)
        with pytest.raises(StorageError, match="no room"):
            make_batch(["x"], seed=1).upsert(store)
        assert_agrees(store, filled)
        store.delete("kb", ["d1"])
        assert_agrees(store, filled)
    with store:
        make_batch(["x"], seed=1).upsert(store)
        assert_agrees(store, filled)


@pytest.mark.usefixtures("large")
def test_an_index_is_dropped_and_made_again_while_its_vectors_are_read(
    filled: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    checked = threading.Event()
    check = vector_index.VectorIndex._check_open

    def wait(index: vector_index.VectorIndex) -> None:
        checked.set()
        wait_until(index._closed.is_set)
        check(index)

    monkeypatch.setattr(vector_index.VectorIndex, "_check_open", wait)
    with open_store(filled) as store:
        assert checked.wait(60)
        store.drop("kb")
        monkeypatch.setattr(vector_index.VectorIndex, "_check_open", check)
        store.create("kb", IndexSpec(**SETTINGS))
        make_batch(["a"]).upsert(store)
        assert_agrees(store, filled)
    assert events(caplog) == []


@pytest.mark.usefixtures("large")
def test_a_large_file_that_is_behind_is_read_before_the_start_goes_on(
    filled: Path, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = file.read_bytes()
    with open_store(filled) as store:
        make_batch(["x"], seed=1).upsert(store)
    file.write_bytes(old)
    with open_store(filled) as store:
        assert not store.find("kb")._vector_index.cache.mapped
        assert_agrees(store, filled)
    assert [event for event, _ in events(caplog)] == ["index_cache_caught_up"]


@pytest.mark.usefixtures("large")
def test_queries_see_whole_writes_while_vectors_move_and_files_are_written(
    filled: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("condensery.index.vectors._ROOM", 50)
    monkeypatch.setattr("condensery.index.vectors._COPIED", 16)
    errors: list[BaseException] = []
    done = threading.Event()
    asked = 0

    def read() -> None:
        nonlocal asked
        try:
            for vector in make_vectors(100_000, seed=3):
                if done.is_set():
                    return
                hits = store.query("kb", vector, top_k=5000)
                assert len([hit for hit in hits if hit.document_id.startswith("d")]) == 200
                # of each of the others all or none
                more = [hit for hit in hits if not hit.document_id.startswith("d")]
                assert len(more) % 20 == 0
                asked += 1
        except BaseException as error:
            errors.append(error)
            done.set()

    with open_store(filled, cache_every=20) as store:
        reader = threading.Thread(target=read)
        reader.start()
        for seed in range(60):
            if done.is_set():
                break
            make_batch([f"x{seed}-{n}" for n in range(10)], seed=seed).upsert(store)
            make_batch([f"d{n}" for n in range(seed, seed + 10)], seed=seed).upsert(store)
        wait_until(lambda: asked > 20 or done.is_set())
        done.set()
        reader.join(60)
        assert errors == []
        assert_agrees(store, filled)
    with open_store(filled) as store:
        assert_agrees(store, filled)
    assert events(caplog) == []


def test_what_a_killed_process_left_of_a_file_goes_at_the_next_start(
    filled: Path, file: Path
) -> None:
    left = file.with_suffix(".new")
    left.write_bytes(b"half")
    with open_store(filled) as store:
        assert not left.exists()
        assert_agrees(store, filled)


@pytest.mark.usefixtures("large")
def test_a_deletion_of_many_does_not_wait_for_vectors_that_are_mapped(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("condensery.index.vectors.MIN_DEAD", 10)
    gate = Gate(monkeypatch, "in_memory")
    with open_store(filled) as store:
        assert gate.reached.wait(60)
        store.delete("kb", [f"d{n}" for n in range(50)])
        if store.info("kb").kind == "flat":  # a graph without them may be there already
            assert store.info("kb").tombstones == 100
        assert_agrees(store, filled)
        gate.opened.set()
        make_batch(["x"], seed=1).upsert(store)
        store.find("kb").wait_until_agreed(60)
        assert store.info("kb").tombstones == 0
        assert_agrees(store, filled)


def test_a_graph_that_is_ready_while_a_file_is_written_is_saved_after_the_next_write(
    filled: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(filled) as store:
        if store.info("kb").kind == "flat":
            return
    monkeypatch.setattr(restoring, "_BUILT_AT_ONCE", 10)
    file.unlink()
    with open_store(filled, cache_every=10) as store:
        index = store.find("kb")
        index.wait_until_agreed(60)
        assert store.info("kb").searched_as == "hnsw"
        assert not index._vector_index._save_is_due
        assert index.cache_behind == 0
        index._vector_index._save_is_due = True  # a save was under way
        store.delete("kb", ["d1"])
        index.wait_until_agreed(60)
        assert index.cache_behind == 0


def test_the_memory_of_an_index_goes_with_it(filled: Path) -> None:
    with open_store(filled, cache_every=10) as store:
        store.find("kb").wait_until_agreed(60)
        make_batch(["x"] * 1, seed=1).upsert(store)
        assert store.query("kb", make_vectors(1)[0], top_k=3)
        store.find("kb").wait_until_agreed(60)
        held = weakref.ref(store.find("kb")._vector_index.cache)
        gc.disable()
        try:
            store.drop("kb")
            assert held() is None
        finally:
            gc.enable()
