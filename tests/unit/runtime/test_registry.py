import asyncio
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_pair import pair_files, tiny_pair, tiny_shape, write_base
from tiny_published import Cocom
from tiny_published import write_base as write_language_model
from torch import Tensor

from condensery.errors import (
    CondenseryError,
    ModelFault,
    ModelNotFound,
    ReportNotFound,
    SettingError,
    Unavailable,
)
from condensery.metrics import Metrics
from condensery.networks import native
from condensery.networks.quantised import can_quantise
from condensery.runtime.loader import ModelLoader, RunningModel, self_test
from condensery.runtime.oscar import OscarModel
from condensery.runtime.oscar_pair import prepare_for_inference
from condensery.runtime.registry import ModelRegistry, make_loader
from condensery.runtime.scheduler import GeneratorLimits
from condensery.runtime.workers import Workers
from condensery.settings import Settings
from condensery.store.aliases import ModelAliases
from condensery.store.importing import import_model
from condensery.store.manifest import Manifest, StoredModel
from condensery.store.pair_options import PairOptions
from condensery.store.store import ModelStore
from condensery.store.weights import save_state

ENCODER, PAIR = "minilm-l6", "oscar-mini"  # the default names
FP32 = torch.float32


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    """A store of two encoders and two pairs."""
    store = ModelStore(None, tmp_path / "own")
    words = tiny_pair().compressor.backbone.embeddings.word_embeddings.weight.detach()
    for seed, name in enumerate((ENCODER, "another-encoder")):
        files = write_base(tmp_path / name, words, seed)
        store.publish(files, Manifest(name=name, kind="encoder", pooling="mean", max_tokens=64))
    for seed, name in enumerate((PAIR, "another-pair")):
        publish_pair(store, tmp_path / name, name, seed=seed)
    return store


def publish_pair(store: ModelStore, files: Path, name: str, seed: int = 0, **changes: Any) -> None:
    pair = tiny_pair(seed)
    pair_files(files, pair)
    save_state(files, pair.own_state())
    fields = {
        "name": name,
        "kind": "oscar-pair",
        "method": "oscar",
        "base": ENCODER,
        "max_tokens": 39,
        "shape": tiny_shape().to_dict(),
        "licence": "CC0-1.0",
    }
    store.publish(files, Manifest(**{**fields, **changes}))


@pytest.fixture
def load(store: ModelStore) -> Iterator[Callable[..., ModelRegistry]]:
    started = []

    def run(**options: Any) -> ModelRegistry:
        wanted = {"dtype": FP32, "workers": 1, **options}
        models = ModelRegistry.load(store, device=torch.device("cpu"), **wanted)
        started.append(models)
        return models

    yield run
    for models in started:
        models.close()


def alter(path: Path) -> None:
    """Change one byte of a file, as a failing disk might."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


async def test_every_stored_model_serves(load: Callable[..., ModelRegistry]) -> None:
    lines: list[str] = []
    models = load(say=lines.append)
    assert [(info.name, info.kind) for info in models.models()] == [
        (ENCODER, "encoder"),
        (PAIR, "oscar-pair"),
        ("another-encoder", "encoder"),
        ("another-pair", "oscar-pair"),
    ]
    assert models.refusals() == {}
    assert [line.split(":")[0] for line in lines] == sorted(info.name for info in models.models())
    assert all("loaded in" in line for line in lines)
    await models.warm_up()


async def test_a_loaded_pair_computes_what_the_published_one_did(
    load: Callable[..., ModelRegistry], tmp_path: Path
) -> None:
    reader = load().pair(PAIR)
    (compressed,) = await reader.compress("who?", ["the old mill"])
    assert reader.info.fingerprint.startswith("sha256:")
    assert (reader.info.licence, reader.info.dtype) == ("CC0-1.0", "float32")

    pair, workers = tiny_pair(), Workers(1)
    files = pair_files(tmp_path / "direct", pair)
    with ThreadPoolExecutor(1) as threads:
        direct = OscarModel.of(
            prepare_for_inference(pair), files, workers, name="direct", threads=threads
        )
        (wanted,) = await direct.compress("who?", ["the old mill"])
    workers.close()
    np.testing.assert_allclose(compressed.memory, wanted.memory, atol=1e-5)


def test_of_what_is_stored_those_serve_that_a_setting_names(store: ModelStore) -> None:
    def open_named(names: str | None) -> ModelRegistry:
        settings = Settings(models=names, dtype="float32", workers=1)
        loader = make_loader(settings, store, Metrics(tei=False), lambda line: None)
        return ModelRegistry.open(loader, ModelAliases(), 1.0)

    for names, wanted in (
        (None, {ENCODER, "another-encoder", PAIR, "another-pair"}),
        (f"another-pair,{ENCODER}", {"another-pair", ENCODER}),
    ):
        models = open_named(names)
        try:
            assert {info.name for info in models.models()} == wanted
            assert models.refusals() == {}
        finally:
            models.close()
    with pytest.raises(SettingError, match=f"models: 'no': there are another-.*{PAIR}") as refused:
        open_named(f"{PAIR},no")
    assert (refused.value.field, refused.value.value) == ("models", "no")


@pytest.mark.skipif(not can_quantise("int8", torch.device("cpu")), reason="no products of 8 bits")
def test_what_weights_are_held_as_is_a_setting_of_each_half_and_of_encoders(
    store: ModelStore,
) -> None:
    def dtypes(**held: Any) -> list[str]:
        settings = Settings(**{"dtype": "float32", "generator_weights": "float", **held}, workers=1)
        loader = make_loader(settings, store, Metrics(tei=False), lambda line: None)
        models = ModelRegistry.open(loader, ModelAliases(), 1.0)
        try:
            return [models.encoder().info.dtype, models.pair().info.dtype]
        finally:
            models.close()

    assert dtypes() == ["float32", "float32"]
    assert dtypes(encoder_weights="int8") == ["float32, weights int8", "float32"]
    assert dtypes(compressor_weights="int8") == ["float32", "float32, compressor int8"]
    if native.has_words():
        assert dtypes(dtype="auto") == ["float32, weights int16", "float32, compressor int16"]


def test_what_others_are_made_from_is_no_model_to_start_with(tmp_path: Path) -> None:
    store = ModelStore(None, tmp_path / "own")
    write_language_model(tmp_path / "lm", "llama")
    store.publish(tmp_path / "lm", Manifest(name="lm", kind="language-model", max_tokens=64))
    with pytest.raises(SettingError, match="models: 'lm': others are made from it"):
        make_loader(Settings(models="lm"), store, Metrics(tei=False), lambda line: None)


def test_defaults_are_the_shipped_names(load: Callable[..., ModelRegistry]) -> None:
    models = load()
    assert models.encoder().info.name == ENCODER
    assert models.pair().info.name == models.scorer().info.name == PAIR
    assert models.encoder("another-encoder").info.name == "another-encoder"
    assert models.pair("another-pair").info.name == "another-pair"


def test_without_the_shipped_names_the_first_by_name_is_the_default(
    store: ModelStore, load: Callable[..., ModelRegistry]
) -> None:
    shutil.rmtree(store.own / PAIR)
    assert load().pair().info.name == "another-pair"


def test_unknown_names_and_wrong_kinds_are_told_apart(load: Callable[..., ModelRegistry]) -> None:
    models = load()
    cases = [
        (models.encoder, "nothing", "does not exist"),
        (models.encoder, PAIR, "is no encoder"),
        (models.pair, ENCODER, "is no oscar-pair"),
        (models.scorer, ENCODER, "is no reranker"),
    ]
    for find, name, reason in cases:
        with pytest.raises(ModelNotFound, match=reason) as caught:
            find(name)
        assert repr(name) in caught.value.message
        assert (caught.value.field, caught.value.value) == ("model", name)
    with pytest.raises(ModelNotFound, match=r"'another-encoder', 'minilm-l6'"):
        models.encoder("nothing")


def test_what_a_model_was_measured_at_is_that_of_the_version_that_serves(
    store: ModelStore, load: Callable[..., ModelRegistry], tmp_path: Path
) -> None:
    for version in (2, 3):
        files = tmp_path / f"{PAIR}-{version}"
        files.mkdir()
        (files / "report.json").write_text(json.dumps({"format": 2, "seed": version}))
        publish_pair(store, files, PAIR, seed=version)
    (store.own / "another-encoder" / "1" / "model.json").write_text("{")
    models = load()
    measured = models.measurements(PAIR).report()
    assert (measured.version, measured.report["seed"]) == ("3", 3)
    assert measured.fingerprint == next(m.fingerprint for m in models.models() if m.name == PAIR)
    with pytest.raises(ReportNotFound, match="'another-pair' was never measured"):
        models.measurements("another-pair").report()
    with pytest.raises(ModelNotFound, match="'nobody' does not exist"):
        models.measurements("nobody")
    with pytest.raises(ModelNotFound, match="'another-encoder' was refused"):
        models.measurements("another-encoder")


def corrupt_weights(store: ModelStore) -> None:
    (weights,) = (store.own / PAIR / "1").glob("*.safetensors")
    alter(weights)


def cut_manifest(store: ModelStore) -> None:
    path = store.own / PAIR / "1" / "model.json"
    path.write_bytes(path.read_bytes()[:100])


def remove_tokenizer(store: ModelStore) -> None:
    (store.own / PAIR / "1" / "tokenizer.json").unlink()


def unusable(**changes: Any) -> Callable[[ModelStore], None]:
    """Publish a pair over the old one whose files are whole, but make no pair."""

    def run(store: ModelStore) -> None:
        files = store.own.parent / "unusable"
        publish_pair(store, files, PAIR, **changes)

    return run


def other_words(store: ModelStore) -> None:
    files = write_base(store.own.parent / "other", seed=9)
    manifest = Manifest(name=ENCODER, kind="encoder", pooling="mean", max_tokens=64)
    shutil.rmtree(store.own / ENCODER)
    store.publish(files, manifest)


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (corrupt_weights, r"model-00001-of-00001\.safetensors"),
        (cut_manifest, r"model\.json"),
        (remove_tokenizer, r"tokenizer\.json"),
        (unusable(shape={"memory_tokens": 0}), "memory_tokens must be a positive integer, not 0"),
        (unusable(shape={"colour": "red"}), "colour"),
        (unusable(shape=tiny_shape(generator_heads=5).to_dict()), "attention heads"),
        (unusable(shape=tiny_shape(passage_tokens=200).to_dict()), "needs 219 positions"),
        (unusable(shape=tiny_shape(mapping_size=41).to_dict()), "mapping"),
        (unusable(shape=tiny_shape(copy=False).to_dict()), "unknown"),
        (unusable(base=None), "no base"),
        (other_words, "fingerprint"),
        (unusable(kind="classifier"), "kind 'classifier' is no classifier"),
    ],
)
def test_a_pair_that_can_not_serve_is_refused_by_name_and_reason_and_the_rest_serve(
    store: ModelStore,
    load: Callable[..., ModelRegistry],
    harm: Callable[[ModelStore], None],
    reason: str,
) -> None:
    harm(store)
    lines: list[str] = []
    metrics = Metrics()
    models = load(say=lines.append, metrics=metrics)
    assert PAIR in models.refusals()
    with pytest.raises(ModelNotFound, match=reason) as caught:
        models.pair(PAIR)
    assert "was refused" in caught.value.message
    assert any(line.startswith(f"{PAIR}: refused: ") for line in lines)
    assert models.encoder().info.name == ENCODER
    assert PAIR not in {info.name for info in models.models()}
    loaded = {
        sample.labels["model"]: sample.value
        for metric in metrics.model_loaded.collect()
        for sample in metric.samples
    }
    assert loaded[PAIR] == 0
    assert loaded[ENCODER] == 1
    assert loaded["another-encoder"] == 1


def test_a_base_that_is_broken_takes_its_pairs_down_but_not_the_other_encoder(
    store: ModelStore, load: Callable[..., ModelRegistry]
) -> None:
    (weights,) = (store.own / ENCODER / "1").glob("*.safetensors")
    alter(weights)
    models = load()
    assert set(models.refusals()) == {ENCODER, PAIR, "another-pair"}
    assert models.encoder().info.name == "another-encoder"
    with pytest.raises(ModelNotFound, match=ENCODER):
        models.encoder(ENCODER)


def test_an_empty_store_serves_nothing_and_says_so(tmp_path: Path) -> None:
    store = ModelStore(None, tmp_path / "empty")
    models = ModelRegistry.load(store, device=torch.device("cpu"), dtype=FP32, workers=1)
    with pytest.raises(ModelNotFound, match=rf"'{ENCODER}' does not exist.*\[\]"):
        models.encoder()
    assert models.models() == []
    models.close()


async def test_closed_models_refuse(load: Callable[..., ModelRegistry]) -> None:
    models = load()
    encoder, reader = models.encoder(), models.pair()
    models.close()
    for call in (encoder.embed(["a"]), reader.compress("a", ["b"])):
        with pytest.raises(Unavailable, match="shutting down"):
            await call


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> StoredModel:
    """An imported pair of two causal language models, of which tests take a copy."""
    root = tmp_path_factory.mktemp("causal")
    bases = [
        write_language_model(root / "wide", "mistral", seed=4, hidden_size=64),
        write_language_model(root / "llama", "llama", seed=3),
    ]
    published = Cocom(root / "naver", (bases[0], bases[1]), "small")
    return import_model(
        ModelStore(None, root / "store"), published.path, "causal", pair=PairOptions()
    )


def tampered(
    store: ModelStore, causal: StoredModel, change: Callable[[dict[str, Tensor]], None], files: Path
) -> None:
    """Publish a pair whose weights were changed, and whose files are whole."""
    shutil.copytree(causal.path, files, ignore=shutil.ignore_patterns("model.json"))
    (weights,) = files.glob("*.safetensors")
    tensors = load_file(weights)
    change(tensors)
    save_file(tensors, weights, metadata={"format": "pt"})
    store.publish(files, causal.manifest)


async def test_pairs_of_every_kind_serve_side_by_side(
    store: ModelStore, causal: StoredModel, load: Callable[..., ModelRegistry], tmp_path: Path
) -> None:
    tampered(store, causal, lambda tensors: None, tmp_path / "copy")
    models = load()
    assert models.refusals() == {}
    await models.warm_up()
    for name in (PAIR, "causal"):
        reader = models.pair(name)
        results = await reader.compress("who?", ["the old mill", "new bread"])
        memory = [item.memory for item in results if not isinstance(item, CondenseryError)]
        tokens = [token async for token in reader.generate("who?", memory, max_tokens=4)]
        assert tokens[-1].finish
    assert models.pair().info.name == PAIR, "the default stays"
    with pytest.raises(ModelNotFound, match="'causal' is no reranker"):
        models.scorer("causal")
    assert models.scorer().info.name == PAIR


NAME = "compressor.backbone.layers.0.self_attn.q_proj.weight"


def lose(tensors: dict[str, Tensor]) -> None:
    del tensors[NAME]


def gain(tensors: dict[str, Tensor]) -> None:
    tensors["compressor.backbone.layers.9.extra.weight"] = torch.zeros(2)


def reshape(tensors: dict[str, Tensor]) -> None:
    tensors[NAME] = tensors[NAME][:-1].clone()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lose, rf"{NAME}: missing"),
        (gain, r"layers\.9\.extra\.weight: \(2,\), unknown"),
        (reshape, rf"{NAME}: \(31, 32\), expected \(32, 32\)"),
    ],
)
def test_a_pair_whose_tensors_do_not_fit_is_refused_by_name_and_reason_and_the_rest_serve(
    store: ModelStore,
    causal: StoredModel,
    load: Callable[..., ModelRegistry],
    tmp_path: Path,
    change: Callable[[dict[str, Tensor]], None],
    reason: str,
) -> None:
    tampered(store, causal, change, tmp_path / "tampered")
    models = load()
    assert set(models.refusals()) == {"causal"}
    with pytest.raises(ModelNotFound, match=reason):
        models.pair("causal")
    assert {info.name for info in models.models()} == {
        *(ENCODER, "another-encoder"),
        *(PAIR, "another-pair"),
    }


@pytest.mark.parametrize(
    ("half", "change", "reason"),
    [
        ("generator", {"hidden_size": 32, "head_dim": 16}, "expected"),
        ("generator", {"model_type": "bert"}, "unknown"),
        ("compressor", {"num_hidden_layers": 3}, "unknown"),
        ("compressor", {"hidden_size": "wide"}, "config.json"),
        ("generator", {"rope_parameters": {"rope_type": "none such"}}, "none such"),
        ("generator", None, "holds no object"),
    ],
)
def test_a_pair_whose_halves_do_not_match_is_refused_and_the_rest_serve(
    store: ModelStore,
    causal: StoredModel,
    load: Callable[..., ModelRegistry],
    tmp_path: Path,
    half: str,
    change: dict[str, Any] | None,
    reason: str,
) -> None:
    files = tmp_path / "files"
    shutil.copytree(causal.path, files, ignore=shutil.ignore_patterns("model.json"))
    path = files / half / "config.json"
    path.write_text("[]" if change is None else json.dumps(json.loads(path.read_text()) | change))
    store.publish(files, causal.manifest)
    models = load()
    assert set(models.refusals()) == {"causal"}
    with pytest.raises(ModelNotFound, match=reason):
        models.pair("causal")


def test_memory_tokens_that_the_generator_s_prompt_does_not_have_are_refused(
    store: ModelStore, causal: StoredModel, load: Callable[..., ModelRegistry], tmp_path: Path
) -> None:
    shape = json.loads(json.dumps(causal.manifest.shape))
    shape["generator"]["memory"] = shape["generator"]["memory"][:-1]
    files = tmp_path / "files"
    shutil.copytree(causal.path, files, ignore=shutil.ignore_patterns("model.json"))
    store.publish(files, causal.manifest.model_copy(update={"shape": shape}))
    assert "halves that don't match" in load().refusals()["causal"]


async def test_what_the_manifest_says_suits_the_pair_is_among_its_traits(
    store: ModelStore, load: Callable[..., ModelRegistry], tmp_path: Path
) -> None:
    publish_pair(store, tmp_path / "said", PAIR, defaults={"top_n": 1, "min_relevance": 0.25})
    models = load()
    stated, unstated = models.pair(PAIR).traits, models.pair("another-pair").traits
    assert (stated.top_n, stated.min_relevance) == (1, 0.25)
    assert (unstated.top_n, unstated.min_relevance) == (5, 0.0)
    assert models.pair(PAIR).info.fingerprint == models.pair(PAIR).info.fingerprint


async def test_the_generator_is_bounded_and_a_bound_too_tight_refuses_the_pair(
    load: Callable[..., ModelRegistry], store: ModelStore, causal: StoredModel, tmp_path: Path
) -> None:
    tampered(store, causal, lambda tensors: None, tmp_path / "copy")
    metrics = Metrics()
    models = load(generator_limits=GeneratorLimits(sequences=3, cache_mib=1), metrics=metrics)
    assert models.refusals() == {}

    def positions(model: str) -> float | None:
        labels = {"model": model, "state": "limit"}
        return metrics.registry.get_sample_value("condensery_cache_positions", labels)

    # Two layers of keys and values, 32 features of 4 bytes; four of 2 heads of 16 features.
    assert positions(PAIR) == 2**20 // (2 * 2 * 32 * 4)
    assert positions("causal") == 2**20 // (2 * 4 * 2 * 16 * 4)
    reader = models.pair("causal")
    assert reader.free_positions_for("who?", [], 1) < 2**20 // (2 * 4 * 2 * 16 * 4)

    deep = tiny_pair(generator_layers=40)
    files = pair_files(tmp_path / "deep", deep)
    save_state(files, deep.own_state())
    store.publish(
        files, store.open(PAIR).manifest.model_copy(update={"shape": deep.shape.to_dict()})
    )
    tight = load(generator_limits=GeneratorLimits(cache_mib=1))
    assert set(tight.refusals()) == {PAIR}
    assert "generator_cache_mib=1 holds 102 positions" in tight.refusals()[PAIR]


async def test_halves_on_devices_of_their_own_have_workers_of_their_own(
    store: ModelStore, causal: StoredModel, load: Callable[..., ModelRegistry], tmp_path: Path
) -> None:
    """As far as a machine without a second device shows: two names of the same one."""
    tampered(store, causal, lambda tensors: None, tmp_path / "copy")
    shared, apart = load(), load(generator=torch.device("cpu", 0))
    assert (len(shared.workers), len(apart.workers)) == (1, 2)
    assert apart.refusals() == {}
    for name in (PAIR, "causal"):
        answers = []
        for models in (shared, apart):
            reader = models.pair(name)
            results = await reader.compress("who?", ["the old mill"])
            memory = [each.memory for each in results if not isinstance(each, CondenseryError)]
            tokens = [t async for t in reader.generate("who?", memory, max_tokens=6)]
            answers.append([token.id for token in tokens])
        assert answers[0] == answers[1]


async def test_at_a_start_each_model_is_tried_while_the_next_is_opened(
    store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, tried, lines = asyncio.Event(), list[str](), list[str]()

    async def wait_for_the_next(model: RunningModel) -> None:
        tried.append(model.info.name)
        if len(tried) == 1:  # deadlocks where nothing is opened meanwhile
            await asyncio.wait_for(begun.wait(), 60)
        await self_test(model)
        if model.info.name == PAIR:
            raise ModelFault("NaN")

    def say(line: str) -> None:
        lines.append(line)
        if sum("loaded in" in line for line in lines) > 1:
            loop.call_soon_threadsafe(begun.set)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr("condensery.runtime.registry.self_test", wait_for_the_next)
    settings = Settings(dtype="float32", workers=1)
    loader = make_loader(settings, store, Metrics(tei=False), lambda line: None)
    models = await ModelRegistry.start(loader, ModelAliases(), 1.0, say)
    try:
        assert tried == list(loader.names())
        assert models.refusals() == {PAIR: "it fails when it is tried: NaN"}
        assert models.pair().info.name == "another-pair"
        assert lines.index("warming up") > max(
            place for place, line in enumerate(lines) if "loaded in" in line
        )
    finally:
        models.close()


async def test_a_start_that_breaks_leaves_no_model_being_tried_and_tells_why(
    store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = list[str]()

    async def try_for_ever(model: RunningModel) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(model.info.name)

    def say(line: str) -> None:
        if line == "warming up":
            raise BrokenPipeError

    monkeypatch.setattr("condensery.runtime.registry.self_test", try_for_ever)
    settings = Settings(dtype="float32", workers=1)
    loader = make_loader(settings, store, Metrics(tei=False), lambda line: None)
    threads = threads_of(loader)
    with pytest.raises(BrokenPipeError):
        await ModelRegistry.start(loader, ModelAliases(), 1.0, say)
    assert ended == [loader.names()[0]]  # the others waited for their turn
    assert_ended(threads)


def test_models_that_can_not_all_be_opened_leave_no_thread(store: ModelStore) -> None:
    def say(line: str) -> None:
        raise BrokenPipeError

    settings = Settings(dtype="float32", workers=1)
    loader = make_loader(settings, store, Metrics(tei=False), lambda line: None)
    threads = threads_of(loader)
    with pytest.raises(BrokenPipeError):
        ModelRegistry.open(loader, ModelAliases(), 1.0, say)
    assert_ended(threads)


def threads_of(loader: ModelLoader) -> list[threading.Thread]:
    members = [member for workers in loader.workers.all() for member in workers.members()]
    return [member.thread for member in members if member.thread is not None]


def assert_ended(threads: list[threading.Thread]) -> None:
    assert threads
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), thread.name


def test_models_that_a_library_breaks_on_are_refused_by_name_and_the_rest_serve(
    store: ModelStore,
    load: Callable[..., ModelRegistry],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    words = tiny_pair().compressor.backbone.embeddings.word_embeddings.weight.detach()
    serving = set(store.names())
    broken = {
        "headless": {"num_attention_heads": 0},
        "imprecise": {"dtype": "float99"},
        "wide": {"hidden_size": "wide"},
    }
    for name, change in broken.items():
        path = write_base(tmp_path / name, words, 0) / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
        manifest = Manifest(name=name, kind="encoder", pooling="mean", max_tokens=64)
        store.publish(path.parent, manifest)
    models = load()
    assert {info.name for info in models.models()} == serving
    assert set(models.refusals()) == set(broken)
    assert not [reason for reason in models.refusals().values() if "wide" in reason]
    with pytest.raises(ModelNotFound, match="was refused"):
        models.encoder("wide")
    logged = [record for record in caplog.records if record.msg == "model_not_loaded"]
    assert [vars(record)["model"] for record in logged] == list(broken)
    assert all(record.exc_info for record in logged)


async def test_a_model_whose_trial_breaks_is_refused_and_the_rest_serve(
    store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(model: RunningModel) -> None:
        await self_test(model)
        if model.info.name == PAIR:
            raise TypeError("secret")

    monkeypatch.setattr("condensery.runtime.registry.self_test", test)
    settings = Settings(dtype="float32", workers=1)
    loader = make_loader(settings, store, Metrics(tei=False), lambda line: None)
    models = await ModelRegistry.start(loader, ModelAliases(), 1.0)
    try:
        assert set(models.refusals()) == {PAIR}
        assert "TypeError" in models.refusals()[PAIR]
        assert "secret" not in models.refusals()[PAIR]
        assert models.pair().info.name == "another-pair"
    finally:
        models.close()


async def test_a_model_that_fails_when_it_is_tried_is_refused_and_the_rest_serve(
    store: ModelStore, load: Callable[..., ModelRegistry]
) -> None:
    metrics, lines = Metrics(), list[str]()
    models = load(metrics=metrics)
    reader = models.pair(PAIR)
    reader.compressor._network._words.fill_(torch.nan)
    await models.warm_up(lines.append)
    assert set(models.refusals()) == {PAIR}
    assert "NaN" in models.refusals()[PAIR]
    assert lines == [f"{PAIR}: refused: {models.refusals()[PAIR]}"]
    assert models.pair().info.name == "another-pair"
    with pytest.raises(ModelNotFound, match="was refused"):
        models.pair(PAIR)
    with pytest.raises(Unavailable):
        await reader.compress("who?", ["the mill"])
    loaded = metrics.registry.get_sample_value("condensery_model_loaded", {"model": PAIR})
    assert loaded == 0
