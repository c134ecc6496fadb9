"""Indexes moved into a database, out of one and between two, cut short and gone on with."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import run
from tests.unit.index.conftest import (
    SETTINGS,
    assert_agrees,
    make_batch,
    make_vectors,
    read_truth,
)

from condensery.errors import (
    DataDirTaken,
    IndexExists,
    IndexNotFound,
    InputError,
    VectorDatabaseUnavailable,
)
from condensery.index import copying, remote_vectors
from condensery.index.copying import CopyDiffers, copy_index
from condensery.index.store import IndexStore
from condensery.index.vector_database import DatabaseConfig, VectorDatabases
from condensery.values import AliasAction, IndexSpec

pytest.importorskip("qdrant_client")
from qdrant_server import QdrantServer, serving_qdrant

IDS = [f"d{n}" for n in range(700)]


@pytest.fixture
def server() -> Iterator[QdrantServer]:
    with serving_qdrant() as running:
        yield running


@pytest.fixture
def kb(data_dir: Path) -> Path:
    """A data directory with an index kb, in FAISS, whose server is stopped."""
    with IndexStore(data_dir) as store:
        store.create("kb", IndexSpec(**SETTINGS))
        make_batch(IDS).upsert(store)
        store.maintenance.update_aliases([AliasAction("create", "docs", "kb")])
    return data_dir


def databases_of(server: QdrantServer) -> VectorDatabases:
    return VectorDatabases(DatabaseConfig("qdrant", server.url, timeout_seconds=10), "qdrant")


def test_an_index_moves_into_a_database_and_finds_the_same(kb: Path, server: QdrantServer) -> None:
    copied = copy_index(kb, "docs", "there", databases_of(server))
    assert (copied.documents, copied.passages, copied.sent) == (700, 1400, 1400)
    assert copied.recall == 1.0
    assert copied.queries == 200
    assert copied.placed
    with IndexStore(kb, databases=databases_of(server)) as store:
        assert_agrees(store, kb, "there")
        assert_agrees(store, kb, "kb")
        for vector in make_vectors(20, seed=8):
            before = store.query("kb", vector, top_k=10)
            after = store.query("there", vector, top_k=10)
            assert [hit.passage for hit in after] == [hit.passage for hit in before]
        store.maintenance.update_aliases([AliasAction("create", "docs", "there")])
        store.drop("kb")
        make_batch(["new"]).upsert(store, "docs")
        assert_agrees(store, kb, "there")


def test_and_out_of_it_again(kb: Path, server: QdrantServer) -> None:
    copy_index(kb, "kb", "there", databases_of(server))
    back = copy_index(kb, "there", "back", VectorDatabases())
    assert (back.backend, back.collection, back.passages) == ("faiss", None, 1400)
    with IndexStore(kb) as store:
        assert_agrees(store, kb, "back")
    assert read_truth(kb, "back").keys() == read_truth(kb, "kb").keys()


def test_what_was_cut_short_goes_on_where_it_was(
    kb: Path, server: QdrantServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = remote_vectors.make_points
    blocks = []

    def stop_amid(*args: object) -> object:  # the database goes away after some blocks
        blocks.append(1)
        if len(blocks) == 2:
            server.stop()
            monkeypatch.setattr(copying, "PATIENCE_SECONDS", 3.0)
        return sent(*args)

    monkeypatch.setattr(remote_vectors, "make_points", stop_amid)
    with pytest.raises(VectorDatabaseUnavailable, match="can't be reached"):
        copy_index(kb, "kb", "there", databases_of(server))
    monkeypatch.setattr(remote_vectors, "make_points", sent)
    server.start()
    (collection,) = server.collections()
    there = len(server.rows(collection))
    assert 0 < there < 1400
    with IndexStore(kb) as store:
        assert [info.name for info in store.list()] == ["kb"]
    copied = copy_index(kb, "kb", "there", databases_of(server))
    assert copied.sent == 1400 - there
    assert copied.collection == collection
    assert server.collections() == [collection]


def test_most_is_sent_ahead_while_a_server_goes_on(kb: Path, server: QdrantServer) -> None:
    with IndexStore(kb) as store:
        with pytest.raises(DataDirTaken):
            copy_index(kb, "kb", "there", databases_of(server))
        ahead = copy_index(kb, "kb", "there", databases_of(server), ahead=True)
        assert (ahead.sent, ahead.placed) == (1400, False)
        make_batch(["d1", "late"], seed=3).upsert(store)
        store.delete("kb", ["d2"])
    copied = copy_index(kb, "kb", "there", databases_of(server))
    assert (copied.sent, copied.passages, copied.placed) == (4, 1400, True)
    with IndexStore(kb, databases=databases_of(server)) as store:
        assert_agrees(store, kb, "there")
        assert store.get("there", ["d2"]) == []


def test_a_copy_that_finds_something_else_is_not_put_in_place(
    kb: Path, server: QdrantServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = copying.Index.query
    worst = lambda self, vector, **how: query(self, -vector, **how)  # noqa: E731
    monkeypatch.setattr(copying.Index, "query", worst)
    with pytest.raises(CopyDiffers, match=r"found 0\.\d+ of the nearest 10"):
        copy_index(kb, "kb", "there", databases_of(server))
    with IndexStore(kb) as store:
        assert [info.name for info in store.list()] == ["kb"]


def test_what_cannot_be_copied_is_refused(kb: Path, server: QdrantServer) -> None:
    with pytest.raises(IndexExists):
        copy_index(kb, "kb", "kb", databases_of(server))
    with pytest.raises(IndexNotFound):
        copy_index(kb, "nobody", "there", databases_of(server))
    with pytest.raises(InputError, match="new: 'No'"):
        copy_index(kb, "kb", "No", databases_of(server))
    with IndexStore(kb) as store:
        store.create("pq", IndexSpec(**{**SETTINGS, "kind": "ivf_pq"}))
    with pytest.raises(InputError, match=r"kind: 'ivf_pq'.*qdrant"):
        copy_index(kb, "pq", "there", databases_of(server))
    assert server.collections() == []


def test_the_command_says_what_it_did(kb: Path, server: QdrantServer) -> None:
    to = f"qdrant://127.0.0.1:{server.port}"
    ended = run("index", "copy", "kb", "there", "--to", to, "--data-dir", str(kb))
    assert "there: 1400 passages in qdrant, collection condensery_there_" in ended.stdout
    assert "200 queries find 1.0000 of the nearest" in ended.stdout
    assert f"--index-backend qdrant --index-database {server.url}" in ended.stderr
    ended = run("index", "copy", "kb", "no", "--to", "nowhere", "--data-dir", str(kb), status=1)
    assert "--to: 'nowhere' is not faiss, qdrant://host:6333" in ended.stderr
