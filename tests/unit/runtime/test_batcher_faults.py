"""What fails in a batch fails alone, and a lost worker's batch only."""

import asyncio
import threading
import time
import weakref

import pytest
import torch
from tests.unit.runtime.batching import WAIT, Device, sampler, settled, started
from tests.unit.runtime.conftest import submit

from condensery.errors import (
    CondenseryError,
    DeadlineExceeded,
    InputError,
    ModelFault,
    Overloaded,
    Unavailable,
)
from condensery.metrics import Metrics
from condensery.request_context import RequestContext, serving_request
from condensery.runtime.batcher import Batcher
from condensery.runtime.queue import BatchLimits
from condensery.runtime.workers import Workers


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
    results = await batcher.submit_each(items, [1] * 5)
    assert [results[place] for place in (0, 2, 3)] == [("done", item) for item in "abc"]
    for place in (1, 4):
        assert isinstance(results[place], ModelFault)
        assert f"item {place}" in str(results[place])
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
    lost = next(member for member in worker.members() if member.item is not None)
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


async def test_what_a_failed_batch_computed_is_gone_before_its_halves_run(worker: Workers) -> None:
    computed: list[weakref.ref[torch.Tensor]] = []
    left: list[int] = []

    def run_out(batch: list[int]) -> None:
        hidden = torch.zeros(len(batch))
        computed.append(weakref.ref(hidden))
        raise torch.OutOfMemoryError("CUDA out of memory")

    def forward(batch: list[int]) -> list[int]:
        left.append(sum(tensor() is not None for tensor in computed))
        if len(batch) == 4:
            run_out(batch)
        if len(batch) == 2:
            try:
                run_out(batch)
            except torch.OutOfMemoryError as error:
                raise RuntimeError from error
        return batch

    assert await submit(Batcher(forward, worker), [1, 2, 3, 4], [1] * 4) == [1, 2, 3, 4]
    assert len(computed) == 3
    assert left == [0] * 7


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
    lost = next(member for member in worker.members() if member.item is not None)
    worker.replace(lost, "the device worker hung")
    outcome = (await settled([held]))[0]
    assert isinstance(outcome, ModelFault)
    assert "hung" in str(outcome)
    device.free.set()
    assert await settled([waits]) == [[("done", "waits")]]
