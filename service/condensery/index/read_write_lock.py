"""A lock that many may share, or one have alone."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class ReadWriteLock:
    """A readers-writer lock: FAISS searches may run side by side, but not beside a change.

    A waiting writer goes before new readers, and readers that waited for a writer before the next
    one: a write of many blocks would else come back before any of them had woken up. Not reentrant.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers = 0
        self._readers_waiting = 0
        self._writing = False
        self._writers_waiting = 0
        self._written = 0  # times
        self._first = 0  # readers that waited for the last writer and are not in yet

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Keep writers out, let other readers in."""
        with self._changed:
            if self._writing or self._writers_waiting:
                came = self._written
                self._readers_waiting += 1
                try:
                    self._changed.wait_for(lambda: self._may_read(came))
                finally:
                    self._readers_waiting -= 1
                    self._first -= self._written != came
                    self._changed.notify_all()
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep everyone else out."""
        with self._changed:
            self._writers_waiting += 1
            try:
                self._changed.wait_for(self._may_write)
            finally:
                self._writers_waiting -= 1
                self._changed.notify_all()
            self._writing = True
        try:
            yield
        finally:
            with self._changed:
                self._writing = False
                self._written += 1
                self._first = self._readers_waiting
                self._changed.notify_all()

    def _may_write(self) -> bool:
        return not self._writing and not self._readers and not self._first

    def _may_read(self, came: int) -> bool:
        return not self._writing and (not self._writers_waiting or self._written != came)
