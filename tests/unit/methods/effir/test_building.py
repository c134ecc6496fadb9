"""A smaller retriever in one command: made, measured, published, served."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.unit.methods.conftest import Stored

from condensery.errors import CondenseryError
from condensery.methods.effir.command import main
from condensery.methods.ranking.measures import ndcg
from condensery.methods.ranking.sets import read_set
from condensery.runtime.encoder import Encoder
from condensery.runtime.workers import Workers
from condensery.store.importing import import_model
from condensery.store.manifest import StoredModel
from condensery.store.reports import StoredReport
from condensery.store.store import ModelStore
from condensery.store.weights import load_state

pytestmark = pytest.mark.usefixtures("one_thread")
TUNING = ["--steps", "6", "--queries", "4", "--negatives", "2", "--rate", "1e-3", "--warmup", "1"]
SMALL = ["--samples", "4", "--block", "16", "--workers", "1", "--threads", "1", "--device", "cpu"]


def run(parent: StoredModel, out: Path, *flags: object) -> StoredModel:
    words = ["--model", parent.name, "--store", parent.root, "--name", "small", "--out", out]
    main([*map(str, (*words, *SMALL, *flags))])
    return ModelStore(None, parent.root).open("small")


@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_a_model_is_dropped_slimmed_tuned_measured_and_published(
    kind: str, stored: Stored, tuning_rows: Path, beir: Path, text_file: Path, tmp_path: Path
) -> None:
    parent = stored(kind)
    made = run(
        parent, tmp_path / "run", "--drop-mlp", 2, "--drop-attention", 1, "--text", text_file,
        "--rows", tuning_rows, *TUNING, "--width", 0.3, "--slim-steps", 4, "--gate-rate", 0.1,
        "--set", beir,
    )  # fmt: skip
    about = made.manifest
    assert (about.kind, about.method, about.pooling) == (
        "encoder",
        "effir",
        parent.manifest.pooling,
    )
    shape: dict[str, Any] = about.shape
    assert len(shape["drop_mlp_list"]) == 2
    assert len(shape["drop_attn_list"]) == 1
    assert sum(shape["mlp_intermediate_sizes"]) == 2 * 48 - int(0.3 * 2 * 48)
    weights = load_file(made.path / "model.safetensors")
    whole = load_file(parent.path / "model.safetensors")
    assert sum(t.numel() for t in weights.values()) == about.cost["parameters"]
    assert len(weights) < len(whole)
    report = StoredReport(made).report().report
    (name,) = report["retrieval"]
    figures = report["retrieval"][name]
    ranking_set = read_set(beir)
    assert figures["model"]["ndcg@10"] == pytest.approx(mean_ndcg(made, ranking_set))
    assert figures["parent"]["ndcg@10"] == pytest.approx(mean_ndcg(parent, ranking_set))
    assert report["speed"]["passages"]["predicted"] > 1
    assert report["cost"]["parent"]["parameters"] == sum(t.numel() for t in whole.values())
    card = StoredReport(made).card()
    assert "--drop-mlp 2" in card
    assert str(tmp_path) not in card
    for plot in ("drop-order", "trade-off"):
        assert StoredReport(made).plot(plot).startswith(b"\x89PNG")
        assert f"(plots/{plot}.png)" in card
    again = run(  # everything is there: nothing is trained or analysed again
        parent, tmp_path / "run", "--drop-mlp", 2, "--drop-attention", 1, "--text", text_file,
        "--rows", tuning_rows, *TUNING, "--width", 0.3, "--slim-steps", 4, "--gate-rate", 0.1,
        "--set", beir,
    )  # fmt: skip
    assert again.version == "2"
    assert again.manifest.files["model.safetensors"] == about.files["model.safetensors"]


@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_it_is_measured_as_it_is_stored_int8_and_with_the_parent_s_embeddings(
    tuning: str, stored: Stored, tuning_rows: Path, beir: Path, tmp_path: Path
) -> None:
    parent = stored("bert")
    made = run(
        parent, tmp_path / "run", "--drop-last", 1, "--rows", tuning_rows, *TUNING,
        "--tuning", tuning, "--set", beir, "--rounds", 0,
        "--stored", "int8", "--share-embeddings",
    )  # fmt: skip
    assert (made.manifest.base, made.manifest.dtype) == ("bert", "int8")
    weights = load_file(made.path / "model.safetensors")
    assert not [name for name in weights if name.startswith("embeddings.")]
    assert weights["encoder.layer.0.output.dense.weight"].dtype == torch.int8
    whole = load_file(parent.path / "model.safetensors")["encoder.layer.0.output.dense.weight"]
    learnt = load_state(made)["encoder.layer.0.output.dense.weight"]
    assert not torch.allclose(learnt, whole, atol=float(whole.abs().max()) / 127)
    report = StoredReport(made).report().report
    (figures,) = report["retrieval"].values()
    assert figures["model"]["ndcg@10"] == pytest.approx(mean_ndcg(made, read_set(beir)))
    measured = ModelStore(parent.root, tmp_path / "run" / "store").open("small")
    assert measured.manifest.fingerprint == made.manifest.fingerprint


def mean_ndcg(stored: StoredModel, ranking_set: Any) -> float:
    """Work it out from the served vectors, one text at a time."""
    workers = Workers(1, torch.device("cpu"))
    encoder = Encoder.load(stored, workers)

    def embed(text: str) -> torch.Tensor:
        return torch.from_numpy(asyncio.run(encoder.embed([text])).vectors[0])

    try:
        passages = {
            passage.id: embed(f"{passage.title}\n{passage.text}" if passage.title else passage.text)
            for passage in ranking_set.passages
        }
        ranked = {}
        for query, text in ranking_set.queries.items():
            vector = embed(text)
            ranked[query] = sorted(passages, key=lambda p: -float(passages[p] @ vector))
    finally:
        encoder.close()
        workers.close()
    scores = ndcg(ranked, ranking_set.judged)
    return sum(scores.values()) / len(scores)


@pytest.mark.tiny_run
def test_without_rows_nothing_is_tuned_and_what_is_left_keeps_its_weights(
    stored: Stored, text_file: Path, tmp_path: Path
) -> None:
    parent = stored("bert")
    made = run(parent, tmp_path / "run", "--drop-blocks", 1, "--text", text_file)
    shape: dict[str, Any] = made.manifest.shape
    assert shape["drop_mlp_list"] == shape["drop_attn_list"]
    whole = load_file(parent.path / "model.safetensors")
    left = load_file(made.path / "model.safetensors")
    assert all(torch.equal(tensor, whole[name]) for name, tensor in left.items())
    assert len(left) == len(whole) - 12  # of its 16 the two norms' stay


def test_runs_with_one_work_folder_measure_importance_once(
    stored: Stored, text_file: Path, tmp_path: Path
) -> None:
    parent, work = stored("llama"), tmp_path / "work"
    flags = ("--drop-mlp", 1, "--text", text_file, "--work", work)
    run(parent, tmp_path / "first", *flags)
    kept = json.loads((work / "importance.json").read_text())
    kept["mlp"] = [3.0, 2.0, 1.0, 4.0]
    (work / "importance.json").write_text(json.dumps(kept))
    shape: dict[str, Any] = run(parent, tmp_path / "second", *flags).manifest.shape
    assert shape["drop_mlp_list"] == [2]
    assert (tmp_path / "second" / "drop-order.png").is_file()
    run(parent, tmp_path / "third", *flags, "--seed", 5, "--samples", 3)  # other settings: anew
    assert json.loads((work / "importance.json").read_text())["mlp"] != kept["mlp"]


def test_the_last_layers_go_without_calibration_text(stored: Stored, tmp_path: Path) -> None:
    made = run(stored("llama"), tmp_path / "run", "--drop-last", 2)
    shape: dict[str, Any] = made.manifest.shape
    assert shape["drop_mlp_list"] == shape["drop_attn_list"] == [2, 3]


def test_quality_is_measured_without_timing(stored: Stored, beir: Path, tmp_path: Path) -> None:
    made = run(stored("bert"), tmp_path / "run", "--drop-last", 1, "--set", beir, "--rounds", 0)
    report = StoredReport(made).report().report
    assert report["retrieval"]
    assert report["speed"] == {}
    assert "## Speed" not in StoredReport(made).card()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--rounds", "-1"], "rounds: -1: must be at least 0"),
        (["--drop-mlp", "4"], "mlp=4: must be from 0 to 3"),
        (["--drop-mlp", "1", "--drop-blocks", "1"], "can't be dropped together"),
        (["--drop-mlp", "1"], "text: importance is measured over text"),
        (["--width", "0.3"], "data: gates learn from rows"),
        (["--width", "1"], "width=1.0: must be from 0 to below 1"),
        (["--queries", "0"], "queries=0: must be at least 1"),
        (["--set", "nowhere"], "nowhere"),
    ],
)
def test_what_can_t_be_made_is_refused_before_any_work(
    flags: list[str], message: str, stored: Stored, tmp_path: Path
) -> None:
    parent = stored("bert")
    with pytest.raises(CondenseryError, match=message):
        run(parent, tmp_path / "run", *flags)
    assert not (tmp_path / "run").exists()


def test_too_little_text_and_nan_in_the_parent_are_refused(
    stored: Stored, text_file: Path, tmp_path: Path
) -> None:
    parent = stored("bert")
    with pytest.raises(CondenseryError, match="fewer than 4000 blocks of 16"):
        run(parent, tmp_path / "run", "--drop-mlp", 1, "--text", text_file, "--samples", 4000)
    folder = tmp_path / "bert"
    weights = load_file(folder / "model.safetensors")
    weights["encoder.layer.2.output.dense.weight"][0, 0] = torch.inf
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    shutil.rmtree(parent.root)
    broken = import_model(ModelStore(None, parent.root), folder, "bert")
    with pytest.raises(CondenseryError, match=r"encoder\.layer\.2\.output\.dense\.weight"):
        run(broken, tmp_path / "run", "--drop-mlp", 1, "--text", text_file)


def test_a_model_of_which_parts_are_gone_is_not_pruned_again(
    stored: Stored, tmp_path: Path
) -> None:
    parent = stored("llama")
    made = run(parent, tmp_path / "run", "--drop-last", 1)
    assert json.loads((made.path / "config.json").read_text())["drop_mlp_list"] == [3]
    with pytest.raises(CondenseryError, match="small is pruned already"):
        main(["--model", "small", "--store", str(parent.root), "--name", "smaller",
              "--out", str(tmp_path / "again"), "--drop-last", "1", *SMALL])  # fmt: skip
