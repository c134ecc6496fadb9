"""Vectors in a database that is down, slow, full, behind, foreign, or gone, and comes back."""

import random
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.index.conftest import (
    SETTINGS,
    Disk,
    assert_agrees,
    database_of,
    events,
    make_batch,
    make_vectors,
    wait_until,
)

from condensery.errors import (
    InputError,
    SettingError,
    StorageError,
    StorageFull,
    VectorDatabaseFault,
    VectorDatabaseUnavailable,
)
from condensery.index import passages, remote_vectors
from condensery.index.remote_vectors import RemoteVectors
from condensery.index.store import IndexStore
from condensery.index.vector_database import (
    BINDING,
    DatabaseConfig,
    Settled,
    VectorDatabases,
    read_binding,
    read_target,
)
from condensery.values import IndexSpec

pytest.importorskip("qdrant_client")
from qdrant_client import models
from qdrant_server import HANDLERS, QdrantServer, serving_qdrant

SCROLL, COUNT = ("POST", "/points/scroll"), ("POST", "/points/count")
WRITES = (("PUT", "/points"), ("POST", "/points/delete"))


@pytest.fixture
def server() -> Iterator[QdrantServer]:
    with serving_qdrant() as running:
        yield running


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settle after a moment, so that tests need not wait a second for it."""
    monkeypatch.setattr(remote_vectors, "QUIET_SECONDS", 0.01)


def config_of(server: QdrantServer, **others: Any) -> DatabaseConfig:
    return replace(DatabaseConfig("qdrant", server.url, timeout_seconds=10), **others)


def open_on(server: QdrantServer, data_dir: Path, **others: Any) -> IndexStore:
    return IndexStore(data_dir, databases=VectorDatabases(config_of(server, **others), "qdrant"))


def vectors_of(store: IndexStore, name: str = "kb") -> RemoteVectors:
    found = store.find(name)._vector_index
    assert isinstance(found, RemoteVectors)
    return found


def settle(store: IndexStore) -> None:
    vectors = vectors_of(store)
    wait_until(lambda: vectors.saved == vectors._written.sequence and vectors._clean)


def ask(store: IndexStore, top_k: int = 3) -> list[str]:
    hits = store.query("kb", make_vectors(1)[0], top_k=top_k)
    return [hit.passage.id for hit in hits]


@pytest.fixture
def kb(server: QdrantServer, data_dir: Path) -> Iterator[IndexStore]:
    with open_on(server, data_dir) as store:
        store.create("kb", IndexSpec(**SETTINGS))
        make_batch(["a", "b", "c"]).upsert(store)
        yield store


def test_a_database_that_is_down_is_said_at_once_and_used_again_when_it_is_back(
    server: QdrantServer, kb: IndexStore, data_dir: Path
) -> None:
    found = ask(kb)
    settle(kb)  # nothing is under way
    server.stop()
    with pytest.raises(VectorDatabaseUnavailable, match=r"Qdrant at http.* can't be reached"):
        ask(kb)
    assert kb.databases.fault is not None
    assert "index kb: Qdrant at" in kb.databases.fault
    with pytest.raises(VectorDatabaseUnavailable, match="can't be reached"):
        make_batch(["d"]).upsert(kb)
    # what SQLite has needs no database
    assert [document.id for document in kb.get("kb", ["a", "d"])] == ["a"]
    assert kb.count("kb") == (3, 6)
    assert kb.query("kb", "second", top_k=9)
    assert kb.delete("kb", ["c"]) == 1  # acknowledged: it is in SQLite, and not found any more
    server.start()
    wait_until(lambda: kb.databases.fault is None)
    left = [hit for hit in found if not hit.startswith("c")]
    assert ask(kb, 4)[: len(left)] == left
    make_batch(["d"], seed=7).upsert(kb)
    assert_agrees(kb, data_dir)


def test_a_server_starts_without_its_database_and_finds_it_later(
    server: QdrantServer, data_dir: Path
) -> None:
    with open_on(server, data_dir) as store:
        store.create("kb", IndexSpec(**SETTINGS))
        make_batch(["a", "b"]).upsert(store)
    server.stop()
    with open_on(server, data_dir) as store:
        wait_until(lambda: store.databases.fault is not None)
        assert store.info("kb").passages == 4
        with pytest.raises(VectorDatabaseUnavailable):
            ask(store)
        server.start()
        wait_until(lambda: store.databases.fault is None)
        assert_agrees(store, data_dir)


@pytest.mark.parametrize("lost", ["points", "collection", "everything"])
def test_what_the_database_lost_is_sent_again(
    server: QdrantServer, kb: IndexStore, data_dir: Path, lost: str
) -> None:
    settle(kb)
    vectors = vectors_of(kb)
    rows = server.rows(vectors.collection)
    server.stop()
    with pytest.raises(VectorDatabaseUnavailable):
        ask(kb)
    if lost == "points":  # a backup of the database from before they were written, say
        server.client.delete(vectors.collection, rows[2:])
    elif lost == "collection":
        server.client.delete_collection(vectors.collection)
    else:
        server.client.delete(vectors.collection, [0, *rows])
    server.start()
    wait_until(lambda: kb.databases.fault is None)
    assert server.rows(vectors.collection) == rows
    assert_agrees(kb, data_dir)


def test_now_and_then_it_is_looked_whether_all_is_there(
    server: QdrantServer, kb: IndexStore, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(kb)
    vectors = vectors_of(kb)
    rows = server.rows(vectors.collection)
    server.client.delete(vectors.collection, rows[:3])
    monkeypatch.setattr(remote_vectors, "CHECK_SECONDS", 0.01)
    with vectors._changed:
        vectors._changed.notify_all()
    wait_until(lambda: server.rows(vectors.collection) == rows)
    assert_agrees(kb, data_dir)


def test_a_write_that_the_database_takes_and_sqlite_does_not_is_found_by_nobody(
    disk: Disk, server: QdrantServer, data_dir: Path
) -> None:
    with open_on(server, data_dir) as store:
        store.create("kb", IndexSpec(**SETTINGS))
        make_batch(["a", "b"]).upsert(store)
        settle(store)
        before = len(server.asked)
        full = sqlite3.SQLITE_FULL
        disk.refuse = lambda operation, path: full if path.name.endswith("-wal") else 0
        with pytest.raises(StorageFull):
            make_batch(["a", "c"], seed=3).upsert(store)
        disk.refuse = lambda operation, path: 0
        assert ("PUT", "/points") in server.asked[before:]
        assert_agrees(store, data_dir)
        make_batch(["c"], seed=3).upsert(store)
        assert_agrees(store, data_dir)


def test_rows_of_a_write_under_way_are_none_too_many(
    server: QdrantServer, kb: IndexStore, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are compared, after a fault, while a write is sent and not committed yet."""
    sent, go_on = threading.Event(), threading.Event()
    add = RemoteVectors.add

    def add_and_wait(self: RemoteVectors, *vectors: Any) -> None:
        add(self, *vectors)
        sent.set()
        go_on.wait(60)

    monkeypatch.setattr(RemoteVectors, "add", add_and_wait)
    writer = threading.Thread(target=make_batch(["d"], seed=3).upsert, args=(kb,))
    writer.start()
    assert sent.wait(60)
    before = len(server.asked)
    server.refusal = (503, "restarting")
    with pytest.raises(VectorDatabaseUnavailable):
        ask(kb)
    server.refusal = None
    wait_until(lambda: kb.databases.fault is None)
    assert SCROLL in server.asked[before:]
    go_on.set()
    writer.join()
    assert_agrees(kb, data_dir)


def test_a_write_without_a_reply_in_time_is_refused_and_leaves_nothing(
    server: QdrantServer, data_dir: Path
) -> None:
    with open_on(server, data_dir, timeout_seconds=2) as store:
        store.create("kb", IndexSpec(**SETTINGS))
        vectors_of(store).wait_until_agreed(60)
        make_batch(["a", "b"]).upsert(store)
        settle(store)
        server.gate.clear()
        with pytest.raises(VectorDatabaseUnavailable, match=r"did not answer within 2 s"):
            make_batch(["a", "c"], seed=2).upsert(store)
        server.gate.set()  # what was sent arrives now
        wait_until(lambda: store.databases.fault is None)
        assert [document.id for document in store.get("kb", ["a", "b", "c"])] == ["a", "b"]
        assert_agrees(store, data_dir)
        make_batch(["c"], seed=2).upsert(store)
        assert_agrees(store, data_dir)


def test_a_slow_database_is_refused_within_the_time_it_has(
    server: QdrantServer, data_dir: Path
) -> None:
    with open_on(server, data_dir, timeout_seconds=2) as store:
        store.create("kb", IndexSpec(**SETTINGS))
        vectors_of(store).wait_until_agreed(60)
        make_batch(["a"]).upsert(store)
        settle(store)
        server.gate.clear()
        with pytest.raises(VectorDatabaseUnavailable, match=r"did not answer within 2 s"):
            ask(store)
        asked = len(server.asked)
        with pytest.raises(VectorDatabaseUnavailable, match=r"did not answer"):
            ask(store)  # and the next ones at once, without being asked again
        assert ("POST", "/points/query") not in server.asked[asked:]
        server.gate.set()
        wait_until(lambda: store.databases.fault is None)
        assert len(ask(store)) == 2


def test_a_full_database_refuses_writes_and_goes_on_answering(
    server: QdrantServer, kb: IndexStore, data_dir: Path
) -> None:
    settle(kb)
    text = "Service internal error: No space left on device: WAL buffer size exceeds available disk"
    server.refused, server.refusal = WRITES, (500, text)
    before = len(server.asked)
    with pytest.raises(StorageFull, match=r"Qdrant at http.* is full"):
        make_batch(["d"], seed=3).upsert(kb)
    wait_until(lambda: ("POST", "/points/delete") in server.asked[before:])
    assert len(ask(kb, 9)) == 6
    assert kb.get("kb", ["d"]) == []
    server.refusal = None
    make_batch(["d"], seed=3).upsert(kb)
    wait_until(lambda: kb.databases.fault is None)
    assert_agrees(kb, data_dir)


@pytest.mark.parametrize("status", [429, 502, 503])
def test_a_busy_database_is_a_reason_to_come_back(
    server: QdrantServer, kb: IndexStore, status: int
) -> None:
    server.refusal = (status, "too many requests")
    with pytest.raises(VectorDatabaseUnavailable, match="too busy") as caught:
        ask(kb)
    assert caught.value.retry_after_seconds is not None
    server.refusal = None
    wait_until(lambda: kb.databases.fault is None)
    assert ask(kb)


def test_a_wrong_key_is_said(data_dir: Path) -> None:
    with serving_qdrant(key="right") as server:
        with open_on(server, data_dir, key="wrong") as store:
            store.create("kb", IndexSpec(**SETTINGS))
            with pytest.raises(VectorDatabaseFault, match=r"refused \(401\).*API key"):
                ask(store)
            assert "401" in str(store.databases.fault)
        with open_on(server, data_dir, key="right") as store:
            make_batch(["a"]).upsert(store)
            assert len(ask(store)) == 2


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (models.VectorParams(size=9, distance=models.Distance.DOT), "is of 9 dimensions"),
        (models.VectorParams(size=8, distance=models.Distance.EUCLID), "metric l2"),
        (models.VectorParams(size=8, distance=models.Distance.COSINE), "metric Cosine"),
        ({"v": models.VectorParams(size=8, distance=models.Distance.DOT)}, "named vectors"),
    ],
)
def test_a_collection_of_another_shape_is_refused_and_not_touched(
    server: QdrantServer, kb: IndexStore, data_dir: Path, made: Any, says: str
) -> None:
    name = vectors_of(kb).collection
    server.stop()
    kb.close()
    server.client.delete_collection(name)
    server.client.create_collection(name, vectors_config=made)
    server.start()
    with open_on(server, data_dir) as store:
        for call in (lambda: ask(store), lambda: make_batch(["d"]).upsert(store)):
            with pytest.raises(VectorDatabaseFault, match=says):
                call()
        assert says in str(store.databases.fault)
        assert server.client.count(name).count == 0
        server.client.delete_collection(name)  # its owner moves it out of the way
        wait_until(lambda: store.databases.fault is None)
        assert_agrees(store, data_dir)


@pytest.mark.parametrize("whose", ["another encoder's", "nobody's"])
def test_a_collection_of_another_encoder_is_refused_and_not_touched(
    server: QdrantServer, kb: IndexStore, data_dir: Path, whose: str
) -> None:
    vectors = vectors_of(kb)
    name = vectors.collection
    kb.close()
    if whose == "nobody's":
        server.client.delete(name, [0])
        says = "holds 6 points and does not say whose"
    else:
        theirs = Settled("their-encoder", "sha256:two", 1, 1, True)
        payload = {"settled": theirs.to_record()}
        server.client.upsert(name, [models.PointStruct(id=0, vector={}, payload=payload)])
        says = "encoder 'their-encoder' with fingerprint sha256:two"
    rows = server.rows(name)
    with open_on(server, data_dir) as store:
        with pytest.raises(VectorDatabaseFault, match=says):
            ask(store)
        assert server.rows(name) == rows


def test_a_start_asks_little_where_all_is_as_it_was(
    server: QdrantServer, kb: IndexStore, data_dir: Path
) -> None:
    kb.close()
    server.asked.clear()
    with open_on(server, data_dir) as store:
        assert len(ask(store)) == 3
        assert SCROLL not in server.asked
        assert not {*WRITES}.intersection(server.asked)
    server.asked.clear()
    kb_rows = server.rows(server.collections()[0])
    server.client.delete(server.collections()[0], kb_rows[:1])
    with open_on(server, data_dir) as store:  # one is missing: they are compared
        assert_agrees(store, data_dir)
        assert SCROLL in server.asked


def test_rows_of_another_history_are_not_trusted(
    server: QdrantServer, data_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A data directory is put back as it was, and goes another way, by the same row ids."""
    with open_on(server, data_dir) as store:
        store.create("kb", IndexSpec(**SETTINGS))
        make_batch(["a"], seed=1).upsert(store)
    shutil.copytree(data_dir, tmp_path / "backup")
    with open_on(server, data_dir) as store:
        make_batch(["b"], seed=2).upsert(store)
    shutil.rmtree(data_dir)
    shutil.copytree(tmp_path / "backup", data_dir)
    with open_on(server, data_dir) as store:
        assert_agrees(store, data_dir)
        make_batch(["c"], seed=3).upsert(store)
        assert_agrees(store, data_dir)
    assert "index_collection_remade" in [event for event, _ in events(caplog)]


def test_replaced_and_dropped_indexes_leave_no_collection(
    server: QdrantServer, kb: IndexStore, data_dir: Path
) -> None:
    first = vectors_of(kb).collection
    assert server.collections() == [first]
    snapshot = kb.snapshot("kb")
    make_batch(["z"], seed=5).upsert(kb)
    kb.maintenance.restore("kb", snapshot.id)
    assert_agrees(kb, data_dir)
    assert kb.count("kb") == (3, 6)
    (second,) = server.collections()
    assert second != first
    kb.drop("kb")
    assert server.collections() == []


def test_a_collection_of_a_dropped_index_goes_when_the_database_is_back(
    server: QdrantServer, kb: IndexStore, data_dir: Path
) -> None:
    server.stop()
    kb.drop("kb")
    kb.close()
    server.start()
    assert len(server.collections()) == 1
    with open_on(server, data_dir) as store:
        assert store.list() == []
        assert server.collections() == []
    assert list((data_dir / "indexes").glob(".dropped-*")) == []


def test_a_rebuild_fills_a_collection_of_its_own_and_takes_the_place(
    server: QdrantServer, kb: IndexStore, data_dir: Path
) -> None:
    first = vectors_of(kb).collection
    spec = IndexSpec(**{**SETTINGS, "fingerprint": "sha256:two"})
    rebuild = kb.maintenance.rebuild("kb", spec)
    while rebuild.pending():
        step = rebuild.next_step(10)
        batch = make_batch([document.id for document in step.documents], seed=4)
        rebuild.write(step, batch.passages, batch.vectors)
    assert rebuild.finish()
    assert kb.info("kb").fingerprint == "sha256:two"
    assert_agrees(kb, data_dir)
    assert first not in server.collections()
    assert len(server.collections()) == 1


def test_a_kind_that_the_database_lacks_is_refused_by_name(
    server: QdrantServer, data_dir: Path
) -> None:
    with open_on(server, data_dir) as store:
        with pytest.raises(InputError, match=r"kind: 'ivf_pq' .* index_backend qdrant"):
            store.create("pq", IndexSpec(**{**SETTINGS, "kind": "ivf_pq"}))
        assert store.list() == []
        store.create("kb", IndexSpec(**SETTINGS))
        make_batch(["a"]).upsert(store)
        with pytest.raises(InputError, match=r"kind: 'ivf_pq' .* index_backend qdrant"):
            store.maintenance.rebuild("kb", IndexSpec(**{**SETTINGS, "kind": "ivf_pq"}))
        assert store.maintenance.unfinished_rebuilds() == []
        assert_agrees(store, data_dir)


def test_an_index_whose_database_is_not_set_is_named_and_the_others_serve(
    server: QdrantServer, kb: IndexStore, data_dir: Path
) -> None:
    kb.close()
    with IndexStore(data_dir) as store:
        store.create("other", IndexSpec(**SETTINGS))
        assert "its vectors are in qdrant, which is not set" in store.broken["kb"]
        with pytest.raises(StorageError, match="index_backend qdrant"):
            store.query("kb", make_vectors(1)[0], top_k=1)
    with open_on(server, data_dir) as store:  # in FAISS it stays, beside one that is not
        assert read_binding(data_dir / "indexes" / "other") is None
        assert_agrees(store, data_dir)
        assert store.query("other", make_vectors(1)[0], top_k=1) == []


def test_a_damaged_binding_breaks_its_index_alone(
    server: QdrantServer, kb: IndexStore, data_dir: Path
) -> None:
    kb.close()
    (data_dir / "indexes" / "kb" / BINDING).write_text("{")
    with open_on(server, data_dir) as store:
        assert "is damaged" in store.broken["kb"]


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # the client's lock
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_embedded_database_is_of_one_process_and_lasts(data_dir: Path, tmp_path: Path) -> None:
    config = DatabaseConfig("qdrant", (tmp_path / "vectors").as_uri())
    with IndexStore(data_dir, databases=VectorDatabases(config, "qdrant")) as store:
        store.create("kb", IndexSpec(**SETTINGS))
        make_batch(["a", "b"]).upsert(store)
        with pytest.raises(SettingError, match=r"index_database: Qdrant at file.* can't be opened"):
            VectorDatabases(config, "qdrant")
    with IndexStore(data_dir, databases=VectorDatabases(config, "qdrant")) as store:
        assert_agrees(store, data_dir)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("faiss", ("faiss", "")),
        ("qdrant://db:6333", ("qdrant", "http://db:6333")),
        ("qdrant+https://db/q", ("qdrant", "https://db/q")),
        ("milvus://10.0.0.1:19530/", ("milvus", "http://10.0.0.1:19530")),
        ("milvus+file:///data/m.db", ("milvus", "file:///data/m.db")),
    ],
)
def test_where_vectors_are_to_be_is_one_address(text: str, target: tuple[str, str]) -> None:
    assert read_target(text) == target


@pytest.mark.parametrize(
    "text",
    ["", "http://db:6333", "qdrant://", "chroma://db", "qdrant://me:secret@db", "qdrant+ftp://x"],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--to") as caught:
        read_target(text)
    assert "secret" not in caught.value.message


def test_nothing_acknowledged_is_lost_while_the_database_fails_again_and_again(
    server: QdrantServer, kb: IndexStore, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writes, searches, faults of each kind and comparisons of rows, all at once."""
    monkeypatch.setattr(remote_vectors, "CHECK_SECONDS", 0.0)
    chance, done = random.Random(5), threading.Event()
    errors: list[BaseException] = []
    acknowledged: dict[str, int] = {"a": 0, "b": 0, "c": 0}

    def fail() -> None:
        while not done.is_set():
            server.refused = tuple(chance.sample(sorted(HANDLERS), 3))
            server.refusal = (chance.choice([429, 500, 503]), "no")
            done.wait(chance.random() * 0.05)
            server.refusal = None
            if chance.random() < 0.1:
                for name in server.collections():
                    server.lose(name, 2)
            done.wait(chance.random() * 0.2)

    def read() -> None:
        while not done.is_set():
            try:
                kb.query("kb", make_vectors(1)[0], top_k=9)
            except VectorDatabaseUnavailable:
                continue
            except BaseException as error:
                errors.append(error)
                return

    threads = [threading.Thread(target=work) for work in (fail, read, read)]
    for thread in threads:
        thread.start()
    refused = 0
    for seed in range(150):
        name = f"d{chance.randrange(40)}"
        try:
            if chance.random() < 0.2:
                kb.delete("kb", [name])
                acknowledged.pop(name, None)
            else:
                make_batch([name], seed=seed, tag=str(seed)).upsert(kb)
                acknowledged[name] = seed
        except VectorDatabaseUnavailable:
            refused += 1
            time.sleep(0.02)
    done.set()
    for thread in threads:
        thread.join()
    assert errors == []
    assert 0 < refused < 150
    server.refusal = None
    wait_until(lambda: kb.databases.fault is None)
    assert kb.count("kb")[0] == len(acknowledged)
    texts = {document.id: document.text for document in kb.get("kb", list(acknowledged))}
    assert all(
        texts[name] == make_batch([name], tag=str(seed)).documents[0].text
        for name, seed in acknowledged.items()
        if name[0] == "d"
    )
    vectors = vectors_of(kb)
    with closing(sqlite3.connect(database_of(data_dir))) as reader:
        stored = sorted(passages.passage_rows(reader).tolist())
    wait_until(lambda: server.rows(vectors.collection) == stored)
    monkeypatch.setattr(remote_vectors, "CHECK_SECONDS", 30.0)
    assert_agrees(kb, data_dir)
