"""Threads that step back: where all cores are busy, what a caller waits for goes first.

On Linux a thread has a priority of its own. Once lowered it can't be raised without rights, so that
it is a thread's for its life. It costs nothing while a core is idle. Who waits for a lock that such
a thread holds waits longer there.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

# Beside a long list, the p95 of single queries is 16 ms with it and 30 to 290 ms without; a query
# to a million vectors on a core that copies them, too, takes 81 ms for 125, and 60 alone.
NICENESS = 5

T = TypeVar("T")


def lower_priority() -> None:
    """Let the process's other threads go before the calling one; a second time changes nothing."""
    if sys.platform == "linux":  # elsewhere it is the whole process that steps back
        own = os.getpriority(os.PRIO_PROCESS, os.getpid())
        with contextlib.suppress(OSError):  # a sandbox may refuse: then all are alike
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), own + NICENESS)


def do_aside(work: Callable[[], T]) -> T:
    """Do ``work`` in a thread that steps back, if there is one to be had; return what it does.

    Raises:
        BaseException: What ``work`` raises.
    """
    with ThreadPoolExecutor(1, "aside", initializer=lower_priority) as thread:
        try:
            done = thread.submit(work)
        except RuntimeError:  # the system gives no more threads
            return work()
        return done.result()
