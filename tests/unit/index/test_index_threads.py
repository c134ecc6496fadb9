"""An index under many threads."""

import threading
from pathlib import Path

import pytest
from tests.unit.index.conftest import (
    SETTINGS,
    Disk,
    assert_agrees,
    make_batch,
    make_vectors,
)

from condensery.errors import (
    IndexNotFound,
)
from condensery.index.store import IndexStore


@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_readers_never_see_half_a_write(store: IndexStore, data_dir: Path, kind: str) -> None:
    store.create("other", **{**SETTINGS, "kind": kind})
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
                stable = [one.passage for one in hits if one.passage.document_id != "fleeting"]
                # all forty passages, all of one write
                assert len(stable) == 40
                assert len({one.text.rpartition("d")[2].rstrip(".") for one in stable}) == 20
                assert len({one.document_id for one in stable}) == 20
                assert len({one.text.split(":")[1] for one in stable}) == 1
                few = store.query("other", vector, top_k=5)
                assert len(few) == 5
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
    for seed in range(1, 60):
        if done.is_set():
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
    go_on.set()
    writer.join(20)
    hits = store.query("kb", batch.vectors[0], top_k=2)
    assert {hit.passage.text for hit in hits} == {"First of anew.", "Second of anew."}


def test_an_index_dropped_under_its_readers_is_not_found(store: IndexStore) -> None:
    store.create("other", **SETTINGS)
    make_batch([f"d{n}" for n in range(20)]).upsert(store, "other")
    ended: list[BaseException] = []

    def read() -> None:
        try:
            while True:
                store.query("other", make_vectors(1)[0], top_k=5)
        except IndexNotFound as error:
            ended.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    store.drop("other")
    for thread in threads:
        thread.join(30)
    assert len(ended) == 4
