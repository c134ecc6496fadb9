"""`condensery bench rates` on a real server, and a plan of what it wrote. Nothing here says how
fast anything is."""

import json
import sys
from pathlib import Path

import pytest
from tests.e2e.conftest import CONDENSERY, run_whole

from condensery.capacity.rates import read_rates

CHECK = Path(__file__).resolve().parents[2] / "benchmarks" / "plan.py"


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_rates_are_measured_and_planned_with(store_with_pair: Path, tmp_path: Path) -> None:
    out = tmp_path / "rates.json"
    words = ["--seconds", "1", "--index-passages", "2000", "--store", str(store_with_pair)]
    words += ["--models", "minilm-l6,oscar-mini", "--dtype", "float32"]
    done = run_whole([CONDENSERY, "bench", "rates", "--out", str(out), *words], 1100)
    assert done.returncode == 0, done.stderr
    rates = read_rates(out)
    assert {model.name for model in rates.models} == {"minilm-l6", "oscar-mini"}
    assert {model.dtype.split(",")[0] for model in rates.models} == {"float32"}
    tasks = {"door", "embed", "rerank", "compress", "answer", "query", "write"}
    assert {point.task for point in rates.points} == tasks
    assert {point.callers for point in rates.points} == {1, rates.concurrency}
    assert {point.passages for point in rates.points if point.task == "query"} == {1000, 2000}
    for point in rates.points:
        assert point.requests >= max(3, point.callers)
        tick = 0.02 / point.requests  # what the system counts processor time by, twice
        assert point.loop_seconds <= point.core_seconds * 1.5 + tick, point.label
    assert rates.memory.peak >= rates.memory.start > 50 * 2**20
    # Longer texts cost more, each of them: the law that a plan's lines rest on.
    for task, model in (("embed", "minilm-l6"), ("compress", "oscar-mini")):
        short, long = (rates.texts(task, model, tokens)[1] for tokens in (32, 150))
        assert long.alone > short.alone > 0
        assert long.concurrent > short.concurrent > 0
    # And the check of a plan against a load, small: rates of a second are off by who knows what.
    kept = tmp_path / "check.json"
    words = ["--rates", str(out), "--seconds", "3", "--mix", "embed", "--out", str(kept)]
    words += ["--within", "1e9", "--flags", f"--store {store_with_pair} --dtype float32"]
    done = run_whole([sys.executable, str(CHECK), *words], 300)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["what"]: row for row in json.loads(kept.read_text())["rows"]}
    for name in ("capacity, requests/s", "p95 of all, ms", "p95 of embed 16, ms"):
        assert min(rows[name]["plan"], rows[name]["load"]) > 0
