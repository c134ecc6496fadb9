"""Processes that are killed.

Each is a fork of one that has imported what most of them need, so that it starts at once, and that
runs no threads: a fork of the tests' own process, amid the threads that earlier tests left there,
may wait for ever for a lock that one of them held.
"""

import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

Say = Callable[..., None]
Life = Callable[[Path, Say, Any], None]

PATIENCE = 60  # seconds without a word
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["pytest", "condensery.index.store", "condensery.jobs.maintenance"])


def live(life: Life, data_dir: Path, argument: Any, *, after: int, wait: float = 0) -> list[str]:
    """Run ``life`` in a process until ``after`` lines "done", and ``wait`` seconds; then kill it.

    Args:
        life: A module's function: the process finds it by its name, and unpatched. It is given the
            directory, a function that says a line, and ``argument``.
        data_dir: Nothing of it may be open here.

    Returns:
        The lines that it said, all that were sent before it was killed.
    """
    reading, writing = FORKS.Pipe(duplex=False)
    child = FORKS.Process(target=_run, args=(life, data_dir, writing, argument))
    child.start()
    writing.close()
    heard: list[str] = []
    with reading:
        try:
            while after and _hear(reading, heard):
                after -= heard[-1].startswith("done")
            child.join(wait)
        finally:
            child.kill()
        while _hear(reading, heard):
            pass
    child.join()
    assert child.exitcode == -signal.SIGKILL, f"it ended with {child.exitcode}:\n{heard[-20:]}"
    return heard


def _hear(reading: Connection, heard: list[str]) -> bool:
    """Wait for the next line; False if there is none."""
    assert reading.poll(PATIENCE), f"silent for {PATIENCE} s after:\n{heard[-20:]}"
    try:
        heard.append(reading.recv_bytes().decode())
    except EOFError:
        return False
    return True


def _run(life: Life, data_dir: Path, writing: Connection, argument: Any) -> None:
    def say(*words: Any) -> None:  # one write a line: a kill can't cut it
        writing.send_bytes(" ".join(map(str, words)).encode())

    life(data_dir, say, argument)
