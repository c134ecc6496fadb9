"""Plans, against figures computed by hand from round rates, and a simulated machine."""

import math
from dataclasses import replace

import pytest
from measured_rates import MIB, make_rates

from condensery.capacity import plan as planning
from condensery.capacity.plan import (
    HOURS_A_MONTH,
    Target,
    capacity_of,
    cost_of_kind,
    load_of,
    make_plan,
    row_of,
)
from condensery.capacity.rates import Together
from condensery.capacity.traffic import parse_request
from condensery.errors import InputError

RATES = make_rates()


def cost(line: str, target: Target | None = None) -> tuple[float, float]:
    """Return what a request takes alone and concurrent, core-milliseconds."""
    kind = cost_of_kind(RATES, parse_request(f"1/s {line}").kind, target or Target())
    return 1000 * kind.cost.alone, 1000 * kind.cost.concurrent


@pytest.mark.parametrize(
    ("line", "alone", "concurrent"),
    [
        ("embed tokens=10", 2, 1.5),
        ("embed 4 tokens=10", 2 + 3 * 1, 1.5 + 3 * 1),
        ("embed 31 tokens=110", 12 + 30 * 10, 11.5 + 30 * 10),
        ("rerank 2 tokens=60", 14 + 14, 13 + 13),
        ("query passages=1000", 3, 2),
        ("write 4 tokens=10", 5 + 3, 4 + 3),
        # Embedded as two texts are, 7 + 5.5; written, what 10 tokens cost beyond embedding: 5 - 2.
        ("write 2 tokens=60", 7 + 5.5 + 3, 6.5 + 5.5 + 2.5),
        # 5 passages compressed (20 and 15), a prompt (10 and 5), four tokens more (8 and 4).
        ("answer 5 tokens=10", 38, 24),
        ("answer 5 tokens=10 output=1", 30, 20),
        ("answer 1 tokens=10 output=11", 4 + 10 + 20, 3 + 5 + 10),
        # and the question embedded and searched, without a second door
        ("answer 5 tokens=10 passages=1000", 38 + 2, 24 + 1.5),
    ],
)
def test_a_request_costs_the_sum_of_its_parts(line: str, alone: float, concurrent: float) -> None:
    assert cost(line) == (pytest.approx(alone), pytest.approx(concurrent))


def test_the_parts_that_are_shown_are_those_that_were_summed() -> None:
    for line in ("embed 4 tokens=60", "answer 7 tokens=50 output=9 passages=3000", "write 3"):
        kind = cost_of_kind(RATES, parse_request(f"1/s {line}").kind, Target())
        assert sum(s.times * s.cost.alone for s in kind.parts) == pytest.approx(kind.cost.alone)
        assert sum(s.times * s.cost.concurrent for s in kind.parts) == pytest.approx(
            kind.cost.concurrent
        )


def test_what_runs_beside_the_server_is_counted() -> None:
    beside = Target(elsewhere=0.003)
    assert cost("embed tokens=10", beside) == (pytest.approx(5), pytest.approx(4.5))


def test_a_machines_capacity_is_where_concurrent_requests_fill_it() -> None:
    # One text at 1.5 ms and one list of 16 at 16.5, as often: 9 ms in the mean, two cores.
    traffic = [parse_request("3/s embed tokens=10"), parse_request("3/s embed 16 tokens=10")]
    kinds = [cost_of_kind(RATES, line.kind, Target()) for line in traffic]
    limit, bound = capacity_of(kinds, traffic, 2)
    assert (limit, bound) == (pytest.approx(2 / 0.009), "servers")
    assert load_of(kinds, [limit / 2 - 1e-9] * 2, 2) == pytest.approx(1)
    # 100 of each a second: A = 100 * (2 + 17) ms / 2 = 0.95, C = 0.9; A / (1 + A - C)
    assert load_of(kinds, [100, 100], 2) == pytest.approx(0.95 / 1.05)
    assert not row_of(kinds, [replace(line, rate=112.0) for line in traffic], RATES, 1).p95


def test_a_mix_costs_what_its_kinds_do_to_each_other() -> None:
    lines = ["300/s embed tokens=10", "10/s answer 5 tokens=10"]
    traffic = [parse_request(line) for line in lines]
    mixed = replace(RATES, together=Together(requests=100, work=1.25, delay=0.0))
    before, after = (make_plan(rates, traffic, Target()) for rates in (RATES, mixed))
    assert after.capacity == pytest.approx(before.capacity / 1.25)
    for one, other in zip(before.kinds, after.kinds, strict=True):
        assert other.cost.alone == pytest.approx(1.25 * one.cost.alone)
        assert other.cost.seconds == one.cost.seconds, "alone, there is no mix"
        assert sum(s.times * s.cost.alone for s in other.parts) == pytest.approx(other.cost.alone)
    device = replace(mixed, device="A card")
    assert make_plan(device, traffic, Target()).kinds[0].cost.alone == before.kinds[0].cost.alone


def test_a_short_request_waits_for_a_batch_that_runs() -> None:
    traffic = [parse_request("20/s embed tokens=10"), parse_request("3/s embed 16 tokens=110")]
    delayed = replace(RATES, together=Together(requests=100, work=1.0, delay=0.03))
    kinds = [cost_of_kind(RATES, line.kind, Target()) for line in traffic]
    before, after = (row_of(kinds, traffic, rates, 1) for rates in (RATES, delayed))
    busy = 3 * (kinds[1].work(before.utilisation) - kinds[1].ahead) / 2
    assert after.waits[0].mean == pytest.approx(before.waits[0].mean + busy * 0.03)
    assert after.p95[0] > before.p95[0]
    assert after.p95[1] == before.p95[1]


def test_an_event_loop_that_is_full_is_the_limit() -> None:
    points = tuple(
        replace(point, loop_seconds=0.004) if point.task == "embed" else point
        for point in RATES.points
    )
    rates = replace(RATES, points=points, servers=16)
    plan = make_plan(rates, [parse_request("300/s embed tokens=10")], Target())
    assert (plan.capacity, plan.bound) == (pytest.approx(250), "event loop")
    assert plan.needed == 2


def test_machines_are_added_until_the_target_holds() -> None:
    traffic = [parse_request("400/s embed tokens=10"), parse_request("100/s embed 16 tokens=10")]
    loose = make_plan(RATES, traffic, Target(most_load=0.9))
    assert [row.machines for row in loose.rows] == list(range(2, loose.needed + 1))
    # limit: 2 / (0.8 * 1.5 + 0.2 * 16.5 = 4.5 ms) = 444 a second; two can do it, and only just
    assert loose.capacity == pytest.approx(444.44, rel=1e-4)
    tight = make_plan(RATES, traffic, Target(p95_ms=30, most_load=0.9))
    assert tight.needed > loose.needed
    assert max(tight.row.p95) <= 0.030 < max(tight.rows[-2].p95)
    assert max(tight.row.p95) >= 0.0255, "never under what one takes alone: 1.5 * 17 ms"


def test_cost_and_memory_are_those_of_all_machines() -> None:
    traffic = [
        parse_request("10/s embed tokens=10"),
        parse_request("1/s query passages=100000"),
    ]
    plan = make_plan(RATES, traffic, Target(spare=2, cost_an_hour=0.4))
    assert plan.machines == plan.needed + 2
    assert plan.cost_a_month == pytest.approx(plan.machines * 0.4 * HOURS_A_MONTH)
    assert plan.memory_bytes == 800 * MIB + 100_000 * 4096
    assert plan.machine_bytes == pytest.approx(plan.memory_bytes / 0.8, abs=1)


def test_answers_at_once_follow_littles_law_and_take_memory_beyond_those_measured() -> None:
    few = make_plan(RATES, [parse_request("2/s answer 5 tokens=10")], Target())
    # 2 a second, some 38 ms each
    assert few.row.streams == pytest.approx(2 * 0.038, rel=0.15)
    assert few.memory_bytes == 800 * MIB
    slow = make_plan(
        replace(RATES, servers=64),
        [parse_request("300/s answer 5 tokens=110 output=50")],
        Target(most_load=0.95),
    )
    assert slow.row.streams > 8
    assert slow.memory_bytes == 800 * MIB + (math.ceil(slow.row.streams) - 8) * 2 * MIB


def test_a_target_below_one_request_alone_cannot_be_met() -> None:
    with pytest.raises(InputError, match=r"p95 of 3 ms.*embed 4.*7\.5 ms") as error:
        make_plan(RATES, [parse_request("1/s embed 4 tokens=10")], Target(p95_ms=3))
    assert error.value.field == "--p95-ms"


def test_an_answer_waits_twice_and_a_list_once() -> None:
    lines = ["8/s answer 5 tokens=10", "4/s embed 16 tokens=110"]
    row = make_plan(RATES, [parse_request(line) for line in lines], Target()).rows[0]
    answer, listed = (cost_of_kind(RATES, parse_request(line).kind, Target()) for line in lines)
    assert row.waits[0] == row.waits[1]
    wait, stretch = row.waits[0].mean, row.stretch
    assert wait > 0
    assert row.own[0] == pytest.approx(answer.seconds(row.utilisation) * stretch + wait)
    assert row.own[1] == pytest.approx(listed.seconds(row.utilisation) * stretch)
    assert row.p95[1] == pytest.approx(row.own[1] + row.waits[1].quantile(0.95))


def test_what_runs_beside_the_server_goes_before_its_batches() -> None:
    traffic = [parse_request("5/s embed 16 tokens=110")]
    # Of each request 0.2 ms are the event loop's, and 19.8 outside: 0.1 cores, 0.05 of two.
    row = make_plan(RATES, traffic, Target(elsewhere=0.0198)).rows[0]
    assert row.stretch == pytest.approx(1 / 0.95)
    alone = make_plan(RATES, traffic, Target()).rows[0]
    assert alone.stretch == pytest.approx(1 / (1 - 5 * 0.0002 / 2))
    assert row.p95[0] > alone.p95[0]


def test_short_is_what_the_service_takes_for_short() -> None:
    from condensery.runtime.queue import SHORT_TOKENS

    assert planning.SHORT_TOKENS == SHORT_TOKENS
