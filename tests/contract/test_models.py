"""Models that come and go: our clients, by each door, and a real server with real models."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tests.conftest import LiveServer, serving
from tests.contract.conftest import DOORS, make
from tiny_pair import write_base

from condensery.client.grpc import AsyncGrpcClient
from condensery.client.rest import AsyncClient
from condensery.errors import (
    ContextLost,
    EncoderMismatch,
    ModelAliasCircle,
    ModelAliasTaken,
    ModelAliasToNothing,
    ModelInUse,
    ModelNotFound,
    ModelNotLoaded,
)
from condensery.store.manifest import Manifest
from condensery.store.store import ModelStore
from condensery.values import Document

NAME = "small"


@pytest.fixture(scope="module")
def folder(store_with_pair: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a small encoder in two versions, and a third that is broken."""
    root = tmp_path_factory.mktemp("changing")
    shutil.copytree(store_with_pair, root / "models")
    store = ModelStore(None, root / "models")
    for seed in (1, 2, 3):
        files = write_base(root / f"files{seed}", seed=seed)
        store.publish(files, Manifest(name=NAME, kind="encoder", pooling="mean", max_tokens=64))
    (weights,) = (root / "models" / NAME / "3").glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:-100])
    return root


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[LiveServer]:
    with serving(folder / "models", folder / "first", "--no-samples") as running:
        yield running


@pytest.fixture(scope="module", autouse=True)
def places(folder: Path) -> None:
    (folder / "first").mkdir()


@pytest.fixture(params=DOORS)
def client(request: pytest.FixtureRequest, server: LiveServer) -> Iterator[Any]:
    with make(request.param, server) as made:
        yield made
        made.load_model(NAME, version="1")
        made.load_model("oscar-mini")


def test_the_broken_version_is_refused_at_the_start_and_another_serves_once_it_is_named(
    client: Any,
) -> None:
    loaded = client.load_model(NAME, version="2")
    assert (loaded.info.version, loaded.info.name) == ("2", NAME)
    again = client.load_model(NAME, version="2")
    assert not again.changed
    with pytest.raises(ModelNotLoaded, match="version 2 serves on"):
        client.load_model(NAME)
    with pytest.raises(ModelNotFound, match="there are: 1, 2, 3"):
        client.load_model(NAME, version="4")
    states = {model.version: model for model in client.stored_models() if model.name == NAME}
    assert {version: state.state for version, state in states.items()} == {
        "1": "UNAVAILABLE",
        "2": "READY",
        "3": "UNAVAILABLE",
    }
    assert "safetensors" in states["3"].reason


def test_versions_swap_and_their_vectors_with_them(client: Any) -> None:
    first_load = client.load_model(NAME, version="1")
    first = client.embed(["the old mill"], model=NAME)
    second_load = client.load_model(NAME, version="2")
    assert second_load.previous is not None
    assert (
        second_load.previous.fingerprint
        == first_load.info.fingerprint
        != second_load.info.fingerprint
    )
    second = client.embed(["the old mill"], model=NAME)
    assert np.abs(first - second).max() > 0.01
    client.load_model(NAME, version="1", again=True)
    np.testing.assert_array_equal(client.embed(["the old mill"], model=NAME), first)


def test_an_index_refuses_another_version_of_its_encoder_and_the_load_says_so(client: Any) -> None:
    client.load_model(NAME, version="1")
    client.create_index("kb", encoder=NAME)
    try:
        client.upsert("kb", [Document("a", "the old mill")])
        assert client.load_model(NAME, version="2").stranded_indexes == ("kb",)
        with pytest.raises(EncoderMismatch, match="the one that runs has"):
            client.query("kb", "mill")
        assert client.load_model(NAME, version="1").stranded_indexes == ()
        assert client.query("kb", "mill")[0].passage.text == "the old mill"
        with pytest.raises(ModelInUse, match="it is the encoder of kb"):
            client.unload_model(NAME)
        gone = client.unload_model(NAME, force=True)
        assert (gone.revision.version, gone.stranded_indexes) == ("1", ("kb",))
        with pytest.raises(EncoderMismatch, match="does not run here"):
            client.query("kb", "mill")
    finally:
        client.drop_index("kb")


def test_a_default_is_unloaded_by_force_only_and_then_nobody_takes_its_place(client: Any) -> None:
    with pytest.raises(ModelInUse, match="it is the default oscar-pair and reranker"):
        client.unload_model("oscar-mini")
    context = client.compress("who?", ["the old mill"]).context
    client.unload_model("oscar-mini", force=True)
    assert not client.ready()
    with pytest.raises(ModelNotFound, match="'oscar-mini' was unloaded"):
        client.rerank("who?", ["the old mill"])
    with pytest.raises(ContextLost, match="was unloaded or replaced"):
        client.answer("who?", context=context)
    client.load_model("oscar-mini")
    assert client.ready()
    with pytest.raises(ContextLost):
        client.answer("who?", context=context)


def test_aliases_are_set_used_and_refused(client: Any) -> None:
    assert client.set_aliases({"best": NAME, "too": "best"}) == {"best": NAME, "too": "best"}
    listed = {model.name: model.alias_of for model in client.models()}
    assert (listed["too"], listed["best"], listed[NAME]) == (NAME, NAME, None)
    np.testing.assert_array_equal(
        client.embed(["a mill"], model="too"), client.embed(["a mill"], model=NAME)
    )
    for changes, error in (
        ({"new": "nobody"}, ModelAliasToNothing),
        ({"best": "too"}, ModelAliasCircle),
        ({"minilm-l6": NAME}, ModelAliasTaken),
        ({"nobody": None}, ModelNotFound),
    ):
        with pytest.raises(error) as caught:
            client.set_aliases({"fine": NAME, **changes})
        assert type(caught.value) is error
    with pytest.raises(ModelInUse, match=r"aliases lead to it .best, too."):
        client.unload_model(NAME, force=True)
    assert client.set_aliases({"best": None, "too": None}) == {}


async def test_the_async_clients_say_the_same(server: LiveServer) -> None:
    async with AsyncClient(server.url) as rest, AsyncGrpcClient(server.grpc) as rpc:
        loads = [await item.load_model(NAME, version="1", again=True) for item in (rest, rpc)]
        assert [replace(load, seconds=0, previous=None) for load in loads] == [
            replace(loads[0], seconds=0, previous=None)
        ] * 2
        assert await rest.stored_models() == await rpc.stored_models()
        assert await rest.models() == await rpc.models()
        assert await rest.set_aliases({"a": NAME}) == {"a": NAME}
        assert await rpc.set_aliases({"b": NAME}) == {"a": NAME, "b": NAME}
        await rpc.set_aliases({"a": None, "b": None})
        gone = [await rest.unload_model(NAME)]
        await rpc.load_model(NAME, version="1")
        gone.append(await rpc.unload_model(NAME))
        assert replace(gone[0], seconds=0) == replace(gone[1], seconds=0)
        await rest.load_model(NAME, version="1")


def test_kserve_and_triton_clients_get_their_own_replies(server: LiveServer) -> None:
    with httpx.Client(base_url=server.url, timeout=120, trust_env=False) as http:
        path = f"/v2/repository/models/{NAME}"
        body = {"parameters": {"version": "2"}}
        row = {"name": NAME, "version": "2", "state": "READY", "reason": ""}
        assert http.post(f"{path}/load", json=body).json() == row
        assert http.get(f"/v2/models/{NAME}").json()["versions"] == ["2"]
        assert row in http.post("/v2/repository/index").json()
        reply = http.post(f"{path}/load")
        assert reply.status_code == 400
        assert "version 2 serves on" in reply.json()["error"]
        assert http.post(f"{path}/unload").json()["state"] == "UNAVAILABLE"
        assert http.get(f"/v2/models/{NAME}/ready").status_code == 404
        assert http.post(f"{path}/load", json=body).status_code == 200
        assert http.get(f"/v2/models/{NAME}/ready").json() == {"name": NAME, "ready": True}


def test_aliases_outlive_a_restart(folder: Path, server: LiveServer, tmp_path: Path) -> None:
    with make("rest", server) as client:
        client.set_aliases({"best": "minilm-l6", "answers": "oscar-mini"})
        before = client.embed(["a mill"], model="best")
        # As it would be found had the server been killed now.
        shutil.copytree(server.data_dir, tmp_path / "data")
        client.set_aliases({"best": None, "answers": None})
    with serving(folder / "models", tmp_path, "--no-samples") as then, make("rest", then) as client:
        np.testing.assert_array_equal(client.embed(["a mill"], model="best"), before)
        assert {model.name for model in client.models() if model.alias_of} == {"best", "answers"}
