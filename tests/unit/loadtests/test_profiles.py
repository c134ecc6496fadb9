"""How a load's rate goes over time, and which bounds it is held to."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scripts import load_script

PATH = Path(__file__).resolve().parents[3] / "loadtests" / "profiles.py"


@pytest.fixture(scope="module")
def profiles() -> Any:
    return load_script(PATH, "profiles")


def stats(*entries: tuple[str, int, float], errors: int = 0) -> Any:
    """What locust counted: names, how many, and the 95th percentile."""
    return SimpleNamespace(
        entries={
            name: SimpleNamespace(
                name=name,
                method="REST",
                num_requests=count,
                get_response_time_percentile=lambda share, p95=p95: p95,
            )
            for name, count, p95 in entries
        },
        errors={
            number: SimpleNamespace(method="REST", name="query", occurrences=2, error="lost")
            for number in range(errors)
        },
    )


def test_every_profile_goes_evenly_between_its_points_and_ends(profiles: Any) -> None:
    ramp = profiles.Profile(((0, 1), (10, 21), (20, 21)))
    rates = [profiles.users_at(ramp, second) for second in (0, 5, 10, 19.9, 20)]
    assert rates == [1, 11, 21, 21, None]
    for profile in profiles.PROFILES.values():
        assert profiles.users_at(profile, 0) > 0
        assert profiles.users_at(profile, profile.seconds) is None


def test_a_rate_is_the_highest_and_a_length_the_whole(profiles: Any) -> None:
    spike = profiles.Profile(((0, 4), (60, 40), (90, 4)), p95_ms=7.0)
    assert spike.changed(20, 9, 0).points == ((0, 2), (6, 20), (9, 2))
    assert spike.changed(0, 0, 0) == spike
    assert spike.changed(0, 0, 5).p95_ms == 5


def test_failures_slow_replies_and_silence_are_each_broken_bounds(profiles: Any) -> None:
    bound = profiles.Profile(((0, 1), (1, 1)), p95_ms=100.0)
    jobs = profiles.MIXES["write"]
    assert profiles.judge(bound, stats(("query", 9, 80.0), ("write 4", 1, 100.0)), jobs) == []
    assert len(profiles.judge(bound, stats(("query", 9, 101.0)), jobs)) == 1
    assert len(profiles.judge(bound, stats(("query", 9, 1.0), errors=2), jobs)) == 2
    assert len(profiles.judge(bound, stats(), jobs)) == 1
    # How soon the first words came, and refusals that are right, have no bound of their own.
    assert profiles.judge(bound, stats(("query, refused", 9, 900.0)), jobs) == []


def test_the_mix_has_every_job(profiles: Any) -> None:
    rest = {job for name, jobs in profiles.MIXES.items() if name != "mix" for job in jobs}
    assert set(profiles.MIXES["mix"]) == rest
