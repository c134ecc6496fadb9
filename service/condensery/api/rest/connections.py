"""One HTTP/1.1 connection: uvicorn's, with the limits that it lacks.

The number of connections is limited, from when they are accepted. A request's head is limited in
bytes and time; so are the rest of a body after its reply, and the time in which a client reads
nothing of a reply. Invalid HTTP is refused with one of our error bodies.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httptools
from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from condensery.api.ports import LAST_SECONDS, has_arrived
from condensery.api.rest.errors import MALFORMED, Family, render_error, render_row
from condensery.api.rest.middleware import (
    BODY_COMPLETE,
    ON_DISCONNECT,
    PEER_ADDRESS,
    TOO_MANY_CONNECTIONS,
    find_text_header,
    log_reply,
)
from condensery.auth import read_request_id
from condensery.errors import HeadersTooLarge, Overloaded, code_of
from condensery.metrics import Metrics

# For a whole head, from the connection's beginning or the head's first byte; and for the rest of a
# body, from its reply.
HEAD_SECONDS = 10.0
# For the first byte of the next head, on a connection that is kept alive: where over half of the
# connections that may be are open; and where there is room. Clients keep theirs for 5 seconds
# (httpx, which OpenAI's client is made of) and longer. Whoever ends first must not be the server:
# a request that is sent as it does is lost, and a POST is not sent again by itself.
IDLE_SECONDS = 5
ROOMY_IDLE_SECONDS = 75
# For a client to read anything of what was sent to it.
STALLED_WRITE_SECONDS = 60.0
# From a refusal to the end of the connection: a client that is cut off as it sends reads nothing.
REFUSAL_LINGER_SECONDS = 1.0

# Connections over the limit that still get one reply, a refusal; health is answered even then.
# Those over these are closed at once.
SPARE_CONNECTIONS = 64

_FRAMING_HEADERS = (b"content-length", b"transfer-encoding")


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    """Limits of connections.

    Attributes:
        head_bytes: Of a request's target and headers.
        connections: At once.
    """

    head_bytes: int = 16 * 2**10
    connections: int = 4096


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    bounds = ConnectionBounds()
    head_seconds = HEAD_SECONDS
    take_seconds = STALLED_WRITE_SECONDS
    family: Callable[[str], Family]
    metrics: Metrics

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = True  # or before it
        self._head_begun = False  # whether bytes of it have come
        self._in_body = False
        self._complete = 0  # requests, head and body
        self._parsed = 0  # bytes of the head
        self._unparsed = 0  # bytes of a header whose end has not come
        self._refused = False
        self._over_limit: Overloaded | None = None
        self._ending = False
        self._resuming = False
        self._idle_since = 0.0  # the loop's clock
        self._callbacks: dict[Any, object] = {}
        self._extensions: dict[Any, Any] = {}  # of the last request's scope
        self._read_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a head, unless there are too many connections."""
        super().connection_made(transport)
        count, limit = len(self.connections), self.bounds.connections
        self.metrics.connections.set(count)
        if count > limit:
            self.metrics.rejected.labels("connections").inc()
            if count > limit + SPARE_CONNECTIONS:
                self._refused = True
                transport.abort()
                return
            message = f"{count} connections are open, over the limit of {limit} (max_connections)."
            self._over_limit = Overloaded(message, retry_after_seconds=1.0)
        self._start_read_timer()

    def accepted(self) -> bool:
        """Count a connection before its TLS handshake; return whether there is room for it."""
        if len(self.connections) >= self.bounds.connections + SPARE_CONNECTIONS:
            self.metrics.rejected.labels("connections").inc()
            return False
        self.connections.add(self)
        self.metrics.connections.set(len(self.connections))
        return True

    def handshake_failed(self) -> None:
        """Count the connection no more: its handshake has failed."""
        self.connections.discard(self)
        self.metrics.connections.set(len(self.connections))

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers, and tell the tasks that still serve a request."""
        super().connection_lost(exc)
        self.metrics.connections.set(len(self.connections))
        for callback in tuple(self._callbacks):
            callback()
        self._stop_read_timer()
        self._stop_write_timer()

    def data_received(self, data: bytes) -> None:
        """Parse what came; refuse invalid HTTP, and heads over the limit."""
        if self._refused:
            return
        self._unset_keepalive_if_required()
        in_head, complete, parsed = self._in_head, self._complete, self._parsed
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self._refuse()
            return
        if not self._in_head:
            return
        head_alone = in_head and self._complete == complete
        if head_alone or self._head_begun:
            self._start_read_timer()
        # The parser reports a header only once it is complete.
        self._unparsed = self._unparsed + len(data) if head_alone and self._parsed == parsed else 0
        if self._parsed + self._unparsed > self.bounds.head_bytes:
            self._refuse()

    def _parse(self, data: bytes) -> None:
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as offer:
                if not self._offers_upgrade():
                    return
                data = data[offer.args[0] :]
            if self._in_body:
                self._parse_upgraded_body()

    def _parse_upgraded_body(self) -> None:
        """Parse the body of a request that offers another protocol, which a server may ignore.

        The parser would stop at it. Java's client offers HTTP/2 like this with its first request.
        """
        lines = [b"%b: %b\r\n" % (name, value) for name, value in self._framing()]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
        self._resuming = True
        self.parser.feed_data(b"".join([b"POST / HTTP/1.1\r\n", *lines, b"\r\n"]))
        self._resuming = False

    def _offers_upgrade(self) -> bool:
        """Whether another protocol is offered, and not demanded as CONNECT does."""
        return bool(self.parser.should_upgrade()) and self.scope["method"] != "CONNECT"

    def _framing(self) -> list[tuple[bytes, bytes]]:
        return [header for header in self.headers if header[0] in _FRAMING_HEADERS]

    def on_message_begin(self) -> None:
        """Begin to count the head."""
        if self._resuming:
            return
        super().on_message_begin()
        self._head_begun = True
        self._parsed = 0

    def on_url(self, url: bytes) -> None:
        """Count a piece of the target."""
        if self._resuming:
            return
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header, with the colon, the blank and the end of its line."""
        if self._resuming:
            return
        self._count_head(len(name) + len(value) + 4)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Stop the timer: whoever reads the body limits its time."""
        if self._resuming:
            return
        self._in_head, self._in_body = False, True
        self._stop_read_timer()
        if not self.url.startswith(b"/"):
            self._set_host()
        self._extensions = {ON_DISCONNECT: self._callbacks, PEER_ADDRESS: self.client}
        if self._over_limit is not None:
            self._extensions[TOO_MANY_CONNECTIONS] = self._over_limit
        self.scope["extensions"] = self._extensions
        super().on_headers_complete()
        if self._ending:
            self.cycle.keep_alive = False

    def _set_host(self) -> None:
        """Take the host from an absolute target, and ignore the header (RFC 9112, 3.2.2)."""
        target = httptools.parse_url(self.url)
        if target.host:
            host = b"[%b]" % target.host if b":" in target.host else target.host
            host = b"%b:%d" % (host, target.port) if target.port else host
            others = [header for header in self.headers if header[0] != b"host"]
            self.headers[:] = [(b"host", host), *others]

    def on_message_complete(self) -> None:
        """Wait for the next head."""
        if self._offers_upgrade() and self._framing():
            return  # its body is still to come
        self._extensions[BODY_COMPLETE] = True
        self._in_head, self._head_begun, self._in_body = True, False, False
        self._complete += 1
        self._parsed = self._unparsed = 0
        self._stop_read_timer()
        super().on_message_complete()
        if not self.pipeline:
            # Paused for a large body, all of which is here now; and only who reads sees that a
            # client has left.
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        """Limit the time of the rest of the body, which is not used."""
        super().on_response_complete()
        self._idle_since = self.loop.time()
        if self._in_body and not self.transport.is_closing():
            self._unset_keepalive_if_required()
            self._start_read_timer()

    def timeout_keep_alive_handler(self) -> None:
        """End a connection that is idle for long, or where there is not much room.

        Not one whose next request lies unread, which would be reset: a loop that is late runs its
        timers before it reads.
        """
        if not self.transport.is_closing() and (
            has_arrived(self.transport.get_extra_info("socket")) or self._may_stay()
        ):
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        else:
            super().timeout_keep_alive_handler()

    def _may_stay(self) -> bool:
        roomy = len(self.connections) <= self.bounds.connections / 2
        return roomy and self.loop.time() < self._idle_since + ROOMY_IDLE_SECONDS

    def shutdown(self) -> None:
        """End the connection once every request on it, also one not all read, is answered."""
        self._ending = True
        # During a TLS handshake there is no transport yet; who accepts (http.py) ends that.
        transport: asyncio.Transport | None = self.transport
        if transport is None or transport.is_closing():
            return
        if self._current_cycle() is not None:
            super().shutdown()
        elif self._head_begun or has_arrived(self.transport.get_extra_info("socket")):
            self._start_read_timer()  # closed while bytes are unread, it would be reset
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        """Limit the time in which the client reads nothing."""
        super().pause_writing()
        self._start_write_timer(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Stop that timer: the client reads again."""
        super().resume_writing()
        self._stop_write_timer()

    def _count_head(self, size: int) -> None:
        self._parsed += size
        if self._parsed > self.bounds.head_bytes:
            raise HeadersTooLarge("over the limit")  # to the parser, which stops

    def _start_read_timer(self) -> None:
        if self._read_timer is None:
            # At the end, a connection whose first request has not come gets only a moment.
            seconds = LAST_SECONDS if self._ending and not self._head_begun else self.head_seconds
            self._read_timer = self.loop.call_later(seconds, self._on_read_timeout)

    def _stop_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _on_read_timeout(self) -> None:
        self._read_timer = None
        if self._current_cycle() is not None:
            self._start_read_timer()  # a request sent after another that is still being served
        else:
            self.transport.close()

    def _current_cycle(self) -> RequestResponseCycle | None:
        """Return the last request, unless its reply is complete."""
        cycle: Any = self.cycle  # None before the first
        return None if cycle is None or cycle.response_complete else cycle

    def _start_write_timer(self, left: int) -> None:
        self._write_timer = self.loop.call_later(self.take_seconds, self._on_write_timeout, left)

    def _on_write_timeout(self, before: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left < before:
            self._start_write_timer(left)
        else:
            self.transport.abort()

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _refuse(self) -> None:
        """Refuse a bad head, or bad chunks of a body, and end the connection."""
        self._refused = True
        self._stop_read_timer()
        cycle = self._current_cycle()
        if cycle is not None and not self._in_body:
            cycle.keep_alive = False  # the request before is answered; then the connection ends
            return
        if self.pipeline or (cycle is not None and cycle.response_started):
            self.transport.close()  # nothing can be sent amid another request's reply
            return
        request_id = read_request_id(find_text_header(self.headers or (), b"x-request-id"))
        family = self.family(bytes(getattr(self, "url", b"")).decode("latin-1").partition("?")[0])
        if self._parsed + self._unparsed > self.bounds.head_bytes:
            limit = f"the limit of {self.bounds.head_bytes} bytes (max_header_bytes)"
            error = HeadersTooLarge(f"The request's target and headers are over {limit}.")
            code, response = code_of(HeadersTooLarge), render_error(error, family)
        else:
            code = "malformed_request"
            response = render_row(MALFORMED, family, code, "The request is not HTTP/1.1.")
        self._write_refusal(response, request_id)
        status, now = response.status_code, time.monotonic()
        log_reply(
            request_id=request_id, method="-", route="-", status=status, code=code, started=now
        )
        self.loop.call_later(REFUSAL_LINGER_SECONDS, self.transport.close)

    def _write_refusal(self, response: Response, request_id: str) -> None:
        lines = [STATUS_LINE[response.status_code]]
        for name, value in (
            *self.server_state.default_headers,
            *response.raw_headers,
            (b"x-request-id", request_id.encode()),
            (b"connection", b"close"),
        ):
            lines += [name, b": ", value, b"\r\n"]
        self.transport.write(b"".join([*lines, b"\r\n", response.body]))


def make_protocol(
    family: Callable[[str], Family], bounds: ConnectionBounds, metrics: Metrics
) -> type[BoundedProtocol]:
    """Return a server's class of connections."""
    members = {"family": staticmethod(family), "bounds": bounds, "metrics": metrics}
    return type("ServerProtocol", (BoundedProtocol,), members)
