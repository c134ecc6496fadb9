"""Waiting before several servers: against figures computed by hand, and against a simulation."""

import heapq
import math
import random
import statistics
from collections.abc import Callable

import pytest

from condensery.capacity.queueing import (
    Service,
    Wait,
    allen_cunneen,
    erlang_c,
    mixed,
    mixed_quantile,
    short_first,
    utilisation,
)

REQUESTS = 60_000


def simulate(
    servers: int, rate: float, draw: Callable[[random.Random], float], seed: int
) -> list[tuple[float, float]]:
    """Return what requests wait, and their service; first come first served, event by event."""
    chance = random.Random(seed)
    free = [0.0] * servers  # when each server is
    now, times = 0.0, []
    for _ in range(REQUESTS):
        now += chance.expovariate(rate)
        begins, own = max(now, heapq.heappop(free)), draw(chance)
        heapq.heappush(free, begins + own)
        times.append((begins - now, own))
    return times[REQUESTS // 20 :]  # from a queue that has filled


def test_erlangs_c_is_that_of_the_tables() -> None:
    # c=2, a=1: C = (1/2 * 2) / (1 + 1 + 1) = 1/3. c=1: the load itself.
    assert erlang_c(2, 1.0) == pytest.approx(1 / 3)
    assert erlang_c(1, 0.7) == pytest.approx(0.7)
    # c=3, a=2: p0 = 1/9; C = 2^3/3! * 3 / 9 = 4/9
    assert erlang_c(3, 2.0) == pytest.approx(4 / 9)
    assert 0.9 < erlang_c(1000, 999.0) < 1  # no factorial overflows


def test_one_server_is_pollaczeks_and_khinchines() -> None:
    # rate 5/s, 0.1 s each, load 0.5. Exponential: 0.5 * 0.1 / 0.5 = 0.1 s; constant: half of it.
    assert allen_cunneen(1, Service(5, 0.1, 1.0)).mean == pytest.approx(0.1)
    assert allen_cunneen(1, Service(5, 0.1, 0.0)).mean == pytest.approx(0.05)


def test_two_servers_are_computed_by_hand() -> None:
    # rate 10/s, 0.1 s, two servers: offered 1, C = 1/3; Wq = C * s / (c (1 - load)) = 1/3 * 0.1 / 1
    wait = allen_cunneen(2, Service(10, 0.1, 1.0))
    assert wait.mean == pytest.approx(1 / 30)
    assert wait.scale == pytest.approx(0.1)
    assert wait.quantile(0.95) == pytest.approx(0.1 * math.log(1 / 3 / 0.05))
    assert wait.exceeds(wait.quantile(0.95)) == pytest.approx(0.05)
    assert wait.quantile(0.5) == 0.0  # two in three do not wait
    assert Wait(0.0, 0.0).quantile(0.99) == 0.0


def test_classes_together_have_the_moments_of_all_requests() -> None:
    # 1 in 4 takes 0.4 s, 3 in 4 take 0.1: mean 0.175, mean square 0.0475
    together = mixed([Service(3, 0.1), Service(1, 0.4)])
    assert (together.rate, together.mean) == (4, pytest.approx(0.175))
    assert together.scv == pytest.approx(0.0475 / 0.175**2 - 1)
    assert utilisation(2, together) == pytest.approx(0.35)
    one = Service(2, 0.3, 0.7)
    assert mixed([one]).scv == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("servers", "load", "scv"),
    [(1, 0.6, 1.0), (2, 0.65, 1.0), (2, 0.7, 0.0), (2, 0.7, 2.5), (8, 0.8, 1.0)],
)
def test_waits_are_those_of_a_simulated_queue(servers: int, load: float, scv: float) -> None:
    mean = 0.02

    def draw(chance: random.Random) -> float:
        if not scv:
            return mean
        # A gamma distribution has any variation; 1 is the exponential.
        return chance.gammavariate(1 / scv, mean * scv)

    rate = load * servers / mean
    waits = sorted(waited for waited, _ in simulate(servers, rate, draw, seed=7))
    wait = allen_cunneen(servers, Service(rate, mean, scv))
    assert wait.mean == pytest.approx(statistics.fmean(waits), rel=0.12)
    assert wait.chance == pytest.approx(sum(w > 1e-9 for w in waits) / len(waits), rel=0.12)
    p95 = waits[int(0.95 * len(waits))]
    assert wait.quantile(0.95) == pytest.approx(p95, rel=0.15)


def test_p95_of_a_mix_is_that_of_a_simulated_one() -> None:
    # 9 in 10 take 10 ms, 1 in 10 takes 100: what a service of queries and lists is.
    servers, rate, share = 2, 70.0, 0.1
    drawn = simulate(servers, rate, lambda c: 0.1 if c.random() < share else 0.01, seed=3)
    times = sorted(waited + own for waited, own in drawn)
    classes = [Service(rate * (1 - share), 0.01), Service(rate * share, 0.1)]
    wait = allen_cunneen(servers, mixed(classes))
    p95 = mixed_quantile([(s.rate, s.mean, wait) for s in classes], 0.95)
    assert p95 == pytest.approx(times[int(0.95 * len(times))], rel=0.12)


def test_who_gives_way_takes_as_long_as_the_priority_queues_formula_says() -> None:
    # M/G/1 with preemption, exponential: T2 = s2 / (1 - r1) + (r1 s1 + r2 s2) / (1 - r1) / (1 - r)
    short, long = Service(30, 0.01, 1.0), Service(2, 0.2, 1.0)  # loads 0.3 and 0.4
    first, then, stretch = short_first(1, [short], [long])
    expected = 0.2 / 0.7 + (0.3 * 0.01 + 0.4 * 0.2) / 0.7 / 0.3
    assert then.mean + stretch * long.mean == pytest.approx(expected)
    assert first == allen_cunneen(1, short), "the long ones are not in their way"


def test_with_no_short_requests_the_long_ones_wait_as_before() -> None:
    long = [Service(5, 0.1, 0.5)]
    first, then, stretch = short_first(2, [], long)
    assert (first, stretch) == (Wait(0.0, 0.0), 1.0)
    assert then == allen_cunneen(2, long[0])
