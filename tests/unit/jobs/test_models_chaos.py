"""Everything that models can undergo, at once and at random: real models, tiny."""

import asyncio
import gc
import os
import random
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.questions import make_question
from tests.unit.runtime.test_lifecycle import ENCODER, OTHER, PAIR, encoder, pair
from tiny_classifier import write_classifier

from condensery.errors import (
    CondenseryError,
    Conflict,
    EncoderMismatch,
    ModelFault,
    ModelInUse,
    ModelNotFound,
    ModelNotLoaded,
    RebuildNotFound,
    RebuildRunning,
)
from condensery.index.store import IndexStore
from condensery.jobs import indexes, maintenance, models, retrieval
from condensery.jobs.answer import answer_whole
from condensery.jobs.embed import embed
from condensery.jobs.rerank import rerank
from condensery.jobs.services import Services
from condensery.metrics import Metrics
from condensery.request_context import RequestContext, serving_request
from condensery.runtime import lifecycle
from condensery.runtime.classifier import Classifier
from condensery.runtime.encoder import Encoder
from condensery.runtime.loader import ModelLoader
from condensery.runtime.oscar import OscarModel
from condensery.runtime.registry import ModelRegistry
from condensery.store.aliases import ModelAliases
from condensery.store.importing import import_model
from condensery.store.store import ModelStore
from condensery.values import Document

SECONDS = float(os.environ.get("CHAOS_SECONDS", "4"))
SEEDS = [int(item) for item in os.environ.get("CHAOS_SEEDS", "1").split(",")]
CALM = "calm"  # an encoder that nobody touches
TEXTS = [f"the {what} of the {where} mill, {n}" for n in range(3) for what in ("bread", "stone")
         for where in ("old", "new")]  # fmt: skip
KINDS = (Encoder, OscarModel, Classifier)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ModelStore:
    """Encoders in two versions each, the third of the second cut off; a pair; a cross-encoder."""
    store = ModelStore(None, tmp_path_factory.mktemp("chaos") / "own")
    for seed, name in enumerate((ENCODER, ENCODER, OTHER, OTHER, OTHER, CALM)):
        encoder(store, name, seed=seed)
    (weights,) = (store.own / OTHER / "3").glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1])
    pair(store, seed=1)
    pair(store, seed=5)
    import_model(store, write_classifier(store.own.parent / "cross"), "cross")
    return store


class Chaos:
    """Callers that ask for anything, some of whom leave; and what must hold."""

    def __init__(self, services: Services, vectors: dict[str, dict[str, Any]], seed: int) -> None:
        self.services, self.vectors, self.draw = services, vectors, random.Random(seed)
        self.done: Counter[str] = Counter()
        # By index and document: what it may hold. Where a writer left, that is one text more.
        self.written: dict[tuple[str, str], set[str]] = {}
        self.doubt: dict[tuple[str, str], set[str]] = {}
        self.busy: set[tuple[str, str]] = set()
        self.acts: dict[Callable[[], Awaitable[None]], tuple[type[CondenseryError], ...]] = {
            self.embed_default: (),
            self.embed_any: (ModelNotFound,),
            self.embed_twice: (ModelNotFound,),
            self.rerank: (),
            self.answer: (ModelNotFound,),
            self.query_calm: (),
            self.query: (EncoderMismatch,),
            self.write_calm: (),
            self.write: (EncoderMismatch,),
            self.rebuild_calm: (),
            self.rebuild: (ModelNotFound, RebuildRunning),
            self.give_up: (RebuildNotFound,),
            self.load: (ModelNotLoaded, ModelNotFound),
            self.load_default: (ModelNotLoaded,),
            self.unload: (ModelNotFound, ModelInUse),
            self.alias: (ModelNotFound, Conflict),
            self.look: (),
        }

    async def run(self, seconds: float) -> None:
        clock = asyncio.get_running_loop().time
        until = clock() + seconds

        async def caller() -> None:  # a busy machine gets less done
            while clock() < until or not (self.done["load"] and self.done["left"]):
                await self.act()

        async with asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(caller())

    async def act(self) -> None:
        work, refusals = self.draw.choice(list(self.acts.items()))

        async def called() -> None:
            with serving_request(RequestContext()):
                await work()

        task = asyncio.create_task(called(), name=work.__name__)
        leaves = self.draw.random() < 0.3
        await asyncio.wait({task}, timeout=self.draw.random() * 0.05 if leaves else 60)
        if not task.done():
            assert leaves, f"{work.__name__} hangs"
            task.cancel()
            done, _ = await asyncio.wait({task}, timeout=60)
            assert done, f"{work.__name__} can't be left"
        if task.cancelled():
            self.done["left"] += 1
        elif task.exception() is None:
            self.done[work.__name__] += 1
        elif isinstance(task.exception(), refusals):
            self.done[f"{work.__name__} refused"] += 1
        else:
            raise AssertionError(f"{work.__name__} failed") from task.exception()

    async def embed_default(self) -> None:
        await self.embedded(None)

    async def embed_any(self) -> None:
        await self.embedded(self.draw.choice([OTHER, "best", CALM, ENCODER]))

    async def embed_twice(self) -> None:
        name = self.draw.choice([OTHER, "best", ENCODER])
        first = await self.embedded(name)
        await asyncio.sleep(self.draw.random() * 0.05)
        assert await self.embedded(name) == first

    async def embedded(self, name: str | None) -> str:
        texts = self.draw.sample(TEXTS, self.draw.randint(1, 6))
        embedded = await embed(self.services, texts, model=name)
        wanted = [self.vectors[embedded.fingerprint][text] for text in texts]
        np.testing.assert_allclose(embedded.vectors, wanted, atol=1e-5)
        return embedded.fingerprint

    async def rerank(self) -> None:
        assert len((await rerank(self.services, "mill", TEXTS[:4], model="cross")).items) == 4

    async def answer(self) -> None:
        some = [Document(text, text) for text in TEXTS[:2]]
        source: dict[str, Any] = (
            {"index": CALM} if self.draw.random() < 0.5 else {"documents": some}
        )
        asked = make_question("who is in the mill?", model=PAIR, max_tokens=4, top_k=2, **source)
        assert (await answer_whole(self.services, asked)).usage.completion_tokens

    async def query_calm(self) -> None:
        await self.query(CALM)

    async def query(self, index: str = "kb") -> None:
        text = self.draw.choice(TEXTS)
        hits = await retrieval.query_index(self.services, index, text, top_k=50)
        scores = [hit.score for hit in hits]
        ways = [
            [float(known[text] @ known[hit.passage.text]) for hit in hits]
            for known in self.vectors.values()
        ]
        assert any(np.allclose(scores, way, atol=1e-4) for way in ways), "of no one version"

    async def write_calm(self) -> None:
        await self.write(CALM)

    async def write(self, index: str = "kb") -> None:
        ids = [key for n in range(20) if (key := (index, f"d{n}")) not in self.busy]
        chosen = {item: self.draw.choice(TEXTS) for item in self.draw.sample(ids, min(4, len(ids)))}
        if not chosen:
            return
        self.busy |= set(chosen)  # one writer each: else nobody knows who was last
        documents = [Document(name, text) for (_, name), text in chosen.items()]
        try:
            await indexes.upsert_documents(self.services, index, documents)
            self.written |= {document_id: {text} for document_id, text in chosen.items()}
        except asyncio.CancelledError:
            for document_id, text in chosen.items():
                self.doubt.setdefault(document_id, set()).add(text)
            raise
        finally:
            self.busy -= set(chosen)

    async def rebuild_calm(self) -> None:
        await maintenance.rebuild_index(self.services, CALM)

    async def rebuild(self) -> None:
        name = self.draw.choice([ENCODER, OTHER, CALM])
        await maintenance.rebuild_index(self.services, "kb", encoder=name)

    async def give_up(self) -> None:
        await maintenance.cancel_rebuild(self.services, self.draw.choice(["kb", CALM]))

    async def load(self) -> None:
        name = self.draw.choice([OTHER, OTHER, PAIR, "cross", "nobody"])
        version = self.draw.choice([None, "1", "2", "3", "9"])
        await models.load_model(self.services, name, version, again=self.draw.random() < 0.3)

    async def load_default(self) -> None:
        version = self.draw.choice(["1", "2"])
        await models.load_model(self.services, ENCODER, version, again=self.draw.random() < 0.3)

    async def unload(self) -> None:
        name = self.draw.choice([OTHER, PAIR, "best"])
        await models.unload_model(self.services, name, force=self.draw.random() < 0.6)

    async def alias(self) -> None:
        to = self.draw.choice([None, None, OTHER, ENCODER, "second", "nobody"])
        await models.set_model_aliases(
            self.services, {self.draw.choice(["best", "best", "second", OTHER]): to}
        )

    async def look(self) -> None:
        await models.list_versions(self.services)
        for model in models.list_models(self.services):
            assert model.name

    async def settled(self) -> None:
        """Wait until all that goes on by itself is over."""
        registry, runs = self.services.registry, self.services.rebuilds
        async with asyncio.timeout(60):
            while (  # noqa: ASYNC110 - it has no event
                registry.lifecycle._tasks
                or runs._changes
                or any(run.state == "running" for run in runs.runs.values())
            ):
                await asyncio.sleep(0.01)

    def check_index(self, name: str) -> None:
        """Every vector is one of the index's encoder, and what was acknowledged is there."""
        index = self.services.indexes.find(name)
        with index.read_transaction() as connection:
            rows = connection.execute(
                "SELECT d.id, d.text, vector FROM passages AS p "
                "JOIN documents AS d ON d.row = document JOIN vectors ON passage = p.row"
            ).fetchall()
        assert len(rows) == index.info.passages
        known = self.vectors[index.info.fingerprint]
        for _, text, vector in rows:
            np.testing.assert_allclose(np.frombuffer(vector, "<f4"), known[text], atol=1e-5)
        held = {(name, document_id): text for document_id, text, _ in rows}
        for key, texts in self.written.items():
            if key[0] == name:
                assert held[key] in texts | self.doubt.get(key, set())


def alive() -> int:
    gc.collect()
    return sum(type(item) in KINDS for item in gc.get_objects())


async def vectors_of(store: ModelStore, registry: ModelRegistry) -> dict[str, dict[str, Any]]:
    """Return each version's vector of each text, by the version's fingerprint."""
    by_fingerprint = {}
    for name, version in ((ENCODER, "1"), (OTHER, "1"), (CALM, "1"), (ENCODER, "2"), (OTHER, "2")):
        await registry.lifecycle.load(name, version)
        embedded = await registry.encoder(name).embed(TEXTS)
        by_fingerprint[embedded.fingerprint] = dict(zip(TEXTS, embedded.vectors, strict=True))
    assert len(by_fingerprint) == 5
    return by_fingerprint


@pytest.fixture
def harm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let a share of the loads fail, for want of memory and when they are tried."""
    draw, opened, prove = random.Random(7), ModelLoader.open, lifecycle.self_test

    def open_(self: ModelLoader, stored: Any) -> Any:
        if draw.random() < 0.1:
            raise MemoryError
        return opened(self, stored)

    async def prove_(model: Any) -> None:
        await prove(model)
        if draw.random() < 0.1:
            raise ModelFault("it is not the same twice")

    monkeypatch.setattr(ModelLoader, "open", open_)
    monkeypatch.setattr(lifecycle, "self_test", prove_)
    yield
    monkeypatch.undo()


@pytest.mark.parametrize("seed", SEEDS)
async def test_models_come_and_go_under_all_kinds_of_requests_and_nothing_breaks(
    store: ModelStore, tmp_path: Path, seed: int, request: pytest.FixtureRequest
) -> None:
    before = alive()
    registry = ModelRegistry.load(
        *(store,),
        device=torch.device("cpu"),
        dtype=torch.float32,
        workers=2,
        aliases=ModelAliases(tmp_path / "aliases.json"),
        drain_seconds=60,
        metrics=(metrics := Metrics()),
    )
    with IndexStore(tmp_path / "data") as held:
        services = Services(registry=registry, indexes=held, metrics=metrics)
        models.watch_models(services)
        chaos = Chaos(services, await vectors_of(store, registry), seed)
        await indexes.create_index(services, "kb", encoder=ENCODER)
        await indexes.create_index(services, CALM, encoder=CALM)
        threads = threading.active_count()
        request.getfixturevalue("harm")
        await chaos.run(SECONDS)
        await chaos.settled()
        for name in ("kb", CALM):
            chaos.check_index(name)
        states = registry.lifecycle.states
        assert not states.loading
        assert not states.leaving
        assert ModelAliases(tmp_path / "aliases.json").targets == registry.aliases.targets
        assert all(item._users == 0 for item in registry._serving.values())
        assert alive() - before == len(registry.models()), "what went is still held"
        queues = sum(2 if info.kind == "oscar-pair" else 1 for info in registry.models())
        assert sum(len(team._sources) for team in registry.workers) == queues
        assert threading.active_count() <= threads + 16  # asyncio's own, which stay
        served = {info.name for info in registry.models()}
        assert all(registry.aliases.resolve(alias) in served for alias in registry.aliases.targets)
        await services.rebuilds.close()
    registry.close()
    print(sum(chaos.done.values()), sorted(chaos.done.items()))
