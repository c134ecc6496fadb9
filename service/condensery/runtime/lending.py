"""A running model and who uses it: it is not taken from anyone who has begun with it."""

import asyncio
import threading
import time
from collections.abc import Mapping

from condensery.callers import Call
from condensery.runtime.opening import Opened
from condensery.runtime.proving import Running
from condensery.store.manifest import StoredModel

POLL_SECONDS = 0.01


class Serving:
    """A running model, lent to one call after another.

    A call keeps what it was lent to its end. So an answer that compresses, searches and generates
    does all of it with one version, and ``drained`` knows when nobody needs the old one any more.

    Attributes:
        model: What runs.
        stored: What it was loaded from.
        seconds: That loading took.
        memory: Bytes of its weights, by device.
    """

    def __init__(self, opened: Opened) -> None:
        self.model: Running = opened.model
        self.stored: StoredModel = opened.stored
        self.seconds = opened.seconds
        self.memory: Mapping[str, int] = opened.memory
        self._users = 0
        self._lock = threading.Lock()

    def lend(self, call: Call, names: tuple[str, ...]) -> None:
        """Let a call use it to its end, by these names."""
        if all(call.kept.get(name) is not self for name in names):
            with self._lock:
                self._users += 1
            call.endings.append(self._back)
        for name in names:
            call.kept[name] = self

    def _back(self) -> None:
        with self._lock:
            self._users -= 1

    async def drained(self, seconds: float) -> bool:
        """Wait until no call uses it, nor anything waits in it; False where that takes too long."""
        until = time.monotonic() + seconds
        while self._users or self.model.busy:
            if time.monotonic() > until:
                return False
            await asyncio.sleep(POLL_SECONDS)
        return True
