"""Keeping indexes by our own clients, against a real server, by each door."""

import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest

from condensery.client.grpc import GrpcClient
from condensery.client.rest import Client
from condensery.errors import (
    AliasCircle,
    AliasNotFound,
    AliasToNothing,
    IndexAliased,
    IndexNotFound,
    InputError,
    ModelNotFound,
    NameTaken,
    RebuildNotFound,
    SnapshotDamaged,
    SnapshotNotFound,
)
from condensery.values import Alias, AliasAction, Document

numbers = itertools.count()


@pytest.fixture
def index(client: Client | GrpcClient) -> Iterator[str]:
    name = f"upkeep-{next(numbers)}"
    client.create_index(name)
    client.upsert(name, [Document("a", "radium was found"), Document("b", "bread is baked")])
    yield name
    if mine := [alias.alias for alias in client.aliases() if alias.index == name]:
        client.update_aliases([AliasAction("delete", alias) for alias in mine])
    client.drop_index(name)


def test_an_alias_is_asked_written_answered_from_and_moved(
    client: Client | GrpcClient, index: str
) -> None:
    live = f"{index}-live"
    aliases = client.update_aliases([AliasAction("create", live, index)])
    assert Alias(live, index, index) in aliases
    client.upsert(live, [Document("c", "helium is a gas")])
    assert client.count(live) == client.count(index) == (3, 3)
    assert client.query(live, "gas", top_k=1)[0].passage.document_id == "c"
    answer = client.answer("What is helium?", index=live, max_tokens=4)
    assert {citation.id for citation in answer.citations} == {"a#0", "b#0", "c#0"}
    assert client.delete(live, ["c"]) == 1
    with pytest.raises(IndexAliased, match=live):
        client.drop_index(index)
    client.update_aliases([AliasAction("rename", live, f"{live}-2")])
    assert client.count(f"{live}-2") == (2, 2)
    client.update_aliases([AliasAction("create", live, "samples")])
    assert client.count(live) == client.count("samples")
    client.update_aliases([AliasAction("delete", live)])
    assert live not in [alias.alias for alias in client.aliases()]


def test_wrong_aliases_are_the_servers_errors(client: Client | GrpcClient, index: str) -> None:
    before = client.aliases()
    for actions, error in (
        ([AliasAction("create", "x", "nowhere")], AliasToNothing),
        ([AliasAction("create", "x", "y"), AliasAction("create", "y", "x")], AliasCircle),
        ([AliasAction("delete", "nope")], AliasNotFound),
        ([AliasAction("create", "x")], InputError),
        ([AliasAction("forget", "x")], InputError),  # type: ignore[arg-type]
        ([], InputError),
    ):
        with pytest.raises(error):
            client.update_aliases(actions)
    assert client.aliases() == before


def test_a_snapshot_is_made_listed_restored_and_deleted(
    client: Client | GrpcClient, index: str, live_server: Any
) -> None:
    made = client.create_snapshot(index)
    assert (made.index, made.documents, made.encoder) == (index, 2, "minilm-l6")
    assert client.list_snapshots(index).found == (made,)
    client.delete(index, ["a"])
    assert client.restore_snapshot(index, made.id).documents == 2
    best = client.query(index, "who found radium?", top_k=1)[0]
    assert best.passage.document_id == "a"
    copied = client.restore_snapshot(index, made.id, into=f"{index}-copy")
    assert (copied.name, copied.documents) == (f"{index}-copy", 2)
    client.drop_index(f"{index}-copy")
    file = live_server.data_dir / "snapshots" / index / made.id / "index.sqlite3"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(SnapshotDamaged, match=made.id):
        client.restore_snapshot(index, made.id)
    listed = client.list_snapshots(index)
    assert (listed.found, list(listed.refused)) == ((), [made.id])
    assert client.count(index) == (2, 2)
    client.delete_snapshot(index, made.id)
    with pytest.raises(SnapshotNotFound):
        client.delete_snapshot(index, made.id)
    with pytest.raises(IndexNotFound):
        client.create_snapshot("nowhere")
    with pytest.raises(InputError):
        client.restore_snapshot(index, "no.id")


def test_a_snapshot_is_not_restored_into_an_alias(client: Client | GrpcClient, index: str) -> None:
    made = client.create_snapshot(index)
    client.update_aliases([AliasAction("create", f"{index}-live", index)])
    with pytest.raises(NameTaken):
        client.restore_snapshot(index, made.id, into=f"{index}-live")
    client.delete_snapshot(index, made.id)


def test_an_index_is_rebuilt_while_it_serves(client: Client | GrpcClient, index: str) -> None:
    with pytest.raises(RebuildNotFound):
        client.rebuild_status(index)
    with pytest.raises(RebuildNotFound):
        client.cancel_rebuild(index)
    with pytest.raises(ModelNotFound):
        client.rebuild_index(index, encoder="nobody")
    began = client.rebuild_index(index, kind="hnsw")
    assert (began.index, began.encoder, began.documents) == (index, "minilm-l6", 2)
    client.upsert(index, [Document("c", "helium is a gas")])
    deadline = time.monotonic() + 60
    while (now := client.rebuild_status(index)).state == "running":
        assert client.query(index, "gas", top_k=1)
        assert time.monotonic() < deadline
    assert (now.state, now.reason, now.pending, now.kind) == ("done", None, 0, "hnsw")
    assert now.ended is not None
    assert (now.overlap or 0) > 0.5  # what is written meanwhile may be in one only
    (info,) = [item for item in client.list_indexes() if item.name == index]
    assert (info.kind, info.documents) == ("hnsw", 3)
    assert client.query(index, "gas", top_k=1)[0].passage.document_id == "c"
