"""Snapshots: whole, checked, and never in the way; restores: one index or the other, whole."""

import hashlib
import json
import os
import random
import shutil
import sqlite3
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.unit.index.conftest import (
    SETTINGS,
    Disk,
    assert_agrees,
    every_backend,
    make_batch,
    make_vectors,
)
from tests.unit.index.lives import live
from tests.unit.index.test_database_migrating import FORMAT_1

from condensery.errors import (
    IndexExists,
    IndexNotFound,
    InputError,
    LimitReached,
    NameTaken,
    SnapshotDamaged,
    SnapshotNotFound,
    SnapshotTooNew,
    StorageError,
    StorageFull,
    StorageReadOnly,
)
from condensery.index import changes, database
from condensery.index.index import Index
from condensery.index.snapshots import _hash
from condensery.index.store import IndexStore
from condensery.metrics import Metrics
from condensery.threads import NICENESS
from condensery.values import AliasAction, IndexCaps, IndexSpec, Snapshot


def ids(store: IndexStore, name: str = "kb") -> set[str]:
    """Every document's id."""
    with store.find(name).read_transaction() as connection:
        return {identity for (identity,) in connection.execute("SELECT id FROM documents")}


def file_of(data_dir: Path, made: Snapshot, file: str = "index.sqlite3") -> Path:
    return data_dir / "snapshots" / made.index / made.id / file


def test_a_snapshot_says_what_it_is_and_is_listed(store: IndexStore, data_dir: Path) -> None:
    make_batch(["a", "b"]).upsert(store)
    made = store.maintenance.snapshot("kb")
    assert (made.index, made.documents, made.passages) == ("kb", 2, 4)
    assert (made.encoder, made.fingerprint, made.dims) == ("test-encoder", "sha256:one", 8)
    assert made.bytes == file_of(data_dir, made).stat().st_size
    make_batch(["c"]).upsert(store)
    later = store.maintenance.snapshot("kb")
    assert store.maintenance.snapshots("kb").found == (later, made)
    assert store.maintenance.get_snapshot("kb", made.id) == made
    store.maintenance.delete_snapshot("kb", made.id)
    assert store.maintenance.snapshots("kb").found == (later,)
    with pytest.raises(SnapshotNotFound, match=made.id):
        store.maintenance.get_snapshot("kb", made.id)


@pytest.mark.skipif(sys.platform != "linux", reason="priorities are a process's there")
def test_a_copy_lets_queries_go_first(store: IndexStore, monkeypatch: pytest.MonkeyPatch) -> None:
    niceness: list[int] = []
    copy = Index.copy

    def tell(index: Index, path: Path) -> None:
        niceness.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        copy(index, path)

    monkeypatch.setattr(Index, "copy", tell)
    make_batch(["a"]).upsert(store)
    store.maintenance.snapshot("kb")
    assert niceness == [min(19, os.getpriority(os.PRIO_PROCESS, os.getpid()) + NICENESS)]


@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_what_is_restored_is_what_was_there(data_dir: Path, kind: str) -> None:
    with IndexStore(data_dir) as store:
        store.create("kb", IndexSpec(**{**SETTINGS, "kind": kind}))
        make_batch([f"d{n}" for n in range(30)], tag=" v1").upsert(store)
        store.delete("kb", ["d3"])
        asked = make_vectors(1, seed=4)[0]
        before = store.query("kb", asked, top_k=9), store.query("kb", "first of d7", top_k=9)
        documents = store.get("kb", sorted(ids(store)))
        made = store.maintenance.snapshot("kb")
        make_batch(["d1", "new"], seed=9, tag=" v2").upsert(store)
        store.delete("kb", ["d7"])
        info = store.maintenance.restore("kb", made.id)
        assert (info.name, info.documents, info.kind) == ("kb", 29, kind)
        assert (store.query("kb", asked, top_k=9), store.query("kb", "first of d7", top_k=9)) == (
            before
        )
        assert store.get("kb", sorted(ids(store))) == documents
        make_batch(["after"], seed=3).upsert(store)
        store.delete("kb", ["d9"])
        hits = store.query("kb", asked, top_k=9)
    with IndexStore(data_dir) as store:
        assert store.query("kb", asked, top_k=9) == hits
        assert ids(store) == {f"d{n}" for n in range(30) if n not in (3, 9)} | {"after"}
        assert store.maintenance.snapshots("kb").found == (made,)
        # nothing is left of the one before
        names = {path.name for path in (data_dir / "indexes" / "kb").iterdir()}
        assert len(names) == 2
        assert "current" in names


@every_backend
def test_a_snapshot_becomes_another_index(store: IndexStore, data_dir: Path) -> None:
    make_batch(["a", "b"]).upsert(store)
    made = store.maintenance.snapshot("kb")
    make_batch(["c"]).upsert(store)
    assert store.maintenance.restore("kb", made.id, "kb-2").documents == 2
    assert (ids(store), ids(store, "kb-2")) == ({"a", "b", "c"}, {"a", "b"})
    make_batch(["x"]).upsert(store, "kb-2")
    assert_agrees(store, data_dir, "kb-2")
    store.maintenance.restore("kb", made.id, "kb-2")  # over one that is there
    assert ids(store, "kb-2") == {"a", "b"}


@every_backend
def test_a_dropped_index_comes_back_from_its_snapshot(store: IndexStore) -> None:
    make_batch(["a"]).upsert(store)
    made = store.maintenance.snapshot("kb")
    store.drop("kb")
    assert store.maintenance.snapshots("kb").found == (made,)
    store.maintenance.restore("kb", made.id)
    assert ids(store) == {"a"}
    with pytest.raises(IndexNotFound, match="nowhere"):
        store.maintenance.snapshots("nowhere")


def test_a_broken_index_comes_back_from_its_snapshot(store: IndexStore, data_dir: Path) -> None:
    make_batch(["a"]).upsert(store)
    made = store.maintenance.snapshot("kb")
    store.close()
    (data_dir / "indexes" / "kb" / "index.sqlite3").write_bytes(b"rubbish" * 1000)
    with IndexStore(data_dir) as again:
        assert "kb" in again.broken
        again.maintenance.restore("kb", made.id)
        assert again.broken == {}
        assert ids(again) == {"a"}
    with IndexStore(data_dir) as again:
        assert ids(again) == {"a"}


def test_an_alias_does_for_snapshots_but_not_as_a_new_indexs_name(store: IndexStore) -> None:
    make_batch(["a"]).upsert(store)
    store.maintenance.update_aliases([AliasAction("create", "live", "kb")])
    made = store.maintenance.snapshot("live")
    assert made.index == "kb"
    assert store.maintenance.snapshots("live").found == (made,)
    store.maintenance.restore("live", made.id)
    with pytest.raises(NameTaken):
        store.maintenance.restore("kb", made.id, "live")
    with pytest.raises(InputError, match="into: 'aliases'"):
        store.maintenance.restore("kb", made.id, "aliases")
    assert ids(store, "live") == {"a"}


def test_as_many_snapshots_are_made_as_there_may_be_however_many_are_made_at_once(
    data_dir: Path,
) -> None:
    with IndexStore(data_dir, caps=IndexCaps(snapshots=4)) as store:
        for name in ("kb", "other"):
            store.create(name, IndexSpec(**SETTINGS))
        made = [store.maintenance.snapshot("kb")]
        store.drop("kb")  # its snapshot stays, and counts

        def make(_: int) -> Snapshot | str:
            try:
                return store.maintenance.snapshot("other")
            except LimitReached as error:
                return error.message

        with ThreadPoolExecutor(8) as pool:
            outcomes = list(pool.map(make, range(12)))
        made += [outcome for outcome in outcomes if isinstance(outcome, Snapshot)]
        refused = [outcome for outcome in outcomes if isinstance(outcome, str)]
        assert (len(made), len(refused)) == (4, 9)
        assert all("there may be 4 (max_snapshots)" in outcome for outcome in refused)
        store.maintenance.delete_snapshot("kb", made[0].id)
        assert isinstance(make(0), Snapshot)
    with IndexStore(data_dir, caps=IndexCaps(snapshots=1)) as store:
        assert len(store.maintenance.snapshots("other").found) == 4
        store.maintenance.restore("other", made[1].id)
        with pytest.raises(LimitReached):
            store.maintenance.snapshot("other")


@pytest.mark.parametrize("bad", ["", "..", "../kb", "a/b", ".partial", "é"])
def test_what_is_no_id_is_refused(store: IndexStore, bad: str) -> None:
    for call in (store.maintenance.get_snapshot, store.maintenance.delete_snapshot):
        with pytest.raises(InputError, match="snapshot: "):
            call("kb", bad)


@every_backend
def test_writes_and_queries_go_on_while_it_is_copied(store: IndexStore, data_dir: Path) -> None:
    """Each snapshot is one state: documents are written two at a time, and stay pairs."""
    stop = threading.Event()
    written = 0

    def write() -> None:
        nonlocal written
        while not stop.is_set():
            make_batch([f"a{written}", f"b{written}"], seed=written, tag="x" * 500).upsert(store)
            written += 1

    writer = threading.Thread(target=write)
    writer.start()
    made = []
    while len(made) < 6:
        before = written
        made.append((before, store.maintenance.snapshot("kb"), written))
    stop.set()
    writer.join()
    for at_least, snapshot, at_most in made:
        assert 2 * at_least <= snapshot.documents <= 2 * (at_most + 1)
        store.maintenance.restore("kb", snapshot.id, "copy")
        kept = ids(store, "copy")
        assert len(kept) == snapshot.documents
        assert {identity[1:] for identity in kept if identity[0] == "a"} == {
            identity[1:] for identity in kept if identity[0] == "b"
        }
        assert_agrees(store, data_dir, "copy", queries=1)


HARMS: dict[str, Any] = {
    "cut": lambda file, note: file.write_bytes(file.read_bytes()[:-5000]),
    "flipped": lambda file, note: flip(file, file.stat().st_size // 2),
    "first bit": lambda file, note: flip(file, 3),
    "last bit": lambda file, note: flip(file, file.stat().st_size - 1),
    "empty": lambda file, note: file.write_bytes(b""),
    "gone": lambda file, note: file.unlink(),
    "no note": lambda file, note: note.unlink(),
    "cut note": lambda file, note: note.write_bytes(note.read_bytes()[:-30]),
    "flipped note": lambda file, note: note.write_text(
        note.read_text().replace('"documents": 3', '"documents": 2')
    ),
    "other note": lambda file, note: note.write_text("[1]"),
}


def flip(file: Path, place: int) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 4
    file.write_bytes(data)


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("into", [None, "other"])
def test_a_damaged_snapshot_is_refused_and_the_index_stays_as_it_was(
    store: IndexStore, data_dir: Path, harm: str, into: str | None
) -> None:
    make_batch(["a", "b", "c"]).upsert(store)
    made = store.maintenance.snapshot("kb")
    make_batch(["d"]).upsert(store)
    HARMS[harm](file_of(data_dir, made), file_of(data_dir, made, "snapshot.json"))
    before = sorted(path.name for path in (data_dir / "indexes" / "kb").iterdir())
    with pytest.raises(SnapshotDamaged, match=f"Snapshot {made.id} of index 'kb'") as caught:
        store.maintenance.restore("kb", made.id, into)
    assert str(data_dir) not in caught.value.message
    assert ids(store) == {"a", "b", "c", "d"}
    assert_agrees(store, data_dir)
    assert sorted(path.name for path in (data_dir / "indexes" / "kb").iterdir()) == before
    assert [path.name for path in (data_dir / "indexes").iterdir()] == ["kb"]
    listed = store.maintenance.snapshots("kb")
    if harm not in ("flipped", "first bit", "last bit"):  # which only the hash tells
        assert listed.found == ()
        assert made.id in listed.refused[made.id]


@pytest.mark.parametrize("field", ["format", "index_format"])
def test_a_snapshot_of_a_newer_format_is_refused_as_that(
    store: IndexStore, data_dir: Path, field: str
) -> None:
    make_batch(["a"]).upsert(store)
    made = store.maintenance.snapshot("kb")
    note = file_of(data_dir, made, "snapshot.json")
    content = json.loads(note.read_text())["snapshot"]
    content[field] += 1
    content["invented"] = True
    note.write_text(json.dumps({"snapshot": content, "sha256": _hash(content)}))
    with pytest.raises(SnapshotTooNew, match=f"{made.id} .* format is 1 ahead"):
        store.maintenance.restore("kb", made.id)
    assert ids(store) == {"a"}
    assert "ahead" in store.maintenance.snapshots("kb").refused[made.id]


def test_a_snapshot_of_an_older_format_is_brought_up_to_date(
    store: IndexStore, data_dir: Path
) -> None:
    make_batch(["a"]).upsert(store)
    made = store.maintenance.snapshot("kb")
    file, note = file_of(data_dir, made), file_of(data_dir, made, "snapshot.json")
    file.unlink()
    connection = sqlite3.connect(file)
    connection.executescript(FORMAT_1)
    connection.execute(
        "INSERT INTO settings VALUES (1, 'test-encoder', 'sha256:one', 8, 'ip', 'flat')"
    )
    connection.execute("INSERT INTO documents VALUES (1, 'old', 'Old words.', '{}')")
    connection.execute("INSERT INTO passages VALUES (1, 'old#0', 1, 0, 10, NULL)")
    connection.execute("INSERT INTO vectors VALUES (1, ?)", (make_vectors(1)[0].tobytes(),))
    connection.commit()
    connection.close()
    content = json.loads(note.read_text())["snapshot"]
    content |= {"index_format": 1, "bytes": file.stat().st_size}
    content["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    note.write_text(json.dumps({"snapshot": content, "sha256": _hash(content)}))
    for into in ("old", None):
        store.maintenance.restore("kb", made.id, into)
        (hit,) = store.query(into or "kb", "words", top_k=9)
        assert hit.passage.document_id == "old"
        assert_agrees(store, data_dir, into or "kb")


def test_an_unfinished_rebuilds_notes_are_not_in_it(store: IndexStore) -> None:
    make_batch(["a"]).upsert(store)
    with store.find("kb").write_transaction() as connection:
        changes.begin(connection)
    made = store.maintenance.snapshot("kb")
    store.maintenance.restore("kb", made.id, "copy")
    with store.find("copy").read_transaction() as connection:
        assert not changes.begun(connection)


@pytest.mark.parametrize(
    ("code", "kind"),
    [(sqlite3.SQLITE_FULL, StorageFull), (sqlite3.SQLITE_READONLY, StorageReadOnly)],
)
def test_a_disk_that_refuses_the_copy_leaves_nothing_behind(
    disk: Disk, store: IndexStore, data_dir: Path, code: int, kind: type[StorageError]
) -> None:
    make_batch(["a"]).upsert(store)
    kept = store.maintenance.snapshot("kb")
    disk.refuse = lambda operation, path: (
        code if operation == "write" and "snapshots" in path.parts else 0
    )
    with pytest.raises(kind):
        store.maintenance.snapshot("kb")
    disk.refuse = lambda operation, path: 0
    assert [path.name for path in (data_dir / "snapshots" / "kb").iterdir()] == [kept.id]
    assert ids(store) == {"a"}
    store.maintenance.snapshot("kb")


@pytest.mark.parametrize("operation", ["write", "sync", "fsync", "replace"])
def test_a_disk_that_refuses_a_restore_at_any_step_leaves_the_index_as_it_was(
    disk: Disk,
    store: IndexStore,
    data_dir: Path,
    operation: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_batch(["a"]).upsert(store)
    made = store.maintenance.snapshot("kb")
    make_batch(["b"]).upsert(store)
    left = 0

    def due() -> bool:
        nonlocal left
        left -= 1
        return left < 0

    def refuse(*_: object) -> None:
        if due():
            raise OSError(28, "refused")

    fsync, replace = os.fsync, Path.replace
    for steps in range(100):
        left = steps
        with monkeypatch.context() as patch:
            if operation == "fsync":
                patch.setattr(os, "fsync", lambda handle: (refuse(), fsync(handle)))
            elif operation == "replace":
                patch.setattr(Path, "replace", lambda path, to: (refuse(), replace(path, to)))
            else:
                disk.refuse = lambda asked, path: 13 if asked == operation and due() else 0
            try:
                store.maintenance.restore("kb", made.id)
                break
            except StorageError:
                pass
            finally:
                disk.refuse = lambda asked, path: 0
        assert ids(store) == {"a", "b"}, steps
        assert_agrees(store, data_dir, queries=1)
        make_batch(["b"], seed=steps).upsert(store)
        shutil.copytree(data_dir, data_dir.with_name("copy"), ignore_dangling_symlinks=True)
        with IndexStore(data_dir.with_name("copy")) as copy:
            assert ids(copy) == {"a", "b"}, steps
        shutil.rmtree(data_dir.with_name("copy"))
    else:
        raise AssertionError("it was refused for ever")
    assert steps > 0
    assert ids(store) == {"a"}


def test_leftovers_of_a_crash_are_cleared_away(store: IndexStore, data_dir: Path) -> None:
    make_batch(["a"]).upsert(store)
    made = store.maintenance.snapshot("kb")
    store.close()
    for name in (f"{made.id}.partial", "gone.removed"):
        (data_dir / "snapshots" / "kb" / name).mkdir()
    (data_dir / "indexes" / "kb" / "gen-0123456789abcdef").mkdir()
    with IndexStore(data_dir) as again:
        assert again.maintenance.snapshots("kb").found == (made,)
        assert ids(again) == {"a"}
    assert [path.name for path in (data_dir / "snapshots" / "kb").iterdir()] == [made.id]
    assert not list((data_dir / "indexes" / "kb").glob("gen-*"))


def test_a_pointer_that_is_damaged_breaks_its_index_only_and_a_restore_mends_it(
    store: IndexStore, data_dir: Path
) -> None:
    store.create("other", IndexSpec(**SETTINGS))
    make_batch(["a"]).upsert(store)
    made = store.maintenance.snapshot("kb")
    store.maintenance.restore("kb", made.id)
    store.close()
    (data_dir / "indexes" / "kb" / "current").write_text("gen-../../other")
    with IndexStore(data_dir) as again:
        assert again.count("other") == (0, 0)
        assert "names no generation" in again.broken["kb"]
        again.maintenance.restore("kb", made.id)
        assert ids(again) == {"a"}


def test_a_name_that_was_taken_meanwhile_stays_as_it_is(store: IndexStore) -> None:
    make_batch(["a"]).upsert(store)
    made = store.maintenance.snapshot("kb")
    copy = store.maintenance._snapshots.copy

    def slow(*arguments: Any) -> None:
        copy(*arguments)
        store.create("new", IndexSpec(**SETTINGS))

    store.maintenance._snapshots.copy = slow  # type: ignore[method-assign]
    with pytest.raises(IndexExists):
        store.maintenance.restore("kb", made.id, "new")
    assert store.count("new") == (0, 0)


def test_the_metric_tells_the_age_of_the_newest(data_dir: Path) -> None:
    def age(metrics: Metrics) -> float | None:
        name = "condensery_index_snapshot_age_seconds"
        return metrics.registry.get_sample_value(name, {"index": "kb"})

    metrics = Metrics()
    with IndexStore(data_dir, metrics=metrics) as store:
        store.create("kb", IndexSpec(**SETTINGS))
        assert age(metrics) is None
        made = store.maintenance.snapshot("kb")
        first = age(metrics)
        assert first is not None
        assert 0 <= first < 60
        assert (age(metrics) or 0) > first
    metrics = Metrics()
    with IndexStore(data_dir, metrics=metrics) as store:
        assert (age(metrics) or 0) > first
        store.maintenance.delete_snapshot("kb", made.id)
        assert age(metrics) is None
        store.maintenance.snapshot("kb")
        store.drop("kb")
        assert age(metrics) is None


def restore_for_ever(data_dir: Path, say: Any, seed: int) -> None:
    draw = random.Random(seed)
    with IndexStore(data_dir) as store:
        snapshots = store.maintenance.snapshots("kb").found
        say("ready")
        while True:
            snapshot = draw.choice(snapshots)
            say("begin", snapshot.documents)
            store.maintenance.restore("kb", snapshot.id)
            say("done")


def test_a_kill_amid_a_restore_leaves_one_index_or_the_other_whole(
    store: IndexStore, data_dir: Path
) -> None:
    for count in (3, 5):
        make_batch([f"d{n}" for n in range(count)]).upsert(store)
        store.maintenance.snapshot("kb")
    store.close()
    draw = random.Random(8)
    state, restored = 5, 0
    for life in range(12):
        doubt = None
        for line in live(
            *(restore_for_ever, data_dir, life),
            after=draw.randint(1, 8),
            wait=draw.uniform(0, 0.02),
        ):
            verb, *counts = line.split()
            if verb == "begin":
                doubt = int(counts[0])
            elif verb == "done":
                assert doubt is not None
                state, doubt, restored = doubt, None, restored + 1
        with IndexStore(data_dir) as again:
            count = len(ids(again))
            assert count in {state, doubt}, f"life {life}"
            assert ids(again) == {f"d{n}" for n in range(count)}
            assert again.count("kb") == (count, 2 * count)
            state = count
    assert restored > 12


def test_migrations_are_all_known_to_the_snapshots() -> None:
    from condensery.index.snapshots import NEWEST

    assert len(database.MIGRATIONS) + 1 == NEWEST
