"""An index is made anew for another encoder, and nobody who asks or writes notices."""

import asyncio
import random
import shutil
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.conftest import StandInEncoder, StandInRegistry, info, vector_of
from tests.unit.index.lives import live

from condensery.errors import (
    IndexNotFound,
    InputError,
    ModelFault,
    ModelNotFound,
    Overloaded,
    RebuildNotFound,
    RebuildRunning,
    TextsMissing,
)
from condensery.index import changes, generations
from condensery.index.store import IndexStore
from condensery.jobs import indexes, maintenance, retrieval
from condensery.jobs.services import Services
from condensery.metrics import Metrics
from condensery.values import AliasAction, Document, IndexSpec


def document(number: int, version: int = 0) -> Document:
    return Document(f"d{number}", f"number {number} as of {version}", {"version": version})


@pytest.fixture
async def kb(services):
    """An index of 100 documents, of encoder words."""
    await indexes.create_index(services, "kb")
    for start in (0, 50):
        await indexes.upsert_documents(
            services, "kb", [document(n) for n in range(start, start + 50)]
        )
    return "kb"


async def until_over(services: Services, name: str = "kb") -> Any:
    async with asyncio.timeout(120):
        while (rebuild := await maintenance.get_rebuild(services, name)).state == "running":  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.005)
    return rebuild


def held(services: Services, name: str = "kb") -> dict[str, str]:
    """Each document's text."""
    with services.indexes.find(name).read_transaction() as connection:
        return dict(connection.execute("SELECT id, text FROM documents"))


def assert_whole(services: Services, wanted: dict[str, str], name: str = "kb") -> None:
    """What is wanted is there, once, and each vector is that of its passage's text."""
    assert held(services, name) == wanted
    index = services.indexes.find(name)
    with index.read_transaction() as connection:
        rows = connection.execute(
            "SELECT text, start_char, end_char, vector FROM passages AS p "
            "JOIN documents AS d ON d.row = document JOIN vectors ON passage = p.row"
        ).fetchall()
        assert not changes.begun(connection)
    assert len(rows) == index.info.passages >= len(wanted)
    for text, start, end, vector in rows:
        np.testing.assert_array_equal(np.frombuffer(vector, "<f4"), vector_of(text[start:end]))
    assert index._vector_index.cache.live == len(rows)


def texts_of(*documents: Document) -> dict[str, str]:
    return {document.id: document.text for document in documents}


async def test_the_new_encoder_takes_over_and_all_is_there(services, kb, tmp_path):
    began = await maintenance.rebuild_index(
        services, "kb", encoder="other", kind="hnsw", metric="l2", options={"m": 8}
    )
    assert (began.state, began.encoder, began.documents) == ("running", "other", 100)
    done = await until_over(services)
    assert (done.state, done.pending, done.reason) == ("done", 0, None)
    assert done.overlap == 1.0  # both stand-ins give a text the same vector
    assert done.ended is not None
    now = services.indexes.info("kb")
    assert services.indexes.find("kb").spec.options == {"m": 8}
    assert (now.encoder, now.fingerprint, now.kind, now.metric) == (
        *("other", "sha256:other"),
        *("hnsw", "l2"),
    )
    assert_whole(services, texts_of(*(document(n) for n in range(100))))
    (hit, *_) = await retrieval.query_index(services, "kb", "number 7 as of 0")
    assert hit.passage.document_id == "d7"
    assert hit.passage.metadata == {"version": 0}
    services.indexes.close()
    with IndexStore(tmp_path) as again:
        assert again.info("kb") == now
        assert {path.name for path in (tmp_path / "indexes" / "kb").iterdir()} == {
            "current",
            again.find("kb").directory.name,
        }


async def test_writes_while_it_runs_are_in_the_new_one_and_queries_never_fail(
    services, registry, kb
):
    registry.encoders["other"].delay = 0.02
    wanted = texts_of(*(document(n) for n in range(100)))
    draw = random.Random(4)
    stop = asyncio.Event()
    asked = written = 0

    async def ask() -> None:
        nonlocal asked
        while not stop.is_set():
            hits = await retrieval.query_index(services, "kb", "number 3 as of 0", top_k=5)
            assert len(hits) == 5
            asked += 1
            await asyncio.sleep(0)

    async def write() -> None:
        nonlocal written
        while not stop.is_set():
            written += 1
            some = draw.sample(range(120), 3)
            if draw.random() < 0.3:
                await indexes.delete_documents(services, "kb", [f"d{n}" for n in some])
                for n in some:
                    wanted.pop(f"d{n}", None)
            else:
                batch = [document(n, written) for n in some]
                await indexes.upsert_documents(services, "kb", batch)
                wanted.update(texts_of(*batch))
            await asyncio.sleep(0.002)

    others = [asyncio.create_task(ask()), asyncio.create_task(write())]
    await asyncio.sleep(0.05)
    await maintenance.rebuild_index(services, "kb", encoder="other")
    before = written
    done = await until_over(services)
    during = written - before
    await asyncio.sleep(0.05)
    stop.set()
    await asyncio.gather(*others)
    assert done.state == "done", done.reason
    assert during > 3
    assert asked > 3
    assert services.indexes.info("kb").encoder == "other"
    assert_whole(services, wanted)


async def test_who_writes_all_the_time_does_not_keep_it_from_ending(services, registry, kb):
    registry.encoders["other"].delay = 0.01
    stop = asyncio.Event()
    wanted = texts_of(*(document(n) for n in range(100)))

    async def write(part: int) -> None:
        version = 0
        while not stop.is_set():
            version += 1
            batch = [document(n, version) for n in range(part, part + 20)]
            await indexes.upsert_documents(services, "kb", batch)
            wanted.update(texts_of(*batch))

    writers = [asyncio.create_task(write(part)) for part in (0, 20, 40)]
    await maintenance.rebuild_index(services, "kb", encoder="other")
    assert (await until_over(services)).state == "done"
    stop.set()
    await asyncio.gather(*writers)
    assert_whole(services, wanted)


async def test_it_goes_on_where_it_was_after_a_start(services, registry, kb, tmp_path):
    registry.encoders["other"].delay = 0.05
    await maintenance.rebuild_index(services, "kb", encoder="other")
    async with asyncio.timeout(60):
        while (await maintenance.get_rebuild(services, "kb")).pending > 70:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    await services.rebuilds.close()
    services.indexes.close()
    registry.encoders["other"].asked.clear()
    registry.encoders["other"].delay = 0
    with IndexStore(tmp_path) as store:
        again = Services(
            registry=registry, indexes=store, metrics=services.metrics, limits=services.limits
        )
        await indexes.upsert_documents(again, "kb", [document(1, 5)])  # before it goes on
        await maintenance.resume_rebuilds(again)
        done = await until_over(again)
        assert (done.state, done.documents) == ("done", 100)
        made = [text for text, prompt, _ in registry.encoders["other"].asked if not prompt]
        assert 0 < len(made) < 100
        assert_whole(again, texts_of(*(document(n) for n in range(100)), document(1, 5)))


async def test_it_can_be_cancelled_and_begun_again(services, registry, kb, tmp_path):
    registry.encoders["other"].delay = 0.05
    await maintenance.rebuild_index(services, "kb", encoder="other")
    await asyncio.sleep(0.1)
    await maintenance.cancel_rebuild(services, "kb")
    with pytest.raises(RebuildNotFound, match="'kb' is not being rebuilt"):
        await maintenance.get_rebuild(services, "kb")
    with pytest.raises(RebuildNotFound):
        await maintenance.cancel_rebuild(services, "kb")
    assert services.indexes.info("kb").encoder == "words"
    assert not list((tmp_path / "indexes" / "kb").glob("gen-*"))
    assert_whole(services, texts_of(*(document(n) for n in range(100))))
    registry.encoders["other"].delay = 0
    await maintenance.rebuild_index(services, "kb", encoder="other")
    assert (await until_over(services)).state == "done"


async def test_what_can_not_be_rebuilt_is_refused(services, registry, kb):
    with pytest.raises(ModelNotFound, match="nobody"):
        await maintenance.rebuild_index(services, "kb", encoder="nobody")
    with pytest.raises(IndexNotFound):
        await maintenance.rebuild_index(services, "nowhere", encoder="other")
    with pytest.raises(InputError, match="kind: 'tree'"):
        await maintenance.rebuild_index(services, "kb", kind="tree")
    with pytest.raises(InputError, match=r"options\.m: unknown option; kind flat"):
        await maintenance.rebuild_index(services, "kb", options={"m": 8})
    with pytest.raises(InputError, match="metric: 'cosine'"):
        await maintenance.rebuild_index(services, "kb", metric="cosine")
    registry.encoders["other"].gate = asyncio.Event()
    began = await maintenance.rebuild_index(services, "kb", encoder="other")
    again = await maintenance.rebuild_index(services, "kb", encoder="other")
    assert again.began == began.began
    with pytest.raises(RebuildRunning, match="for encoder 'other'"):
        await maintenance.rebuild_index(services, "kb", encoder="words")
    made = await maintenance.create_snapshot(services, "kb")
    with pytest.raises(RebuildRunning, match="cancel"):
        await maintenance.restore_snapshot(services, "kb", made.id)
    await maintenance.cancel_rebuild(services, "kb")
    registry.encoders["other"].gate = None
    await indexes.upsert_documents(
        services, "kb", [Document("bare", "")], vectors=vector_of("x")[None],
        fingerprint="sha256:words",
    )  # fmt: skip
    with pytest.raises(TextsMissing, match="'bare' for one"):
        await maintenance.rebuild_index(services, "kb", encoder="other")
    assert services.indexes.info("kb").documents == 101


async def test_a_text_that_goes_missing_meanwhile_ends_it_and_nothing_is_lost(
    services, registry, kb
):
    registry.encoders["other"].gate = gate = asyncio.Event()
    await maintenance.rebuild_index(services, "kb", encoder="other")
    await indexes.upsert_documents(
        services, "kb", [Document("bare", "")], vectors=vector_of("x")[None],
        fingerprint="sha256:words",
    )  # fmt: skip
    gate.set()
    failed = await until_over(services)
    assert failed.state == "failed"
    assert "'bare' for one" in failed.reason
    assert services.indexes.info("kb").documents == 101
    await indexes.delete_documents(services, "kb", ["bare"])
    await maintenance.rebuild_index(services, "kb", encoder="other")
    assert (await until_over(services)).state == "done"
    assert services.indexes.info("kb").documents == 100


async def test_a_fault_ends_it_with_its_reason_and_it_goes_on_when_asked(services, registry, kb):
    registry.encoders["other"].fails = ModelFault("a vector came out non-finite")
    await maintenance.rebuild_index(services, "kb", encoder="other")
    failed = await until_over(services)
    assert (failed.state, failed.reason) == ("failed", "a vector came out non-finite")
    assert services.indexes.info("kb").encoder == "words"
    await indexes.upsert_documents(services, "kb", [document(200)])
    registry.encoders["other"].fails = None
    await maintenance.rebuild_index(services, "kb", encoder="other")
    assert (await until_over(services)).state == "done"
    assert_whole(services, texts_of(*(document(n) for n in (*range(100), 200))))


async def test_it_makes_way_where_the_server_is_full(services, registry, kb):
    encoder = registry.encoders["other"]
    encoder.fails = Overloaded("full", retry_after_seconds=0.01)
    await maintenance.rebuild_index(services, "kb", encoder="other")
    await asyncio.sleep(0.1)
    assert (await maintenance.get_rebuild(services, "kb")).state == "running"
    encoder.fails = None
    assert (await until_over(services)).state == "done"


async def test_a_disk_that_refuses_the_swap_leaves_the_old_one(services, kb, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(28, "refused")

    with monkeypatch.context() as patch:
        patch.setattr(generations, "replace_atomically", refuse)
        await maintenance.rebuild_index(services, "kb", encoder="other")
        failed = await until_over(services)
    assert failed.state == "failed"
    assert "is full" in failed.reason
    assert services.indexes.info("kb").encoder == "words"
    await indexes.upsert_documents(services, "kb", [document(3, 9)])
    await maintenance.rebuild_index(services, "kb", encoder="other")
    assert (await until_over(services)).state == "done"
    assert_whole(services, texts_of(*(document(n) for n in range(100)), document(3, 9)))


async def test_an_index_dropped_meanwhile_ends_it(services, registry, kb, tmp_path):
    registry.encoders["other"].delay = 0.05
    await maintenance.rebuild_index(services, "kb", encoder="other")
    await asyncio.sleep(0.06)
    await indexes.drop_index(services, "kb")
    assert services.rebuilds.runs == {}
    assert [path.name for path in (tmp_path / "indexes").iterdir()] == []
    await indexes.create_index(services, "kb")
    await indexes.upsert_documents(services, "kb", [document(1)])
    assert_whole(services, texts_of(document(1)))


async def test_an_encoder_that_changed_can_not_go_on(services, registry, kb, tmp_path):
    registry.encoders["other"].delay = 0.05
    await maintenance.rebuild_index(services, "kb", encoder="other")
    await services.rebuilds.close()
    changed = info("other", "encoder")
    object.__setattr__(changed, "fingerprint", "sha256:new")
    registry.encoders["other"].info = changed
    await maintenance.resume_rebuilds(services)
    failed = await maintenance.get_rebuild(services, "kb")
    assert failed.state == "failed"
    assert "sha256:other; the one that runs has sha256:new" in failed.reason
    with pytest.raises(RebuildRunning, match="cancel"):
        await maintenance.rebuild_index(services, "kb", encoder="other")
    await maintenance.cancel_rebuild(services, "kb")
    registry.encoders["other"].delay = 0
    await maintenance.rebuild_index(services, "kb", encoder="other")
    assert (await until_over(services)).state == "done"
    assert services.indexes.info("kb").fingerprint == "sha256:new"


async def test_an_index_whose_encoder_is_gone_gets_one_that_runs(services, registry, kb):
    await maintenance.update_index_aliases(services, [AliasAction("create", "live", "kb")])
    del registry.encoders["words"]
    done = await maintenance.rebuild_index(services, "live", encoder="other")
    assert done.index == "kb"
    done = await until_over(services, "live")
    assert (done.state, done.overlap) == ("done", None)
    assert len(await retrieval.query_index(services, "live", "number 3 as of 0")) == 10


async def test_a_plan_that_can_not_be_read_is_forgotten(services, registry, kb, tmp_path):
    registry.encoders["other"].delay = 0.05
    await maintenance.rebuild_index(services, "kb", encoder="other")
    await services.rebuilds.close()
    services.indexes.close()
    (tmp_path / "indexes" / "kb" / "rebuild.json").write_text("{")
    with IndexStore(tmp_path) as store:
        assert store.maintenance.unfinished_rebuilds() == []
        with store.find("kb").read_transaction() as connection:
            assert not changes.begun(connection)
    assert sorted(path.name for path in (tmp_path / "indexes" / "kb").iterdir()) == [
        "index.sqlite3",
        "vectors.faiss",
    ]


def rebuild_and_write(data_dir: Path, say: Any, seed: int) -> None:
    asyncio.run(_rebuild_and_write(data_dir, say, seed))


async def _rebuild_and_write(data_dir: Path, say: Any, seed: int) -> None:
    """Go on with what was begun, or begin it; write all the while; then begin the next."""
    draw = random.Random(seed)
    encoders = {name: StandInEncoder(info(name, "encoder")) for name in ("words", "other")}
    with IndexStore(data_dir) as store:
        services = Services(
            registry=StandInRegistry(encoders, {}), indexes=store, metrics=Metrics()
        )
        await maintenance.resume_rebuilds(services)
        say("ready")
        for number in range(10_000):
            run = services.rebuilds.runs.get("kb")
            assert run is None or run.state != "failed", run
            if run is None or run.state == "done":
                say("turn")
                now = store.info("kb").encoder
                wanted = "other" if now == "words" else "words"
                await maintenance.rebuild_index(services, "kb", encoder=wanted)
            some = draw.sample(range(60), 3)
            version = seed * 10_000 + number
            if draw.random() < 0.3:
                say("delete", version, *some)
                await indexes.delete_documents(services, "kb", [f"d{n}" for n in some])
            else:
                say("upsert", version, *some)
                await indexes.upsert_documents(services, "kb", [document(n, version) for n in some])
            say("done")
            await asyncio.sleep(0.002)


def after(state: dict[str, str], line: str) -> dict[str, str]:
    verb, version, *some = line.split()
    if verb == "delete":
        return {
            document_id: text for document_id, text in state.items() if document_id[1:] not in some
        }
    return state | texts_of(*(document(int(n), int(version)) for n in some))


def test_kills_lose_no_write_and_leave_one_index_or_the_other(tmp_path: Path) -> None:
    with IndexStore(tmp_path) as store:
        known = {"fingerprint": "sha256:words", "dims": 8, "metric": "ip", "kind": "flat"}
        store.create("kb", IndexSpec(encoder="words", **known))
    state: dict[str, str] = {}
    turns = writes = 0
    draw = random.Random(2)
    for seed in range(10):
        lines = live(
            *(rebuild_and_write, tmp_path, seed),
            after=draw.randint(2, 90),
            wait=draw.uniform(0, 0.02),
        )
        doubt = None
        for line in lines:
            verb = line.split()[0]
            turns += verb == "turn"
            if verb == "done":
                assert doubt is not None
                state, doubt, writes = after(state, doubt), None, writes + 1
            elif verb in ("upsert", "delete"):
                doubt = line
        copy = tmp_path.with_name(f"{tmp_path.name}-{seed}")
        shutil.copytree(tmp_path, copy)  # the next life goes on with what this one left
        with IndexStore(copy) as store:
            current = generations.current(copy / "indexes" / "kb") / "index.sqlite3"
            with closing(sqlite3.connect(current)) as connection:
                stored = dict(connection.execute("SELECT id, text FROM documents"))
            wanted = [state] if doubt is None else [state, after(state, doubt)]
            assert stored in wanted, f"life {seed}"
            state = stored
            assert store.count("kb") == (len(state), store.find("kb")._vector_index.cache.live)
    assert turns > 3
    assert writes > 20


async def cut_short(job: Any, *, at: Any) -> None:
    """Cancel a call while one of its threads runs ``at``; the thread goes on."""
    entered, go_on = threading.Event(), threading.Event()
    holder, name = at
    real = getattr(holder, name)

    def slow(*args: Any, **options: Any) -> Any:
        entered.set()
        go_on.wait(10)
        return real(*args, **options)

    setattr(holder, name, slow)
    task = asyncio.create_task(job)
    await asyncio.to_thread(entered.wait, 10)
    setattr(holder, name, real)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    go_on.set()


async def test_a_rebuild_whose_caller_went_away_runs_to_its_end(services, kb):
    store_maintenance = services.indexes.maintenance
    await cut_short(
        maintenance.rebuild_index(services, "kb", encoder="other"),
        at=(store_maintenance, "rebuild"),
    )
    async with services.rebuilds.lock:  # it is begun by then
        pass
    assert (await until_over(services)).state == "done"


async def test_a_drop_whose_caller_went_away_ends_it_and_not_the_next(services, registry, kb):
    registry.encoders["other"].delay = 0.05
    await maintenance.rebuild_index(services, "kb", encoder="other")
    await cut_short(indexes.drop_index(services, "kb"), at=(services.indexes, "drop"))
    async with asyncio.timeout(10):
        while services.rebuilds.runs:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.005)
    await indexes.create_index(services, "kb")
    await indexes.upsert_documents(services, "kb", [document(1)])
    await maintenance.rebuild_index(services, "kb", encoder="other")
    assert (await until_over(services)).state == "done"
    assert_whole(services, texts_of(document(1)))


async def test_a_snapshot_at_the_moment_of_the_swap_is_of_the_new_one(services, kb, monkeypatch):
    find = services.indexes.find
    old = find("kb")
    await maintenance.rebuild_index(services, "kb", encoder="other")
    await until_over(services)
    stale = [old]
    monkeypatch.setattr(services.indexes, "find", lambda name: stale.pop() if stale else find(name))
    made = await maintenance.create_snapshot(services, "kb")
    assert (made.encoder, made.documents) == ("other", 100)
