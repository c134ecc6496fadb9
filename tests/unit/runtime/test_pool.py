import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_pair import pair_files, tiny_pair, tiny_shape, write_base

from condensery.errors import ModelNotFound, Unavailable
from condensery.metrics import Metrics
from condensery.runtime.pair import make_ready
from condensery.runtime.pool import RunningModels
from condensery.runtime.reader import Reader
from condensery.runtime.workers import Workers
from condensery.store.manifest import Manifest
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
def load(store: ModelStore) -> Iterator[Callable[..., RunningModels]]:
    started = []

    def run(**options: Any) -> RunningModels:
        models = RunningModels.load(
            store, device=torch.device("cpu"), dtype=FP32, workers=1, **options
        )
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


async def test_every_stored_model_serves(load: Callable[..., RunningModels]) -> None:
    said: list[str] = []
    models = load(say=said.append)
    assert [(info.name, info.kind) for info in models.models()] == [
        (ENCODER, "encoder"),
        (PAIR, "oscar-pair"),
        ("another-encoder", "encoder"),
        ("another-pair", "oscar-pair"),
    ]
    assert models.refused() == {}
    assert [line.split(":")[0] for line in said] == sorted(info.name for info in models.models())
    assert all("loaded in" in line for line in said)
    await models.warm_up()


async def test_a_loaded_pair_computes_what_the_published_one_did(
    load: Callable[..., RunningModels], tmp_path: Path
) -> None:
    reader = load().reader(PAIR)
    (found,) = await reader.compress("who?", ["the old mill"])
    assert reader.info.fingerprint.startswith("sha256:")
    assert (reader.info.licence, reader.info.dtype) == ("CC0-1.0", "float32")

    pair, workers = tiny_pair(), Workers(1)
    files = pair_files(tmp_path / "direct", pair)
    with ThreadPoolExecutor(1) as threads:
        direct = Reader.of(make_ready(pair), files, workers, name="direct", threads=threads)
        (wanted,) = await direct.compress("who?", ["the old mill"])
    workers.close()
    np.testing.assert_allclose(found.memory, wanted.memory, atol=1e-5)


def test_defaults_are_the_shipped_names(load: Callable[..., RunningModels]) -> None:
    models = load()
    assert models.encoder().info.name == ENCODER
    assert models.reader().info.name == models.scorer().info.name == PAIR
    assert models.encoder("another-encoder").info.name == "another-encoder"
    assert models.reader("another-pair").info.name == "another-pair"


def test_without_the_shipped_names_the_first_by_name_is_the_default(
    store: ModelStore, load: Callable[..., RunningModels]
) -> None:
    shutil.rmtree(store.own / PAIR)
    assert load().reader().info.name == "another-pair"


def test_unknown_names_and_wrong_kinds_are_told_apart(load: Callable[..., RunningModels]) -> None:
    models = load()
    cases = [
        (models.encoder, "nothing", "does not exist"),
        (models.encoder, PAIR, "is no encoder"),
        (models.reader, ENCODER, "is no oscar-pair"),
        (models.scorer, ENCODER, "is no reranker"),
    ]
    for find, name, reason in cases:
        with pytest.raises(ModelNotFound, match=reason) as caught:
            find(name)
        assert repr(name) in caught.value.message
        assert (caught.value.field, caught.value.value) == ("model", name)
    with pytest.raises(ModelNotFound, match=r"'another-encoder', 'minilm-l6'"):
        models.encoder("nothing")


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
        (unusable(kind="classifier"), "'classifier' is not served yet"),
    ],
)
def test_a_pair_that_can_not_serve_is_refused_by_name_and_reason_and_the_rest_serve(
    store: ModelStore,
    load: Callable[..., RunningModels],
    harm: Callable[[ModelStore], None],
    reason: str,
) -> None:
    harm(store)
    said: list[str] = []
    metrics = Metrics()
    models = load(say=said.append, metrics=metrics)
    assert PAIR in models.refused()
    with pytest.raises(ModelNotFound, match=reason) as caught:
        models.reader(PAIR)
    assert "was refused" in caught.value.message
    assert any(line.startswith(f"{PAIR}: refused: ") for line in said)
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
    store: ModelStore, load: Callable[..., RunningModels]
) -> None:
    (weights,) = (store.own / ENCODER / "1").glob("*.safetensors")
    alter(weights)
    models = load()
    assert set(models.refused()) == {ENCODER, PAIR, "another-pair"}
    assert models.encoder().info.name == "another-encoder"
    with pytest.raises(ModelNotFound, match=ENCODER):
        models.encoder(ENCODER)


def test_an_empty_store_serves_nothing_and_says_so(tmp_path: Path) -> None:
    store = ModelStore(None, tmp_path / "empty")
    models = RunningModels.load(store, device=torch.device("cpu"), dtype=FP32, workers=1)
    with pytest.raises(ModelNotFound, match=rf"'{ENCODER}' does not exist.*\[\]"):
        models.encoder()
    assert models.models() == []
    models.close()


async def test_closed_models_refuse(load: Callable[..., RunningModels]) -> None:
    models = load()
    encoder, reader = models.encoder(), models.reader()
    models.close()
    for call in (encoder.embed(["a"]), reader.compress("a", ["b"])):
        with pytest.raises(Unavailable, match="shutting down"):
            await call
