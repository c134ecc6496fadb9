"""benchmarks/llm2comp.py on a tiny language model: rows are kept, a second run makes the rest."""

import gzip
import importlib
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.unit.methods.conftest import TOPICS
from tiny_memory import put_language_model, write_language_model

from condensery.store.manifest import StoredModel
from condensery.store.store import ModelStore

pytest.importorskip("sklearn")  # of the extra `bench`
pytestmark = pytest.mark.usefixtures("one_thread")
BENCHMARKS = Path(__file__).resolve().parents[4] / "benchmarks"
SMALL = ["--pretext-steps", "2", "--pretext-batch", "2", "--contrast-steps", "2",
         "--contrast-batch", "4", "--rows-steps", "2", "--rows-batch", "4", "--length", "40",
         "--contrast-length", "24", "--texts", "texts/train.jsonl.gz",
         "--pairs", "stsb/test.jsonl.gz", "--sets", "tiny", "--dtype", "float32",
         "--device", "cpu", "--threads", "1"]  # fmt: skip


@pytest.fixture
def data(tmp_path: Path, beir: Path) -> Path:
    rng, folder = random.Random(3), tmp_path / "data"
    words = [*TOPICS, "the", "is", "old", "how", "long"]

    def write(name: str, rows: list[dict[str, Any]]) -> None:
        path = folder / f"{name}.jsonl.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress("".join(json.dumps(r) + "\n" for r in rows).encode()))

    write("texts/train", [{"text": " ".join(rng.choices(words, k=30))} for _ in range(60)])
    labelled = [{"text": f"{topic} is {w}", "label": topic} for topic in TOPICS for w in words]
    for name in ("banking77/train", "banking77/test", "stackoverflow_titles/all"):
        write(name, labelled)
    pairs = [
        {"text1": a, "text2": b, "score": i}
        for i, (a, b) in enumerate(zip(words, TOPICS, strict=False))
    ]
    write("stsb/test", pairs)
    shutil.copytree(beir, folder / "tiny")
    return folder


@pytest.fixture
def base(tmp_path: Path) -> StoredModel:
    folder = write_language_model(tmp_path / "lm", "llama")
    return put_language_model(ModelStore(None, tmp_path / "store"), folder)


def test_rows_are_kept_and_a_second_run_makes_those_that_are_missing(
    base: StoredModel, data: Path, tuning_rows: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    benchmark = importlib.import_module("llm2comp")
    out = tmp_path / "out" / "llm2comp"
    flags = ["--model", base.name, "--store", str(base.root), "--data", str(data), *SMALL,
             "--out", str(out), "--work", str(tmp_path / "work"), "--counts", "1", "2"]  # fmt: skip
    benchmark.main([*flags, "--baselines", "echo", "--objectives", "ctkd"])
    first = json.loads(out.with_suffix(".json").read_text())["rows"]
    stages = ("pretext", "contrast")
    made = {f"LLM2Comp, ctkd, k {k}: {stage} | 13" for k in (1, 2) for stage in stages}
    assert {*first} == {"echo: untrained | any", "echo: contrast | 13", *made}
    figures = next(iter(first.values()))["figures"]
    assert {*figures} == {"stsb/test", "tiny", "banking77", "stackoverflow"}
    benchmark.main(
        [*flags, "--baselines", "echo", "--objectives", "ctkd", "nll", "--counts", "2",
         "--rows", f"{tuning_rows}=find it"]
    )  # fmt: skip
    both = json.loads(out.with_suffix(".json").read_text())
    assert {*both["rows"]} - {*first} == {
        "echo: contrast, then rows | 13",
        "LLM2Comp, ctkd, k 2: contrast, then rows | 13",
        *(f"LLM2Comp, nll, k 2: {s} | 13" for s in (*stages, "contrast, then rows")),
    }
    assert all(both["rows"][key] == row for key, row in first.items())
    page = out.with_suffix(".md").read_text()
    assert "LLM2Comp, ctkd, k 2: contrast, over LLM2Comp, nll, k 2: contrast" in page
