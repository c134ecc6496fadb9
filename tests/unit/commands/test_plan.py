"""`condensery plan`: what it prints, what it tells beside that, and what it refuses."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import run
from measured_rates import make_rates

from condensery import __version__
from condensery.capacity import machine
from condensery.capacity.rates import Rates, write_rates


@pytest.fixture
def rates(tmp_path: Path) -> Path:
    """A file of rates of this machine and version."""
    return kept(tmp_path, make_rates())


def kept(folder: Path, rates: Rates, **changes: object) -> Path:
    here = {**rates.machine, **machine.describe_machine()}
    own = replace(rates, machine=here, versions={"condensery": __version__})
    file = folder / "rates.json"
    write_rates(file, replace(own, **changes))  # type: ignore[arg-type]
    return file


def plan(rates: Path, *arguments: str, status: int = 0) -> tuple[str, str]:
    ended = run("plan", "--rates", str(rates), *arguments, status=status)
    return ended.stdout, ended.stderr


def test_a_plan_says_how_many_what_they_cost_and_why(rates: Path) -> None:
    requests = ("--request", "400/s embed tokens=10", "--request", "3/s answer 5 tokens=10")
    wanted = ("--p95-ms", "500", "--cost-an-hour", "0.40")
    printed, doubts = plan(rates, *requests, *wanted)
    assert doubts == ""
    content = json.loads(plan(rates, *requests, *wanted, "--json")[0])
    # 400 * 1.5 ms + 3 * 24 ms a second are 0.672 of 2 cores
    assert content["capacity"] == pytest.approx(403 / 0.672 * 2, rel=1e-6)
    assert (content["needed"], content["machines"]) == (1, 2)
    assert content["cost_a_month"] == pytest.approx(2 * 0.4 * 730)
    assert "584.00 a month" in printed
    assert f"{content['capacity']:.1f} requests a second" in printed
    # Every step of the arithmetic is there, with its measured rate.
    for kind in content["kinds"]:
        for step in kind["parts"]:
            assert step["label"] in printed
            assert f"{1000 * step['cost']['alone']:.3f}" in printed


def test_a_profile_of_the_load_tests_is_planned_for_by_name(rates: Path) -> None:
    content = json.loads(plan(rates, "--profile", "spike", "--mix", "embed", "--json")[0])
    assert sum(line["rate"] for line in content["traffic"]) == pytest.approx(40)
    content = json.loads(plan(rates, "--profile", "soak", "--rate", "2", "--json")[0])
    assert {line["kind"]["task"] for line in content["traffic"]} == {
        *("embed", "rerank", "query", "answer", "write")
    }
    assert sum(line["rate"] for line in content["traffic"]) == pytest.approx(2)


def test_flags_may_stand_in_a_file_and_later_ones_come_first(rates: Path, tmp_path: Path) -> None:
    file = tmp_path / "traffic"
    file.write_text("--request=4/s embed tokens=10\n--p95-ms=1\n--cost-an-hour=3\n")
    _, error = plan(rates, f"@{file}", status=1)
    assert "p95 of 1 ms cannot be met" in error
    assert "alone takes 3.0 ms here" in error
    printed = plan(rates, f"@{file}", "--p95-ms", "100", "--spare", "0", "--json")[0]
    assert json.loads(printed)["cost_a_month"] == pytest.approx(3 * 730)


def test_rates_of_elsewhere_are_told_and_not_silently_used(rates: Path, tmp_path: Path) -> None:
    request = ("--request", "1/s embed")
    assert plan(rates, *request)[1] == ""
    other = {**make_rates().machine, "cores": 512}
    for change, told in (
        ({"machine": other}, "another machine"),
        ({"versions": {"condensery": "0.0.0"}}, "0.0.0"),
        ({"foreign_cores": 0.7}, "0.70 cores"),
        ({"device": "cuda:0", "servers": 1}, "cuda:0"),
    ):
        file = kept(tmp_path, make_rates(), **change)
        assert told in plan(file, *request)[1]
        assert told in str(json.loads(plan(file, *request, "--json")[0])["doubts"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "--request"),
        (("--request", "1/s embed", "--profile", "soak"), "one of"),
        (("--request", "1/s embed model=bert"), "bert"),
        (("--request", "1/s embed", "--rate", "0"), "--rate"),
        (("--request", "1/s embed", "--p95-ms", "nan"), "--p95-ms"),
        (("--request", "1/s embed", "--utilisation", "1"), "--utilisation"),
    ],
)
def test_what_cannot_be_planned_is_refused_by_name(
    rates: Path, arguments: tuple[str, ...], told: str
) -> None:
    assert told in plan(rates, *arguments, status=1)[1]


def test_wrong_flags_of_a_measurement_are_refused_before_a_server_starts(tmp_path: Path) -> None:
    out = str(tmp_path / "rates.json")
    for words, told in (
        (("--seconds", "0"), "--seconds"),
        (("--index-passages", "3"), "--index-passages"),
        (("--port", "80"), "--port"),
        (("--workers", "-3"), "workers"),
    ):
        error = run("bench", "rates", "--out", out, *words, status=1).stderr
        assert told in error
        assert "starting" not in error
    run("bench", "rates", "--nothing-such", status=2)
