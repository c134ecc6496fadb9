"""One request on its way through the front: its body's limits, its reply, its client's leaving."""

import asyncio
from collections.abc import Iterable
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from condensery.api.asking import request_id
from condensery.errors import PayloadTooLarge
from condensery.jobs.admission import Place

# A body that is refused is read on up to this many times the limit: a client that is cut off
# while it sends never reads why.
DRAIN_FACTOR = 4

# An extension of ASGI's scope: a dict, whose keys are called when the connection is lost.
LEAVING = "condensery.leaving"
# One whose value is the connection's other end, though a proxy may name another who asks.
PEER = "condensery.peer"
# And one whose value says that the connection is one too many.
CROWDED = "condensery.crowded"

Headers = Iterable[tuple[bytes, bytes]]


class Exchange:
    """Hands a request's body on within its limits, and its reply out; sees the client leave.

    When the client leaves, the task that serves it is cancelled, and ``left`` is set. The server
    tells through ``scope["extensions"][LEAVING]``: a task of its own that waited for ASGI's
    ``http.disconnect`` would take 20 us of each request.

    Args:
        scope: The request's.
        receive: The server's.
        send: The server's.
        max_body: Bytes.

    Attributes:
        request_id: The caller's if it can stand in a header and a log line, else a new one.
        size: Bytes of the body as far as they are announced, and worth reading.
        status: That of the reply; 0 until it begins.
        complete: Whether all of the reply was sent.
        left: Whether the client has left before that.
        closing: Set, the reply says that the connection ends with it.
        reply_headers: That the reply has besides, whatever it is.
        place: Where an unannounced body's bytes are counted, once it is there.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, max_body: int) -> None:
        headers = scope["headers"]
        self.request_id = request_id(text(headers, b"x-request-id"))
        length = header(headers, b"content-length")
        self._announced = int(length[:20]) if length and length.isdigit() else 0
        # More than the limit is refused as that, not for want of room.
        self.size = min(self._announced, max_body)
        self.status = 0
        self.complete = False
        self.left = False
        self.closing = False
        self.reply_headers: list[tuple[bytes, bytes]] = []
        self.place: Place | None = None
        self._chunked = length is None
        self._expects = header(headers, b"expect") is not None
        self._limit = max_body
        self._receive = receive
        self._send = send
        self._bytes = 0
        self._serving = asyncio.current_task()
        self._leaving: dict[Any, Any] = scope.get("extensions", {}).get(LEAVING, {})
        self._leaving[self._on_left] = None

    async def receive(self) -> Message:
        """Receive the next message.

        Raises:
            PayloadTooLarge: The body is announced to be over the limit, or has grown over it.
            Overloaded: So many bodies are being read that there is no room for the rest of it.
        """
        if self._announced > self._limit:  # not worth reading
            size, self._announced = self._announced, 0
            if not self._expects:  # else it is not sent before we ask for it
                await self.drain()
            raise self._refusal(size)
        message = await self._receive()
        if message["type"] != "http.request":
            self.left = True
            return message
        more = message.get("more_body", False)
        size = len(message.get("body", b""))
        self._bytes += size
        if self._bytes > self._limit:
            size = self._bytes
            if more:
                await self.drain()
            raise self._refusal(size)
        if self._chunked and self.place is not None:
            self.place.grow(size)
        return message

    async def send(self, message: Message) -> None:
        """Send the next message of the reply, tagged with the request's id."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", ()), (b"x-request-id", self.request_id.encode())]
            headers += self.reply_headers
            if self.closing:
                headers.append((b"connection", b"close"))
            message["headers"] = headers
        elif not message.get("more_body", False):
            self.complete = True
            self.close()
        await self._send(message)

    def close(self) -> None:
        """Look no more whether the client leaves."""
        self._leaving.pop(self._on_left, None)

    def _on_left(self) -> None:
        self.left = True
        if self._serving is not None:
            self._serving.cancel()

    async def drain(self) -> None:
        """Read what comes of the body and forget it, so that the client reads its reply."""
        most = self._limit * DRAIN_FACTOR
        while self._bytes <= most:
            message = await self._receive()
            self._bytes += len(message.get("body", b""))
            if not message.get("more_body", False):
                return

    def _refusal(self, size: int) -> PayloadTooLarge:
        return PayloadTooLarge(
            f"body: {size} bytes or more, over the limit of {self._limit} (max_body_bytes).",
            field="body",
            value=size,
        )


def header(headers: Headers, name: bytes) -> bytes | None:
    """Return the first header of a name, which is in lower case; None if there is none."""
    for one, value in headers:
        if one == name:
            return value
    return None


def text(headers: Headers, name: bytes) -> str | None:
    """Return the first header of a name as text."""
    value = header(headers, name)
    return None if value is None else value.decode("utf-8", "surrogateescape")
