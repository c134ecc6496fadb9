"""A rebuild, and an encoder that goes or changes under it: real encoders, tiny."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.runtime.test_lifecycle import ENCODER, OTHER, encoder

from condensery.errors import ModelFault, ModelInUse, Overloaded, RebuildNotFound
from condensery.index.maintenance import IndexMaintenance
from condensery.index.rebuilding import Rebuilding
from condensery.index.store import IndexStore
from condensery.jobs import indexes, maintenance, models, retrieval
from condensery.jobs.services import RequestLimits, Services
from condensery.metrics import Metrics
from condensery.request_context import RequestContext, serving_request
from condensery.runtime.registry import ModelRegistry
from condensery.store.store import ModelStore
from condensery.values import Document, Rebuild


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    """A default encoder, and another of which two versions are stored."""
    store = ModelStore(None, tmp_path / "own")
    encoder(store, ENCODER, seed=0)
    encoder(store, OTHER, seed=1)
    return store


@pytest.fixture
def real(store: ModelStore, tmp_path: Path) -> Iterator[Services]:
    """Services whose encoders compute, with an index of 100 documents of the default one."""
    registry = ModelRegistry.load(
        store, device=torch.device("cpu"), dtype=torch.float32, workers=1, drain_seconds=60
    )
    with IndexStore(tmp_path / "data") as held:
        services = Services(
            registry=registry, indexes=held, metrics=Metrics(), limits=RequestLimits()
        )
        models.watch_models(services)
        yield services
    registry.close()


@pytest.fixture
async def kb(real: Services) -> str:
    await indexes.create_index(real, "kb", encoder=ENCODER)
    await indexes.upsert_documents(
        real, "kb", [Document(f"d{n}", f"number {n}") for n in range(100)]
    )
    return "kb"


class Gate:
    """Holds threads where it is put."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()

    def before(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def held(*args: Any, **kwargs: Any) -> Any:
            self.reached.set()
            assert self.open.wait(60)
            return work(*args, **kwargs)

        return held


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


async def until(so: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not so():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)


async def until_over(services: Services) -> Rebuild:
    await until(lambda: services.rebuilds.runs["kb"].state != "running")
    return await maintenance.get_rebuild(services, "kb")


async def rebuild_as_far_as(gate: Gate, services: Services, patch: pytest.MonkeyPatch) -> None:
    """Begin to rebuild with the other encoder, and return once it stands before the gate."""
    patch.setattr(Rebuilding, "write", gate.before(Rebuilding.write))
    await maintenance.rebuild_index(services, "kb", encoder=OTHER)
    await until(gate.reached.is_set)


async def test_an_encoder_that_a_rebuild_needs_is_kept_or_taken_from_it_at_once(
    real: Services, kb: str, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = weakref.ref(real.registry.encoder(OTHER))
    with monkeypatch.context() as patch:
        await rebuild_as_far_as(gate, real, patch)
        with pytest.raises(ModelInUse, match="kb is being rebuilt for it"):
            await models.unload_model(real, OTHER)
        async with asyncio.timeout(30):  # and not until the rebuild, or the time to drain, is over
            await models.unload_model(real, OTHER, force=True)
        gc.collect()
        assert old() is None, "its memory is not given back"
        gate.open.set()
        failed = await until_over(real)
    assert failed.state == "failed"
    assert f"model {OTHER!r} is stored, and not loaded" in (failed.reason or "")
    assert real.indexes.info("kb").encoder == ENCODER
    assert len(await retrieval.query_index(real, "kb", "number 7")) == 10
    left = failed.pending
    await models.load_model(real, OTHER)
    assert 0 < (await maintenance.rebuild_index(real, "kb", encoder=OTHER)).pending <= left
    assert (await until_over(real)).state == "done"
    assert real.indexes.info("kb").encoder == OTHER
    assert len(await retrieval.query_index(real, "kb", "number 7")) == 10


async def test_another_version_ends_a_rebuild_and_never_the_index_that_serves(
    real: Services, store: ModelStore, kb: str, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = weakref.ref(real.registry.encoder(OTHER))
    with monkeypatch.context() as patch:
        await rebuild_as_far_as(gate, real, patch)
        encoder(store, OTHER, seed=7)
        await models.load_model(real, OTHER)
        await until(
            lambda: not real.registry.lifecycle._tasks
        )  # it drains though the rebuild goes on
        gc.collect()
        assert old() is None, "the old version's memory is not given back"
        gate.open.set()
        failed = await until_over(real)
    assert failed.state == "failed"
    assert "the one that runs has" in (failed.reason or "")
    assert real.indexes.info("kb").encoder == ENCODER
    assert len(await retrieval.query_index(real, "kb", "number 7")) == 10
    await models.load_model(real, OTHER, "1")
    await maintenance.rebuild_index(real, "kb", encoder=OTHER)
    assert (await until_over(real)).state == "done", "it goes on where it was"
    assert len(await retrieval.query_index(real, "kb", "number 7")) == 10


async def test_another_version_at_the_very_end_does_not_get_an_index_of_the_old_one(
    real: Services, store: ModelStore, kb: str, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Rebuilding, "sample", gate.before(Rebuilding.sample))
    await maintenance.rebuild_index(real, "kb", encoder=OTHER)
    await until(gate.reached.is_set)
    assert real.rebuilds.runs["kb"].pending == 0
    encoder(store, OTHER, seed=7)
    await models.load_model(real, OTHER)
    gate.open.set()
    assert (await until_over(real)).state == "failed"
    assert len(await retrieval.query_index(real, "kb", "number 7")) == 10


async def test_the_same_version_loaded_again_does_not_end_a_rebuild(
    real: Services, kb: str, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Rebuilding, "write", gate.before(Rebuilding.write))
    await maintenance.rebuild_index(real, "kb", encoder=OTHER)
    await until(gate.reached.is_set)
    await models.load_model(real, OTHER, again=True)
    gate.open.set()
    assert (await until_over(real)).state == "done"


async def test_a_version_loaded_between_a_querys_embedding_and_its_search_changes_nothing(
    real: Services, store: ModelStore, kb: str, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = await retrieval.query_index(real, "kb", "number 7")
    monkeypatch.setattr(IndexStore, "query", gate.before(IndexStore.query))

    async def ask() -> Any:
        with serving_request(RequestContext()):
            return await retrieval.query_index(real, "kb", "number 7")

    asked = asyncio.create_task(ask())
    await until(gate.reached.is_set)
    encoder(store, ENCODER, seed=7)
    assert (await models.load_model(real, ENCODER)).stranded_indexes == ("kb",)
    gate.open.set()
    assert await asked == wanted


async def test_a_rebuild_is_begun_or_cancelled_whole_though_its_caller_has_gone(
    services: Services, registry: Any, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    await indexes.create_index(services, "kb")
    await indexes.upsert_documents(
        services, "kb", [Document(f"d{n}", f"number {n}") for n in range(40)]
    )
    registry.encoders["other"].delay = 0.2
    with monkeypatch.context() as patch:
        patch.setattr(IndexMaintenance, "rebuild", gate.before(IndexMaintenance.rebuild))
        asked = asyncio.create_task(maintenance.rebuild_index(services, "kb", encoder="other"))
        await until(gate.reached.is_set)
        asked.cancel()
        gate.open.set()
        await asyncio.wait({asked})
        await until(lambda: "kb" in services.rebuilds.runs)
    assert (await maintenance.get_rebuild(services, "kb")).state == "running"

    last = Gate()
    monkeypatch.setattr(
        IndexMaintenance, "cancel_rebuild", last.before(IndexMaintenance.cancel_rebuild)
    )
    asked = asyncio.create_task(maintenance.cancel_rebuild(services, "kb"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    asked.cancel()
    last.open.set()
    await asyncio.wait({asked})
    async with asyncio.timeout(30):
        while services.indexes.maintenance.unfinished_rebuilds():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    with pytest.raises(RebuildNotFound):
        await maintenance.get_rebuild(services, "kb")


async def test_writes_do_not_wait_for_a_rebuild_that_waits_for_room(
    services: Services, registry: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "FINAL_STEPS", 0)  # writes wait for it from the start
    await indexes.create_index(services, "kb")
    await indexes.upsert_documents(services, "kb", [Document("a", "some text")])
    registry.encoders["other"].fails = Overloaded("full", retry_after_seconds=0.2)
    await maintenance.rebuild_index(services, "kb", encoder="other")
    await asyncio.sleep(0.05)
    async with asyncio.timeout(10):
        await indexes.upsert_documents(services, "kb", [Document("b", "more text")])
    assert services.rebuilds.runs["kb"].state == "running"
    registry.encoders["other"].fails = None
    assert (await until_over(services)).state == "done"
    assert services.indexes.info("kb").documents == 2


async def test_an_old_encoder_that_fails_costs_a_rebuild_its_figure_only(
    services: Services, registry: Any
) -> None:
    await indexes.create_index(services, "kb")
    await indexes.upsert_documents(services, "kb", [Document("a", "some text")])
    registry.encoders["words"].fails = ModelFault("a vector came out non-finite")
    await maintenance.rebuild_index(services, "kb", encoder="other")
    done = await until_over(services)
    assert (done.state, done.overlap) == ("done", None)


async def test_a_hybrid_query_never_mixes_passages_of_an_index_and_of_its_rebuild(
    services: Services, registry: Any, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two may split a document in other places: text would be found twice."""
    other = registry.encoders["other"]
    other.info = replace(other.info, max_tokens=6)  # shorter passages than the first one's
    await indexes.create_index(services, "kb")
    text = " ".join(f"Sentence {n} of it." for n in range(8))
    await indexes.upsert_documents(services, "kb", [Document("a", text)])
    query, query_words = IndexStore.query, gate.before(IndexStore.query)

    def query_gated(store: IndexStore, name: str, asked: Any, **options: Any) -> Any:
        return (query_words if isinstance(asked, str) else query)(store, name, asked, **options)

    monkeypatch.setattr(IndexStore, "query", query_gated)
    asked = asyncio.create_task(retrieval.query_index(services, "kb", "Sentence 3", mode="hybrid"))
    await until(gate.reached.is_set)
    await maintenance.rebuild_index(services, "kb", encoder="other")
    assert (await until_over(services)).state == "done"
    gate.open.set()
    passages = {hit.passage.id: hit.passage for hit in await asked}
    now = {
        hit.passage.id: hit.passage
        for hit in await retrieval.query_index(services, "kb", "x", top_k=50)
    }
    assert passages == {item: now[item] for item in passages}
