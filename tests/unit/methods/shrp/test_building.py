"""A static small model in one command: tuned, converted, pruned, measured, published, served."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from serving import embed
from tests.unit.methods.conftest import Stored
from tests.unit.methods.shrp.conftest import Rows
from tiny_classifier import write_classifier

from condensery.errors import CondenseryError, CorruptModel, InputError
from condensery.methods.shrp.command import main
from condensery.methods.shrp.networks import open_stored
from condensery.methods.trainer.checkpoints import TrainingStopped
from condensery.runtime.classifier import Classifier
from condensery.runtime.workers import Workers
from condensery.store.importing import import_model
from condensery.store.manifest import StoredModel
from condensery.store.reports import StoredReport
from condensery.store.store import ModelStore

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = ["--batch", "8", "--rate", "3e-3", "--extra-epochs", "1", "--threads", "1",
         "--device", "cpu", "--workers", "1", "--rounds", "1", "--measure-dtype", "float32",
         "--expander-scale", "0.1"]  # fmt: skip


def run(parent: StoredModel, out: Path, *flags: object, name: str = "small") -> StoredModel:
    arguments = [parent.name, "--store", parent.root, "--name", name, "--out", out]
    main([*map(str, (*arguments, *SMALL, *flags))])
    return ModelStore(None, parent.root).open(name)


def classified(stored: StoredModel, texts: list[Any]) -> np.ndarray[Any, Any]:
    """Return the logits that the service gives."""
    with ThreadPoolExecutor(1) as threads:
        workers = Workers(1, torch.device("cpu"))
        try:
            model = Classifier.load(stored, workers, threads=threads)
            return np.stack(asyncio.run(model.classify(texts)).logits)
        finally:
            workers.close()


@pytest.mark.tiny_run
def test_an_encoder_is_tuned_converted_pruned_published_and_classifies(
    stored: Stored, labelled: Rows, tmp_path: Path
) -> None:
    parent = stored("bert")
    train, validation, test = (
        labelled(n, c) for n, c in (("train", 64), ("valid", 24), ("test", 20))
    )
    flags = ("--convert", 2, "--train", train, "--validation", validation, "--test", test,
             "--tune-epochs", 4)  # fmt: skip
    made = run(parent, tmp_path / "run", *flags)
    about = made.manifest
    assert (about.kind, about.method, about.shape["labels"]) == ("classifier", "shrp", ["0", "1"])
    heads: Any = about.shape["shrp_heads"]
    assert [kept is None for kept in heads] == [True, True, False, False]
    assert all(len(kept) == 1 for kept in heads[2:])

    report = StoredReport(made).report().report
    figures = report["quality"]["test"]
    assert figures["parent"]["accuracy"] > 0.9  # a word decides
    rows = [json.loads(line) for line in test.read_text().splitlines()]
    chosen = classified(made, [row["text"] for row in rows]).argmax(1)
    right = np.mean([choice == row["label"] for choice, row in zip(chosen, rows, strict=True)])
    assert figures["model"]["accuracy"] == pytest.approx(right)
    low, high = figures["model"]["interval"]
    assert low <= figures["model"]["minus_parent"] <= high

    usage = report["experts"]["usage"]
    assert {name: sum(counts) for name, counts in usage.items()} == {"2": 24, "3": 24}
    for name, counts in usage.items():
        assert heads[int(name)] == [counts.index(max(counts))]
    cost = report["cost"]
    assert cost["model"]["parameters"] == sum(p.numel() for p in open_stored(made).parameters())
    assert cost["model"]["parameters"] < cost["parent"]["parameters"]
    assert cost["flops_left_percent"] == pytest.approx(70)
    assert report["speed"]["batch_1"]["speed_up"] > 0

    card = StoredReport(made).card()
    assert str(tmp_path) not in card
    for plot in ("usage", "conversion", "tuning"):
        assert StoredReport(made).plot(plot).startswith(b"\x89PNG")
        assert f"(plots/{plot}.png)" in card
    tuned = ModelStore(None, parent.root).open("small-parent")
    assert (tuned.manifest.kind, tuned.manifest.method) == ("classifier", "none")

    again = run(parent, tmp_path / "run", *flags)  # everything is there: nothing is trained
    assert again.version == "2"
    assert again.manifest.fingerprint == about.fingerprint
    assert ModelStore(None, parent.root).open("small-parent").version == "1"


def test_an_encoder_learns_its_own_vectors_and_shares_its_embeddings(
    stored: Stored,
    plain_text: Path,
    scored_pairs: Path,
    beir: Path,
    tuning_rows: Path,
    tmp_path: Path,
) -> None:
    parent = stored("bert")
    made = run(
        parent, tmp_path / "run", "--layers", 3, 1, "--text", plain_text, "--pairs", scored_pairs,
        "--set", beir, "--rows", tuning_rows, "--contrast", 0.1, "--settle-epochs", 1,
        "--share-embeddings", "--stored", "int8", "--new-rate", "1e-2", "--dtype", "bfloat16",
    )  # fmt: skip
    about = made.manifest
    assert (about.kind, about.pooling, about.base) == (
        "encoder",
        parent.manifest.pooling,
        parent.name,
    )
    report = StoredReport(made).report().report
    assert {*report["quality"]} == {"tiny", f"{tmp_path.name}/pairs"}
    assert {*report["stages"]} == {"all experts, routed", "pruned, static", "settled"}
    assert report["stages"]["settled"]["cosine"] > 0.5
    own, other = (embed(m, ["the old mill", "a river"]) for m in (made, parent))
    assert own.shape == other.shape
    assert (own * other).sum(1).min() > 0.3
    whole, base = open_stored(made).state_dict(), open_stored(parent).state_dict()
    words = "embeddings.word_embeddings.weight"
    assert torch.equal(whole[words], base[words])


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_a_reranker_learns_its_own_scores(kind: str, tuning_rows: Path, tmp_path: Path) -> None:
    store = ModelStore(None, tmp_path / "store")
    parent = import_model(store, write_classifier(tmp_path / "ce", kind), "ce")
    made = run(parent, tmp_path / "run", "--convert", 1, "--rows", tuning_rows, "--keep", 2)
    assert (made.manifest.kind, made.manifest.method) == ("reranker", "shrp")
    figures = StoredReport(made).report().report["quality"]["held-out queries"]
    assert 0 < figures["model"]["ndcg@10"] <= 1
    pairs = [("where is the mill", "mill is old 3"), ("where is the mill", "river is old 4")]
    own, other = classified(made, pairs), classified(parent, pairs)
    assert own.shape == other.shape == (2, 1)
    assert not np.allclose(own, other)


@pytest.mark.parametrize("pairs", [False, True])
def test_a_stored_classifier_keeps_its_labels(labelled: Rows, pairs: bool, tmp_path: Path) -> None:
    store = ModelStore(None, tmp_path / "store")
    parent = import_model(store, write_classifier(tmp_path / "c", labels=("no", "yes")), "c")
    train, validation = (
        labelled(name, 24, pairs=pairs, labels=("no", "yes")) for name in ("train", "valid")
    )
    made = run(parent, tmp_path / "run", "--train", train, "--validation", validation)
    assert made.manifest.shape["labels"] == ["no", "yes"]
    assert "validation" in StoredReport(made).report().report["quality"]


def test_a_build_that_was_killed_goes_on_to_the_same_model(
    stored: Stored, labelled: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = stored("bert")
    train, validation = (labelled(name, 32) for name in ("train", "valid"))
    flags = ("--convert", 2, "--train", train, "--validation", validation, "--tune-epochs", 1)
    whole = run(parent, tmp_path / "whole", *flags)

    from condensery.methods.shrp.training import ShrpTraining

    ordinary, seen = ShrpTraining.batch, 0

    def die(self: Any, draw: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen == 4 + 6:  # in the second epoch of the conversion
            raise KeyboardInterrupt
        return ordinary(self, draw)

    monkeypatch.setattr(ShrpTraining, "batch", die)
    with pytest.raises(KeyboardInterrupt):
        run(parent, tmp_path / "cut", *flags)
    monkeypatch.setattr(ShrpTraining, "batch", ordinary)
    resumed = run(parent, tmp_path / "cut", *flags)
    assert resumed.manifest.fingerprint == whole.manifest.fingerprint


@pytest.mark.parametrize(
    ("rows", "field", "word"),
    [
        ([{"text": "a mill", "label": 0}] * 4, "label", "all are '0'"),
        (
            [{"text": "a mill", "label": 0}, {"text1": "a", "text2": "b", "label": 1}],
            "text2",
            "line 2",
        ),
        ([{"label": 0}], "text", "line 1"),
        ([{"text": "", "label": 0}], "text", "line 1"),
        ([{"text": "a mill"}], "label", "line 1"),
        ([{"text": "a mill", "label": 0.5}], "label", "0.5"),
    ],
)
def test_rows_of_no_use_are_refused_before_any_work(
    rows: list[dict[str, Any]],
    field: str,
    word: str,
    stored: Stored,
    labelled: Rows,
    tmp_path: Path,
) -> None:
    parent = stored("bert")
    train = tmp_path / "odd.jsonl"
    train.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InputError) as caught:
        run(parent, tmp_path / "run", "--train", train, "--validation", labelled("valid", 8))
    assert caught.value.field == field
    assert word in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_label_outside_the_set_and_pairs_where_singles_are_due_are_named(
    stored: Stored, labelled: Rows, tmp_path: Path
) -> None:
    parent = stored("bert")
    train = labelled("train", 8)
    for name, options, field in (
        ("labels", {"labels": (0, 7)}, "label"),
        ("pairs", {"pairs": True}, "validation"),
    ):
        with pytest.raises(InputError) as caught:
            run(parent, tmp_path / "run", "--train", train, "--validation",
                labelled(name, 8, **options))  # fmt: skip
        assert caught.value.field == field
        assert f"{name}.jsonl, line" in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "field"),
    [
        (["--convert", 5], "convert"),
        (["--layers", 4], "layers"),
        (["--layers", 1, 1], "layers"),
        (["--keep", 3], "keep"),
        (["--top-k", 3], "top_k"),
        (["--top-k", 2, "--keep", 2], "keep"),
        (["--batch", 0], "batch"),
    ],
)
def test_a_plan_that_can_not_be_carried_out_is_refused_before_any_work(
    flags: list[object], field: str, stored: Stored, labelled: Rows, tmp_path: Path
) -> None:
    rows = labelled("train", 8)
    with pytest.raises(InputError) as caught:
        run(stored("bert"), tmp_path / "run", "--train", rows, "--validation", rows, *flags)
    assert caught.value.field == field
    assert not (tmp_path / "run").exists()


def test_an_encoder_without_texts_or_labelled_rows_is_refused(
    stored: Stored, labelled: Rows, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        run(stored("bert"), tmp_path / "run", "--validation", labelled("valid", 8))
    assert caught.value.field == "text"


def test_other_families_and_numbers_that_are_not_finite_are_refused(
    stored: Stored, labelled: Rows, tmp_path: Path
) -> None:
    rows = labelled("train", 8)
    with pytest.raises(InputError, match="llama"):
        run(stored("llama"), tmp_path / "run", "--train", rows, "--validation", rows)
    from safetensors.torch import load_file, save_file

    state = load_file(tmp_path / "llama" / "model.safetensors")
    assert state
    stored("bert")  # writes the folder that is spoilt
    state = load_file(tmp_path / "bert" / "model.safetensors")
    state["encoder.layer.1.output.dense.weight"][0, 0] = float("nan")
    save_file(state, tmp_path / "bert" / "model.safetensors", {"format": "pt"})
    store = ModelStore(None, tmp_path / "store")
    spoilt = import_model(store, tmp_path / "bert", "spoilt")
    with pytest.raises(CorruptModel, match=r"layer\.1\.output\.dense\.weight"):
        run(spoilt, tmp_path / "run", "--train", rows, "--validation", rows)


def test_another_recipe_does_not_go_on_from_a_runs_checkpoints(
    stored: Stored, labelled: Rows, tmp_path: Path
) -> None:
    parent = stored("bert")
    rows = labelled("train", 16)
    flags = ("--train", rows, "--validation", rows, "--tune-epochs", 1)
    run(parent, tmp_path / "run", *flags)
    with pytest.raises(TrainingStopped, match="balance"):
        run(parent, tmp_path / "run", *flags, "--balance", 0.3)


def test_an_encoder_that_is_converted_already_is_refused(
    stored: Stored, labelled: Rows, tmp_path: Path
) -> None:
    parent = stored("bert")
    rows = labelled("train", 16)
    made = run(parent, tmp_path / "run", "--train", rows, "--validation", rows, "--tune-epochs", 1)
    with pytest.raises(CondenseryError, match="'shrp'"):
        run(made, tmp_path / "again", "--train", rows, "--validation", rows, name="smaller")
