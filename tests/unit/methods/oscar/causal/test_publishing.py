"""Trained, published, served: the pair answers as it did in training."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_causal_training import some_rows, write_rows
from tiny_report import tiny_report

from condensery.errors import InputError
from condensery.methods.oscar.causal.building import Bases, PairSources
from condensery.methods.oscar.causal.data import Files
from condensery.methods.oscar.causal.publishing import main, publish
from condensery.methods.oscar.causal.recipe import CausalRecipe
from condensery.methods.oscar.causal.training import train
from condensery.methods.trainer.method import TrainingSetup
from condensery.networks.oscar_causal import CausalPair
from condensery.runtime.registry import ModelRegistry
from condensery.store.store import ModelStore

RECIPE = CausalRecipe(
    batch=4, rows=4, steps=3, passages=3, label_tokens=12, lora_rank=2, generator_rate=1e-2,
    compressor_rate=1e-3,
)  # fmt: skip
TOKENS = 12


@pytest.fixture(autouse=True)
def no_plot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("condensery.methods.trainer.trainer.plot", lambda out: None)


def greedy(pair: CausalPair, bases: Bases, question: str, passages: list[str]) -> list[int]:
    """Answer with the network in training, adapters and all: the whole prompt anew each token."""
    from condensery.networks.packing import Packing

    asked = bases.texts.cut(question)[0]
    readings = [windows[0] for windows in bases.texts.make_windows(asked, passages)]
    tokens: list[int] = []
    with torch.no_grad():
        memory = pair.eval().compressor.compress(readings).split()
        while len(tokens) < TOKENS and (not tokens or tokens[-1] not in bases.texts.stop):
            embeds = pair.generator.embed([*bases.texts.prompt(asked, memory), tokens])
            packing = Packing.of([embeds.shape[1]], dtype=embeds.dtype)
            hidden = pair.generator(
                embeds, position_ids=packing.position_ids, packing=packing, use_cache=False
            ).last_hidden_state[0, -1]
            tokens.append(int(pair.generator.logits(hidden).argmax()))
    return tokens


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[list[ModelRegistry]]:
    running: list[ModelRegistry] = []
    yield running
    for models in running:
        models.close()


@pytest.mark.parametrize(
    ("kind", "tuning"),
    [("first layers", "lora"), ("tied, no head", "lora"), ("another model", "full"),
     ("a BERT", "lora")],
)  # fmt: skip
async def test_a_published_pair_answers_as_the_network_in_training(
    kind: str,
    tuning: str,
    kinds: dict[str, PairSources],
    rows_file: Path,
    tmp_path: Path,
    stores: list[ModelRegistry],
) -> None:
    # Passages that are one window: longer ones are served in several.
    built = replace(kinds[kind], passage_tokens=31 if kind == "a BERT" else 64)
    bases, store = Bases(built), ModelStore(None, tmp_path / "store")
    recipe = replace(RECIPE, generator_tuning=tuning)
    files = Files([rows_file], share=0.0)
    pair = train(built, files, tmp_path / "run", recipe, setup=TrainingSetup(dtype=torch.float32))
    publish(tmp_path / "run", store, name="tiny", dtype=torch.float32)
    models = ModelRegistry.load(store, device=torch.device("cpu"), dtype=torch.float32, workers=1)
    stores.append(models)
    assert models.refusals() == {}
    reader = models.pair()
    different = set()
    for row in some_rows(3):
        wanted = greedy(pair, bases, row["question"], row["passages"])
        memory = [
            passage.memory for passage in await reader.compress(row["question"], row["passages"])
        ]  # type: ignore[union-attr]  # none failed
        stream = reader.generate(row["question"], memory, max_tokens=TOKENS)
        text = "".join([token.text async for token in stream])
        ended = wanted[-1] in bases.texts.stop
        assert text.strip() == bases.texts.decode(wanted[:-1] if ended else wanted).strip()
        assert len(wanted) > 1
        different.add(tuple(wanted))
    assert len(different) > 1


def test_a_stored_pair_is_in_bf16_with_its_making(
    kinds: dict[str, PairSources], rows_file: Path, tmp_path: Path
) -> None:
    run, store = tmp_path / "run", tmp_path / "store"
    files = Files([rows_file], share=0.2, licence="CC BY 4.0")
    shortened = f"{rows_file.parent.name}/rows.jsonl"
    command = f"condensery train oscar-causal --data {shortened} --share 0.2"
    changed = command.replace(shortened, str(rows_file))
    train(
        kinds["first layers"], files, run, RECIPE, answers=2, setup=TrainingSetup(command=changed)
    )
    main(["--run", str(run), "--name", "tiny", "--store", str(store), "--licence", "apache-2.0"])
    stored = ModelStore(None, store).open("tiny")
    manifest = stored.manifest
    assert (manifest.kind, manifest.method, manifest.dtype) == ("oscar-pair", "oscar", "bfloat16")
    assert manifest.licence == "apache-2.0"
    assert manifest.provenance.data == ("rows.jsonl (CC BY 4.0)",)
    assert (manifest.provenance.command, manifest.provenance.seed) == (command, 13)
    assert manifest.provenance.source == "generator mistral (apache-2.0)"
    figures = manifest.quality["in_training"]
    assert isinstance(figures, dict)
    assert figures.keys() == {"label", "rerank", "first", "em", "f1"}
    tensors = {k: v for path in stored.weights for k, v in load_file(path).items()}
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert not [name for name in tensors if "lora" in name or "base_layer" in name]
    assert manifest.cost["parameters"] == sum(tensor.numel() for tensor in tensors.values())
    card = (stored.path / "card.md").read_text()
    for part in ("# tiny", "rows.jsonl (CC BY 4.0)", command, "3 steps, seed 13", "apache-2.0"):
        assert part in card
    shortened = json.loads((stored.path / "recipe.json").read_text())
    assert shortened["recipe"]["lora_rank"] == 2
    assert shortened["built"]["layers"] == 2
    assert str(tmp_path) not in card + (stored.path / "recipe.json").read_text()


@pytest.mark.tiny_run
def test_a_measured_pair_has_its_report_and_its_defaults(
    kinds: dict[str, PairSources], rows_file: Path, tmp_path: Path
) -> None:
    store, files = ModelStore(None, tmp_path / "store"), Files([rows_file], share=0.0)
    train(kinds["first layers"], files, tmp_path / "run", replace(RECIPE, steps=1))
    first = publish(tmp_path / "run", store, name="tiny")
    report = tiny_report(fingerprint=first.manifest.fingerprint)
    second = publish(tmp_path / "run", store, name="tiny", report=report)
    assert second.manifest.fingerprint == first.manifest.fingerprint
    assert json.loads((second.path / "report.json").read_text()) == report
    assert (second.manifest.defaults.top_n, second.manifest.defaults.min_relevance) == (1, 0.4)
    card = (second.path / "card.md").read_text()
    assert "## How well it answers" in card
    assert "](plots/cost.png)" in card
    assert "## What it was made from" in card
    other = tiny_report(fingerprint="sha256:" + "0" * 64)
    with pytest.raises(InputError, match=r"report: was measured on sha256:0+, and this run's"):
        publish(tmp_path / "run", store, name="tiny", report=other)


def test_a_rerank_head_that_was_never_taught_is_not_published(
    kinds: dict[str, PairSources], tmp_path: Path
) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", some_rows(4, scores=False))
    store, files = ModelStore(None, tmp_path / "store"), Files([rows], share=0.0)
    short = replace(RECIPE, steps=1)
    for name, kind, rerank in (("layers", "first layers", False), ("bert", "a BERT", None)):
        train(kinds[kind], files, tmp_path / name, short)
        stored = publish(tmp_path / name, store, name=name)
        shape = stored.manifest.shape["compressor"]
        assert isinstance(shape, dict)
        assert shape.get("rerank") is rerank
        taught = "never taught" not in (stored.path / "card.md").read_text()
        assert taught == (name == "layers")
        assert (stored.manifest.provenance.notes == ()) == taught
    models = ModelRegistry.load(store, device=torch.device("cpu"), dtype=torch.float32, workers=1)
    assert models.refusals() == {}
    models.close()


def test_what_is_no_trained_run_is_not_published(
    kinds: dict[str, PairSources], rows_file: Path, tmp_path: Path
) -> None:
    store = ModelStore(None, tmp_path / "store")
    with pytest.raises(InputError, match=r"run: .* holds no run of a pair"):
        publish(tmp_path, store, name="tiny")
    text = tmp_path / "text.txt"
    text.write_text("The mill stands by the river, and nobody knows who built it there. " * 20)
    pre = replace(RECIPE, stage="pretrain", steps=1)
    train(kinds["first layers"], Files([text], share=0.0), tmp_path / "pre", pre)
    with pytest.raises(InputError, match=r"run: .* is pretraining's; fine-tune it first"):
        publish(tmp_path / "pre", store, name="tiny")
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "run.json").write_text((tmp_path / "pre" / "run.json").read_text())
    with pytest.raises(InputError, match=r"run: .* holds no checkpoint"):
        publish(tmp_path / "begun", store, name="tiny")
