"""What shares a batch, and who goes first."""

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.runtime.batching import WAIT, Clock, Device, settled, started, under
from tests.unit.runtime.conftest import submit

from condensery.errors import (
    Overloaded,
)
from condensery.metrics import Metrics
from condensery.request_context import RequestContext
from condensery.runtime.batcher import Batcher
from condensery.runtime.queue import BatchLimits
from condensery.runtime.workers import Workers


async def test_each_caller_gets_its_own_results_in_order(device: Device, workers: Workers) -> None:
    batcher = Batcher(device.forward, workers, limits=BatchLimits(batch_items=3))
    requests = [[f"{caller}-{place}" for place in range(caller)] for caller in range(1, 9)]
    answers = await settled([submit(batcher, items, [1] * len(items)) for items in requests])
    assert answers == [[("done", item) for item in items] for items in requests]
    assert max(map(len, device.batches)) <= 3


async def test_an_empty_list_needs_no_forward(device: Device, worker: Workers) -> None:
    assert await submit(Batcher(device.forward, worker), [], []) == []
    assert device.batches == []


async def test_items_that_arrive_while_the_device_is_busy_share_a_batch(
    device: Device, worker: Workers
) -> None:
    batcher = Batcher(device.forward, worker)
    tasks = [await device.held(batcher)]
    tasks += [await started(submit(batcher, [name], [5])) for name in "abc"]
    device.free.set()
    await settled(tasks)
    assert device.batches == [["held"], ["a", "b", "c"]]


async def test_a_batch_keeps_to_its_tokens_and_a_longer_item_runs_alone(
    device: Device, worker: Workers
) -> None:
    batcher = Batcher(device.forward, worker, limits=BatchLimits(batch_tokens=100))
    tasks = [await device.held(batcher)]
    tasks.append(await started(submit(batcher, list("abcdef"), [60, 40, 30, 300, 70, 30])))
    device.free.set()
    await settled(tasks)
    assert device.batches == [["held"], ["a", "b"], ["c"], ["d"], ["e", "f"]]


async def test_a_lone_request_is_shared_between_idle_workers(
    device: Device, workers: Workers, asleep: Callable[[Workers], Awaitable[None]]
) -> None:
    batcher = Batcher(device.forward, workers)
    await asleep(workers)
    device.free.clear()
    task = await started(submit(batcher, list("abcd"), [100] * 4))
    for _ in range(2):
        assert await asyncio.to_thread(device.entered.acquire, timeout=WAIT)
    device.free.set()
    await settled([task])
    assert sorted(map(len, device.batches)) == [2, 2]


async def test_a_request_too_small_to_share_is_one_batch_however_many_workers_are_idle(
    device: Device, workers: Workers, asleep: Callable[[Workers], Awaitable[None]]
) -> None:
    batcher = Batcher(device.forward, workers)
    await asleep(workers)
    await submit(batcher, list("abcd"), [10] * 4)
    assert device.batches == [["a", "b", "c", "d"]]


async def test_the_rate_is_that_of_all_workers_and_one_slow_batch_moves_it_little(
    workers: Workers, clock: Clock
) -> None:
    seconds = {"usual": 0.125, "slow": 12.5}

    def forward(batch: list[str]) -> list[str]:
        clock.now += seconds[batch[0]]
        return batch

    batcher = Batcher(forward, workers)
    assert batcher.rate == 0
    await submit(batcher, ["usual"], [100])
    assert batcher.rate == pytest.approx(2 * 800), "two workers"
    await submit(batcher, ["slow"], [100])
    assert 2 * 600 < batcher.rate < 2 * 700


async def test_two_models_take_turns(device: Device, worker: Workers) -> None:
    limits = BatchLimits(batch_items=1)
    first = Batcher(device.forward, worker, limits=limits)
    second = Batcher(device.forward, worker, limits=limits)
    tasks = [await device.held(first)]
    tasks.append(await started(submit(first, ["a1", "a2", "a3"], [1] * 3)))
    tasks.append(await started(submit(second, ["b1", "b2"], [1] * 2)))
    device.free.set()
    await settled(tasks)
    order = [batch[0] for batch in device.batches[1:]]
    assert order.index("b1") < order.index("a2")
    assert order.index("b2") < order.index("a3")


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(1, 400), max_size=40), min_size=1, max_size=12))
def test_no_item_is_lost_doubled_or_mixed_up(requests: list[list[int]]) -> None:
    workers = Workers(2)
    ran: list[object] = []

    def forward(batch: list[tuple[int, int]]) -> list[tuple[int, int]]:
        ran.extend(batch)
        return batch

    async def main() -> list[object]:
        batcher = Batcher(forward, workers, limits=BatchLimits(batch_tokens=512, batch_items=8))
        return await settled(
            [
                submit(batcher, [(caller, place) for place in range(len(costs))], costs)
                for caller, costs in enumerate(requests)
            ]
        )

    answers = asyncio.run(main())
    workers.close()
    wanted = [[(caller, place) for place in range(len(c))] for caller, c in enumerate(requests)]
    assert answers == wanted
    assert sorted(ran) == sorted(item for items in wanted for item in items)


async def test_metrics_count_batches_and_the_queue(device: Device, worker: Workers) -> None:
    metrics = Metrics()
    metrics.prepare_model("m")
    batcher = Batcher(device.forward, worker, model="m", metrics=metrics)

    def sample(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"condensery_{name}", {"model": "m"} | labels)

    tasks = [await device.held(batcher)]
    tasks.append(await started(submit(batcher, ["a", "b"], [10, 20])))
    assert sample("queue_requests") == 2
    assert sample("queue_tokens") == 30
    device.free.set()
    await settled(tasks)
    assert sample("queue_requests") == 0
    assert sample("queue_tokens") == 0
    assert sample("forward_passes_total") == 2
    assert sample("batch_tokens_sum") == 31
    assert sample("batch_items_sum") == 3
    assert sample("stage_duration_seconds_count", stage="forward") == 2
    assert sample("stage_duration_seconds_count", stage="queue") == 2


async def test_short_requests_do_not_wait_behind_a_long_one(
    device: Device, worker: Workers
) -> None:
    batcher = Batcher(device.forward, worker, limits=BatchLimits(batch_tokens=1000))
    held = await device.held(batcher)
    bulk = await started(submit(batcher, [f"bulk{place}" for place in range(10)], [500] * 10))
    short = await started(submit(batcher, ["short"], [10]))
    device.free.set()
    await settled([held, bulk, short])
    assert device.batches[1] == ["short"]
    assert [len(batch) for batch in device.batches[2:]] == [2] * 5


async def test_a_long_request_gets_its_half_under_a_flood_of_short_ones(
    device: Device, worker: Workers
) -> None:
    batcher = Batcher(device.forward, worker, limits=BatchLimits(batch_tokens=500, batch_items=100))
    held = await device.held(batcher)
    tasks = [await started(submit(batcher, ["bulk"] * 10, [100] * 10))]
    tasks += [await started(submit(batcher, ["short"], [100])) for _ in range(30)]
    # Taken here, not by the workers: the express one would add short batches at any time.
    with worker.changed:
        jobs = [batcher.take(1, express=False) for _ in range(4)]
    assert [job.long for job in jobs if job is not None] == [False, True, False, True]
    device.free.set()
    for job in jobs:
        assert job is not None
        job.run()
    await settled([held, *tasks])


async def test_a_short_request_overtakes_a_long_batch_that_runs_already(
    device: Device, worker: Workers
) -> None:
    batcher = Batcher(device.forward, worker, limits=BatchLimits(batch_tokens=2048))
    device.free.clear()
    bulk = await started(submit(batcher, ["bulk"], [2000]))
    assert await asyncio.to_thread(device.entered.acquire, timeout=WAIT)
    short = await started(submit(batcher, ["short"], [10]))
    assert await asyncio.to_thread(device.entered.acquire, timeout=WAIT), "the express worker"
    assert device.batches == [["bulk"], ["short"]]
    device.free.set()
    await settled([bulk, short])


@pytest.mark.parametrize(
    ("caller", "long", "seconds"),
    [
        ("one", 0, 1.5),  # all that waits goes before it
        ("one", 600, 2.1),  # every second token is the long request's, until it has none left
        ("one", 5000, 3.0),  # and never more than every second one
        ("other", 0, 0.512),  # one turn of the caller before
        ("other", 5000, 1.024),
    ],
)
async def test_a_queue_is_expected_to_take_twice_as_long_while_the_other_has_work(
    worker: Workers,
    gate: threading.Event,
    clock: Clock,
    caller: str,
    long: int,
    seconds: float,
) -> None:
    entered = threading.Event()

    def forward(batch: list[str]) -> list[str]:
        if "held" in batch:
            entered.set()
            assert gate.wait(WAIT)
        else:
            clock.now += 0.1
        return batch

    for limit, fits in ((seconds - 0.01, False), (seconds + 0.01, True)):
        gate.clear()
        entered.clear()
        batcher = Batcher(forward, worker, limits=BatchLimits(queue_seconds=limit))
        await submit(batcher, ["measured"], [100])  # 1,000 tokens a second
        tasks = [await started(submit(batcher, ["held"], [1]))]  # short: the express worker rests
        assert await asyncio.to_thread(entered.wait, WAIT)
        costs = [500] * 3 + [long] * bool(long)
        batcher._limits = BatchLimits()  # these are let in, however long they wait
        waiting = [submit(batcher, ["waits"], [cost]) for cost in costs]
        tasks += [await started(under(RequestContext(caller="one"), size)) for size in waiting]
        batcher._limits = BatchLimits(queue_seconds=limit)
        last = await started(under(RequestContext(caller=caller), submit(batcher, ["last"], [500])))
        await asyncio.sleep(0)
        assert last.done() != fits
        gate.set()
        outcomes = await settled([*tasks, last])
        assert isinstance(outcomes.pop(), list if fits else Overloaded)
        assert all(isinstance(outcome, list) for outcome in outcomes)


async def test_lanes_share_by_tokens_and_not_by_batches_and_owe_each_other_nothing_afterwards(
    device: Device, worker: Workers
) -> None:
    limits = BatchLimits(batch_tokens=600, batch_items=1, queue_seconds=math.inf)
    batcher = Batcher(device.forward, worker, limits=limits)
    tasks = [await device.held(batcher)]

    def take(count: int) -> list[int]:
        """Return the tokens of the next batches, which are left to themselves."""
        with worker.changed:
            jobs = [batcher.take(1, express=False) for _ in range(count)]
        runs.extend(job.run for job in jobs if job is not None)
        return [round(job.seconds) for job in jobs if job is not None]

    runs: list[Callable[[], None]] = []
    batcher._rate = 1.0  # so that a job's seconds are its tokens
    tasks += [await started(submit(batcher, ["short"], [150])) for _ in range(8)]
    tasks.append(await started(submit(batcher, ["long"] * 2, [600, 600])))
    # A long batch for as many tokens of short ones, and not a batch for a batch.
    assert take(6) == [150, 600, 150, 150, 150, 150]
    assert take(2) == [600, 150], "long ones have had 600, short ones 750: it is their turn"
    assert take(2) == [150, 150]  # nobody waits beside them: that counts for nothing
    tasks.append(await started(submit(batcher, ["long"] * 2, [600, 600])))
    tasks += [await started(submit(batcher, ["short"], [150])) for _ in range(2)]
    assert take(2) == [150, 600], "what was handed out before they met is forgotten"
    device.free.set()
    for run in runs:
        run()
    await settled(tasks)
