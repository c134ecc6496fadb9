"""Run ``condensery distil oscar`` in processes that are killed before each call to the disk.

    python killing.py FOLDER ARGUMENTS...

For each call that syncs, renames, makes or removes, and each write of lines (half of which is then
written), a process is killed by SIGKILL before it, in a folder of its own, ``FOLDER/<number>``;
another goes on there to the end. Prints how many were killed.
"""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from condensery.methods.distil import journal, oscar


def dying(after: int) -> Callable[[], None]:
    """Return what to call before each call: it ends the process at the last; 0 for never."""
    left = [after]

    def count() -> None:
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)

    return count


def run(arguments: Sequence[str], after: int) -> None:
    count = dying(after)

    def before(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            count()
            return function(*arguments, **named)

        return call

    for name in ("fsync", "replace", "rename", "unlink", "mkdir"):
        setattr(os, name, before(getattr(os, name)))
    append = journal.Journal.append

    def torn(self: journal.Journal, lines: Sequence[journal.Line]) -> None:
        half = b"".join(journal._encode(line) for line in lines)
        half = half[: len(half) // 2]
        place = self._file.seek(0, os.SEEK_END)
        self._file.write(half)
        count()
        self._file.truncate(place)
        append(self, lines)

    journal.Journal.append = torn  # type: ignore[method-assign]
    oscar.main(list(arguments))


def fork(arguments: Sequence[str], after: int) -> int:
    """Run in a process of its own, to its end or the call it is killed at; returns the signal."""
    child = os.fork()
    if not child:
        status = 1
        try:
            run(arguments, after)
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def sweep(folder: Path, arguments: Sequence[str]) -> int:
    """Kill a process at its first call, the next at its second, ...; returns how many it took."""
    killed = 0
    while True:
        own = folder / str(killed)
        places = ["--index-folder", str(own / "index"), "--out", str(own / "rows.jsonl")]
        if not fork([*arguments, *places], killed + 1):
            return killed
        assert fork([*arguments, *places], 0) == 0
        killed += 1


if __name__ == "__main__":
    print(sweep(Path(sys.argv[1]), sys.argv[2:]))
