import asyncio
import contextlib
import hashlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from tests.unit.runtime.conftest import submit

from condensery.errors import ModelFault
from condensery.metrics import Metrics
from condensery.runtime import batcher as batching
from condensery.runtime import watchdog as watching
from condensery.runtime import workers as working
from condensery.runtime.batcher import Batcher
from condensery.runtime.watchdog import CpuWaits, Watchdog
from condensery.runtime.workers import Worker, Workers

linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the kernel does not tell")

WAIT = 30.0  # for what must happen, however busy the machine is
STALL = 60.0  # nothing that a machine does by itself


class Clock:
    """The machine's time, and as much more as a test lets pass at once."""

    def __init__(self) -> None:
        self.passed = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.passed

    def perf_counter(self) -> float:
        return time.perf_counter() + self.passed


# Of a hash: two seconds or so of a whole core.
ROUNDS = 4_000_000


def hash_away() -> None:
    """Compute for long without holding the interpreter's lock."""
    hashlib.pbkdf2_hmac("sha256", b"", b"", ROUNDS)


def until(holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + 4 * WAIT
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.01)


def state(thread: int) -> str:
    return Path(f"/proc/self/task/{thread}/stat").read_text().rpartition(")")[2].split()[0]


@contextlib.contextmanager
def taken_core() -> Iterator[int]:
    """Keep one core busy with a process of its own; yields the core's number."""
    core = min(os.sched_getaffinity(0))
    with subprocess.Popen(
        [sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE
    ) as loop:
        try:
            os.sched_setaffinity(loop.pid, {core})
            assert loop.stdout is not None
            loop.stdout.readline()
            yield core
        finally:
            loop.kill()


@contextlib.contextmanager
def starved(thread: int, core: int) -> Iterator[None]:
    """Move a thread that hashes to a busy core, at the lowest priority."""
    ran = Path(f"/proc/self/task/{thread}/schedstat")
    before = int(ran.read_text().split()[0])
    until(lambda: int(ran.read_text().split()[0]) > before + 5e7)  # it is amid the hash, no doubt
    cores = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(thread, {core})
        os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):  # it has come to its end
            os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))
            os.sched_setaffinity(thread, cores)


class Service:
    """A batcher whose forward hangs or dies on a word, and what its watchdog said."""

    def __init__(self) -> None:
        self.workers = Workers(1)
        self.metrics = Metrics()
        self.entered = threading.Semaphore(0)
        self.release = threading.Event()
        self.batcher: Batcher[str, str] = Batcher(self.forward, self.workers, model="m")
        self.faults: asyncio.Queue[str | None] = asyncio.Queue()
        self.fatal: asyncio.Queue[str] = asyncio.Queue()
        self.ended = threading.Event()
        self.loading = False
        self.watchdog = Watchdog(
            [self.workers],
            asyncio.get_running_loop(),
            on_fault=self.faults.put_nowait,
            on_fatal=self.fatal.put_nowait,
            end_process=self.ended.set,
            stall_seconds=STALL,
            loading=lambda: self.loading,
            metrics=self.metrics,
        )

    def forward(self, batch: list[str]) -> list[str]:
        if "hang" in batch:
            self.entered.release()
            self.release.wait(60)
        if "die" in batch:
            raise SystemExit
        return batch

    def sample(self, name: str) -> float:
        return self.metrics.registry.get_sample_value(f"condensery_{name}") or 0.0

    def looked(self, age: float) -> None:
        """Wait until the watchdog has looked, and told, of what is older than ``age``."""
        until = time.monotonic() + WAIT
        for _ in range(2):  # it tells only after it has noted the age
            age = max(age, self.sample("heartbeat_age_seconds"))
            while self.sample("heartbeat_age_seconds") <= age:
                assert time.monotonic() < until, "the watchdog does not look"
                time.sleep(0.01)


async def hanging(service: Service, batcher: Batcher[str, str]) -> "asyncio.Task[list[str]]":
    """Submit a text whose batch hangs; return the task, once the forward pass has begun."""
    task = asyncio.create_task(submit(batcher, ["hang"], [10]))
    assert await asyncio.to_thread(service.entered.acquire, timeout=WAIT)
    return task


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (watching, working, batching):
        monkeypatch.setattr(module, "time", made)
    monkeypatch.setattr(watching, "LOOP_SECONDS", 1e6)  # the loop does not hang, whatever passes
    return made


@pytest.fixture
async def service(clock: Clock) -> AsyncIterator[Service]:
    made = Service()
    await submit(made.batcher, ["measured"], [10])
    yield made
    made.release.set()
    made.watchdog.close()
    made.batcher.close()
    await asyncio.to_thread(made.workers.close)


async def test_while_a_model_is_loaded_a_batch_may_take_longer_and_not_for_ever(
    service: Service, clock: Clock
) -> None:
    service.loading = True
    task = await hanging(service, service.batcher)
    clock.passed += 4 * STALL
    await asyncio.to_thread(service.looked, 4 * STALL)
    service.loading = False  # what began meanwhile keeps its time
    clock.passed += 3 * STALL
    await asyncio.to_thread(service.looked, 7 * STALL)
    assert service.faults.empty()
    clock.passed += 2 * STALL
    assert await asyncio.wait_for(service.faults.get(), WAIT) == "a device worker hangs"
    service.release.set()
    assert await task == ["hang"]


async def test_a_hung_worker_is_told_of_then_replaced_and_its_batch_fails(
    service: Service, clock: Clock
) -> None:
    task = await hanging(service, service.batcher)
    clock.passed += STALL / 2
    await asyncio.to_thread(service.looked, STALL / 2)
    assert service.faults.empty(), "it may take as long"
    clock.passed += STALL
    assert await asyncio.wait_for(service.faults.get(), WAIT) == "a device worker hangs"
    assert not task.done(), "it may still come to its end"
    clock.passed += STALL
    with pytest.raises(ModelFault, match="hung"):
        await asyncio.wait_for(task, WAIT)
    assert await asyncio.wait_for(submit(service.batcher, ["next"], [10]), WAIT) == ["next"]
    assert await asyncio.wait_for(service.faults.get(), WAIT) is None, "mended"
    assert service.sample("worker_restarts_total") == 1
    assert service.fatal.empty()


async def test_a_first_batch_that_hangs_is_noticed_though_nothing_says_how_long_it_should_take(
    service: Service, clock: Clock
) -> None:
    first: Batcher[str, str] = Batcher(service.forward, service.workers, model="first")
    task = await hanging(service, first)
    clock.passed += 50.0
    await asyncio.to_thread(service.looked, 50.0)
    assert service.faults.empty(), "kernels may be compiled meanwhile"
    clock.passed += 25.0
    assert await asyncio.wait_for(service.faults.get(), WAIT) == "a device worker hangs"
    clock.passed += 60.0
    with pytest.raises(ModelFault, match="hung"):
        await asyncio.wait_for(task, WAIT)
    assert await asyncio.wait_for(submit(first, ["next"], [10]), WAIT) == ["next"]
    first.close()


async def test_a_batch_that_gets_no_core_does_not_hang(
    service: Service, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    wants = [True]
    looks: list[int] = []

    def schedule(thread: int) -> watching._Schedule:
        looks.append(thread)
        return watching._Schedule(wants[0], ran=0.0, queued=0.0)

    monkeypatch.setattr(watching, "_schedule", schedule)
    await asyncio.to_thread(until, lambda: len(looks) > 2)
    task = await hanging(service, service.batcher)
    clock.passed += 5 * STALL
    await asyncio.to_thread(service.looked, 5 * STALL)
    assert service.faults.empty()
    wants[0] = False  # it sleeps, and never waited for a core
    with pytest.raises(ModelFault, match="hung"):
        await asyncio.wait_for(task, WAIT)


@linux
def test_waiting_for_a_core_is_told_from_sleeping_and_from_computing() -> None:
    ended = threading.Event()

    def compute_then_sleep() -> None:
        hash_away()
        ended.wait(WAIT)

    thread = threading.Thread(target=compute_then_sleep)
    waits, worker = CpuWaits(), Worker("one")
    with taken_core() as core:
        thread.start()
        assert thread.native_id is not None
        ids = [thread.native_id]
        began = time.monotonic()
        with starved(*ids, core):
            before = waits.since(worker, began, ids)
            until(lambda: waits.since(worker, began, ids) > before + 0.3)
            assert waits.since(worker, began, ids) <= time.monotonic() - began
    until(lambda: state(*ids) == "S")
    asleep = waits.since(worker, began, ids)
    assert asleep >= 0.25, "what a thread had waited is not forgotten once it has a core"
    time.sleep(0.5)
    assert waits.since(worker, began, ids) == pytest.approx(asleep, abs=0.1), "it wants no core"
    assert waits.since(worker, time.monotonic(), ids) == pytest.approx(0, abs=0.1), "another batch"
    ended.set()
    thread.join(WAIT)


# A thread that ends by an exception is what is tested.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_worker_that_dies_is_replaced_at_once(service: Service) -> None:
    assert WAIT < STALL
    with pytest.raises(ModelFault, match="died"):
        await asyncio.wait_for(submit(service.batcher, ["die"], [10]), WAIT)
    assert await asyncio.wait_for(submit(service.batcher, ["next"], [10]), WAIT) == ["next"]
    assert service.sample("worker_restarts_total") == 1


async def test_a_second_hang_is_fatal(service: Service, clock: Clock) -> None:
    first = await hanging(service, service.batcher)
    clock.passed += 3 * STALL
    with pytest.raises(ModelFault, match="hung"):
        await asyncio.wait_for(first, WAIT)
    assert service.fatal.empty()
    second = await hanging(service, service.batcher)
    clock.passed += 3 * STALL
    assert "restarted already" in await asyncio.wait_for(service.fatal.get(), WAIT)
    assert service.sample("worker_restarts_total") == 1, "once"
    second.cancel()


async def test_a_second_hang_long_after_the_first_is_mended_as_that_was(
    service: Service, clock: Clock
) -> None:
    for hangs in (1, 2):
        task = await hanging(service, service.batcher)
        clock.passed += 3 * STALL
        with pytest.raises(ModelFault, match="hung"):
            await asyncio.wait_for(task, WAIT)
        assert await asyncio.wait_for(submit(service.batcher, ["next"], [10]), WAIT) == ["next"]
        assert service.sample("worker_restarts_total") == hangs
        clock.passed += watching.WINDOW_SECONDS
    assert service.fatal.empty()


async def test_a_process_that_is_told_to_end_and_does_not_is_ended(
    service: Service, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await test_a_second_hang_is_fatal(service, clock)
    monkeypatch.setattr(watching, "LOOP_SECONDS", 100.0)
    for _ in range(4):  # in steps that are no silence of the loop's
        assert not service.ended.is_set()
        clock.passed += 30
        async with asyncio.timeout(WAIT):
            # What is waited for has no event.
            while service.watchdog._loop_seen < clock.monotonic() - 20:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert await asyncio.to_thread(service.ended.wait, WAIT)


async def test_a_long_batch_is_no_hang_where_it_should_be_long(
    service: Service, clock: Clock
) -> None:
    def slow(batch: list[str]) -> list[str]:
        clock.passed += STALL / 2 * len(batch)
        service.looked(STALL / 2 * len(batch))
        return batch

    batcher = Batcher(slow, service.workers, model="slow")
    await submit(batcher, ["a"], [10])
    assert len(await submit(batcher, ["a"] * 4, [10] * 4)) == 4  # twice as long as a stall
    assert service.faults.empty()


async def test_a_loop_that_hangs_ends_the_process(
    service: Service, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watching, "LOOP_SECONDS", 0.5)
    assert service.ended.wait(WAIT)  # in the loop, which hangs meanwhile: that is tested
    assert "test_a_loop_that_hangs" in capfd.readouterr().err, "its stack is in the log"


async def test_the_workers_of_a_second_device_are_watched_too(
    service: Service, clock: Clock
) -> None:
    second = Workers(1)
    batcher: Batcher[str, str] = Batcher(service.forward, second, model="second")
    watchdog = Watchdog(
        [service.workers, second],
        asyncio.get_running_loop(),
        on_fault=lambda reason: None,
        on_fatal=service.fatal.put_nowait,
        end_process=service.ended.set,
        stall_seconds=STALL,
    )
    try:
        await submit(batcher, ["measured"], [10])
        task = await hanging(service, batcher)
        clock.passed += 3 * STALL
        with pytest.raises(ModelFault, match="hung"):
            await asyncio.wait_for(task, WAIT)
        assert await asyncio.wait_for(submit(batcher, ["next"], [10]), WAIT) == ["next"]
        assert await submit(service.batcher, ["beside"], [10]) == ["beside"]
    finally:
        service.release.set()
        watchdog.close()
        batcher.close()
        await asyncio.to_thread(second.close)
