import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.runtime.conftest import submit

from condensery.errors import (
    CondenseryError,
    DeadlineExceeded,
    ExpiredInQueue,
    InputError,
    ModelFault,
    Overloaded,
    Unavailable,
)
from condensery.metrics import Metrics
from condensery.request_context import RequestContext, serving_request
from condensery.runtime import batcher as batching
from condensery.runtime.batcher import Batcher
from condensery.runtime.queue import BatchLimits
from condensery.runtime.workers import Workers

Item = TypeVar("Item")
Result = TypeVar("Result")

WAIT = 30.0  # for what must happen, however busy the machine is


class Device:
    """A forward that can be held, and remembers the batches it ran."""

    def __init__(self) -> None:
        self.batches: list[list[object]] = []
        self.entered = threading.Semaphore(0)
        self.free = threading.Event()
        self.free.set()
        self.faulty: set[object] = set()

    def forward(self, batch: list[object]) -> Sequence[object]:
        self.batches.append(batch)
        self.entered.release()
        assert self.free.wait(WAIT)
        if self.faulty & set(batch):
            raise RuntimeError("the text said: secret")
        return [("done", item) for item in batch]

    async def held(self, batcher: Batcher[object, object]) -> "asyncio.Task[list[object]]":
        """Keep one worker busy with an item of its own, until ``free`` is set."""
        self.free.clear()
        task = asyncio.create_task(submit(batcher, ["held"], [1]))
        assert await asyncio.to_thread(self.entered.acquire, timeout=WAIT)
        return task


class Clock:
    """What stands in for the batcher's ``time``: batches take as long as a test says."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    stopped = Clock()
    monkeypatch.setattr(batching, "time", stopped)
    return stopped


@pytest.fixture
def device() -> Device:
    return Device()


@pytest.fixture
def worker() -> Iterator[Workers]:
    workers = Workers(1)
    yield workers
    workers.close()


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


async def settled(tasks: Sequence[Awaitable[object]]) -> list[object]:
    return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), WAIT)


async def started(work: Awaitable[object]) -> "asyncio.Task[object]":
    """Start ``work`` and let it come to its first wait."""
    task = asyncio.ensure_future(work)
    await asyncio.sleep(0)
    return task


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


async def test_a_caller_who_has_gone_is_skipped(device: Device, worker: Workers) -> None:
    batcher = Batcher(device.forward, worker)
    held = await device.held(batcher)
    gone = await started(submit(batcher, ["gone", "gone too"], [10, 10]))
    stays = await started(submit(batcher, ["stays"], [10]))
    gone.cancel()
    with suppress(asyncio.CancelledError):
        await gone
    assert batcher.queued_tokens == 10
    device.free.set()
    await settled([held, stays])
    assert device.batches == [["held"], ["stays"]]


async def test_a_caller_who_goes_while_its_batch_runs_harms_nobody(
    device: Device, worker: Workers
) -> None:
    batcher = Batcher(device.forward, worker)
    held = await device.held(batcher)
    held.cancel()
    after = await started(submit(batcher, ["after"], [1]))
    device.free.set()
    assert (await settled([held, after]))[1] == [("done", "after")]


async def test_a_fault_is_bisected_to_its_item_and_the_neighbours_succeed(
    device: Device, worker: Workers
) -> None:
    device.faulty = {"bad"}
    batcher = Batcher(device.forward, worker, model="m")
    tasks = [await device.held(batcher)]
    names = ["a", "b", "bad", "c", "d"]
    tasks += [await started(submit(batcher, [name], [1])) for name in names]
    device.free.set()
    outcomes = (await settled(tasks))[1:]
    assert [type(outcome) for outcome in outcomes] == [list, list, ModelFault, list, list]
    assert "secret" not in str(outcomes[2])
    assert "RuntimeError" in str(outcomes[2])


async def test_a_fault_names_the_item_by_its_place_in_the_request(
    device: Device, worker: Workers
) -> None:
    device.faulty = {"bad"}
    batcher = Batcher(device.forward, worker, model="m")
    with pytest.raises(ModelFault, match="m: failed on item 2"):
        await submit(batcher, ["a", "b", "bad"], [1, 1, 1])
    assert await submit(batcher, ["a"], [1]) == [("done", "a")]


async def test_what_a_failed_request_still_had_queued_never_runs(
    worker: Workers, gate: threading.Event
) -> None:
    ran: list[object] = []

    def forward(batch: list[object]) -> list[object]:
        ran.extend(batch)
        if "bad" in batch:
            raise RuntimeError
        assert gate.wait(WAIT)
        return batch

    batcher = Batcher(forward, worker, limits=BatchLimits(batch_items=1))
    with pytest.raises(ModelFault):
        await submit(batcher, ["bad", *range(500)], [1] * 501)
    assert batcher.queued_tokens == 0
    gate.set()
    await submit(batcher, ["after"], [1])
    # The worker may have taken one item more by the time the caller heard of the failure.
    assert ran in (["bad", "after"], ["bad", 0, "after"])


async def test_an_error_in_a_result_s_place_fails_that_item_alone(worker: Workers) -> None:
    def forward(batch: list[int]) -> list[int | CondenseryError]:
        return [ModelFault("not finite") if item == 3 else item for item in batch]

    batcher = Batcher(forward, worker)
    outcomes = await settled([submit(batcher, [item], [1]) for item in range(5)])
    assert [outcome for outcome in outcomes if isinstance(outcome, list)] == [[0], [1], [2], [4]]
    assert isinstance(outcomes[3], ModelFault)


async def test_our_own_error_keeps_its_kind(worker: Workers) -> None:
    def forward(batch: list[int]) -> list[int]:
        raise InputError("too long for the network")

    with pytest.raises(InputError, match="too long"):
        await submit(Batcher(forward, worker), [1], [1])


async def test_a_missing_result_is_an_error_not_a_hang(worker: Workers) -> None:
    batcher: Batcher[int, int] = Batcher(
        lambda batch: [item for item in batch if item != 2], worker
    )
    with pytest.raises(ModelFault, match=r"item 1 .*0 results for 1"):
        await asyncio.wait_for(submit(batcher, [1, 2, 3], [1, 1, 1]), WAIT)
    assert await submit(batcher, [1, 3], [1, 1]) == [1, 3]


async def test_where_each_item_is_wanted_one_that_fails_leaves_the_others_their_results(
    device: Device, worker: Workers
) -> None:
    device.faulty = {"bad", "worse"}
    batcher = Batcher(device.forward, worker, limits=BatchLimits(batch_items=3), model="m")
    items = ["a", "bad", "b", "c", "worse"]
    found = await batcher.submit_each(items, [1] * 5)
    assert [found[place] for place in (0, 2, 3)] == [("done", item) for item in "abc"]
    for place in (1, 4):
        assert isinstance(found[place], ModelFault)
        assert f"item {place}" in str(found[place])
    assert await batcher.submit_each([], []) == []
    with pytest.raises(ModelFault):
        await submit(batcher, items, [1] * 5)


async def test_what_concerns_all_items_is_raised_even_where_each_is_wanted(
    device: Device, worker: Workers
) -> None:
    batcher = Batcher(device.forward, worker, limits=BatchLimits(queue_tokens=10), model="m")
    tasks = [await device.held(batcher)]
    waits = await started(batcher.submit_each(["a", "b"], [1, 9]))
    with pytest.raises(Overloaded):
        await batcher.submit_each(["c"], [1])
    with (
        serving_request(RequestContext(deadline=time.monotonic() + 0.05)),
        pytest.raises(DeadlineExceeded),
    ):
        await batcher.submit_each(["d"], [0])
    batcher.close()
    device.free.set()
    with pytest.raises(Unavailable):
        await waits
    await settled(tasks)


async def test_a_lost_worker_fails_the_items_it_had_and_what_it_brings_home_late_is_dropped(
    worker: Workers,
) -> None:
    gates = {"lost": threading.Event(), "kept": threading.Event()}
    entered = threading.Semaphore(0)

    def forward(batch: list[str]) -> list[str]:
        entered.release()
        assert gates[batch[0]].wait(WAIT)
        return batch

    batcher = Batcher(forward, worker, limits=BatchLimits(batch_items=1), model="m")
    task = await started(batcher.submit_each(["lost", "kept"], [1, 1]))
    assert await asyncio.to_thread(entered.acquire, timeout=WAIT)
    lost = next(one for one in worker.members() if one.item is not None)
    worker.replace(lost, "the device worker hung")
    assert await asyncio.to_thread(entered.acquire, timeout=WAIT)
    gates["lost"].set()
    assert lost.thread is not None
    await asyncio.to_thread(lost.thread.join, WAIT)  # it has sent home what it had
    await asyncio.sleep(0)
    gates["kept"].set()
    first, second = await asyncio.wait_for(task, WAIT)  # type: ignore[misc]
    assert isinstance(first, ModelFault)
    assert second == "kept"


async def test_none_is_a_result_like_any_other(worker: Workers) -> None:
    batcher: Batcher[int, None] = Batcher(lambda batch: [None] * len(batch), worker)
    assert await submit(batcher, [1, 2], [1, 1]) == [None, None]


async def test_a_request_that_does_not_fit_whole_leaves_nothing_behind(
    device: Device, worker: Workers
) -> None:
    batcher = Batcher(device.forward, worker, limits=BatchLimits(queue_tokens=100))
    tasks = [await device.held(batcher)]
    tasks.append(await started(submit(batcher, ["first"], [90])))
    with pytest.raises(Overloaded, match="90 tokens wait and 20 more") as refused:
        await submit(batcher, ["a", "b"], [5, 15])
    assert 1 <= refused.value.retry_after_seconds <= 60
    assert batcher.queued_tokens == 90
    tasks.append(await started(submit(batcher, ["fits"], [10])))
    device.free.set()
    await settled(tasks)
    assert device.batches == [["held"], ["fits", "first"]], "the smaller one goes first"


async def test_a_request_over_the_queue_s_size_runs_when_nothing_waits(
    device: Device, worker: Workers
) -> None:
    batcher = Batcher(device.forward, worker, limits=BatchLimits(queue_tokens=10, batch_tokens=64))
    assert len(await submit(batcher, list(range(50)), [7] * 50)) == 50


async def test_retry_after_follows_the_rate_at_which_the_queue_drains(
    worker: Workers, gate: threading.Event, clock: Clock
) -> None:
    entered = threading.Event()

    def forward(batch: list[str]) -> list[str]:
        if "held" in batch:
            entered.set()
            assert gate.wait(WAIT)
        else:
            clock.now += 0.125
        return batch

    batcher = Batcher(forward, worker, limits=BatchLimits(queue_tokens=1000))
    await submit(batcher, ["measured"], [100])  # 800 tokens a second
    held = await started(submit(batcher, ["held"], [1]))
    assert await asyncio.to_thread(entered.wait, WAIT)
    waiting = await started(submit(batcher, ["waiting"], [5000]))
    with pytest.raises(Overloaded) as a_little:
        await submit(batcher, ["more"], [100])
    with pytest.raises(Overloaded) as a_lot:
        await submit(batcher, ["much more"], [10_000])
    gate.set()
    await settled([held, waiting])
    # 4,100 tokens must go before 100 more fit; 10,000 more fit only once all 5,000 have gone.
    assert a_little.value.retry_after_seconds == 6
    assert a_lot.value.retry_after_seconds == 7


async def test_shutdown_refuses_whoever_waits_and_finishes_what_runs(
    device: Device, worker: Workers
) -> None:
    batcher = Batcher(device.forward, worker)
    held = await device.held(batcher)
    waits = await started(submit(batcher, ["a", "b"], [1, 1]))
    batcher.close()
    device.free.set()
    first, second = await settled([held, waits])
    assert first == [("done", "held")]
    assert isinstance(second, Unavailable)
    with pytest.raises(Unavailable):
        await submit(batcher, ["late"], [1])
    assert device.batches == [["held"]]
    batcher.close()


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


def sampler(metrics: Metrics) -> Callable[..., float | None]:
    def sample(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"condensery_{name}", labels)

    return sample


async def under(call: RequestContext, work: Awaitable[object]) -> object:
    with serving_request(call):
        return await work


async def test_who_leaves_the_queue_unserved_has_waited_all_the_time(
    device: Device, worker: Workers
) -> None:
    batcher = Batcher(device.forward, worker)
    tasks = [await device.held(batcher)]
    call, began = RequestContext(), time.perf_counter()
    waits = await started(under(call, submit(batcher, ["waits"], [1])))
    await asyncio.sleep(0.05)
    least = time.perf_counter() - began - 0.01
    waits.cancel()
    await settled([waits])
    assert call.spent.queued >= least
    device.free.set()
    await settled(tasks)


async def test_time_that_runs_out_in_the_queue_costs_no_forward(
    device: Device, worker: Workers
) -> None:
    metrics = Metrics()
    batcher = Batcher(device.forward, worker, model="m", metrics=metrics)
    held = await device.held(batcher)
    call = RequestContext(deadline=time.monotonic() + 0.05)
    with pytest.raises(ExpiredInQueue):
        await asyncio.wait_for(under(call, submit(batcher, ["late"], [10])), WAIT)
    assert batcher.queued_tokens == 0
    device.free.set()
    await settled([held, submit(batcher, ["after"], [1])])
    assert device.batches == [["held"], ["after"]]
    sample = sampler(metrics)
    assert sample("cancelled_total", model="m", stage="queue", cause="deadline") == 1


async def test_time_that_runs_out_while_its_batch_runs_harms_no_batch_mate(
    device: Device, worker: Workers, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = Metrics()
    ran: list[list[str]] = []

    def forward(batch: list[str]) -> list[str]:
        ran.append(batch)
        device.entered.release()
        assert gate.wait(WAIT) if "late" in batch else device.free.wait(WAIT)
        return batch

    batcher = Batcher(forward, worker, model="m", metrics=metrics)
    held = await device.held(batcher)
    call = RequestContext(deadline=time.monotonic() + 1000)
    late = await started(under(call, submit(batcher, ["late"], [1])))
    mate = await started(submit(batcher, ["mate"], [1]))
    device.free.set()
    assert await asyncio.to_thread(device.entered.acquire, timeout=WAIT)
    # Only now that its batch runs is it a thousand seconds later, for the loop.
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: time.monotonic() + 1001)
    await asyncio.wait([late], timeout=WAIT)
    error = late.exception()
    assert isinstance(error, DeadlineExceeded)
    assert not isinstance(error, ExpiredInQueue)
    gate.set()
    assert await settled([held, mate]) == [["held"], ["mate"]]
    assert ran == [["held"], ["late", "mate"]]
    sample = sampler(metrics)
    assert sample("cancelled_total", model="m", stage="forward", cause="deadline") == 1


async def test_what_comes_too_late_is_not_even_queued(device: Device, worker: Workers) -> None:
    batcher = Batcher(device.forward, worker)
    with pytest.raises(ExpiredInQueue):
        await under(RequestContext(deadline=time.monotonic() - 1), submit(batcher, ["late"], [1]))
    assert device.batches == []


async def test_a_caller_who_goes_is_counted_by_how_far_its_work_had_come(
    device: Device, worker: Workers
) -> None:
    metrics = Metrics()
    batcher = Batcher(device.forward, worker, model="m", metrics=metrics)
    held = await device.held(batcher)
    waits = await started(submit(batcher, ["waits"], [1]))
    for task in (waits, held):
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    device.free.set()
    sample = sampler(metrics)
    assert sample("cancelled_total", model="m", stage="queue", cause="client") == 1
    assert sample("cancelled_total", model="m", stage="forward", cause="client") == 1


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


async def test_who_would_wait_too_long_is_refused_and_others_are_not(
    worker: Workers, gate: threading.Event, clock: Clock
) -> None:
    entered = threading.Event()

    def forward(batch: list[str]) -> list[str]:
        if "held" in batch:
            entered.set()
            assert gate.wait(WAIT)
        else:
            clock.now += 0.1
        return batch

    metrics = Metrics()
    limits = BatchLimits(queue_seconds=2.0)
    batcher = Batcher(forward, worker, limits=limits, model="m", metrics=metrics)
    assert await submit(batcher, ["measured"], [100]) == ["measured"]  # 1,000 tokens a second
    flood = RequestContext(caller="flood")
    tasks = [await started(submit(batcher, ["held"], [600]))]
    assert await asyncio.to_thread(entered.wait, WAIT)
    more: list[asyncio.Task[object]] = []
    while not (more and more[-1].done()):
        assert len(more) < 50
        more.append(await started(under(flood, submit(batcher, ["more"], [900]))))
    with pytest.raises(Overloaded, match="would wait") as refused:
        await more.pop()
    assert len(more) == 3, "the last of them waits for 1,800 tokens, the next would for 2,700"
    assert refused.value.retry_after_seconds == 1
    tasks += more
    # Another caller's turn comes long before: after one turn of the flood's.
    tasks.append(
        await started(under(RequestContext(caller="meek"), submit(batcher, ["short"], [10])))
    )
    gate.set()
    assert all(isinstance(outcome, list) for outcome in await settled(tasks))
    assert sampler(metrics)("rejected_total", reason="queue_seconds") == 1


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
async def test_a_lane_is_expected_to_take_twice_as_long_while_the_other_one_has_work(
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
        tasks += [await started(under(RequestContext(caller="one"), one)) for one in waiting]
        batcher._limits = BatchLimits(queue_seconds=limit)
        last = await started(under(RequestContext(caller=caller), submit(batcher, ["last"], [500])))
        await asyncio.sleep(0)
        assert last.done() != fits
        gate.set()
        outcomes = await settled([*tasks, last])
        assert isinstance(outcomes.pop(), list if fits else Overloaded)
        assert all(isinstance(one, list) for one in outcomes)


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


async def test_a_batch_that_runs_out_of_memory_is_split_and_tried_again(worker: Workers) -> None:
    metrics = Metrics()
    metrics.prepare_model("m")
    ran: list[int] = []

    def forward(batch: list[str]) -> list[str]:
        ran.append(len(batch))
        if len(batch) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return batch

    batcher = Batcher(forward, worker, model="m", metrics=metrics)
    names = [f"text{place}" for place in range(8)]
    assert await submit(batcher, names, [1] * 8) == names
    assert ran == [8, 4, 2, 2, 4, 2, 2]
    assert sampler(metrics)("oom_total", model="m", action="split") == 3
    assert sampler(metrics)("oom_total", model="m", action="failed") == 0


async def test_an_item_too_large_for_memory_fails_alone(worker: Workers) -> None:
    metrics = Metrics()

    def forward(batch: list[str]) -> list[str]:
        if "large" in batch:
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")
        return batch

    batcher = Batcher(forward, worker, model="m", metrics=metrics)
    with pytest.raises(ModelFault, match="failed on item 0"):
        await submit(batcher, ["large"], [1])
    assert await submit(batcher, ["small"], [1]) == ["small"]
    assert sampler(metrics)("oom_total", model="m", action="failed") == 1


async def test_a_batch_whose_worker_is_lost_fails_and_the_next_runs(
    device: Device, worker: Workers
) -> None:
    batcher = Batcher(device.forward, worker, model="m")
    held = await device.held(batcher)
    waits = await started(submit(batcher, ["waits"], [1]))
    lost = next(one for one in worker.members() if one.item is not None)
    worker.replace(lost, "the device worker hung")
    outcome = (await settled([held]))[0]
    assert isinstance(outcome, ModelFault)
    assert "hung" in str(outcome)
    device.free.set()
    assert await settled([waits]) == [[("done", "waits")]]
