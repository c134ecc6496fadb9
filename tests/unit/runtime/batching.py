"""A device that can be held, a clock that stands, and requests under a deadline."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from tests.unit.runtime.conftest import submit

from condensery.metrics import Metrics
from condensery.request_context import RequestContext, serving_request
from condensery.runtime.batcher import Batcher

Item = TypeVar("Item")

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


async def settled(tasks: Sequence[Awaitable[object]]) -> list[object]:
    return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), WAIT)


async def started(work: Awaitable[object]) -> "asyncio.Task[object]":
    """Start ``work`` and let it come to its first wait."""
    task = asyncio.ensure_future(work)
    await asyncio.sleep(0)
    return task


def sampler(metrics: Metrics) -> Callable[..., float | None]:
    def sample(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"condensery_{name}", labels)

    return sample


async def under(call: RequestContext, work: Awaitable[object]) -> object:
    with serving_request(call):
        return await work
