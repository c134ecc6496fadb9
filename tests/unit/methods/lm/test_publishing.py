"""A language model into the store and out again, its words its own or an encoder's."""

import json
from pathlib import Path

import pytest
import torch
from tiny_pair import WORDS, write_base
from transformers import AutoModelForCausalLM, AutoTokenizer

from condensery.errors import InputError
from condensery.methods.lm.exporting import export, open_model
from condensery.methods.lm.exporting import main as main_export
from condensery.methods.lm.model import TABLE, LmShape, read_table
from condensery.methods.lm.publishing import main, publish
from condensery.methods.lm.recipe import LmRecipe
from condensery.methods.lm.text import Texts
from condensery.methods.lm.training import train
from condensery.methods.trainer.method import TrainingSetup
from condensery.metrics import Metrics
from condensery.runtime.registry import ModelRegistry
from condensery.store.layouts import read_licence
from condensery.store.manifest import Manifest, StoredModel
from condensery.store.store import ModelStore

RECIPE = LmRecipe(steps=3, rows=2, warmup=1, vocabulary=300, held_out=0.2)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "words.txt"
    path.write_text("\n\n".join(f"{WORDS} {number}" for number in range(10)))
    return path


@pytest.fixture
def base(tmp_path: Path) -> StoredModel:
    files = write_base(tmp_path / "base")
    manifest = Manifest(name="tiny-base", kind="encoder", pooling="mean", max_tokens=64)
    return ModelStore(None, tmp_path / "store").publish(files, manifest)


@pytest.fixture
def shared(text: Path, base: StoredModel, tmp_path: Path) -> Path:
    """The model of a run over the base's words."""
    table = read_table(base.path)
    shape = LmShape(width=table.shape[1], layers=2, heads=2, mlp_width=24, length=24)
    texts = Texts([text], licence="CC0 1.0")
    return train(texts, tmp_path / "run", shape, RECIPE, tokenizer=base.path, table=table)


def test_shared_words_are_not_stored_again_and_the_model_comes_back(
    shared: Path, base: StoredModel, text: Path, tmp_path: Path
) -> None:
    store = ModelStore(None, tmp_path / "store")
    stored = publish(shared, store, name="tiny-lm", base=base, held_out=[text])
    manifest = stored.manifest
    assert (manifest.kind, manifest.base, manifest.licence) == (
        *("language-model", "tiny-base", "CC0 1.0"),
    )
    trained = AutoModelForCausalLM.from_pretrained(shared, dtype=torch.float32)
    model = open_model(stored, base)
    weights = dict(model.named_parameters())
    assert torch.equal(weights[TABLE], read_table(base.path))
    for name, weight in trained.named_parameters():
        if name != TABLE:  # int8: half a step of each row's scale
            room = weight.abs().amax(-1, keepdim=True) / 254 + 1e-6 if weight.ndim == 2 else 1e-6
            assert ((weight - weights[name]).abs() <= room).all(), name
    size = sum(path.stat().st_size for path in stored.weights)
    assert size < sum(w.numel() for n, w in weights.items() if n != TABLE) + 8000
    figures = manifest.quality
    assert figures["held_out_int8"]["perplexity"] == pytest.approx(  # type: ignore[index,call-overload]
        figures["held_out"]["perplexity"],  # type: ignore[index,call-overload]
        rel=0.2,
    )
    card = (stored.path / "card.md").read_text()
    assert "| as stored, int8 |" in card
    assert "words.txt: 8 documents" in card


def test_an_exported_model_is_read_by_transformers(
    shared: Path, base: StoredModel, tmp_path: Path
) -> None:
    store = ModelStore(None, tmp_path / "store")
    stored = publish(shared, store, name="tiny-lm", base=base)
    main_export(["--model", "tiny-lm", "--store", str(store.own), "--out", str(tmp_path / "out")])
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", local_files_only=True)
    ids = AutoTokenizer.from_pretrained(tmp_path / "out")(WORDS, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        torch.testing.assert_close(
            model(ids[:, :20]).logits, open_model(stored, base)(ids[:, :20]).logits
        )
    assert read_licence(tmp_path / "out" / "README.md") == stored.manifest.licence != "unknown"
    with pytest.raises(InputError, match=r"out: .* is there already"):
        export(store, "tiny-lm", tmp_path / "out")
    with pytest.raises(InputError, match="tiny-base is of kind 'encoder', not a language model"):
        export(store, "tiny-base", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_model_with_words_of_its_own_needs_no_base(text: Path, tmp_path: Path) -> None:
    shape = LmShape(width=16, layers=1, heads=2, mlp_width=24, length=24)
    command = f"condensery train lm --text {text}"
    train(Texts([text]), tmp_path / "run", shape, RECIPE, setup=TrainingSetup(command=command))
    store = ModelStore(None, tmp_path / "store")
    main(["--run", str(tmp_path / "run"), "--name", "own", "--store", str(store.own)])
    stored = store.open("own")
    assert stored.manifest.base is None
    shortened = f"condensery train lm --text {text.parent.name}/words.txt"
    assert stored.manifest.provenance.command == shortened
    assert shortened in (stored.path / "card.md").read_text()
    assert str(tmp_path) not in (stored.path / "card.json").read_text()
    card = json.loads((tmp_path / "run" / "model" / "card.json").read_text())
    assert stored.manifest.cost == {"parameters": card["parameters"]}
    assert sum(p.numel() for p in open_model(stored, None).parameters()) == card["parameters"]


def test_another_encoders_words_are_no_base(shared: Path, tmp_path: Path) -> None:
    files = write_base(tmp_path / "other", seed=9)
    manifest = Manifest(name="other", kind="encoder", pooling="mean", max_tokens=64)
    store = ModelStore(None, tmp_path / "store")
    with pytest.raises(InputError, match=r"base: its standardised word embeddings .* are not"):
        publish(shared, store, name="tiny-lm", base=store.publish(files, manifest))
    assert store.names() == ("other", "tiny-base")


def test_a_server_passes_a_language_model_over(
    shared: Path, base: StoredModel, tmp_path: Path
) -> None:
    store = ModelStore(None, tmp_path / "alone")
    publish(shared, store, name="tiny-lm")
    lines: list[str] = []
    registry = ModelRegistry.load(
        store, device=torch.device("cpu"), dtype=torch.float32, metrics=Metrics(), say=lines.append
    )
    try:
        assert (registry.models(), registry.refusals(), lines) == ([], {}, [])
    finally:
        registry.close(0)
