"""A kind of model that is made in this file alone runs as the others do."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from condensery.errors import ModelCannot
from condensery.runtime.loader import RUNNERS, ModelLoader, RunningModel, register_kind
from condensery.runtime.registry import ModelRegistry
from condensery.store.manifest import Manifest, StoredModel
from condensery.store.store import ModelStore
from condensery.store.weights import load_state, save_state
from condensery.values import MODEL_KINDS, Embedded, Floats, ModelInfo, ModelRole

KIND = "letter-counter"


class LetterCounter:
    """Embeds a text by how often each letter of the Latin alphabet is in it, times a weight."""

    roles: frozenset[ModelRole] = frozenset({"encoder"})
    busy = False

    def __init__(self, stored: StoredModel) -> None:
        manifest = stored.manifest
        self._weights = load_state(stored)["letters"]
        self.parts = (self,)
        self.closed = False
        self.info = ModelInfo(
            id=manifest.name,
            kind=manifest.kind,
            method=manifest.method,
            fingerprint=manifest.fingerprint,
            dims=len(self._weights),
            max_tokens=manifest.max_tokens,
            dtype="float32",
            device="cpu",
            licence=manifest.licence,
            created=manifest.created,
        )

    def _count(self, text: str) -> Floats:
        counts = [text.count(chr(ord("a") + place)) for place in range(len(self._weights))]
        return np.array(counts, dtype=np.float32) * self._weights.numpy()

    async def embed(self, texts: Sequence[str], **_options: Any) -> Embedded:
        vectors = np.stack([self._count(text) for text in texts])
        return Embedded(self.info.name, self.info.fingerprint, vectors, len(texts), ())

    async def probe(self, text: str) -> Floats:
        with np.errstate(over="ignore"):
            return self._count(text)

    async def warm_up(self) -> None:
        await self.embed(["a"])

    def close(self) -> None:
        self.closed = True


def run_counter(_loader: ModelLoader, stored: StoredModel) -> RunningModel:
    return LetterCounter(stored)


@pytest.fixture
def kind() -> Iterator[str]:
    register_kind(KIND, run_counter)
    yield KIND
    MODEL_KINDS.discard(KIND)
    RUNNERS.pop(KIND)


def publish(store: ModelStore, files: Path, name: str, weight: float = 2.0) -> StoredModel:
    files.mkdir(exist_ok=True)
    save_state(files, {"letters": torch.full((26,), weight)})
    return store.publish(files, Manifest(name=name, kind=KIND, max_tokens=64))


def open_registry(store: ModelStore) -> ModelRegistry:
    return ModelRegistry.load(store, device=torch.device("cpu"), dtype=torch.float32, workers=1)


async def test_a_registered_kind_loads_is_tested_serves_by_its_role_and_is_unloaded(
    kind: str, tmp_path: Path
) -> None:
    store = ModelStore(None, tmp_path / "own")
    publish(store, tmp_path / "files", "letters")
    registry = open_registry(store)
    try:
        await registry.warm_up()
        (info,) = registry.models()
        assert (info.name, info.kind, info.version, info.dims) == ("letters", kind, "1", 26)
        assert registry.models("encoder") == [info]
        assert registry.models("oscar-pair", "reranker", "classifier") == []
        assert registry.default_of("letters") == ("encoder",)
        lease = registry.require("letters")
        assert lease.memory == {"cpu": 26 * 4}
        embedded = await registry.encoder().embed(["abba"])
        assert embedded.vectors[0, :3].tolist() == [4.0, 4.0, 0.0]
        with pytest.raises(ModelCannot, match="'letters' is no oscar-pair"):
            registry.pair("letters")

        publish(store, tmp_path / "files", "letters", 3.0)
        assert (await registry.lifecycle.load("letters")).info.version == "2"
        assert (await registry.encoder("letters").embed(["a"])).vectors[0, 0] == 3.0
        assert lease.model.closed  # type: ignore[attr-defined]  # this kind's own
        await registry.lifecycle.unload("letters", lambda: None)
        assert registry.models() == []
        states = {version.version: version.state for version in await registry.lifecycle.versions()}
        assert states == {"1": "UNAVAILABLE", "2": "UNAVAILABLE"}
    finally:
        registry.close()


async def test_a_model_of_a_registered_kind_that_fails_its_test_is_refused(
    kind: str, tmp_path: Path
) -> None:
    store = ModelStore(None, tmp_path / "own")
    publish(store, tmp_path / "files", "letters", 3e38)  # a letter that comes twice is infinity
    registry = open_registry(store)
    try:
        await registry.warm_up()
        assert registry.models() == []
        assert "NaN or infinity" in registry.refusals()["letters"]
    finally:
        registry.close()


def test_no_two_kinds_have_one_name(kind: str) -> None:
    for taken in (kind, "encoder", "language-model"):
        with pytest.raises(ValueError, match="there is a kind"):
            register_kind(taken, run_counter)


def test_a_manifest_of_an_unknown_kind_is_refused_and_those_known_are_named() -> None:
    with pytest.raises(ValueError, match=r"kind\n.* should be one of .*'encoder'"):
        Manifest(name="letters", kind=KIND, max_tokens=64)
