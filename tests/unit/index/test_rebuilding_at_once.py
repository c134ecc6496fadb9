"""Two things are done to one index at the same time, or the disk refuses amid one."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.unit.index.conftest import SETTINGS, make_batch

from condensery.errors import (
    IndexNotFound,
    RebuildRunning,
    SnapshotNotFound,
    StorageError,
    Unavailable,
)
from condensery.index import rebuilding
from condensery.index.folders import Folders
from condensery.index.rebuilding import Rebuilding
from condensery.index.store import IndexStore
from condensery.metrics import Metrics
from condensery.values import AliasAction, IndexSpec

OTHER: dict[str, Any] = {**SETTINGS, "kind": "hnsw"}


@pytest.fixture
def kb(store: IndexStore) -> str:
    make_batch(["a", "b"]).upsert(store)
    return "kb"


def work_off(rebuild: Rebuilding) -> None:
    step = rebuild.next_step(10)
    batch = make_batch([document.id for document in step.documents])
    rebuild.write(step, batch.passages, batch.vectors)
    assert rebuild.finish()


def ids(store: IndexStore, name: str = "kb") -> list[str]:
    return [document.id for document in store.get(name, ["a", "b", "c"])]


def amid_the_copy(store: IndexStore, once: Callable[[], object]) -> None:
    """Let something be done once a restore has copied its snapshot."""
    copy = store.maintenance._snapshots.copy

    def slow(*asked: Any) -> None:
        copy(*asked)
        store.maintenance._snapshots.copy = copy  # type: ignore[method-assign]
        once()

    store.maintenance._snapshots.copy = slow  # type: ignore[method-assign]


def refuse(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, after: int = 0
) -> Callable[[], bool]:
    """Let one call fail as a disk's would, after some that don't; returns what says if it has."""
    real, left = getattr(owner, name), after

    def operation(*asked: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        if left == -1:
            raise OSError(5, "refused")
        return real(*asked, **options)

    monkeypatch.setattr(owner, name, operation)
    return lambda: left < 0


def test_of_two_restores_at_once_both_are_made(store: IndexStore, data_dir: Path, kb: str) -> None:
    made = store.maintenance.snapshot(kb)
    amid_the_copy(store, lambda: store.maintenance.restore(kb, made.id))
    store.maintenance.restore(kb, made.id)
    make_batch(["c"]).upsert(store)
    store.close()
    with IndexStore(data_dir) as again:
        assert ids(again) == ["a", "b", "c"]


def test_a_rebuild_that_begins_amid_a_restore_goes_on(store: IndexStore, kb: str) -> None:
    made = store.maintenance.snapshot(kb)
    begun = []
    amid_the_copy(store, lambda: begun.append(store.maintenance.rebuild(kb, IndexSpec(**OTHER))))
    with pytest.raises(RebuildRunning):
        store.maintenance.restore(kb, made.id)
    work_off(begun[0])
    assert (store.info(kb).kind, ids(store)) == ("hnsw", ["a", "b"])


def test_a_rebuild_that_ends_amid_a_restore_leaves_it_whole(
    store: IndexStore, data_dir: Path, kb: str
) -> None:
    made = store.maintenance.snapshot(kb)
    amid_the_copy(store, lambda: work_off(store.maintenance.rebuild(kb, IndexSpec(**OTHER))))
    store.maintenance.restore(kb, made.id)
    store.close()
    with IndexStore(data_dir) as again:
        assert (again.info(kb).kind, ids(again)) == ("flat", ["a", "b"])


def test_an_index_dropped_amid_a_restore_stays_dropped(
    store: IndexStore, data_dir: Path, kb: str
) -> None:
    made = store.maintenance.snapshot(kb)
    amid_the_copy(store, lambda: store.drop(kb))
    with pytest.raises(IndexNotFound, match="dropped meanwhile"):
        store.maintenance.restore(kb, made.id)
    assert list((data_dir / "indexes").iterdir()) == []


def test_a_drop_that_the_disk_refuses_leaves_the_index(
    store: IndexStore, data_dir: Path, kb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for owner, name in ((Path, "rename"), (os, "fsync")):
        with monkeypatch.context() as patch:
            refuse(patch, owner, name)
            with pytest.raises(StorageError):
                store.drop(kb)
        assert ids(store) == ["a", "b"]
    store.drop(kb)
    assert list((data_dir / "indexes").iterdir()) == []


def test_an_index_that_opens_no_more_after_that_is_broken_and_not_waited_for(
    store: IndexStore, kb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise StorageError("refused too")

    with monkeypatch.context() as patch:
        refuse(patch, Path, "rename")
        patch.setattr(Folders, "open", fail)
        with pytest.raises(StorageError):
            store.drop(kb)
    assert store.list() == []
    with pytest.raises(StorageError, match="refused too"):
        store.info(kb)
    store.drop(kb)
    assert store.create(kb, IndexSpec(**SETTINGS)).documents == 0


@pytest.mark.parametrize("verb", ["create", "restore"])
def test_a_name_is_free_after_the_disk_refused_an_index(
    store: IndexStore, data_dir: Path, kb: str, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    made = store.maintenance.snapshot(kb)
    for step in range(20):
        with monkeypatch.context() as patch:
            refused = refuse(patch, os, "fsync", after=step)
            try:
                if verb == "create":
                    store.create("new", IndexSpec(**SETTINGS))
                else:
                    store.maintenance.restore(kb, made.id, "new")
            except StorageError:
                assert {path.name for path in (data_dir / "indexes").iterdir()} == {kb}
                continue
        if not refused():
            break
        store.drop("new")  # what was refused was the cache, without which it is made
    assert step > 1
    assert store.names.holds("new")


def test_an_alias_that_the_disk_refused_is_not_there_after_a_start(
    store: IndexStore, data_dir: Path, kb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create("new", IndexSpec(**SETTINGS))
    store.maintenance.update_aliases([AliasAction("create", "live", kb)])
    with monkeypatch.context() as patch:
        refuse(patch, os, "fsync", after=1)
        with pytest.raises(StorageError):
            store.maintenance.update_aliases([AliasAction("create", "live", "new")])
    store.drop("new")
    store.close()
    with IndexStore(data_dir) as again:
        assert again.info("live").name == kb


def test_an_alias_moved_while_it_is_followed_leads_on(store: IndexStore, kb: str) -> None:
    store.create("new", IndexSpec(**SETTINGS))
    store.maintenance.update_aliases([AliasAction("create", "live", kb)])
    resolve = store.names.aliases.resolve

    def slow(name: str) -> str:
        end = resolve(name)
        if name == "live":
            store.names.aliases.resolve = resolve  # type: ignore[method-assign]
            store.maintenance.update_aliases([AliasAction("create", "live", "new")])
            store.drop(kb)
        return end

    store.names.aliases.resolve = slow  # type: ignore[method-assign]
    assert store.info("live").name == "new"


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize(("owner", "name"), [(Path, "unlink"), (os, "fsync")])
def test_what_was_deleted_after_a_cancel_that_the_disk_refused_stays_deleted(
    store: IndexStore, kb: str, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, again: bool
) -> None:
    rebuild = store.maintenance.rebuild(kb, IndexSpec(**OTHER))
    step = rebuild.next_step(10)
    batch = make_batch(["a", "b"])
    rebuild.write(step, batch.passages, batch.vectors)
    with monkeypatch.context() as patch:
        refuse(patch, owner, name)
        with pytest.raises(StorageError):
            store.maintenance.cancel_rebuild(kb)
    store.delete(kb, ["a"])
    if again:
        store.maintenance.cancel_rebuild(kb)
        assert not rebuilding.noted(store.find(kb))
    work_off(store.maintenance.rebuild(kb, IndexSpec(**OTHER)))
    assert ids(store) == ["b"]


def test_a_rebuild_that_could_not_begin_is_not_there(
    store: IndexStore, data_dir: Path, kb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        refuse(patch, rebuilding.changes, "begin")
        with pytest.raises(StorageError):
            store.maintenance.rebuild(kb, IndexSpec(**OTHER))
    assert store.maintenance.unfinished_rebuilds() == []
    assert not list((data_dir / "indexes" / kb).glob("gen-*"))
    store.maintenance.restore(kb, store.maintenance.snapshot(kb).id)
    assert ids(store) == ["a", "b"]


def test_an_index_that_broke_amid_a_rebuild_can_be_restored_over(
    store: IndexStore, data_dir: Path, kb: str
) -> None:
    made = store.maintenance.snapshot(kb)
    make_batch(["c"]).upsert(store)
    rebuild = store.maintenance.rebuild(kb, IndexSpec(**OTHER))
    step = rebuild.next_step(10)
    batch = make_batch(["a", "b", "c"])
    rebuild.write(step, batch.passages, batch.vectors)
    store.close()
    for file in (data_dir / "indexes" / kb).glob("index.sqlite3*"):
        file.write_bytes(b"damaged" * 100)
    with IndexStore(data_dir) as again:
        assert list(again.broken) == [kb]
        again.maintenance.restore(kb, made.id)
        assert again.maintenance.unfinished_rebuilds() == []
        work_off(again.maintenance.rebuild(kb, IndexSpec(**OTHER)))
        assert ids(again) == ["a", "b"]


def test_a_snapshot_deleted_while_it_is_read_or_deleted_is_not_found(
    store: IndexStore, data_dir: Path, kb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    maintenance = store.maintenance
    find = maintenance._snapshots._find

    def slow(*asked: str) -> Path:
        folder = find(*asked)
        shutil.rmtree(folder)
        return folder

    for call in (
        maintenance.get_snapshot,
        maintenance.delete_snapshot,
        maintenance._snapshots.copy,
    ):
        made = maintenance.snapshot(kb)
        with monkeypatch.context() as patch:
            patch.setattr(maintenance._snapshots, "_find", slow)
            asked = (
                (kb, made.id, data_dir) if call == maintenance._snapshots.copy else (kb, made.id)
            )
            with pytest.raises(SnapshotNotFound):
                call(*asked)  # type: ignore[operator]
    made = maintenance.snapshot(kb)
    with monkeypatch.context() as patch:
        patch.setattr(maintenance._snapshots, "_find", slow)
        assert maintenance.snapshots(kb).refused == {}


def test_a_snapshot_that_the_disk_refused_is_not_there(
    store: IndexStore, data_dir: Path, kb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(20):
        with monkeypatch.context() as patch:
            refuse(patch, os, "fsync", after=step)
            try:
                store.maintenance.snapshot(kb)
                break
            except StorageError:
                assert list((data_dir / "snapshots" / kb).iterdir()) == []
    assert step > 3


def test_a_snapshot_of_an_index_dropped_and_made_again_meanwhile_is_of_the_first(
    store: IndexStore, kb: str
) -> None:
    sharing = store.find(kb)._files_lock
    shared = sharing.shared

    @contextmanager
    def slow() -> Iterator[None]:
        with shared():
            yield
        sharing.shared = shared  # type: ignore[method-assign]
        store.drop(kb)
        store.create(kb, IndexSpec(**SETTINGS))
        make_batch(["c"]).upsert(store)

    sharing.shared = slow  # type: ignore[method-assign]
    made = store.maintenance.snapshot(kb)
    store.maintenance.restore(kb, made.id, "new")
    assert (ids(store, "new"), ids(store)) == (["a", "b"], ["c"])


def test_a_thread_that_comes_after_the_end_makes_nothing(
    store: IndexStore, data_dir: Path, kb: str
) -> None:
    made = store.maintenance.snapshot(kb)
    store.close()
    action = AliasAction("create", "live", kb)
    for call in (
        lambda: store.create("new", IndexSpec(**SETTINGS)),
        lambda: store.drop(kb),
        lambda: store.maintenance.update_aliases([action]),
        lambda: store.maintenance.restore(kb, made.id, "new"),
    ):
        with pytest.raises(Unavailable):
            call()
    assert [path.name for path in (data_dir / "indexes").iterdir()] == [kb]


def test_the_metric_counts_what_is_written_by_an_alias(data_dir: Path) -> None:
    metrics = Metrics()
    with IndexStore(data_dir, metrics=metrics) as store:
        store.create("kb", IndexSpec(**SETTINGS))
        store.maintenance.update_aliases([AliasAction("create", "live", "kb")])
        make_batch(["a"]).upsert(store, "live")
        name, labels = "condensery_index_passages", {"index": "kb", "model": "test-encoder"}
        assert metrics.registry.get_sample_value(name, labels) == 2
