"""Indexes of real encoders with prompts: what their passages and queries are embedded with."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from tests.unit.conftest import StandInRegistry
from tests.unit.index.conftest import database_of, to_format_4
from tests.unit.methods.distil.conftest import write_encoder

from condensery.errors import EncoderMismatch
from condensery.index import rebuilding
from condensery.index.store import IndexStore
from condensery.jobs import embed, indexes, maintenance, retrieval
from condensery.jobs.indexes import log_outdated_prompts
from condensery.jobs.services import Services
from condensery.metrics import Metrics
from condensery.runtime.encoder import Encoder
from condensery.runtime.workers import Workers
from condensery.store.manifest import Manifest, StoredModel
from condensery.values import AliasAction, Document, Floats, IndexPrompts, IndexSpec, Passage

# Of each encoder its prompts, what an index is made with today, and what it was made with before.
MODELS: dict[str, tuple[dict[str, str], IndexPrompts, IndexPrompts]] = {
    "nomic": (
        {"search_query": "the old ", "search_document": "stone of ", "clustering": "mill "},
        *(IndexPrompts("the old ", "stone of "), IndexPrompts("", "")),
    ),
    "corpus": (
        {"query": "the old ", "corpus": "stone of "},
        *(IndexPrompts("the old ", "stone of "), IndexPrompts("the old ", "")),
    ),
    "usual": (
        {"query": "the old ", "passage": "stone of "},
        *(IndexPrompts("the old ", "stone of "), IndexPrompts("the old ", "stone of ")),
    ),
    "plain": ({}, IndexPrompts("", ""), IndexPrompts("", "")),
}
TEXTS = {"a": "bread and grain", "b": "a bridge in town", "c": "new river market"}
DOCUMENTS = [Document(key, text) for key, text in TEXTS.items()]
QUERY = "a river in town"
OUTDATED = "index_prompts_outdated"  # in the log


class Gated:
    """A real encoder that holds back one text until it is let go."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.info, self.prompts = encoder.info, encoder.prompts
        self.default_prompt = encoder.default_prompt
        self.offsets = encoder.offsets
        self.holds: str | None = None
        self.asked: list[tuple[str, str]] = []
        self.entered, self.go_on = asyncio.Event(), asyncio.Event()

    async def embed(self, texts: Any, **options: Any) -> Any:
        self.asked += [(text, options["prompt"]) for text in texts]
        embedded = await self.encoder.embed(texts, **options)
        if self.holds in texts:
            self.holds = None
            self.entered.set()
            await self.go_on.wait()
        return embedded


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Encoder]]:
    folder = write_encoder(tmp_path_factory.mktemp("encoder"))
    workers = Workers(1)
    encoders = {}
    for name, (prompts, _, _) in MODELS.items():
        manifest = Manifest(
            name=name,
            kind="encoder",
            pooling="mean",
            max_tokens=64,
            prompts=prompts,
            files={"model.safetensors": "0" * 64},
        )
        encoders[name] = Encoder.load(StoredModel(manifest, folder), workers)
    yield encoders
    for encoder in encoders.values():
        encoder.close()
    workers.close()


@pytest.fixture
async def encoders(running: dict[str, Encoder]) -> dict[str, Gated]:
    return {name: Gated(encoder) for name, encoder in running.items()}


@contextmanager
def serving(encoders: dict[str, Gated], data_dir: Path) -> Iterator[Services]:
    metrics = Metrics()
    for name in encoders:
        metrics.prepare_model(name)
    with IndexStore(data_dir, metrics=metrics) as store:
        registry = StandInRegistry(cast(Any, encoders), {})
        yield Services(registry=cast(Any, registry), indexes=store, metrics=metrics)


@pytest.fixture
async def services(encoders: dict[str, Gated], tmp_path: Path) -> AsyncIterator[Services]:
    with serving(encoders, tmp_path) as made:
        yield made
        await made.rebuilds.close()


@contextmanager
def older(encoders: dict[str, Gated], data_dir: Path, *names: str) -> Iterator[Services]:
    """Serve indexes, named as their encoders, that a version made which did not keep prompts."""
    with IndexStore(data_dir) as store:
        for name in names:
            info = encoders[name].info
            own: dict[str, Any] = {"fingerprint": info.fingerprint, "dims": info.dims}
            store.create(name, IndexSpec(encoder=name, metric="ip", kind="flat", **own))
    for name in names:
        to_format_4(database_of(data_dir, name))
    with serving(encoders, data_dir) as made:
        yield made


def held(services: Services, name: str) -> dict[str, Floats]:
    """Each document's vector; each has one passage."""
    with cast(Any, services.indexes).find(name).read_transaction() as connection:
        rows = connection.execute(
            "SELECT d.id, vector FROM passages AS p JOIN documents AS d ON d.row = document "
            "JOIN vectors ON passage = p.row"
        )
        return {document_id: np.frombuffer(vector, "<f4") for document_id, vector in rows}


async def assert_embedded_with(services: Services, name: str, prompts: IndexPrompts) -> None:
    """Every passage has its vector with the prompt, and a query is asked with its own."""
    encoder = cast(Any, services.registry).encoders[services.indexes.info(name).encoder].encoder
    texts = {
        document.id: document.text
        for document in await indexes.get_documents(services, name, list(held(services, name)))
    }
    vectors = (await encoder.embed(list(texts.values()), prompt=prompts.passage)).vectors
    stored = held(services, name)
    for document_id, vector in zip(texts, vectors, strict=True):
        np.testing.assert_allclose(
            stored[document_id], vector, atol=1e-5, err_msg=f"{name} {document_id}"
        )
    asked = (await encoder.embed([QUERY], prompt=prompts.query)).vectors[0]
    hits = await retrieval.query_index(services, name, QUERY)
    scores = {
        document_id: float(vector @ asked)
        for document_id, vector in zip(texts, vectors, strict=True)
    }
    assert {hit.passage.document_id: hit.score for hit in hits} == pytest.approx(scores, abs=1e-4)


async def test_passages_and_queries_are_embedded_with_the_models_prompts(services, encoders):
    for name, (_, prompts, _) in MODELS.items():
        made = await indexes.create_index(services, name, encoder=name)
        await indexes.upsert_documents(services, name, DOCUMENTS)
        assert (made.prompts, made.prompts_outdated) == (prompts, False)
        await assert_embedded_with(services, name, prompts)
        # so that vectors which a client asks for by what they are for fit an index's own
        own = await embed.embed(services, [TEXTS["a"]], model=name, input_type="search_document")
        np.testing.assert_allclose(own.vectors[0], held(services, name)["a"], atol=1e-5)


async def test_the_prompts_make_a_difference_here(encoders):
    for name in ("nomic", "corpus", "usual"):
        _, now, _ = MODELS[name]
        vectors = [
            (await encoders[name].encoder.embed([QUERY], prompt=prompt)).vectors[0]
            for prompt in ("", now.query, now.passage)
        ]
        for left, right in ((0, 1), (0, 2), (1, 2)):
            assert np.abs(vectors[left] - vectors[right]).max() > 0.01


async def test_an_older_index_goes_on_as_it_was_and_a_rebuild_takes_the_prompts(
    encoders, tmp_path, caplog
):
    with older(encoders, tmp_path, *MODELS) as services:
        for name in MODELS:
            await indexes.upsert_documents(services, name, DOCUMENTS[:2])
    stale = {name for name, (_, now, before) in MODELS.items() if now != before}
    assert stale == {"nomic", "corpus"}
    with serving(encoders, tmp_path) as services:
        log_outdated_prompts(services)
        logged = [vars(record)["index"] for record in caplog.records if record.message == OUTDATED]
        assert logged == sorted(stale)
        for name, (_, now, before) in MODELS.items():
            await indexes.upsert_documents(
                services, name, DOCUMENTS[2:]
            )  # a new passage beside old ones
            await assert_embedded_with(services, name, before)
            again = await indexes.create_index(services, name, encoder=name)  # no error, as ever
            assert again == await indexes.get_index(services, name)
            assert again in await indexes.list_indexes(services)
            assert (again.prompts, again.prompts_outdated) == (before, name in stale)
            await maintenance.rebuild_index(services, name)
            assert (await until_over(services, name)).state == "done"
            rebuilt = await indexes.get_index(services, name)
            assert (rebuilt.prompts, rebuilt.prompts_outdated) == (now, False)
            await assert_embedded_with(services, name, now)
    caplog.clear()
    with serving(encoders, tmp_path) as services:
        log_outdated_prompts(services)
        assert OUTDATED not in [item.message for item in caplog.records]
        for name, (_, now, _) in MODELS.items():
            await assert_embedded_with(services, name, now)


async def until_over(services: Services, name: str) -> Any:
    async with asyncio.timeout(60):
        while (rebuild := await maintenance.get_rebuild(services, name)).state == "running":  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.005)
    return rebuild


async def test_what_is_embedded_while_a_rebuild_takes_the_prompts_never_mixes(encoders, tmp_path):
    _, now, _ = MODELS["nomic"]
    for what in ("dense", "hybrid", "upsert"):
        data_dir = tmp_path / what
        encoder = encoders["nomic"] = Gated(encoders["nomic"].encoder)
        late = Document("late", "a new stone mill")
        with older(encoders, data_dir, "nomic") as services:
            await indexes.upsert_documents(services, "nomic", DOCUMENTS)
            if what == "upsert":
                encoder.holds = late.text
                job = asyncio.create_task(indexes.upsert_documents(services, "nomic", [late]))
            else:
                encoder.holds = QUERY
                job = asyncio.create_task(
                    retrieval.query_index(services, "nomic", QUERY, mode=what)
                )
            await encoder.entered.wait()  # embedded without a prompt, and not yet used
            await maintenance.rebuild_index(services, "nomic")
            assert (await until_over(services, "nomic")).state == "done"
            encoder.go_on.set()
            hits = await job
            assert (
                encoder.asked[-1] == (late.text, now.passage)
                if what == "upsert"
                else (encoder.asked[-1] == (QUERY, now.query))
            )
            if what == "upsert":
                assert len(held(services, "nomic")) == len(DOCUMENTS) + 1
            else:
                again = await retrieval.query_index(services, "nomic", QUERY, mode=what)
                assert [(hit.passage.id, hit.score) for hit in hits] == [
                    (hit.passage.id, hit.score) for hit in again
                ]
            await assert_embedded_with(services, "nomic", now)


async def test_an_alias_and_a_snapshot_lead_to_an_indexs_own_prompts(encoders, tmp_path):
    _, now, before = MODELS["nomic"]
    with older(encoders, tmp_path, "nomic") as services:
        await indexes.upsert_documents(services, "nomic", DOCUMENTS)
        old = await maintenance.create_snapshot(services, "nomic")
        await maintenance.rebuild_index(services, "nomic")
        await until_over(services, "nomic")
        new = await maintenance.create_snapshot(services, "nomic")
        for into, snapshot, prompts in (("old", old, before), ("new", new, now)):
            made = await maintenance.restore_snapshot(services, "nomic", snapshot.id, into=into)
            assert (made.prompts, made.prompts_outdated) == (prompts, prompts != now)
            for target in (into, "live"):
                await maintenance.update_index_aliases(
                    services, [AliasAction("create", "live", into)]
                )
                await assert_embedded_with(services, target, prompts)
        await maintenance.restore_snapshot(services, "nomic", old.id)
        await assert_embedded_with(services, "nomic", before)


async def test_a_rebuild_that_an_older_version_began_is_begun_anew_with_the_prompts(
    encoders, tmp_path
):
    for name, (_, now, _) in MODELS.items():
        data_dir = tmp_path / name
        encoder = encoders[name] = Gated(encoders[name].encoder)
        with older(encoders, data_dir, name) as services:
            await indexes.upsert_documents(services, name, DOCUMENTS)
            encoder.holds = DOCUMENTS[0].text
            await maintenance.rebuild_index(services, name)
            await encoder.entered.wait()
            await services.rebuilds.close()
        path = data_dir / "indexes" / name / rebuilding.PLAN
        plan = json.loads(path.read_bytes())
        to_format_4(path.parent / plan["generation"] / "index.sqlite3")
        for prompt in ("query_prompt", "passage_prompt"):
            del plan["settings"][prompt]
        path.write_text(json.dumps(plan))
        with serving(encoders, data_dir) as services:
            await maintenance.resume_rebuilds(services)
            assert (await until_over(services, name)).state == "done"
            await assert_embedded_with(services, name, now)
            assert not path.exists()


async def test_the_indexs_prompts_count_not_those_that_the_encoder_has_by_now(services, encoders):
    await indexes.create_index(services, "kb", encoder="nomic")
    await indexes.upsert_documents(services, "kb", DOCUMENTS[:1])
    encoders["nomic"].prompts = {"search_query": "market ", "search_document": "market "}
    await indexes.upsert_documents(services, "kb", DOCUMENTS[1:])
    await assert_embedded_with(services, "kb", MODELS["nomic"][1])
    assert (await indexes.get_index(services, "kb")).prompts_outdated


async def test_prompts_of_an_encoder_that_is_gone_are_not_reported(encoders, tmp_path):
    with older(encoders, tmp_path, "nomic") as services:
        del cast(Any, services.registry).encoders["nomic"]
        info = await indexes.get_index(services, "nomic")
        assert (info.prompts, info.prompts_outdated) == (None, False)


async def test_vectors_embedded_for_other_prompts_are_refused_and_a_callers_own_are_not(services):
    await indexes.create_index(services, "kb", encoder="nomic")
    await indexes.upsert_documents(services, "kb", DOCUMENTS)
    own, store = services.indexes.info("kb"), services.indexes
    vector, document = held(services, "kb")["a"], DOCUMENTS[0]
    piece = Passage("a#0", "a", document.text, 0, len(document.text))
    written: Any = ("kb", [document], [piece], vector[None])
    made_by: dict[str, Any] = {"fingerprint": own.fingerprint}
    for prompts in (None, IndexPrompts("", ""), replace(MODELS["nomic"][1], query="")):
        other = replace(own, prompts=prompts)
        with pytest.raises(EncoderMismatch, match="other prompts"):
            store.upsert(*written, **made_by, embedded_for=other)
        with pytest.raises(EncoderMismatch, match="other prompts"):
            store.query("kb", vector, top_k=1, **made_by, embedded_for=other)
    store.upsert(*written, **made_by)
    hits = await retrieval.query_index(services, "kb", vector=vector, **made_by)
    assert hits[0].passage.document_id == "a"
