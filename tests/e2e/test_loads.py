"""The loads of ``loadtests/``, small: what they say is what docs/reliability.md promises."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import run_whole

pytestmark = pytest.mark.alone

LOADS = Path(__file__).parents[2] / "loadtests"
# What half of today's slowest machine bears: times are for who measures, not for who tests.
GENTLE = ("--rate", "6", "--unready-seconds", "10")


def load(name: str, out: Path, *flags: str, seconds: float = 115) -> tuple[int, str, Any]:
    """Run a load for at most so many seconds; returns its status, what it printed, its figures."""
    command = [sys.executable, str(LOADS / name), "--out", str(out), *flags]
    done = run_whole(command, seconds)
    assert out.exists(), done.stdout + done.stderr
    figures = json.loads(out.read_text())
    run = figures.pop("run")  # what it ran on, and beside what
    assert run["command"].startswith(f"python loadtests/{name}")
    assert run["machine"]["kind"]
    assert run["others"]["seconds"] > 0
    return done.returncode, done.stdout + done.stderr, figures


def test_nothing_is_lost_when_a_loaded_server_is_told_to_end(tmp_path: Path) -> None:
    flags = ("--rounds", "1", "--again", "0", "--seconds", "2", "--unready-seconds", "10")
    flags += ("--flags", "--settle-seconds 15 --max-queue-seconds 600")
    status, printed, figures = load("drain.py", tmp_path / "drain.json", *flags)
    assert status == 0, printed
    (round_of,) = figures["once"]
    assert (
        round_of["waiting"] + round_of["sent_after"] > 0
    )  # else it was told while nobody was there
    assert set(round_of["outcomes"]) == {"right"}


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_second_sigterm_ends_a_loaded_server_sooner_and_as_well(tmp_path: Path) -> None:
    flags = ("--rounds", "1", "--again", "1", *GENTLE)
    flags += ("--flags", "--settle-seconds 15 --max-queue-seconds 600")
    status, printed, _ = load("drain.py", tmp_path / "drain.json", *flags, seconds=230)
    assert status == 0, printed


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_newcomers_are_answered_or_refused_to_the_end(tmp_path: Path) -> None:
    flags = ("--rounds", "0", "--again", "0", "--newcomers", "500")
    status, printed, figures = load("drain.py", tmp_path / "drain.json", *flags, seconds=230)
    assert status == 0, printed
    assert sum(ends["answered"] for ends in figures["newcomers"].values()) > 0, printed


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_on_a_crowded_machine_nothing_is_said_to_hang_but_what_hangs(tmp_path: Path) -> None:
    flags = ("--seconds", "20", "--rate", "2", "--unready-seconds", "10")
    status, printed, figures = load("crowded.py", tmp_path / "crowded.json", *flags, seconds=230)
    assert status == 0, printed
    assert figures["others_cores"] > 0.5, printed


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("part", ["items", "hang", "death"])
def test_a_fault_hurts_nobody_else(part: str, tmp_path: Path) -> None:
    seconds = "28" if part == "hang" else "16"  # to notice a hang, and to mend it
    flags = ("--parts", part, "--seconds", seconds, *GENTLE)
    status, printed, figures = load("faults.py", tmp_path / "faults.json", *flags, seconds=230)
    assert status == 0, printed
    assert figures[part]["faults"], "nothing was injected"
    assert sum(figures[part]["outcomes"].values()) > 50


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_ten_times_the_capacity_is_refused_and_memory_stays_flat(tmp_path: Path) -> None:
    flags = ("--seconds", "40", "--find-seconds", "4", "--warm-seconds", "8")
    status, printed, figures = load("overload.py", tmp_path / "out.json", *flags, seconds=230)
    assert status == 0, printed
    assert figures["goodput"] > figures["capacity"] / 2, printed


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_single_queries_do_not_wait_for_a_list_to_end(tmp_path: Path) -> None:
    """How fair it is depends on what else the machine does; in a queue they would wait for it."""
    flags = ("--rounds", "1", "--texts", "300", "--seconds", "2")
    _, printed, figures = load("fairness.py", tmp_path / "fairness.json", *flags, seconds=230)
    assert len(figures) == 3, printed
    for cell in figures.values():
        ((p95,), (seconds,)) = cell["p95"], cell["list_beside"]
        assert cell["queries"] > 3, printed
        assert p95 / 1000 < seconds / 3, printed
