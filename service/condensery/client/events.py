"""Server-sent events, read from a stream's bytes."""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from condensery.client.rest_faults import reading
from condensery.errors import Unavailable

T = TypeVar("T")
DONE = "[DONE]"


class EventReader:
    """Collects a stream's bytes into events, each ended by an empty line, until ``[DONE]``.

    Lines end at a line feed only: a text may hold what else Unicode counts as a line's end.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._rest = b""
        self._name = ""
        self._data: list[str] = []
        self._done = False

    def feed(self, chunk: bytes, read: Callable[[Any], Iterable[T]]) -> Iterator[T]:
        """Yield what ``read`` makes of each (name, parsed data) that ``chunk`` completes."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            with reading(self._url):
                event = self._end_line(line.rstrip(b"\r").decode())
                made = [] if event is None else list(read(event))
            yield from made

    def finish(self) -> None:
        """Raise Unavailable if the stream stopped before its end."""
        if not self._done:
            raise Unavailable(f"{self._url}: the answer broke off before its end")

    def _end_line(self, line: str) -> tuple[str, Any] | None:
        if line:
            key, _, value = line.partition(":")  # a comment's key is empty
            if key == "event":
                self._name = value.removeprefix(" ")
            elif key == "data":
                self._data.append(value.removeprefix(" "))
            return None
        name, data = self._name, "\n".join(self._data)
        self._name, self._data = "", []
        if data == DONE:
            self._done = True
            return None
        return (name, json.loads(data)) if data else None
