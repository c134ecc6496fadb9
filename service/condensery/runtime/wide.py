"""A thread that computes on several cores."""

import contextlib
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import TypeAlias

import torch

Work: TypeAlias = Callable[[], None]

TASKS = Path("/proc/self/task")  # a folder a thread, where the kernel is Linux
_numbers = itertools.count()


class WideThread:
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
        self._work: SimpleQueue[tuple[Work, int, Future[None]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        # What the kernel calls the thread, in 15 characters. OpenMP's threads inherit it from the
        # one that starts them, and by nothing else can they be told from others.
        self._kernel_name = f"wide-{next(_numbers)}"

    def run(self, work: Work, threads: int) -> bool:
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
        """Return the kernel's ids of the thread and of those that compute with it, if it tells."""
        found = []
        with contextlib.suppress(OSError):
            for task in TASKS.iterdir():
                with contextlib.suppress(OSError):  # it has ended since
                    if (task / "comm").read_text().rstrip("\n") == self._kernel_name:
                        found.append(int(task.name))
        return found

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # no Linux
            (TASKS / str(threading.get_native_id()) / "comm").write_text(self._kernel_name)
        self._prepare()
        having = 1
        while (given := self._work.get()) is not None:
            work, threads, future = given
            if threads != having:
                have_threads(threads)
                # torch gives that number to whatever thread computes for the first time from now
                # on; said by another thread, it is one again for those, and what it was for us.
                single = threading.Thread(target=have_threads, args=(1,))
                single.start()
                single.join()
                having = threads
            try:
                work()
            except BaseException as error:  # the caller's thread is to die of it, not this one
                future.set_exception(error)
            else:
                future.set_result(None)
            del given, work, future  # else the step's tensors live on until the next one


def have_threads(count: int) -> None:
    """Let the calling thread compute with so many, and keep to it.

    A thread's first operation in parallel takes over what any thread has said last; asking for
    the number is such a first.
    """
    torch.set_num_threads(count)
    torch.get_num_threads()
