import asyncio
import threading
import time
from collections.abc import AsyncIterator

import pytest

from condensery.errors import ModelFault
from condensery.metrics import Metrics
from condensery.runtime import watchdog as watching
from condensery.runtime.batcher import Batcher
from condensery.runtime.watchdog import Watchdog
from condensery.runtime.workers import Workers

WAIT = 5.0


class Service:
    """A batcher whose forward hangs or dies on a word, and what its watchdog said."""

    def __init__(self) -> None:
        self.workers = Workers(1)
        self.metrics = Metrics()
        self.release = threading.Event()
        self.batcher: Batcher[str, str] = Batcher(self.forward, self.workers, model="m")
        self.faults: list[tuple[float, str | None]] = []
        self.fatal: list[str] = []
        self.is_fatal = asyncio.Event()
        self.ended = threading.Event()
        self.watchdog = Watchdog(
            [self.workers],
            asyncio.get_running_loop(),
            on_fault=lambda reason: self.faults.append((time.monotonic(), reason)),
            on_fatal=self.tell_fatal,
            end_process=self.ended.set,
            stall_seconds=0.5,
            metrics=self.metrics,
        )

    def forward(self, batch: list[str]) -> list[str]:
        if "hang" in batch:
            self.release.wait(60)
        if "die" in batch:
            raise SystemExit
        return batch

    def sample(self, name: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"condensery_{name}")

    def tell_fatal(self, reason: str) -> None:
        self.fatal.append(reason)
        self.is_fatal.set()


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    made = Service()
    await made.batcher.submit(["measured"], [10])
    yield made
    made.release.set()
    made.watchdog.close()
    made.batcher.close()
    await asyncio.to_thread(made.workers.close)


async def test_a_hung_worker_is_told_of_then_replaced_and_its_batch_fails(
    service: Service,
) -> None:
    began = time.monotonic()
    with pytest.raises(ModelFault, match="hung"):
        await asyncio.wait_for(service.batcher.submit(["hang"], [10]), WAIT)
    told_at, reason = service.faults[0]
    assert reason == "a device worker hangs"
    assert 0.5 <= told_at - began <= 1.0
    assert await asyncio.wait_for(service.batcher.submit(["next"], [10]), WAIT) == ["next"]
    await asyncio.sleep(2 * watching.POLL_SECONDS)
    assert service.faults[-1][1] is None, "mended"
    assert service.sample("worker_restarts_total") == 1
    assert service.fatal == []


# A thread that ends by an exception is what is tested.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_worker_that_dies_is_replaced_at_once(service: Service) -> None:
    began = time.monotonic()
    with pytest.raises(ModelFault, match="died"):
        await asyncio.wait_for(service.batcher.submit(["die"], [10]), WAIT)
    assert time.monotonic() - began < 1
    assert await asyncio.wait_for(service.batcher.submit(["next"], [10]), WAIT) == ["next"]
    assert service.sample("worker_restarts_total") == 1


async def test_a_second_hang_is_fatal(service: Service) -> None:
    began = time.monotonic()
    for _ in range(2):
        task = asyncio.create_task(service.batcher.submit(["hang"], [10]))
        await asyncio.wait([task], timeout=1.5)
    await asyncio.wait_for(service.is_fatal.wait(), WAIT)
    assert time.monotonic() - began < WAIT
    assert "restarted already" in service.fatal[0]
    assert service.sample("worker_restarts_total") == 1, "once"
    task.cancel()


async def test_a_long_batch_is_no_hang_where_it_should_be_long(service: Service) -> None:
    def slow(batch: list[str]) -> list[str]:
        time.sleep(0.3 * len(batch))
        return batch

    batcher = Batcher(slow, service.workers, model="slow")
    await batcher.submit(["a"], [10])
    assert len(await batcher.submit(["a"] * 4, [10] * 4)) == 4  # 1.2 s, over the 0.5 s
    assert service.faults == []


async def test_a_loop_that_hangs_ends_the_process(
    service: Service, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watching, "LOOP_SECONDS", 0.5)
    time.sleep(1.2)  # noqa: ASYNC251 - hanging is what is tested
    assert service.ended.is_set()
    assert "test_a_loop_that_hangs" in capfd.readouterr().err, "its stack is in the log"


async def test_the_workers_of_a_second_device_are_watched_too(service: Service) -> None:
    second = Workers(1)
    batcher: Batcher[str, str] = Batcher(service.forward, second, model="second")
    watchdog = Watchdog(
        [service.workers, second],
        asyncio.get_running_loop(),
        on_fault=lambda reason: None,
        on_fatal=service.tell_fatal,
        end_process=service.ended.set,
        stall_seconds=0.5,
    )
    try:
        await batcher.submit(["measured"], [10])
        with pytest.raises(ModelFault, match="hung"):
            await asyncio.wait_for(batcher.submit(["hang"], [10]), WAIT)
        assert await asyncio.wait_for(batcher.submit(["next"], [10]), WAIT) == ["next"]
        assert await service.batcher.submit(["beside"], [10]) == ["beside"]
    finally:
        service.release.set()
        watchdog.close()
        batcher.close()
        await asyncio.to_thread(second.close)
