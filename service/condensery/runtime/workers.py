"""The threads that feed the device.

A thread a core on a CPU and one more, the express worker, for short requests; one thread on CUDA.
A step that gains from it runs on the cores of idle workers too, in the one thread that may compute
with several (``MulticoreThread``).
"""

import contextlib
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol, TypeAlias

import torch

from condensery.errors import SettingError
from condensery.threads import lower_priority

Action: TypeAlias = Callable[[], None]

THREADS_DIR = Path("/proc/self/task")  # a folder a thread, where the kernel is Linux
_thread_numbers = itertools.count()


class MulticoreThread:
    """Runs one piece of work at a time, on as many cores as it may have.

    There is one of it. OpenMP keeps a pool for every thread that ever computed with several, and
    once the pools have more threads than there are cores none of them spins any more: waking a
    sleeping one took longer than most operations do (a step of 60 ms took 150).

    Args:
        prepare: Called in the thread, before anything else.
    """

    def __init__(self, prepare: Callable[[], None]) -> None:
        self._prepare = prepare
        self._busy = threading.Lock()
        self._work: SimpleQueue[tuple[Action, int, Future[None]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        # What the kernel calls the thread, in 15 characters. OpenMP's threads inherit it from the
        # one that starts them, and nothing else distinguishes them.
        self._kernel_name = f"wide-{next(_thread_numbers)}"

    def run(self, work: Action, threads: int) -> bool:
        """Run ``work`` on so many threads and wait for its end; False if another is at it.

        Raises:
            BaseException: What ``work`` raises.
        """
        if not self._busy.acquire(blocking=False):
            return False
        try:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._serve, name="device-worker-wide", daemon=True
                )
                self._thread.start()
            future: Future[None] = Future()
            self._work.put((work, threads, future))
            future.result()
        finally:
            self._busy.release()
        return True

    def close(self) -> None:
        """End the thread once its work is done."""
        self._work.put(None)

    def ids(self) -> list[int]:
        """Return the kernel's ids of the thread and of those that compute with it, on Linux."""
        ids = []
        with contextlib.suppress(OSError):
            for task in THREADS_DIR.iterdir():
                with contextlib.suppress(OSError):  # it has ended since
                    if (task / "comm").read_text().rstrip("\n") == self._kernel_name:
                        ids.append(int(task.name))
        return ids

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # no Linux
            (THREADS_DIR / str(threading.get_native_id()) / "comm").write_text(self._kernel_name)
        self._prepare()
        current = 1
        while (task := self._work.get()) is not None:
            work, threads, future = task
            if threads != current:
                set_thread_count(threads)
                # torch gives that number to whatever thread computes for the first time from now
                # on; set by another thread, it is one again for those, and stays what it is here.
                single = threading.Thread(target=set_thread_count, args=(1,))
                single.start()
                single.join()
                current = threads
            try:
                work()
            except BaseException as error:  # the caller's thread is to die of it, not this one
                future.set_exception(error)
            else:
                future.set_result(None)
            del task, work, future  # else the step's tensors live on until the next one


def set_thread_count(count: int) -> None:
    """Let the calling thread compute with so many, and keep to it.

    A thread's first operation in parallel takes over the number that any thread has set last;
    asking for the number counts as one.
    """
    torch.set_num_threads(count)
    torch.get_num_threads()


def worker_count(device: torch.device | str) -> int:
    """Return how many workers ``device`` wants: a thread a core on a CPU, one on CUDA.

    One-thread workers do 20 to 40 % more than one worker of as many threads, and do not
    collapse at OMP barriers when a neighbour takes a core.
    """
    if torch.device(device).type == "cuda":
        return 1
    return max(1, len(os.sched_getaffinity(0)))


@dataclass(frozen=True, slots=True)
class WorkItem:
    """A batch, ready to run.

    Attributes:
        run: Does it, and sends the results to the callers.
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


class WorkSource(Protocol):
    """What holds work for the device: a model's queue."""

    def take(self, idle: int, *, express: bool) -> WorkItem | None:
        """Return the next piece of work, or None if nothing waits.

        Called by a worker that holds ``Workers.changed``, when ``idle`` workers (itself among
        them) are free. ``express`` asks for short work only.
        """
        ...


@dataclass(slots=True, eq=False)
class Worker:
    """One thread, and what it is doing.

    Attributes:
        express: Whether it takes short work only, while all others run long batches.
        item: What it is doing.
        began: When it began that, seconds of ``time.monotonic``.
        abandoned: It hangs and was replaced: the results it may still give are dropped.
        source: Where its last item came from, while that is served.
    """

    name: str
    express: bool = False
    item: WorkItem | None = None
    began: float = 0.0
    abandoned: bool = False
    source: WorkSource | None = None
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
        self._sources: deque[WorkSource] = deque()
        self._idle = 0
        self._closed = False
        self._members: list[Worker] = []
        self._multicore = MulticoreThread(lower_priority)
        for number in range(self.count):
            self._start(Worker(f"device-worker-{number}"))
        if self.device.type == "cpu":
            self._start(Worker("device-worker-express", express=True))

    def add(self, source: WorkSource) -> None:
        """Serve ``source`` from now on."""
        with self.changed:
            self._sources.append(source)
            self._wake_all()

    def remove(self, source: WorkSource) -> None:
        """Serve ``source`` no more; what it gave out already runs on."""
        with self.changed:
            self._sources.remove(source)
            for worker in self._members:
                if worker.source is source:
                    worker.source = None  # a worker may long be idle: it kept a model's weights

    def wake(self, items: int, *, short: bool) -> None:
        """Say that ``items`` have arrived; the caller holds ``changed``."""
        self.changed.notify(items)
        if short:
            self._express.notify()

    def members(self) -> list[Worker]:
        """Return the workers that are relied on."""
        with self._lock:
            return list(self._members)

    def threads(self, worker: Worker) -> list[int]:
        """Return the kernel's ids of the threads that a worker's item runs on."""
        assert worker.thread is not None
        own = [] if worker.thread.native_id is None else [worker.thread.native_id]
        item = worker.item
        return own + (self._multicore.ids() if item is not None and item.threads > 1 else [])

    def replace(self, worker: Worker, reason: str, *, of: WorkItem | None = None) -> None:
        """Give up a worker that hangs or has died: fail its batch, start another in its place.

        Args:
            reason: The message to those who wait for its batch.
            of: The item that it is given up for, left alone if that is done by now; None for
                whatever it does.
        """
        with self._lock:
            item = worker.item
            done = of is not None and item is not of
            if self._closed or worker not in self._members or done:
                return
            self._members.remove(worker)
            worker.abandoned = True
            if item is not None and item.threads > 1:
                self._multicore.close()
                self._multicore = MulticoreThread(lower_priority)
                self.changed.notify_all()
            self._start(Worker(worker.name, worker.express))
        if item is not None:
            item.fail(reason)

    def close(self, seconds: float = 10.0) -> bool:
        """Stop once the work in hand is done; waits for that, no longer than ``seconds``.

        Returns:
            Whether every worker has stopped.
        """
        with self.changed:
            self._closed = True
            self._wake_all()
            members = list(self._members)
        until = time.monotonic() + seconds
        for worker in members:
            assert worker.thread is not None
            worker.thread.join(max(0.0, until - time.monotonic()))
        self._multicore.close()  # not before: what is in hand may be for it
        return not any(worker.thread and worker.thread.is_alive() for worker in members)

    def _start(self, worker: Worker) -> None:
        worker.thread = threading.Thread(
            target=self._work, args=(worker,), name=worker.name, daemon=True
        )
        self._members.append(worker)
        worker.thread.start()

    def _wake_all(self) -> None:
        self.changed.notify_all()
        self._express.notify_all()

    def _work(self, worker: Worker) -> None:
        if self.device.type == "cpu":
            set_thread_count(1)
            if not worker.express:
                lower_priority()  # the event loop and the express worker go first
        while (item := self._next(worker)) is not None:
            if item.threads == 1 or not self._multicore.run(item.run, item.threads):
                item.run()
            # Else the last batch's tensors live on until the next one comes.
            del item

    def _next(self, worker: Worker) -> WorkItem | None:
        condition = self._express if worker.express else self.changed
        with self._lock:
            if worker.item is not None and worker.item.threads > 1:
                self.changed.notify_all()  # those whose threads it had
            elif worker.item is not None and worker.express:
                # Another worker, which found nothing while the item ran, may go on with the rest.
                self.changed.notify()
            worker.item = None
            if not worker.express:
                self._idle += 1
            try:
                while not self._closed and not worker.abandoned:
                    if (item := self._find(worker)) is not None:
                        # In this order: who sees the item sees when it began.
                        worker.began = time.monotonic()
                        worker.item = item
                        if item.blocks and not worker.express:
                            self._express.notify()  # it may be the last that was free
                        return item
                    condition.wait()
                return None
            finally:
                if not worker.express:
                    self._idle -= 1

    def _find(self, worker: Worker) -> WorkItem | None:
        free = max(0, self._idle - self._lent_threads)
        if not (self._all_blocked() if worker.express else free):
            return None
        for _ in range(len(self._sources)):
            source = self._sources[0]
            self._sources.rotate(-1)
            if (item := source.take(free, express=worker.express)) is not None:
                if worker.source is not source:
                    # Others may have left work of the source before to this worker.
                    self.changed.notify()
                worker.source = source
                return item
        return None

    @property
    def _lent_threads(self) -> int:
        """Idle workers whose threads another worker's item has."""
        return sum(worker.item.threads - 1 for worker in self._members if worker.item is not None)

    def _all_blocked(self) -> bool:
        others = [worker.item for worker in self._members if not worker.express]
        busy = [item for item in others if item is not None]
        return len(busy) + self._lent_threads == len(others) and all(item.blocks for item in busy)


class WorkersByDevice:
    """The workers of each device, started when they are first asked for.

    Args:
        count: Threads on a device; None is what suits it.
    """

    def __init__(self, count: int | None) -> None:
        self._count = count
        self._workers: dict[torch.device, Workers] = {}

    def on(self, device: torch.device) -> Workers:
        """Return the workers of a device."""
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        if device not in self._workers:
            self._workers[device] = Workers(self._count, device)
        return self._workers[device]

    def all(self) -> tuple[Workers, ...]:
        """Return the workers of every device so far."""
        return tuple(self._workers.values())
