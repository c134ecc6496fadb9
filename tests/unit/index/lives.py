"""Processes that are killed: each a fork of this one, which need not import everything again."""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

Say = Callable[..., None]


def live(
    life: Callable[[Path, Say, Any], None],
    data_dir: Path,
    argument: Any,
    *,
    after: int,
    wait: float = 0,
) -> list[str]:
    """Run ``life`` in a process until ``after`` lines "done", and ``wait`` seconds; then kill it.

    Nothing of the directory may be open here. Returns the lines that it said. One write a line:
    a kill can't cut it.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reading)
            life(
                data_dir,
                lambda *words: os.write(writing, (" ".join(map(str, words)) + "\n").encode()),
                argument,
            )
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        else:
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    said = b""
    try:
        with os.fdopen(reading, "rb", buffering=0) as pipe:
            while said.count(b"\ndone") < after and (chunk := pipe.read(65536)):
                said += chunk
            time.sleep(wait)
            os.kill(child, signal.SIGKILL)
            while chunk := pipe.read(65536):
                said += chunk
    finally:
        _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), f"it ended by itself:\n{said.decode()[-2000:]}"
    assert os.WTERMSIG(status) == signal.SIGKILL
    return said.decode().splitlines()
