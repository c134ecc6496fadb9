"""What the process is told from outside: to end, to hurry, to read its keys again."""

import asyncio
import signal
from collections.abc import Callable


class Signals:
    """Signals as events of the loop.

    SIGTERM asks to end once those who send requests have noticed; SIGINT, a person at the
    terminal, to end now. A second one of either hurries. SIGHUP reads the keys again.

    Attributes:
        stop: Set by the first.
        hurry: Set by the second.
        settle: Whether the first was SIGTERM.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        self.settle = False
        self._loop = loop
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._told, number)
        # Until there are keys to read: by default it would end the process.
        loop.add_signal_handler(signal.SIGHUP, lambda: None)

    def on_hangup(self, reload: Callable[[], None]) -> None:
        """Call ``reload`` at each SIGHUP from now on."""
        self._loop.add_signal_handler(signal.SIGHUP, reload)

    def _told(self, number: signal.Signals) -> None:
        if self.stop.is_set():
            self.hurry.set()
        else:
            self.settle = number == signal.SIGTERM
            self.stop.set()
