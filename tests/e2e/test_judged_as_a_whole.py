"""The sample index and the shipped pair, judged as a whole: what a fresh install answers.

Half of the questions, the same each time, so that only numerics differ. The thresholds leave seven
points or more to what was measured (docs/benchmarks/rag/): they catch what breaks, and say nothing
of how good it is.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import run
from tests.conftest import serving

HALF = ("--count", "240", "--concurrency", "2", "--without-passage")
QUESTIONS = Path(__file__).resolve().parents[2] / "service/condensery/samples/questions.jsonl"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_sample_index_is_answered_by_the_shipped_pair(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with serving(tmp_path / "store", tmp_path) as server:
        command = ("eval", "rag", "--url", server.url, "--index", "samples", "--out", str(out))
        run(*command, "--questions", str(QUESTIONS), *HALF)
    report = json.loads((out / "report.json").read_text())
    assert report["server"]["pair"] == "oscar-mini"
    assert len((out / "rows.jsonl").read_text().splitlines()) == 2 * 240
    whole, near = report["settings"]["as_it_is"], report["settings"]["without_passage"]
    assert whole["failed"] == near["failed"] == 0

    def mean(figures: dict[str, Any], name: str) -> float:
        return float(figures[name]["mean"])

    assert mean(whole, "answered") >= 88
    assert mean(whole, "right") >= 80
    assert mean(whole, "verbatim_of_right") >= 92
    assert mean(whole, "grounded") >= 92
    assert mean(whole, "citation_first") >= 90
    assert mean(whole, "citation_by_offsets") >= 89
    assert mean(whole, "wrong_but_answered") <= 15
    assert mean(near, "answered") <= 22
    assert report["abstention"]["aurc"] <= 0.30
