"""Watches what could hang without a message: the device's workers, and the event loop."""

import asyncio
import faulthandler
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from condensery.runtime.queue import NO_METRICS
from condensery.runtime.workers import THREADS_DIR, Worker, Workers, WorkItem

if TYPE_CHECKING:
    from condensery.metrics import Metrics

POLL_SECONDS = 0.2
# A forward pass may take so many times what its tokens took before; other work on the machine
# makes it two or three.
STALL_FACTOR = 5.0
# And while a model is loaded, whose threads take the interpreter from the workers by turns: passes
# of 3.6 s were seen on a machine that did much else, where 0.1 s is usual.
LOADING_FACTOR = 8.0
# Where nothing is known of a model's speed yet: kernels are compiled, memory is touched first.
FIRST_SECONDS = 60.0
# A second fault within this time is no accident.
WINDOW_SECONDS = 600.0
# Between "not live" and the end, so that probes and logs can show it.
FAREWELL_SECONDS = 2.0
LOOP_SECONDS = 30.0
# For so long it is remembered how long a thread had waited.
MEMORY_SECONDS = 10.0

_log = logging.getLogger(__name__)


class Watchdog:
    """A thread that checks the workers' heartbeats, and the loop's.

    A worker that takes over ``stall_seconds`` (and over ``STALL_FACTOR`` times what its batch
    should take) makes the service unready; at twice that, or as soon as its thread is dead, it is
    given up: its batch fails, and another takes its place. That happens once in
    ``WINDOW_SECONDS``; a second fault ends the process, since a device that hangs twice hangs for
    ever.

    Time in which a thread of the batch could run and had no core is not counted: on a machine that
    others fill, a batch is slow and nothing hangs. Who waits for a lock, or sleeps, wants no core.

    Args:
        devices: What is watched: the workers of each device.
        loop: The event loop; its own stall of ``LOOP_SECONDS`` ends the process as well.
        on_fault: Called in the loop with what is wrong, or None once it is mended.
        on_fatal: Called in the loop with the reason why the process should end.
        end_process: Called in this thread where the loop hangs, or does not end in time.
        loading: Whether a model is being loaded, called in this thread; what runs meanwhile may
            take ``LOADING_FACTOR`` times as long.
    """

    def __init__(
        self,
        devices: Sequence[Workers],
        loop: asyncio.AbstractEventLoop,
        *,
        on_fault: Callable[[str | None], None],
        on_fatal: Callable[[str], None],
        end_process: Callable[[], None],
        stall_seconds: float = 1.5,
        loading: Callable[[], bool] = lambda: False,
        metrics: "Metrics | None" = None,
    ) -> None:
        self._devices = devices
        self._loop = loop
        self._on_fault = on_fault
        self._on_fatal = on_fatal
        self._end_process = end_process
        self._stall_seconds = stall_seconds
        self._loading = loading
        self._loaded_last = -WINDOW_SECONDS  # when a load was last seen under way
        self._metrics: Metrics = metrics or NO_METRICS
        self._reported: str | None = None
        self._last_restart = -WINDOW_SECONDS
        self._fatal_since = 0.0
        self._loop_seen = time.monotonic()
        self._waits = CpuWaits()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Watch no more."""
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(POLL_SECONDS):
            self._look_at_loop()
            if not self._fatal_since:
                self._look_at_workers()
            elif time.monotonic() - self._fatal_since > LOOP_SECONDS:
                self._end_process()  # asked to end, and it has not

    def _look_at_loop(self) -> None:
        now = time.monotonic()
        silent = now - self._loop_seen
        if silent > LOOP_SECONDS:
            _log.critical("event_loop_hangs", extra={"seconds": round(silent, 1)})
            faulthandler.dump_traceback(file=sys.stderr)
            self._end_process()
        self._call(self._seen)

    def _seen(self) -> None:
        self._loop_seen = time.monotonic()

    def _look_at_workers(self) -> None:
        now = time.monotonic()
        if self._loading():
            self._loaded_last = now
        oldest, wrong = 0.0, None
        watched = [(workers, worker) for workers in self._devices for worker in workers.members()]
        for workers, worker in watched:
            item, began = worker.item, worker.began
            age = now - began if item is not None else 0.0
            oldest = max(oldest, age)
            age -= self._waits.since(worker, began, workers.threads(worker))
            assert worker.thread is not None
            if not worker.thread.is_alive():
                wrong = wrong or self._give_up(workers, worker, item, "died")
            elif item is not None and age > (limit := self._limit(item.seconds, began)):
                if age > 2 * limit:
                    wrong = self._give_up(workers, worker, item, "hung") or wrong
                else:
                    wrong = "a device worker hangs"
        self._waits.forget(now - MEMORY_SECONDS)
        self._metrics.heartbeat_age.set(oldest)
        if wrong != self._reported and not self._fatal_since:
            self._reported = wrong
            self._call(self._on_fault, wrong)

    def _limit(self, expected: float, began: float) -> float:
        if not expected:
            return FIRST_SECONDS
        limit = max(self._stall_seconds, STALL_FACTOR * expected)
        return limit * (LOADING_FACTOR if began <= self._loaded_last else 1)

    def _give_up(
        self, workers: Workers, worker: Worker, item: WorkItem | None, how: str
    ) -> str | None:
        """Replace a worker, the first time; returns what is still wrong."""
        if worker.item is not item:  # it came to its end since we looked
            return None
        now = time.monotonic()
        again = now - self._last_restart < WINDOW_SECONDS
        event = {"worker": worker.name, "how": how}
        if again:
            reason = f"a device worker {how}, and one was restarted already"
            _log.critical("worker_lost", extra=event)
            self._fatal_since = now
            self._call(self._on_fatal, reason)
            return reason
        self._last_restart = now
        _log.error("worker_restarted", extra=event)
        self._metrics.worker_restarts.inc()
        workers.replace(worker, f"the device worker {how} while it ran this batch", of=item)
        return None

    def _call(self, function: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # the loop has closed: the server has ended
            self._stop.set()


class CpuWaits:
    """How long the threads of each batch were able to run and had no core to run on.

    Linux counts that for each thread (``schedstat``), but a wait only once it is over; of one that
    goes on, the thread's state shows. Where the kernel has neither, nobody waited.
    """

    def __init__(self) -> None:
        self._threads: dict[int, _Thread] = {}
        self._batches: dict[Worker, _Batch] = {}

    def since(self, worker: Worker, began: float, threads: Iterable[int]) -> float:
        """Return how many seconds of its batch were such a wait, as far as was looked.

        Of several threads that waited at once each counts, but never more than has passed: they
        wait for each other, and which of them kept the others up is not known.

        Args:
            worker: Whose batch it is.
            began: When the batch began; another time is another batch.
            threads: The kernel's ids of those that it runs on.
        """
        waited = 0.0
        for thread in threads:
            if (schedule := _schedule(thread)) is None:
                continue
            now = time.monotonic()
            before = self._threads.get(thread)
            still = 0.0
            if before is not None:
                if schedule.runs_or_waits:
                    # It neither ran nor had waited before: so it waits now.
                    passed = now - max(before.at, began)
                    ran = schedule.ran - before.schedule.ran
                    queued = schedule.queued - before.schedule.queued
                    carried = before.still if before.at >= began else 0.0
                    still = max(0.0, carried + passed - ran - queued)
                waited += schedule.queued + still - before.schedule.queued - before.still
            self._threads[thread] = _Thread(now, schedule, still)
        now = time.monotonic()
        last = self._batches.get(worker)
        if last is None or last.began != began:
            last = _Batch(began, began, 0.0)
        total = max(0.0, last.waited + min(waited, now - last.at))
        self._batches[worker] = _Batch(began, now, total)
        return total

    def forget(self, before: float) -> None:
        """Forget what was last looked at before that time: thread ids are used again."""
        threads, batches = self._threads.items(), self._batches.items()
        self._threads = {thread: seen for thread, seen in threads if seen.at >= before}
        self._batches = {worker: batch for worker, batch in batches if batch.at >= before}


class _Schedule(NamedTuple):
    """What the kernel reports of a thread: whether it wants a core, seconds with and without it.

    Attributes:
        runs_or_waits: Whether it has a core or waits for one.
        ran: Since it was made.
        queued: The same, of waits for a core that are over.
    """

    runs_or_waits: bool
    ran: float
    queued: float


@dataclass(frozen=True, slots=True)
class _Thread:
    at: float  # when it was looked at
    schedule: _Schedule
    still: float  # seconds that it had waited then in a wait that goes on


@dataclass(frozen=True, slots=True)
class _Batch:
    began: float
    at: float  # when it was looked at
    waited: float


def _schedule(thread: int) -> _Schedule | None:
    """Return what the kernel reports of a thread; None if it has ended, or there is no report."""
    task = THREADS_DIR / str(thread)
    try:
        ran, queued, *_ = (task / "schedstat").read_text().split()
        state = (task / "stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, ValueError, IndexError):
        return None
    return _Schedule(state == "R", int(ran) / 1e9, int(queued) / 1e9)
