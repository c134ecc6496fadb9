"""benchmarks/shrp.py on tiny networks: rows are kept, and a second run makes what is missing."""

import gzip
import importlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.unit.methods.conftest import Stored
from tests.unit.methods.shrp.conftest import Rows

pytestmark = pytest.mark.usefixtures("one_thread")
BENCHMARKS = Path(__file__).resolve().parents[4] / "benchmarks"
TRAINED = ["--rate", "1e-3", "--epoch-steps", "2", "--tune-epochs", "1", "--expander-scale", "0.1",
           "--threads", "1", "--dtype", "float32", "--device", "cpu"]  # fmt: skip


@pytest.fixture
def shrp(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("shrp")


def zipped(path: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_bytes(gzip.compress(path.read_bytes()))


def test_tasks_keep_a_row_a_variant_and_go_on(
    shrp: Any, stored: Stored, labelled: Rows, tmp_path: Path
) -> None:
    parent, data, out = stored("bert"), tmp_path / "data", tmp_path / "out" / "tasks"
    for name in ("train", "dev"):
        zipped(labelled(name, 24), data / "rte" / f"{name}.jsonl.gz")
    flags = ["--model", parent.name, "--store", str(parent.root), "--data", str(data),
             "--out", str(out), "--tasks", "rte", *TRAINED]  # fmt: skip
    shrp.main(["tasks", *flags, "--converted", "1"])
    first = json.loads(out.with_suffix(".json").read_text())
    assert {*first["rows"]} == {
        "rte 13 parent",
        "rte 13 parent, tuned as long",
        "rte 13 1 converted",
    }
    shrp.main(["tasks", *flags, "--converted", "1", "3"])
    both = json.loads(out.with_suffix(".json").read_text())
    assert {*both["rows"]} == {*first["rows"], "rte 13 3 converted"}
    assert both["rows"]["rte 13 1 converted"] == first["rows"]["rte 13 1 converted"]
    assert len(both["runs"]) == 2
    accuracy = both["rows"]["rte 13 3 converted"]["figures"]["accuracy"]
    assert f"{accuracy:.4f}" in out.with_suffix(".md").read_text()


def test_encoders_of_every_shape_learn_the_same_vectors(
    shrp: Any, stored: Stored, plain_text: Path, scored_pairs: Path, beir: Path, tuning_rows: Path,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    parent, data, out = stored("bert"), tmp_path / "data", tmp_path / "out" / "embeddings"
    lines = [json.dumps({"text": line}) for line in plain_text.read_text().splitlines()]
    (data / "texts").mkdir(parents=True)
    (data / "texts" / "train.jsonl").write_text("\n".join(lines) + "\n")
    zipped(scored_pairs, data / "pairs.jsonl.gz")
    shutil.copytree(beir, data / "tiny")
    monkeypatch.setattr(shrp, "TEXTS", ("texts/train.jsonl",))
    shrp.main(
        ["embeddings", "--model", parent.name, "--store", str(parent.root), "--data", str(data),
         "--out", str(out), "--work", str(tmp_path / "work"), "--pairs", "pairs.jsonl.gz",
         "--sets", "tiny", "--converted", "1", "--calibration", "texts/train.jsonl",
         "--samples", "2", "--workers", "1", "--rows", str(tuning_rows), "--ablate", "1", *TRAINED]
    )  # fmt: skip
    rows = json.loads(out.with_suffix(".json").read_text())["rows"]
    assert {*rows} == {
        "parent",
        "SHRP, 1 layers",
        "SHRP, 1 layers, contrast too",
        "EffiR, 1 MLPs dropped",
        "1 layers dropped",
        "the last 1 layers dropped",
    }
    assert rows["parent"]["cosine"] > 0.999
    assert all(
        row["parameters"] < rows["parent"]["parameters"] for n, row in rows.items() if n != "parent"
    )
