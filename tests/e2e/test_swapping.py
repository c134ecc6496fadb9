"""Models that come and go under load (``loadtests/swapping.py``), small, and in full."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import run_whole

pytestmark = pytest.mark.alone

SWAPPING = Path(__file__).parents[2] / "loadtests" / "swapping.py"


def swapping(out: Path, *flags: str, seconds: float) -> tuple[int, str, Any]:
    command = [sys.executable, str(SWAPPING), "--json", str(out), *flags]
    done = run_whole(command, seconds)
    assert out.exists(), done.stdout + done.stderr
    return done.returncode, done.stdout + done.stderr, json.loads(out.read_text())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_models_swap_under_load_without_a_wrong_reply(tmp_path: Path) -> None:
    flags = ("--parts", "versions", "alias", "--swaps", "4", "--callers", "2")
    status, printed, figures = swapping(tmp_path / "out.json", *flags, seconds=580)
    for part in ("versions", "alias"):
        assert figures[part]["wrong"] == {}, printed
        assert figures[part]["flips_of_each_caller"] == [4] * 4, printed
    assert status == 0, printed


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_fifty_loads_and_unloads_give_the_memory_back(tmp_path: Path) -> None:
    flags = ("--parts", "memory", "--cycles", "50")
    status, printed, figures = swapping(tmp_path / "out.json", *flags, seconds=1180)
    assert status == 0, printed
    del figures["run"]  # what it ran on
    assert all(figure["cycles"] == 50 for figure in figures.values())
