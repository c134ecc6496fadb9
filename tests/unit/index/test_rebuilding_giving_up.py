"""What is cancelled while it takes an index's place, or after: the index that serves goes on."""

import contextlib
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.unit.index.conftest import SETTINGS, make_batch

from condensery.errors import IndexClosed, RebuildNotFound
from condensery.index import generations
from condensery.index.rebuilding import Rebuilding, Step
from condensery.index.store import IndexStore
from condensery.values import IndexSpec

IDS = ["a", "b", "c"]
OTHER: dict[str, Any] = {**SETTINGS, "kind": "hnsw"}


@pytest.fixture
def kb(store: IndexStore) -> str:
    make_batch(IDS).upsert(store)
    return "kb"


def begin(store: IndexStore, kb: str, **settings: Any) -> Rebuilding:
    return store.maintenance.rebuild(kb, IndexSpec(**{**OTHER, **settings}))


def work_off(rebuild: Rebuilding) -> None:
    step = rebuild.next_step(10)
    batch = make_batch([document.id for document in step.documents])
    rebuild.write(step, batch.passages, batch.vectors)


def assert_serves(store: IndexStore, kb: str, kind: str, data_dir: Path) -> None:
    assert store.info(kb).kind == kind
    make_batch(["d"]).upsert(store)
    assert {document.id for document in store.get(kb, [*IDS, "d"])} == {*IDS, "d"}
    assert store.find(kb).directory.is_dir()
    store.close()
    with IndexStore(data_dir) as again:
        assert (again.info(kb).kind, again.info(kb).documents) == (kind, 4)


@pytest.mark.parametrize("verb", ["cancel", "again", "drop"])
def test_nothing_ends_it_at_the_moment_that_it_takes_the_place(
    store: IndexStore, data_dir: Path, kb: str, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    verbs = {
        "cancel": lambda: store.maintenance.cancel_rebuild(kb),
        "again": lambda: begin(store, kb, metric="l2"),
        "drop": lambda: store.drop(kb),
    }
    rebuild = begin(store, kb)
    work_off(rebuild)
    other = threading.Thread(target=lambda: suppressed(verbs[verb]))
    real = generations.tidy

    def meanwhile(*args: Any, **options: Any) -> None:
        if other.ident is None:
            other.start()
            other.join(0.3)  # long enough for what does not wait
        real(*args, **options)

    monkeypatch.setattr(generations, "tidy", meanwhile)
    assert rebuild.finish()
    other.join()
    if verb == "drop":
        assert store.list() == []
        assert not (data_dir / "indexes" / kb).exists()
    else:
        assert_serves(store, kb, "hnsw", data_dir)


def suppressed(call: Any) -> None:
    with contextlib.suppress(RebuildNotFound):
        call()


def test_a_thread_that_comes_late_takes_no_place(
    store: IndexStore, data_dir: Path, kb: str
) -> None:
    rebuild = begin(store, kb)
    work_off(rebuild)
    store.maintenance.cancel_rebuild(kb)
    with pytest.raises(RebuildNotFound, match="'kb' was cancelled"):
        rebuild.finish()
    assert_serves(store, kb, "flat", data_dir)


def test_a_thread_that_comes_late_settles_no_note_of_the_next(
    store: IndexStore, data_dir: Path, kb: str
) -> None:
    rebuild = begin(store, kb)
    step = rebuild.next_step(10)
    store.maintenance.cancel_rebuild(kb)
    after = begin(store, kb, metric="l2")
    batch = make_batch(IDS)
    with pytest.raises(IndexClosed):
        rebuild.write(step, batch.passages, batch.vectors)
    with pytest.raises(RebuildNotFound):  # the documents were written just before
        rebuild.write(Step(step.number, [], []), [], batch.vectors[:0])
    assert after.pending() == len(IDS)
    work_off(after)
    assert after.finish()
    assert_serves(store, kb, "hnsw", data_dir)


def test_a_restore_that_fails_after_it_took_the_place_has_taken_it(
    store: IndexStore, data_dir: Path, kb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = store.maintenance.snapshot(kb)
    make_batch(["later"]).upsert(store)

    def fail(*_: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(store, "_forget", fail)
        with pytest.raises(MemoryError):
            store.maintenance.restore(kb, made.id)
    assert_serves(store, kb, "flat", data_dir)


def test_a_restore_that_fails_before_leaves_nothing(
    store: IndexStore, data_dir: Path, kb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = store.maintenance.snapshot(kb)

    def fail(*_: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(generations, "point", fail)
        with pytest.raises(MemoryError):
            store.maintenance.restore(kb, made.id)
    assert list((data_dir / "indexes" / kb).glob("gen-*")) == []
    shutil.rmtree(data_dir / "snapshots")
    assert_serves(store, kb, "flat", data_dir)
