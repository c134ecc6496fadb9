"""The threads that feed the device."""

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from condensery.errors import SettingError
from condensery.runtime.wide import WideThread, have_threads


def worker_count(device: torch.device | str) -> int:
    """Return how many workers ``device`` wants: a thread a core on a CPU, one on CUDA.

    One-thread workers do 20 to 40 % more than one worker of as many threads, and do not
    collapse at OMP barriers when a neighbour takes a core.
    """
    if torch.device(device).type == "cuda":
        return 1
    return max(1, len(os.sched_getaffinity(0)))


# Beside a long list, the p95 of single queries is 16 ms with it and 30 to 290 ms without.
BATCH_NICENESS = 5


@dataclass(frozen=True, slots=True)
class Job:
    """A batch, ready to run.

    Attributes:
        run: Does it, and sends the results home.
        fail: Tells those who wait for it why it will not be done; may be called beside ``run``.
        long: Whether it may take much longer than a short request should wait.
        seconds: How long it should take; 0 if nothing is known yet.
        threads: How many it should compute with, where other workers are idle; it may get one.
    """

    run: Callable[[], None]
    fail: Callable[[str], None]
    long: bool = False
    seconds: float = 0.0
    threads: int = 1

    @property
    def blocks(self) -> bool:
        """Whether a short request should overtake it, where no worker is free."""
        return self.long or self.threads > 1


def step_back() -> None:
    """Let the event loop and the express worker go first; costs nothing while they are idle."""
    if sys.platform == "linux":  # elsewhere it is the whole process that steps back
        own = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), own + BATCH_NICENESS)


class Source(Protocol):
    """What holds work for the device: a model's queue."""

    def take(self, idle: int, *, express: bool) -> Job | None:
        """Return the next piece of work, or None if nothing waits.

        Called by a worker that holds ``Workers.changed``, when ``idle`` workers (itself among
        them) are free. ``express`` asks for short work only.
        """
        ...


@dataclass(slots=True, eq=False)
class Worker:
    """One thread, and what it is doing.

    Attributes:
        name: Of the thread.
        express: Whether it takes short work only, while all others run long batches.
        job: What it is doing.
        began: When it began that, seconds of ``time.monotonic``.
        abandoned: It hangs and was replaced: what it still brings home is dropped.
        source: Where its last job came from.
    """

    name: str
    express: bool = False
    job: Job | None = None
    began: float = 0.0
    abandoned: bool = False
    source: Source | None = None
    thread: threading.Thread | None = None


class Workers:
    """Threads that take work from sources as they fall free, round robin: fair between models.

    A worker takes its next batch itself, without a detour through the event loop, so a busy loop
    does not leave the device idle.

    On a CPU there is one more thread than cores, the express worker. It runs only while all
    others run long batches, or have lent another one their threads, and only short requests: the
    kernel gives a thread that wakes its turn at once, so a query overtakes a batch that is
    running already.

    Attributes:
        changed: Guards every source's queue.
        count: Workers, the express one not counted.
    """

    def __init__(self, count: int | None = None, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.count = worker_count(self.device) if count is None else count
        if self.count < 1:
            raise SettingError(f"workers={self.count} is less than 1", field="workers")
        self._lock = threading.RLock()
        self.changed = threading.Condition(self._lock)
        self._express = threading.Condition(self._lock)
        self._sources: deque[Source] = deque()
        self._idle = 0
        self._closed = False
        self._team: list[Worker] = []
        self._wide = WideThread(step_back)
        for number in range(self.count):
            self._start(Worker(f"device-worker-{number}"))
        if self.device.type == "cpu":
            self._start(Worker("device-worker-express", express=True))

    def add(self, source: Source) -> None:
        """Serve ``source`` from now on."""
        with self.changed:
            self._sources.append(source)
            self._wake_all()

    def remove(self, source: Source) -> None:
        """Serve ``source`` no more; what it gave out already runs on."""
        with self.changed:
            self._sources.remove(source)

    def wake(self, items: int, *, short: bool) -> None:
        """Say that ``items`` have arrived; the caller holds ``changed``."""
        self.changed.notify(items)
        if short:
            self._express.notify()

    def team(self) -> list[Worker]:
        """Return the workers that are relied on."""
        with self._lock:
            return list(self._team)

    def threads(self, worker: Worker) -> list[int]:
        """Return the kernel's ids of the threads that a worker's job runs on."""
        assert worker.thread is not None
        own = [] if worker.thread.native_id is None else [worker.thread.native_id]
        job = worker.job
        return own + (self._wide.ids() if job is not None and job.threads > 1 else [])

    def replace(self, worker: Worker, reason: str, *, of: Job | None = None) -> None:
        """Give up a worker that hangs or has died: fail its batch, start another in its place.

        Args:
            worker: In the team.
            reason: Told to those who wait for its batch.
            of: The job that it is given up for, left alone if that is done by now; None for
                whatever it does.
        """
        with self._lock:
            job = worker.job
            done = of is not None and job is not of
            if self._closed or worker not in self._team or done:
                return
            self._team.remove(worker)
            worker.abandoned = True
            if job is not None and job.threads > 1:
                self._wide.close()
                self._wide = WideThread(step_back)
                self.changed.notify_all()
            self._start(Worker(worker.name, worker.express))
        if job is not None:
            job.fail(reason)

    def close(self, seconds: float = 10.0) -> bool:
        """Stop once the work in hand is done; waits for that, no longer than ``seconds``.

        Returns:
            Whether every worker has stopped.
        """
        with self.changed:
            self._closed = True
            self._wake_all()
            team = list(self._team)
        until = time.monotonic() + seconds
        for worker in team:
            assert worker.thread is not None
            worker.thread.join(max(0.0, until - time.monotonic()))
        self._wide.close()  # not before: what is in hand may be for it
        return not any(worker.thread and worker.thread.is_alive() for worker in team)

    def _start(self, worker: Worker) -> None:
        worker.thread = threading.Thread(
            target=self._work, args=(worker,), name=worker.name, daemon=True
        )
        self._team.append(worker)
        worker.thread.start()

    def _wake_all(self) -> None:
        self.changed.notify_all()
        self._express.notify_all()

    def _work(self, worker: Worker) -> None:
        if self.device.type == "cpu":
            have_threads(1)
            if not worker.express:
                step_back()
        while (job := self._next(worker)) is not None:
            if job.threads == 1 or not self._wide.run(job.run, job.threads):
                job.run()
            # Else the last batch's tensors live on until the next one comes.
            del job

    def _next(self, worker: Worker) -> Job | None:
        bell = self._express if worker.express else self.changed
        with self._lock:
            if worker.job is not None and worker.job.threads > 1:
                self.changed.notify_all()  # those whose threads it had
            elif worker.job is not None and worker.express:
                # What its job has left may be another's to go on with, who waits by now: it found
                # nothing while the job ran.
                self.changed.notify()
            worker.job = None
            if not worker.express:
                self._idle += 1
            try:
                while not self._closed and not worker.abandoned:
                    if (job := self._find(worker)) is not None:
                        # In this order: who sees the job sees when it began.
                        worker.began = time.monotonic()
                        worker.job = job
                        if job.blocks and not worker.express:
                            self._express.notify()  # it may be the last that was free
                        return job
                    bell.wait()
                return None
            finally:
                if not worker.express:
                    self._idle -= 1

    def _find(self, worker: Worker) -> Job | None:
        free = max(0, self._idle - self._lent)
        if not (self._all_blocked() if worker.express else free):
            return None
        for _ in range(len(self._sources)):
            source = self._sources[0]
            self._sources.rotate(-1)
            if (job := source.take(free, express=worker.express)) is not None:
                if worker.source is not source:
                    # Others may have left work of the source before to this worker.
                    self.changed.notify()
                worker.source = source
                return job
        return None

    @property
    def _lent(self) -> int:
        """Idle workers whose threads another one's job has."""
        return sum(worker.job.threads - 1 for worker in self._team if worker.job is not None)

    def _all_blocked(self) -> bool:
        others = [worker.job for worker in self._team if not worker.express]
        busy = [job for job in others if job is not None]
        return len(busy) + self._lent == len(others) and all(job.blocks for job in busy)
