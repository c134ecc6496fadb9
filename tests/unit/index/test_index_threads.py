"""An index under many threads."""

import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.index.conftest import (
    SETTINGS,
    Disk,
    assert_agrees,
    database_of,
    every_backend,
    make_batch,
    make_vectors,
    wait_until,
)

from condensery.errors import (
    IndexNotFound,
)
from condensery.index import bm25, database
from condensery.index.store import IndexStore
from condensery.index.vector_index import VectorIndex
from condensery.values import Hit, IndexSpec


@every_backend
@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_readers_never_see_half_a_write(store: IndexStore, data_dir: Path, kind: str) -> None:
    store.create("other", IndexSpec(**{**SETTINGS, "kind": kind}))
    ids = [f"d{n}" for n in range(20)]
    make_batch(ids, seed=0, tag="0").upsert(store, "other")
    make_batch(["fleeting"], seed=50).upsert(store, "other")
    errors: list[BaseException] = []
    done = threading.Event()
    queries = [0]

    def read() -> None:
        try:
            for vector in make_vectors(100_000, seed=3):
                if done.is_set():
                    return
                hits = store.query("other", vector, top_k=1000)
                stable = [hit.passage for hit in hits if hit.passage.document_id != "fleeting"]
                # all forty passages, all of one write
                assert len(stable) == 40
                assert (
                    len({passage.text.rpartition("d")[2].rstrip(".") for passage in stable}) == 20
                )
                assert len({passage.document_id for passage in stable}) == 20
                assert len({passage.text.split(":")[1] for passage in stable}) == 1
                few = store.query("other", vector, top_k=5)
                assert len(few) == 5
                texts = [hit.passage.text for hit in store.query("other", "first", top_k=1000)]
                assert len([text for text in texts if "fleeting" not in text]) == 20
                assert len({text.split(":")[1] for text in texts if "fleeting" not in text}) == 1
                queries[0] += 1
        except BaseException as error:
            errors.append(error)
            done.set()

    def toggle() -> None:
        try:
            while not done.is_set():
                store.delete("other", ["fleeting"])
                make_batch(["fleeting"], seed=50).upsert(store, "other")
        except BaseException as error:
            errors.append(error)

    make_batch(ids, seed=0, tag=":0:").upsert(store, "other")
    threads = [threading.Thread(target=job) for job in (read, read, read, toggle)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + 60
    for seed in itertools.count(1):
        # However little the readers have come to, they should have come to something.
        if done.is_set() or (seed >= 60 and queries[0] > 20) or time.monotonic() > until:
            break
        make_batch(ids, seed=seed, tag=f":{seed}:").upsert(store, "other")
    done.set()
    for thread in threads:
        thread.join(30)
    assert errors == []
    assert queries[0] > 20
    assert_agrees(store, data_dir, "other")


def test_a_query_during_a_slow_sync_is_answered(disk: Disk, store: IndexStore) -> None:
    batch = make_batch(["a"])
    batch.upsert(store)
    syncing, go_on = threading.Event(), threading.Event()

    def refuse(operation: str, path: Path) -> int:
        if operation == "sync" and not syncing.is_set():
            syncing.set()
            assert go_on.wait(20)
        return 0

    disk.refuse = refuse
    writer = threading.Thread(target=make_batch(["a"], seed=1, tag="new").upsert, args=(store,))
    writer.start()
    assert syncing.wait(20)
    hits = store.query("kb", batch.vectors[0], top_k=2)
    assert [hit.passage for hit in hits] == batch.passages
    assert [hit.passage for hit in store.query("kb", "second", top_k=2)] == batch.passages[1:]
    assert store.query("kb", "anew", top_k=2) == []
    go_on.set()
    writer.join(20)
    hits = store.query("kb", batch.vectors[0], top_k=2)
    assert {hit.passage.text for hit in hits} == {"First of anew.", "Second of anew."}
    assert len(store.query("kb", "anew", top_k=3)) == 2


def test_a_write_waits_for_no_query_and_the_query_does_not_miss_what_it_replaces(
    store: IndexStore, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = make_batch(["a"], tag=" old"), make_batch(["a"], seed=1, tag=" new")
    old.upsert(store)
    searching, go_on = threading.Event(), threading.Event()
    search = VectorIndex.search

    def slow(*args: Any) -> Any:
        searching.set()
        assert go_on.wait(20)
        return search(*args)

    def stored() -> str:
        return store.find("kb").get(["a"])[0].text

    found: list[Hit] = []

    def ask() -> None:
        found.extend(store.query("kb", old.vectors[0], top_k=2))

    with monkeypatch.context() as patch:
        patch.setattr(VectorIndex, "search", slow)
        reader = threading.Thread(target=ask)
        reader.start()
        assert searching.wait(20)
        make_batch([f"d{n}" for n in range(300)], seed=2).upsert(store)
        writer = threading.Thread(target=new.upsert, args=(store,))
        writer.start()
        wait_until(lambda: "new" in stored())
        go_on.set()
        for thread in (reader, writer):
            thread.join(20)
    assert {hit.passage.text for hit in found} == {"First of a old.", "Second of a old."}
    assert_agrees(store, data_dir)


def test_closing_waits_for_who_is_reading(
    store: IndexStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_batch(["a", "b", "c"]).upsert(store)
    index, search = store.find("kb"), bm25.search
    reading, go_on = threading.Event(), threading.Event()
    order: list[str] = []

    def slow(*args: Any) -> list[tuple[int, float]]:
        reading.set()
        assert go_on.wait(20)
        hits = search(*args)
        order.append("read")
        return hits

    def close() -> None:
        index.close()
        order.append("closed")

    monkeypatch.setattr(bm25, "search", slow)
    reader = threading.Thread(target=store.query, args=("kb", "first"), kwargs={"top_k": 3})
    reader.start()
    assert reading.wait(20)
    closer = threading.Thread(target=close)
    closer.start()
    while not (order or index._files_lock._writers_waiting):
        time.sleep(0.01)
    go_on.set()
    for thread in (reader, closer):
        thread.join(20)
    assert order == ["read", "closed"]
    with pytest.raises(IndexNotFound):
        store.query("kb", "first", top_k=1)


def test_an_index_dropped_under_its_readers_is_not_found(store: IndexStore) -> None:
    store.create("other", IndexSpec(**SETTINGS))
    make_batch([f"d{n}" for n in range(20)]).upsert(store, "other")
    ended: list[BaseException] = []

    def read(call: Callable[[], object]) -> None:
        try:
            while True:
                call()
        except IndexNotFound as error:
            ended.append(error)

    vector = make_vectors(1)[0]
    calls = [
        lambda: store.query("other", vector, top_k=5),
        lambda: store.query("other", "first of d3", top_k=5),
    ]
    threads = [threading.Thread(target=read, args=(call,)) for call in calls * 2]
    for thread in threads:
        thread.start()
    store.drop("other")
    for thread in threads:
        thread.join(30)
    assert len(ended) == 4


def write_much(store: IndexStore, number: int) -> None:
    """Write some megabyte."""
    ids = [f"d{number}-{place}" for place in range(20)]
    make_batch(ids, seed=number, tag="x" * 12_000).upsert(store, "kb")


def test_the_log_stays_short_though_somebody_always_reads(
    store: IndexStore, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite itself begins it anew only when a write finds nobody reading."""
    monkeypatch.setattr(database, "MOST_LOG_BYTES", 2 * 2**20)
    index = store.find("kb")
    log = database_of(data_dir).with_name("index.sqlite3-wal")
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            with index.read_transaction() as reader:
                reader.execute("SELECT count(*) FROM documents").fetchone()
                time.sleep(0.03)

    readers = [threading.Thread(target=read) for _ in range(3)]
    longest = 0
    try:
        for reader in readers:
            reader.start()
            time.sleep(0.01)  # one after the other, from now on
        for number in range(40):
            write_much(store, number)
            longest = max(longest, log.stat().st_size)
    finally:
        done.set()
        for reader in readers:
            reader.join(60)
    assert longest < 10 * 2**20  # the bound, and a try in vain or two; without it 40


def test_who_reads_for_long_holds_up_no_write_for_longer_than_a_moment(
    store: IndexStore, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "MOST_LOG_BYTES", 2**20)
    monkeypatch.setattr(database, "LOG_SECONDS", 0.05)
    tries: list[int] = []
    index = store.find("kb")
    look = index._log_shortener.look

    def noted(connection: Any) -> None:
        before = index._log_shortener._tried_at
        look(connection)
        if index._log_shortener._tried_at != before:
            tries.append(index._log_shortener._tried_at)

    monkeypatch.setattr(index._log_shortener, "look", noted)
    with index.read_transaction() as reader:  # a copy of the whole, say
        reader.execute("SELECT count(*) FROM documents").fetchone()
        for number in range(12):
            write_much(store, number)
    assert len(tries) > 1
    assert all(later - earlier >= 2**20 for earlier, later in itertools.pairwise(tries))
    for number in range(12, 15):
        write_much(store, number)
    log = database_of(data_dir).with_name("index.sqlite3-wal")
    assert log.stat().st_size < 3 * 2**20
    assert store.info("kb").documents == 15 * 20
