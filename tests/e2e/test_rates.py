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
@pytest.mark.timeout(600)
def test_rates_are_measured_and_planned_with(store_with_pair: Path, tmp_path: Path) -> None:
    out = tmp_path / "rates.json"
    words = ["--seconds", "1", "--index-passages", "2000", "--store", str(store_with_pair)]
    words += ["--models", "minilm-l6", "oscar-mini", "--dtype", "float32"]
    done = run_whole([CONDENSERY, "bench", "rates", "--out", str(out), *words], 550)
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
        assert point.loop_seconds <= point.core_seconds * 1.5, point.label
    assert rates.memory.start > 50 * 2**20
    assert rates.memory.peak >= rates.memory.start
    # Longer texts cost more, each of them: the law that a plan's lines rest on.
    for task, model in (("embed", "minilm-l6"), ("compress", "oscar-mini")):
        short, long = (rates.texts(task, model, tokens)[1] for tokens in (32, 150))
        assert long.alone > short.alone > 0
        assert long.concurrent > short.concurrent > 0
    plan = ["plan", "--rates", str(out), "--profile", "soak", "--json"]
    planned = run_whole([CONDENSERY, *plan], 60)
    assert planned.returncode == 0, planned.stderr
    assert json.loads(planned.stdout)["needed"] >= 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_model_that_does_not_serve_ends_the_measurement(
    store_with_pair: Path, tmp_path: Path
) -> None:
    words = ["--store", str(store_with_pair), "--models", "bert"]
    out = tmp_path / "rates.json"
    done = run_whole([CONDENSERY, "bench", "rates", "--out", str(out), *words], 550)
    assert done.returncode == 1
    assert "bert" in done.stderr
    assert "minilm-l6" in done.stderr
    assert not out.exists()


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(900)
def test_the_check_holds_a_plan_against_a_load(store_with_pair: Path, tmp_path: Path) -> None:
    rates, out = tmp_path / "rates.json", tmp_path / "check.json"
    flags = ["--store", str(store_with_pair)]
    measure = [CONDENSERY, "bench", "rates", "--out", str(rates), "--seconds", "1", *flags]
    measure += ["--index-passages", "2000", "--models", "minilm-l6", "oscar-mini"]
    assert run_whole(measure, 550).returncode == 0
    words = ["--rates", str(rates), "--seconds", "3", "--mix", "embed", "--out", str(out)]
    # Rates of a second say nothing of how fast it is: whatever they are off by is within this.
    done = run_whole([sys.executable, str(CHECK), *words, "--within", "1e9"], 240)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["what"]: row for row in json.loads(out.read_text())["rows"]}
    for name in ("capacity, requests/s", "p95 of all, ms", "p95 of embed 16, ms"):
        assert rows[name]["plan"] > 0
        assert rows[name]["load_test"] > 0
