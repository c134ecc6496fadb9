"""Who waits, for how long, who is refused, and who leaves."""

import asyncio
import threading
import time
from contextlib import suppress

import pytest
from tests.unit.runtime.batching import WAIT, Clock, Device, sampler, settled, started, under
from tests.unit.runtime.conftest import submit

from condensery.errors import (
    DeadlineExceeded,
    ExpiredInQueue,
    Overloaded,
    Unavailable,
)
from condensery.metrics import Metrics
from condensery.request_context import RequestContext
from condensery.runtime.batcher import Batcher
from condensery.runtime.queue import SHORT_TOKENS, BatchLimits
from condensery.runtime.workers import Workers


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


async def test_who_leaves_the_queue_unserved_has_waited_all_the_time(
    device: Device, worker: Workers
) -> None:
    batcher = Batcher(device.forward, worker)
    tasks = [await device.held(batcher)]
    call = RequestContext()
    waits = await started(under(call, submit(batcher, ["waits"], [1])))
    began = time.perf_counter()
    await asyncio.sleep(0.05)
    least = time.perf_counter() - began - 0.01
    waits.cancel()
    await settled([waits])
    assert call.stats.queued >= least
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


@pytest.mark.parametrize("expires", ["short", "long"])
async def test_a_queue_whose_time_has_run_out_keeps_no_worker_from_the_other(
    device: Device, worker: Workers, expires: str
) -> None:
    batcher = Batcher(device.forward, worker, limits=BatchLimits(batch_items=1))
    held = await device.held(batcher)
    call, tokens = RequestContext(), {"short": 1, "long": 2 * SHORT_TOKENS}
    late = await started(under(call, submit(batcher, ["late"], [tokens.pop(expires)])))
    ((kind, cost),) = tokens.items()
    # Two: the first short one goes before any long one, and only then is it a long one's turn.
    names = [f"{kind} {place}" for place in range(2)]
    waiting = [await started(submit(batcher, [name], [cost])) for name in names]
    call.deadline = time.monotonic()  # its own timer does not know: the loop was busy
    device.free.set()
    await settled([held, *waiting])
    assert device.batches == [["held"], *([name] for name in names)]
    late.cancel()
    await settled([late])


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
