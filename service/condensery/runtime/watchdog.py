"""Watches what could hang without a word: the device's workers, and the event loop."""

import asyncio
import faulthandler
import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from condensery.runtime.workers import Worker, Workers

if TYPE_CHECKING:
    from condensery.metrics import Metrics

POLL_SECONDS = 0.2
# A forward pass may take so many times what its tokens took before; other work on the machine
# makes it two or three.
PATIENCE = 5.0
# And while a model is loaded, whose threads take the interpreter from the workers by turns: passes
# of 3.6 s were seen on a machine that did much else, where 0.1 s is usual.
LOADING_PATIENCE = 8.0
# Where nothing is known of a model's speed yet: kernels are compiled, memory is touched first.
FIRST_SECONDS = 60.0
# A second fault within this time is no accident.
WINDOW_SECONDS = 600.0
# Between "not live" and the end, so that probes and logs can tell.
FAREWELL_SECONDS = 2.0
LOOP_SECONDS = 30.0

_log = logging.getLogger(__name__)


class Watchdog:
    """A thread that checks the workers' heartbeats, and the loop's.

    A worker that takes over ``stall_seconds`` (and over ``PATIENCE`` times what its batch should
    take) makes the service unready; at twice that, or as soon as its thread is dead, it is given
    up: its batch fails, and another takes its place. That happens once in ``WINDOW_SECONDS``; a
    second fault ends the process, since a device that hangs twice hangs for ever.

    Args:
        teams: What is watched: the workers of each device.
        loop: The event loop; its own stall of ``LOOP_SECONDS`` ends the process as well.
        on_fault: Called in the loop with what is wrong, or None once it is mended.
        on_fatal: Called in the loop with the reason why the process should end.
        end_process: Called in this thread where the loop hangs, or does not end in time.
        stall_seconds: As above.
        loading: Whether a model is being loaded, called in this thread; what runs meanwhile may
            take ``LOADING_PATIENCE`` times as long.
        metrics: Where to count.
    """

    def __init__(
        self,
        teams: Sequence[Workers],
        loop: asyncio.AbstractEventLoop,
        *,
        on_fault: Callable[[str | None], None],
        on_fatal: Callable[[str], None],
        end_process: Callable[[], None],
        stall_seconds: float = 1.5,
        loading: Callable[[], bool] = lambda: False,
        metrics: "Metrics | None" = None,
    ) -> None:
        self._teams = teams
        self._loop = loop
        self._on_fault = on_fault
        self._on_fatal = on_fatal
        self._end_process = end_process
        self._stall_seconds = stall_seconds
        self._loading = loading
        self._loaded_last = -WINDOW_SECONDS  # when a load was last seen under way
        self._metrics = metrics
        self._told: str | None = None
        self._last_restart = -WINDOW_SECONDS
        self._fatal_since = 0.0
        self._loop_seen = time.monotonic()
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
                self._end_process()  # told to end, and it has not

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
        watched = [(workers, one) for workers in self._teams for one in workers.team()]
        for workers, worker in watched:
            job = worker.job
            age = now - worker.began if job is not None else 0.0
            oldest = max(oldest, age)
            assert worker.thread is not None
            if not worker.thread.is_alive():
                wrong = wrong or self._give_up(workers, worker, "died")
            elif job is not None and age > (limit := self._limit(job.seconds, worker.began)):
                if age > 2 * limit:
                    wrong = self._give_up(workers, worker, "hung") or wrong
                else:
                    wrong = "a device worker hangs"
        if self._metrics is not None:
            self._metrics.heartbeat_age.set(oldest)
        if wrong != self._told and not self._fatal_since:
            self._told = wrong
            self._call(self._on_fault, wrong)

    def _limit(self, expected: float, began: float) -> float:
        if not expected:
            return FIRST_SECONDS
        limit = max(self._stall_seconds, PATIENCE * expected)
        return limit * (LOADING_PATIENCE if began <= self._loaded_last else 1)

    def _give_up(self, workers: Workers, worker: Worker, how: str) -> str | None:
        """Replace a worker, the first time; returns what is still wrong."""
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
        if self._metrics is not None:
            self._metrics.worker_restarts.inc()
        workers.replace(worker, f"the device worker {how} while it ran this batch")
        return None

    def _call(self, function: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # the loop has closed: the server has ended
            self._stop.set()
