"""Models that come and go while others serve: real ones, tiny."""

import asyncio
import gc
import itertools
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_classifier import write_classifier
from tiny_pair import pair_files, tiny_pair, tiny_shape, write_base

from condensery.errors import (
    CondenseryError,
    ModelAliasTaken,
    ModelAliasToNothing,
    ModelCannot,
    ModelInUse,
    ModelNotFound,
    ModelNotLoaded,
    Unavailable,
)
from condensery.metrics import Metrics
from condensery.request_context import RequestContext, serving_request
from condensery.runtime import lifecycle
from condensery.runtime.oscar import OscarModel
from condensery.runtime.registry import ModelRegistry
from condensery.store.aliases import ModelAliases
from condensery.store.importing import import_model
from condensery.store.manifest import Manifest
from condensery.store.store import ModelStore
from condensery.store.weights import save_state

WORDS = tiny_pair().compressor.backbone.embeddings.word_embeddings.weight.detach()
ENCODER, PAIR, OTHER = "minilm-l6", "oscar-mini", "other"


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    """A default encoder, another one in one version, a pair and a cross-encoder."""
    store = ModelStore(None, tmp_path / "own")
    encoder(store, ENCODER, seed=0)
    encoder(store, OTHER, seed=1)
    pair(store, seed=1)
    folder = write_classifier(store.own.parent / "cross")
    import_model(store, folder, "cross")
    return store


numbers = itertools.count()


def encoder(store: ModelStore, name: str, seed: int, **changes: Any) -> None:
    """Publish the next version of an encoder."""
    files = write_base(store.own.parent / f"files{next(numbers)}", WORDS, seed)
    fields = {"name": name, "kind": "encoder", "pooling": "mean", "max_tokens": 64}
    store.publish(files, Manifest(**{**fields, **changes}))


def pair(store: ModelStore, seed: int) -> None:
    made = tiny_pair(seed)
    files = pair_files(store.own.parent / f"files{next(numbers)}", made)
    save_state(files, made.own_state())
    manifest = Manifest(
        name=PAIR,
        kind="oscar-pair",
        method="oscar",
        base=ENCODER,
        max_tokens=39,
        shape=tiny_shape().to_dict(),
    )
    store.publish(files, manifest)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def registry(store: ModelStore, metrics: Metrics) -> Iterator[ModelRegistry]:
    models = ModelRegistry.load(
        store, device=torch.device("cpu"), dtype=torch.float32, workers=1, metrics=metrics
    )
    assert models.refusals() == {}
    yield models
    models.close()


def allow() -> None:
    """Raise nothing: no index or alias needs the model that is unloaded."""


async def states(registry: ModelRegistry, name: str) -> list[tuple[str, str]]:
    return [
        (version.version, version.state)
        for version in await registry.lifecycle.versions()
        if version.name == name
    ]


async def vector(registry: ModelRegistry, name: str, text: str = "the old mill") -> Any:
    return (await registry.encoder(name).embed([text])).vectors[0]


async def test_a_new_version_takes_the_old_ones_place_and_what_it_computes_is_its_own(
    store: ModelStore, registry: ModelRegistry, metrics: Metrics
) -> None:
    before = await vector(registry, OTHER)
    encoder(store, OTHER, seed=7)
    assert await states(registry, OTHER) == [("1", "READY"), ("2", "UNAVAILABLE")]
    loaded = await registry.lifecycle.load(OTHER)
    assert (loaded.info.version, loaded.changed) == ("2", True)
    assert loaded.previous is not None
    assert loaded.previous.version == "1"
    assert loaded.previous.fingerprint != loaded.info.fingerprint
    assert loaded.memory_bytes > 4 * WORDS.numel()
    assert registry.encoder(OTHER).info == loaded.info
    assert await states(registry, OTHER) == [("1", "UNAVAILABLE"), ("2", "READY")]
    after = await vector(registry, OTHER)
    assert np.abs(after - before).max() > 0.01

    back = await registry.lifecycle.load(OTHER, "1")
    assert back.info.version == "1"
    np.testing.assert_array_equal(await vector(registry, OTHER), before)

    def of(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(name, {"model": OTHER, **labels})

    assert of("condensery_model_state", state="ready") == 1
    assert of("condensery_model_state", state="unavailable") == 0
    assert of("condensery_model_memory_bytes", device="cpu") == back.memory_bytes
    assert (of("condensery_model_load_seconds") or 0) > 0


async def test_who_has_begun_ends_with_what_it_began_with_and_then_it_is_freed(
    store: ModelStore, registry: ModelRegistry
) -> None:
    encoder(store, OTHER, seed=7)
    old = weakref.ref(registry.encoder(OTHER))
    with serving_request(RequestContext()):
        first = await vector(registry, OTHER)
        await registry.lifecycle.load(OTHER)
        np.testing.assert_array_equal(await vector(registry, OTHER), first)
        assert registry.encoder(OTHER).info.version == "1"
        assert await states(registry, OTHER) == [("1", "UNLOADING"), ("2", "READY")]
        others = asyncio.create_task(outside(lambda: vector(registry, OTHER)))
        assert np.abs(await others - first).max() > 0.01
    await until(lambda: not registry.lifecycle._tasks)
    assert await states(registry, OTHER) == [("1", "UNAVAILABLE"), ("2", "READY")]
    gc.collect()
    assert old() is None, "the old version is still held"


async def outside(work: Callable[[], Awaitable[Any]]) -> Any:
    with serving_request(RequestContext()):
        return await work()


async def until(so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not so():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)


async def test_while_versions_swap_every_reply_is_one_of_theirs_and_none_fails(
    store: ModelStore, registry: ModelRegistry
) -> None:
    encoder(store, OTHER, seed=7)
    texts = ["the old mill", "bread and stone of the market"]
    versions = {}
    for number in ("1", "2"):
        await registry.lifecycle.load(OTHER, number)
        versions[number] = (await registry.encoder(OTHER).embed(texts)).vectors
    done, over = [], False

    async def caller() -> None:
        while not over:
            with serving_request(RequestContext()):
                embedded = await registry.encoder(OTHER).embed(texts)
                info = registry.encoder(OTHER).info
                assert embedded.fingerprint == info.fingerprint
                np.testing.assert_allclose(embedded.vectors, versions[info.version], atol=1e-5)
                done.append(info.version)

    callers = [asyncio.create_task(caller()) for _ in range(8)]
    for number in ("1", "2", "1", "2", "1"):
        await registry.lifecycle.load(OTHER, number)
        some = len(done) + 20
        await until(lambda some=some: len(done) >= some or any(item.done() for item in callers))
    over = True
    await asyncio.gather(*callers)
    assert set(done) == {"1", "2"}


async def test_of_two_loads_of_one_model_the_second_finds_it_done(
    store: ModelStore, registry: ModelRegistry
) -> None:
    encoder(store, OTHER, seed=7)
    loads = await asyncio.gather(registry.lifecycle.load(OTHER), registry.lifecycle.load(OTHER))
    changed, unchanged = sorted(loads, key=lambda load: not load.changed)  # either may come first
    assert (changed.changed, unchanged.changed) == (True, False)
    assert changed.info == unchanged.info
    assert unchanged.previous is not None
    assert unchanged.previous.version == "2"
    again = await registry.lifecycle.load(OTHER, again=True)
    assert again.changed
    assert again.info == changed.info


async def test_a_load_goes_on_though_its_caller_has_gone(
    store: ModelStore, registry: ModelRegistry
) -> None:
    encoder(store, OTHER, seed=7)
    with serving_request(RequestContext()):
        asked = asyncio.create_task(registry.lifecycle.load(OTHER))
        await until(lambda: OTHER in registry.lifecycle.states.loading)
        asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    await until(lambda: not registry.lifecycle._tasks)
    assert registry.encoder(OTHER).info.version == "2"


def corrupt(store: ModelStore) -> None:
    encoder(store, OTHER, seed=7)
    (weights,) = (store.own / OTHER / "2").glob("*.safetensors")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)


def cut_short(store: ModelStore) -> None:
    encoder(store, OTHER, seed=7)
    (store.own / OTHER / "2" / "model.json").write_text('{"format": 1,')


def not_a_number(store: ModelStore) -> None:
    files = write_base(store.own.parent / "nan", WORDS, 7)
    (weights,) = files.glob("*.safetensors")
    tensors = load_file(weights)
    tensors["encoder.layer.1.output.dense.bias"].fill_(torch.nan)
    save_file(tensors, weights, metadata={"format": "pt"})
    manifest = Manifest(name=OTHER, kind="encoder", pooling="mean", max_tokens=64)
    store.publish(files, manifest)


def too_long(store: ModelStore) -> None:
    encoder(store, OTHER, seed=7, max_tokens=4096)


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (corrupt, r"safetensors"),
        (cut_short, r"model\.json"),
        (not_a_number, "other numbers packed than alone .cosine nan."),
        (too_long, "max_tokens is 4096, but the network has only 128 positions"),
    ],
)
async def test_what_can_not_be_loaded_says_why_and_the_old_version_serves_on(
    store: ModelStore, registry: ModelRegistry, harm: Callable[[ModelStore], None], reason: str
) -> None:
    before = await vector(registry, OTHER)
    harm(store)
    with pytest.raises(ModelNotLoaded, match=reason) as caught:
        await registry.lifecycle.load(OTHER)
    assert repr(OTHER) in caught.value.message
    np.testing.assert_array_equal(await vector(registry, OTHER), before)
    assert registry.refusals() == {}
    assert (await states(registry, OTHER))[0] == ("1", "READY")
    failed = (await registry.lifecycle.versions())[-1]
    assert failed.name != OTHER or failed.state == "UNAVAILABLE"
    reasons = {
        version.version: version.reason
        for version in await registry.lifecycle.versions()
        if version.name == OTHER
    }
    assert reasons["2"], "the list of versions says why, too"
    encoder(store, OTHER, seed=8)
    assert (await registry.lifecycle.load(OTHER)).info.version == "3"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError(), "not enough memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate"), "not enough memory"),
        (torch.OutOfMemoryError("CUDA out of memory"), "not enough memory"),
        (OSError(12, "Cannot allocate memory"), "not enough memory"),
        (ZeroDivisionError("a secret of somebody's"), "ZeroDivisionError; the server's log"),
    ],
)
async def test_a_fault_while_loading_harms_nobody(
    store: ModelStore,
    registry: ModelRegistry,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    reason: str,
) -> None:
    encoder(store, OTHER, seed=7)
    before = await vector(registry, OTHER)

    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(lifecycle.ModelLifecycle, "_open", fail)
    with pytest.raises(ModelNotLoaded, match=f"version 1 serves on: .*{reason}") as caught:
        await registry.lifecycle.load(OTHER)
    assert "secret" not in caught.value.message
    monkeypatch.undo()
    np.testing.assert_array_equal(await vector(registry, OTHER), before)
    assert (await registry.lifecycle.load(OTHER)).info.version == "2"


async def test_what_is_not_there_or_does_not_serve_is_told_apart(
    store: ModelStore, registry: ModelRegistry
) -> None:
    files = write_base(store.own.parent / "base", WORDS)
    store.publish(files, Manifest(name="lm", kind="language-model", max_tokens=64))
    store.publish(files, Manifest(name="cross", kind="encoder", pooling="cls", max_tokens=64))
    for name, version, error, says in (
        ("nobody", None, ModelNotFound, "no model 'nobody' in the store"),
        (OTHER, "9", ModelNotFound, f"{OTHER!r} has no version '9'; there are: 1"),
        (OTHER, "../1", ModelNotFound, "has no version '../1'"),
        ("../own", None, ModelNotFound, "no model '../own'"),
        ("lm", None, ModelCannot, "language model"),
        ("cross", None, ModelCannot, "serves as reranker; its version 2 is of kind encoder"),
    ):
        with pytest.raises(error, match=says):
            await registry.lifecycle.load(name, version)
    assert registry.scorer("cross").info.version == "1"


async def test_a_model_unloads_once_its_last_request_is_done_and_is_freed(
    registry: ModelRegistry, metrics: Metrics
) -> None:
    old = weakref.ref(registry.encoder(OTHER))
    with serving_request(RequestContext()):
        before = await vector(registry, OTHER)
        unloading = asyncio.create_task(outside(lambda: registry.lifecycle.unload(OTHER, allow)))
        await until(lambda: registry.serving(OTHER) is None)
        assert not unloading.done()
        assert await states(registry, OTHER) == [("1", "UNLOADING")]
        np.testing.assert_array_equal(await vector(registry, OTHER), before)
        with pytest.raises(ModelNotFound, match=f"{OTHER!r} is stored, and not loaded"):
            await outside(lambda: vector(registry, OTHER))
    gone = await unloading
    assert (gone.name, gone.revision.version) == (OTHER, "1")
    gc.collect()
    assert old() is None, "it is still held"
    labels = {"model": OTHER, "state": "unavailable"}
    assert metrics.registry.get_sample_value("condensery_model_state", labels) == 1
    with pytest.raises(ModelNotFound):
        await registry.lifecycle.unload(OTHER, allow)
    assert (await registry.lifecycle.load(OTHER)).previous is None
    assert (await vector(registry, OTHER)).shape == before.shape


async def test_memory_is_given_back_after_each_model_that_goes_or_was_not_loaded(
    store: ModelStore, registry: ModelRegistry
) -> None:
    class Circle:
        """Refers to itself, so that only the garbage collector frees it."""

    def circle() -> "weakref.ref[Circle]":
        cycle: Any = Circle()
        cycle.itself = cycle
        return weakref.ref(cycle)

    async def unload() -> None:
        await registry.lifecycle.unload(OTHER, allow)

    async def replace() -> None:
        await registry.lifecycle.load(ENCODER)

    async def fail() -> None:
        with pytest.raises(ModelNotLoaded):
            await registry.lifecycle.load(OTHER)

    encoder(store, ENCODER, seed=7)
    gc.collect()
    gc.disable()
    try:
        for change in (unload, replace, fail):
            if change is fail:
                corrupt(store)
            garbage = circle()
            await change()
            await until(lambda: not registry.lifecycle._tasks)
            assert garbage() is None, f"nothing was given back after {change.__name__}"
    finally:
        gc.enable()


async def test_what_speaks_against_an_unload_is_heard_at_the_last_moment(
    registry: ModelRegistry,
) -> None:
    def object_() -> None:
        raise ModelInUse("it is needed")

    with pytest.raises(ModelInUse, match="needed"):
        await registry.lifecycle.unload(OTHER, object_)
    assert (await vector(registry, OTHER)).size
    assert await states(registry, OTHER) == [("1", "READY")]


async def test_pairs_and_cross_encoders_swap_and_go_as_well(
    store: ModelStore, registry: ModelRegistry
) -> None:
    pair(store, seed=5)
    old = weakref.ref(registry.pair(PAIR))
    with serving_request(RequestContext()):
        before = await memory_of(registry.pair(PAIR))
        answer = registry.pair(PAIR).generate("who?", [before], max_tokens=8)
        first = await anext(answer)
        assert (await registry.lifecycle.load(PAIR)).info.version == "2"
        rest = [token async for token in answer]
        assert rest[-1].finish, "an answer that had begun is ended"
        assert first.count == 1
    await until(lambda: not registry.lifecycle._tasks)
    del answer
    gc.collect()
    assert old() is None, "the old pair is still held"
    assert np.abs(await memory_of(registry.pair(PAIR)) - before).max() > 0.01

    ranked = await registry.scorer("cross").score("who?", ["the mill", "bread"])
    cross = weakref.ref(registry.scorer("cross"))
    await registry.lifecycle.load("cross", again=True)
    await until(lambda: not registry.lifecycle._tasks)
    gc.collect()
    assert cross() is None
    scored = await registry.scorer("cross").score("who?", ["the mill", "bread"])
    np.testing.assert_array_equal(scored.scores, ranked.scores)
    await registry.lifecycle.unload("cross", allow)
    with pytest.raises(ModelNotFound, match="'cross' was unloaded"):
        registry.classifier("cross")


async def memory_of(reader: OscarModel) -> Any:
    (compressed,) = await reader.compress("who?", ["the old mill"])
    assert not isinstance(compressed, CondenseryError)
    return compressed.memory


async def test_defaults_stay_the_models_they_are(
    store: ModelStore, registry: ModelRegistry
) -> None:
    """A request that names no model gets the same one as before, or is refused; never another."""
    encoder(store, "aaa", seed=9)
    await registry.lifecycle.load("aaa")
    assert registry.encoder().info.name == ENCODER
    assert registry.missing() is None
    assert set(registry.default_of(PAIR)) == {"oscar-pair", "reranker"}
    missing = []
    registry.watch(lambda: missing.append(registry.missing()))
    await registry.lifecycle.unload(PAIR, allow)
    assert registry.missing() == PAIR
    assert missing[0] == PAIR
    with pytest.raises(ModelNotFound, match=f"{PAIR!r} was unloaded"):
        registry.scorer()
    await registry.lifecycle.load(PAIR)
    assert registry.missing() is None
    assert registry.scorer().info.name == PAIR


async def test_aliases_lead_where_a_models_name_is_asked_for(
    store: ModelStore, registry: ModelRegistry
) -> None:
    await registry.lifecycle.set_aliases({"best": OTHER, "judge": "cross", "answers": PAIR})
    assert registry.encoder("best").info.name == OTHER
    assert registry.scorer("judge").info.name == "cross"
    assert registry.pair("answers").info.name == PAIR
    assert registry.measurements("best") is not None
    with pytest.raises(ModelCannot, match=r"'other' \(alias 'best'\) is no oscar-pair"):
        registry.pair("best")
    with serving_request(RequestContext()):
        assert registry.encoder("best").info.name == OTHER
        await registry.lifecycle.set_aliases({"best": ENCODER})
        assert registry.encoder("best").info.name == OTHER, "what has begun ends as it began"
    assert registry.encoder("best").info.name == ENCODER
    encoder(store, "best", seed=3)
    with pytest.raises(ModelAliasTaken, match="its name is an alias of 'minilm-l6'"):
        await registry.lifecycle.load("best")
    with pytest.raises(ModelAliasTaken):
        await registry.lifecycle.set_aliases({"aaa": OTHER, "cross": OTHER})
    assert "aaa" not in registry.aliases
    with pytest.raises(ModelNotFound, match="'judge' is an alias of 'cross'"):
        await registry.lifecycle.unload("judge", allow)
    await registry.lifecycle.unload(OTHER, allow)
    with pytest.raises(ModelAliasToNothing, match=OTHER):
        await registry.lifecycle.set_aliases({"again": OTHER})


async def test_a_name_that_carries_an_index_is_refused_where_a_model_alone_is_asked_for(
    registry: ModelRegistry,
) -> None:
    await registry.lifecycle.set_aliases({"docs": f"{PAIR}@notes"})
    for name in ("docs", f"{PAIR}@notes"):
        for find in (registry.encoder, registry.scorer, registry.classifier, registry.pair):
            with pytest.raises(
                ModelCannot, match=f"{name}.*'notes'.*name the pair alone"
            ) as caught:
                find(name)
            assert (caught.value.field, caught.value.value) == ("model", name)


async def test_aliases_that_are_being_written_are_written_though_their_caller_has_gone(
    store: ModelStore, registry: ModelRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then no other change runs: a second one would overwrite the whole table."""
    change, held = ModelAliases.change, threading.Event()

    def slow(self: ModelAliases, changes: Any, **known: Any) -> None:
        if "first" in changes:
            assert held.wait(60)
        change(self, changes, **known)

    monkeypatch.setattr(ModelAliases, "change", slow)
    written = []
    registry.watch(lambda: written.append(registry.aliases.targets))
    asked = asyncio.create_task(registry.lifecycle.set_aliases({"first": OTHER}))
    await until(registry.lifecycle._naming.locked)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    gone = asyncio.create_task(registry.lifecycle.unload(OTHER, object_to_aliases(registry)))
    second = asyncio.create_task(registry.lifecycle.set_aliases({"second": ENCODER}))
    await asyncio.sleep(0.05)
    assert not gone.done()
    assert not second.done()
    held.set()
    with pytest.raises(ModelInUse):
        await gone
    assert await second == {"first": OTHER, "second": ENCODER}
    assert written == [{"first": OTHER}, {"first": OTHER, "second": ENCODER}]


def object_to_aliases(registry: ModelRegistry) -> Callable[[], None]:
    def check() -> None:
        if registry.aliases.of(OTHER):
            raise ModelInUse("an alias leads to it")

    return check


async def test_a_change_that_shutdown_interrupts_fails_and_hangs_nobody(
    store: ModelStore, registry: ModelRegistry
) -> None:
    encoder(store, OTHER, seed=7)

    def end() -> None:
        raise ModelInUse("never asked")

    asked = asyncio.create_task(registry.lifecycle.unload(OTHER, end))
    await asyncio.sleep(0)  # its own task is made by now, and has not begun
    assert registry.lifecycle._tasks
    registry.lifecycle.close()
    async with asyncio.timeout(10):
        with pytest.raises(Unavailable):
            await asked
        for item in (registry.lifecycle.load(OTHER), registry.lifecycle.set_aliases({"a": OTHER})):
            with pytest.raises(Unavailable):
                await item
    assert registry.encoder(OTHER).info.version == "1"


async def test_a_stored_model_with_an_aliass_name_is_refused_at_the_start(
    store: ModelStore, tmp_path: Path
) -> None:
    aliases = ModelAliases(tmp_path / "aliases.json")
    aliases.change({"best": ENCODER}, serving={ENCODER}, taken={ENCODER})
    encoder(store, "best", seed=3)
    models = ModelRegistry.load(
        store, device=torch.device("cpu"), dtype=torch.float32, workers=1, aliases=aliases
    )
    assert "is an alias of 'minilm-l6'" in models.refusals()["best"]
    assert models.encoder("best").info.name == ENCODER
    models.close()
