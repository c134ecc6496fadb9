import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from tiny_pair import VOCABULARY, pair_files, tiny_config, tiny_pair, write_base

from condensery.answers import CompressedPassage
from condensery.methods.oscar.publishing import defaults, publish
from condensery.methods.oscar.training import Recipe
from condensery.methods.trainer.checkpoints import save_checkpoint
from condensery.networks.oscar import WORDS, OscarPair
from condensery.networks.oscar_shape import OscarShape
from condensery.runtime.pair import load_pair, make_ready
from condensery.runtime.reader import Reader
from condensery.runtime.workers import Workers
from condensery.store.manifest import Manifest, StoredModel
from condensery.store.store import ModelStore

MIB = 2**20
REPORT: dict[str, Any] = {
    "questions": 12,
    "seed": 17,
    "settings": {
        name: {"em": 12.25, "f1": 34.5, "seconds": 1.0}
        for name in (
            *("gold", "gold_among_five", "gold_among_five_best_one"),
            *("no_passage", "others_passages", "gold_plain"),
        )
    },
    "gold_ranked_first_among_five": 87.5,
    "differences": {
        "gold_among_five_minus_no_passage": {"f1": 20.5, "low_95": 10.25, "high_95": 30.75}
    },
    "replaced": {"questions": 9, "follows_em": 77.78, "follows_f1": 80.0, "keeps_old_answer": 0.0},
    "examples": [{"question": "who?", "answer": "", "gold": ["the miller"]}],
}


@pytest.fixture
def pair() -> OscarPair:
    return tiny_pair()


@pytest.fixture
def base(tmp_path: Path, pair: OscarPair) -> StoredModel:
    words = pair.compressor.backbone.embeddings.word_embeddings.weight.detach()
    files = write_base(tmp_path / "base", words)
    store = ModelStore(None, tmp_path / "store")
    return store.publish(
        files, Manifest(name="tiny-base", kind="encoder", pooling="mean", max_tokens=64)
    )


@pytest.fixture
def run(tmp_path: Path, pair: OscarPair) -> Path:
    """A training run's folder."""
    out = tmp_path / "run"
    out.mkdir()
    about = {"shape": pair.shape.to_dict(), "recipe": asdict(Recipe(steps=7, seed=5))}
    save_checkpoint(out, 7, pair.own_state(), {"0.master": torch.zeros(1)}, about)
    (out / "data.json").write_text(json.dumps({"squad_examples": 3}))
    return out


@pytest.fixture
def stored(run: Path, base: StoredModel, tmp_path: Path) -> StoredModel:
    return publish(run, base, ModelStore(None, tmp_path / "store"), name="tiny-pair", report=REPORT)


@pytest.fixture
def workers() -> Iterator[Workers]:
    started = Workers(1)
    yield started
    started.close()


async def ask(reader: Reader) -> tuple[list[CompressedPassage], str]:
    found = await reader.compress("who is old?", ["the old mill", "new bread in town"])
    memory = [passage.memory for passage in found]
    text = [token.text async for token in reader.generate("who is old?", memory, max_tokens=8)]
    return found, "".join(text)


async def test_a_published_pair_loads_and_answers_as_the_trained_one(
    stored: StoredModel, base: StoredModel, pair: OscarPair, workers: Workers, tmp_path: Path
) -> None:
    with ThreadPoolExecutor(1) as threads:
        loaded = Reader.load(stored, base, workers, dtype=torch.float32, threads=threads)
        files = pair_files(tmp_path / "trained", pair)
        trained = Reader.of(make_ready(pair), files, workers, name="trained", threads=threads)
        (found, text), (wanted, _) = await ask(loaded), await ask(trained)
    assert loaded.info.name == "tiny-pair"
    assert loaded.info.fingerprint == stored.manifest.fingerprint
    assert text
    for a, b in zip(found, wanted, strict=True):
        x, y = a.memory.ravel(), b.memory.ravel()
        assert x @ y / np.linalg.norm(x) / np.linalg.norm(y) > 0.999  # int8
        assert not np.array_equal(x, y)


def test_each_weight_comes_back_within_half_a_step_of_int8(
    stored: StoredModel, base: StoredModel
) -> None:
    source = tiny_pair().own_state()
    found = load_pair(stored, base, device=torch.device("cpu"), dtype=torch.float32)
    wanted = source["compressor.mapping.0.weight"]
    # What it maps a unit vector to is a column; the weight itself may lie in another layout.
    columns = found.compressor.mapping[0](torch.eye(wanted.shape[1]))
    mapping = (columns - source["compressor.mapping.0.bias"]).T
    step = wanted.abs().amax(dim=1, keepdim=True) / 127
    assert ((mapping - wanted).abs() <= 0.501 * step + 1e-6).all()
    assert torch.equal(found.compressor.slots.weight, source["compressor.slots.weight"])


def test_matrices_are_int8_and_the_words_stay_with_the_base(stored: StoredModel) -> None:
    types: dict[str, str] = {}
    for path in stored.weights:
        with safe_open(path, framework="pt") as file:
            types |= {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118 (no iterator)
    assert WORDS not in types
    own = tiny_pair().own_state()
    assert set(own) == {name for name in types if not name.endswith(".scale")}
    matrices = {name for name, value in own.items() if value.ndim == 2 and min(value.shape) > 4}
    assert {name for name, kind in types.items() if kind == "I8"} == matrices
    assert len(matrices) > 20


def test_the_manifest_says_how_the_pair_was_made_and_how_good_it_is(
    stored: StoredModel, base: StoredModel
) -> None:
    manifest = stored.manifest
    assert (manifest.kind, manifest.method, manifest.dtype) == ("oscar-pair", "oscar", "int8")
    assert manifest.base == "tiny-base"
    assert manifest.base_fingerprint == base.manifest.fingerprint
    assert manifest.shape == tiny_pair().shape.to_dict()
    assert manifest.max_tokens == 12 + 24 + 3
    assert manifest.provenance.seed == 5
    assert "--steps 7 " in manifest.provenance.command
    assert "--seed 5" in manifest.provenance.command
    assert manifest.licence == "cc-by-sa-4.0"
    assert manifest.quality["gold"] == {"em": 12.25, "f1": 34.5}
    assert manifest.cost["parameters"] == sum(t.numel() for t in tiny_pair().own_state().values())
    recipe = json.loads((stored.path / "recipe.json").read_text())
    assert recipe["steps_done"] == 7
    card = (stored.path / "card.md").read_text()
    for figure in ("| 12.2 | 34.5 |", "87.5%", "10.2 to 30.8", "77.78% of 9", "(nothing)"):
        assert figure in card


def test_a_pair_without_a_report_has_no_card(run: Path, base: StoredModel, tmp_path: Path) -> None:
    stored = publish(run, base, ModelStore(None, tmp_path / "store"), name="tiny-pair")
    assert "card.md" not in stored.manifest.files
    assert stored.manifest.quality == {}


def test_a_report_does_not_change_the_fingerprint(
    stored: StoredModel, run: Path, base: StoredModel, tmp_path: Path
) -> None:
    plain = publish(run, base, ModelStore(None, tmp_path / "store"), name="tiny-pair")
    assert (stored.version, plain.version) == ("1", "2")
    assert plain.manifest.fingerprint == stored.manifest.fingerprint


def test_a_pair_of_the_real_size_fits_the_shipped_store(tmp_path: Path) -> None:
    config = tiny_config(
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=1536,
        max_position_embeddings=512,
    )
    pair = OscarPair(config, OscarShape(), torch.randn(len(VOCABULARY), 384))
    run = tmp_path / "run"
    run.mkdir()
    half = {name: value.bfloat16() for name, value in pair.own_state().items()}
    state = {"shape": pair.shape.to_dict(), "recipe": asdict(Recipe())}
    save_checkpoint(run, 1, half, {"0.master": torch.zeros(1)}, state)
    (run / "data.json").write_text("{}")
    files = write_base(tmp_path / "base")
    store = ModelStore(None, tmp_path / "store")
    base = store.publish(
        files, Manifest(name="tiny-base", kind="encoder", pooling="mean", max_tokens=64)
    )
    stored = publish(run, base, store, name="large")
    sizes = [path.stat().st_size for path in stored.weights]
    assert len(sizes) > 1
    assert max(sizes) <= 16 * MIB
    # The vocabulary is small here: minilm-l6's adds a bias of 30,522 numbers.
    assert sum(path.stat().st_size for path in stored.path.iterdir()) < 24 * MIB - 4 * 30_522
    names = [set(load_file(path)) for path in stored.weights]
    assert not names[0] & names[1]


@pytest.mark.parametrize(("best_one", "top_n"), [(41.0, 1), (39.0, None)])
def test_the_pair_reads_one_passage_by_default_where_that_was_measured_to_be_better(
    best_one: float, top_n: int | None
) -> None:
    settings = {"gold_among_five": {"f1": 40.0}, "gold_among_five_best_one": {"f1": best_one}}
    assert defaults({"settings": settings}).top_n == top_n
    assert defaults(None).top_n is None
