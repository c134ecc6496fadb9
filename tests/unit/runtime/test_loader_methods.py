"""A method that is made in this file alone: its stored models load, serve and compute."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_causal import bpe, tiny_causal, with_specials, write_halves
from tiny_classifier import LENGTH, write_classifier
from tiny_pair import tiny_tokenizer, write_base
from tokenizers import Tokenizer
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertModel,
    PretrainedConfig,
)

from condensery.errors import CorruptModel
from condensery.networks.backbone import Backbone, load_classifier, run_packed
from condensery.networks.building import (
    BUILDERS,
    NetworkBuilder,
    NetworkFiles,
    build_backbone,
    register_method,
)
from condensery.networks.classifier import Classifier, run_classifier
from condensery.networks.decoders import build, headless, read_config
from condensery.networks.oscar_causal_compressor import CausalCompressor
from condensery.networks.oscar_causal_shape import FAMILIES, CausalShape, CompressorShape
from condensery.networks.oscar_families import COMPRESSORS, CompressorFamily, count_causal
from condensery.networks.oscar_interface import Memories, PassageWindow
from condensery.networks.oscar_texts import CompressorTexts
from condensery.runtime.registry import ModelRegistry
from condensery.store.manifest import Manifest
from condensery.store.store import ModelStore
from condensery.store.weights import save_state
from condensery.values import METHODS

METHOD, FAMILY = "shortening", "scaled-causal"
TEXT = "the old mill"


def build_short_backbone(files: NetworkFiles) -> Backbone:
    """Build no more than what is left, and fill it from the weights as they are stored."""
    config = BertConfig.from_pretrained(files.path)
    config.num_hidden_layers = files.shape["shortening"]["layers"]
    model = BertModel(config, add_pooling_layer=False)
    left = model.state_dict()
    state = files.read_state()
    model.load_state_dict({name: state[name] for name in left})
    return run_packed(model.to(files.device, files.dtype).eval())


def build_short_classifier(files: NetworkFiles) -> Classifier:
    model: Any = load_classifier(files.path, device=files.device, dtype=files.dtype)
    model.bert.encoder.layer = model.bert.encoder.layer[: files.shape["shortening"]["layers"]]
    return run_classifier(model)


@dataclass(frozen=True, slots=True)
class ScaledShape(CompressorShape):
    """A causal compressor's shape, with the factor that its memory vectors are multiplied by."""

    factor: float = 1.0


class ScaledCompressor(CausalCompressor):
    def compress(self, windows: Sequence[PassageWindow]) -> Memories:
        memories = super().compress(windows)
        assert isinstance(self.shape, ScaledShape)
        return Memories(memories.vectors * self.shape.factor, memories.counts, memories.relevance)


def build_scaled(config: PretrainedConfig, shape: Any, generator_width: int) -> CausalCompressor:
    backbone = headless(build(config), final_norm=shape.final_norm)
    with torch.device("meta"):
        return ScaledCompressor(backbone, shape, generator_width)


SCALED = CompressorFamily(ScaledShape, read_config, build_scaled, CompressorTexts, count_causal)
BUILDER = NetworkBuilder(build_short_backbone, build_short_classifier, {FAMILY: SCALED})


@pytest.fixture
def method() -> Iterator[str]:
    register_method(METHOD, BUILDER)
    yield METHOD
    METHODS.discard(METHOD)
    del BUILDERS[METHOD], FAMILIES[FAMILY], COMPRESSORS[FAMILY]


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(None, tmp_path / "own")


def open_registry(store: ModelStore) -> ModelRegistry:
    return ModelRegistry.load(store, device=torch.device("cpu"), dtype=torch.float32, workers=1)


async def test_an_encoder_of_a_registered_method_computes_what_its_builder_made(
    method: str, store: ModelStore, tmp_path: Path
) -> None:
    files = write_base(tmp_path / "files")
    manifest = Manifest(
        name="short",
        kind="encoder",
        method=method,
        pooling="mean",
        max_tokens=48,
        shape={"shortening": {"layers": 1}},
    )
    store.publish(files, manifest)
    registry = open_registry(store)
    try:
        await registry.warm_up()
        (info,) = registry.models()
        assert (info.kind, info.method) == ("encoder", method)
        embedded = await registry.encoder("short").embed([TEXT])
    finally:
        registry.close()
    whole: Any = BertModel.from_pretrained(files, add_pooling_layer=False).eval()
    assert len(whole.encoder.layer) > 1
    whole.encoder.layer = whole.encoder.layer[:1]
    ids = torch.tensor([tiny_tokenizer().encode(TEXT).ids])
    with torch.inference_mode():
        wanted = whole(ids).last_hidden_state[0].mean(dim=0)
    np.testing.assert_allclose(embedded.vectors[0], wanted.numpy(), atol=1e-5)


@pytest.mark.parametrize("kind", ["reranker", "classifier"])
async def test_a_classifier_of_a_registered_method_computes_what_its_builder_made(
    method: str, store: ModelStore, tmp_path: Path, kind: str
) -> None:
    files = write_classifier(tmp_path / "files")
    manifest = Manifest(
        name="short",
        kind=kind,
        method=method,
        max_tokens=LENGTH,
        shape={"labels": ["relevant"], "shortening": {"layers": 1}},
    )
    store.publish(files, manifest)
    registry = open_registry(store)
    try:
        await registry.warm_up()
        classified = await registry.classifier("short").classify([TEXT])
    finally:
        registry.close()
    whole: Any = AutoModelForSequenceClassification.from_pretrained(files).eval()
    whole.bert.encoder.layer = whole.bert.encoder.layer[:1]
    ids = torch.tensor([Tokenizer.from_file(str(files / "tokenizer.json")).encode(TEXT).ids])
    with torch.inference_mode():
        wanted = whole(ids).logits
    np.testing.assert_allclose(classified.logits, wanted.numpy(), atol=1e-5)


async def test_a_pair_of_a_registered_family_compresses_and_answers_by_it(
    method: str, store: ModelStore, tmp_path: Path
) -> None:
    pair, state = tiny_causal()
    files = write_halves(tmp_path / "files", pair, bpe("llama"), with_specials(bpe("mistral")))
    save_state(files, state)
    assert isinstance(pair.shape.compressor, CompressorShape)
    scaled = ScaledShape(**asdict(pair.shape.compressor), factor=2.0)
    shapes = {"plain": pair.shape, "scaled": CausalShape(scaled, pair.shape.generator)}
    for name, shape in shapes.items():
        made_by = method if name == "scaled" else "oscar"
        own = Manifest(
            name=name, kind="oscar-pair", method=made_by, max_tokens=64, shape=shape.to_dict()
        )
        store.publish(files, own)
    assert CausalShape.from_dict(shapes["scaled"].to_dict()) == shapes["scaled"]
    registry = open_registry(store)
    try:
        await registry.warm_up()
        assert registry.refusals() == {}
        (plain,), (twice,) = [await registry.pair(name).compress("who?", [TEXT]) for name in shapes]
        np.testing.assert_allclose(twice.memory, 2 * plain.memory, atol=1e-5)
        answer = registry.pair("scaled").generate("who?", [twice.memory], max_tokens=2)
        assert [token async for token in answer]
    finally:
        registry.close()


def test_a_method_or_family_is_registered_once(method: str) -> None:
    for name, builder in ((method, NetworkBuilder()), ("none", NetworkBuilder())):
        with pytest.raises(ValueError, match=f"registered already: {name}"):
            register_method(name, builder)
    with pytest.raises(ValueError, match=f"registered already: {FAMILY}"):
        register_method("another", BUILDER)


def test_a_method_that_makes_no_encoders_is_refused(tmp_path: Path) -> None:
    files = NetworkFiles("tiny", tmp_path, {}, torch.device("cpu"), torch.float32, dict)
    with pytest.raises(CorruptModel, match="tiny: method 'oscar' makes no encoders"):
        build_backbone("oscar", files)


def test_a_manifest_of_an_unknown_method_is_refused_and_those_known_are_named() -> None:
    with pytest.raises(ValueError, match=r"method\n.* should be one of .*'effir'"):
        Manifest(name="short", kind="encoder", method=METHOD, max_tokens=48)
