"""HTTP/1.1 on a connection: uvicorn's protocol, and the limits that it leaves out.

Connections are bounded in number, from when they are accepted. A request's head is bounded in bytes
and time; so is what still comes of a body after the reply, and how long a reply waits for its
client to take it. What is no HTTP is told so in our body.
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

from condensery.api.asking import request_id
from condensery.api.ports import LAST_SECONDS, has_arrived
from condensery.api.rest.errors import MALFORMED, Family, render, render_as
from condensery.api.rest.exchange import CROWDED, LEAVING, PEER, text
from condensery.api.rest.reporting import report
from condensery.errors import HeadersTooLarge, Overloaded, code_of
from condensery.metrics import Metrics

# For a whole head, from when the connection is made or the head's first byte; and for the rest of a
# body, from its reply.
HEAD_SECONDS = 10.0
# For a TLS handshake, before that.
HANDSHAKE_SECONDS = 10.0
# For the other end of a TLS connection to say that it has heard of its end.
GOODBYE_SECONDS = 5.0
# For the first byte of the next head, on a connection that is kept.
IDLE_SECONDS = 5
# For a client to take anything of what was sent to it.
TAKE_SECONDS = 60.0
# From a refusal to the end of the connection: who is cut off while they send never read why.
LINGER_SECONDS = 1.0

# Connections over the limit that are told so, each by the reply to one request: who asks whether
# the server is alive is answered even then. Those over these are ended unheard.
SPARE_CONNECTIONS = 64
# What says how long a body is.
_FRAMING = (b"content-length", b"transfer-encoding")


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one connection may do, and how many there may be.

    Attributes:
        head_bytes: Of a request's target and headers.
        connections: At once.
    """

    head_bytes: int = 16 * 2**10
    connections: int = 4096


class Protocol(HttpToolsProtocol):
    """One connection.

    Attributes:
        bounds: As the settings say.
        head_seconds: As HEAD_SECONDS.
        take_seconds: As TAKE_SECONDS.
        family: Tells how a path's errors look.
        metrics: Where to count connections.
    """

    bounds = Bounds()
    head_seconds = HEAD_SECONDS
    take_seconds = TAKE_SECONDS
    family: Callable[[str], Family]
    metrics: Metrics

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = True  # or before it
        self._begun = False  # the head, if in it
        self._in_body = False
        self._complete = 0  # requests, head and body
        self._parsed = 0  # bytes of the head that are parsed
        self._unparsed = 0  # and those of a header without end
        self._refused = False
        self._crowded: Overloaded | None = None
        self._ending = False
        self._resuming = False
        self._leaving: dict[Any, object] = {}
        self._due: asyncio.TimerHandle | None = None
        self._taking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Expect a head, if there is room."""
        super().connection_made(transport)
        here, most = len(self.connections), self.bounds.connections
        self.metrics.connections.set(here)
        if here > most:
            self.metrics.rejected.labels("connections").inc()
            if here > most + SPARE_CONNECTIONS:
                self._refused = True
                transport.abort()
                return
            message = f"{here} connections are open, over the limit of {most} (max_connections)."
            self._crowded = Overloaded(message, retry_after_seconds=1.0)
        self._expect()

    def accepted(self) -> bool:
        """Count a connection before its TLS handshake; returns whether there is room for it."""
        if len(self.connections) >= self.bounds.connections + SPARE_CONNECTIONS:
            self.metrics.rejected.labels("connections").inc()
            return False
        self.connections.add(self)
        self.metrics.connections.set(len(self.connections))
        return True

    def not_made(self) -> None:
        """Count it no more: its handshake has failed."""
        self.connections.discard(self)
        self.metrics.connections.set(len(self.connections))

    def connection_lost(self, exc: Exception | None) -> None:
        """Expect nothing any more, and tell who still serves a request."""
        super().connection_lost(exc)
        self.metrics.connections.set(len(self.connections))
        for tell in tuple(self._leaving):
            tell()
        self._expect_no_more()
        self._stop_taking()

    def data_received(self, data: bytes) -> None:
        """Parse what came; refuse what is no HTTP, or too much of it."""
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
        of_head = in_head and self._complete == complete  # all of it
        if of_head or self._begun:
            self._expect()
        # Of a header whose end has not come, the parser tells nothing.
        self._unparsed = self._unparsed + len(data) if of_head and self._parsed == parsed else 0
        if self._parsed + self._unparsed > self.bounds.head_bytes:
            self._refuse()

    def _parse(self, data: bytes) -> None:
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as offer:
                if not self._offered():
                    return
                data = data[offer.args[0] :]
            if self._in_body:
                self._resume()

    def _resume(self) -> None:
        """Have a body parsed whose head offers another protocol, which a server may ignore.

        The parser would leave it to that protocol. Java's client offers HTTP/2 like this with its
        first request.
        """
        lines = [b"%b: %b\r\n" % (name, value) for name, value in self._framing()]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
        self._resuming = True
        self.parser.feed_data(b"".join([b"POST / HTTP/1.1\r\n", *lines, b"\r\n"]))
        self._resuming = False

    def _offered(self) -> bool:
        """Whether another protocol is offered, and not demanded as CONNECT does."""
        return bool(self.parser.should_upgrade()) and self.scope["method"] != "CONNECT"

    def _framing(self) -> list[tuple[bytes, bytes]]:
        return [one for one in self.headers if one[0] in _FRAMING]

    def on_message_begin(self) -> None:
        """Begin to count."""
        if self._resuming:
            return
        super().on_message_begin()
        self._begun = True
        self._parsed = 0

    def on_url(self, url: bytes) -> None:
        """Count a piece of the target."""
        if self._resuming:
            return
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header, with the colon, the blank and the end of its line."""
        if self._resuming:
            return
        self._count(len(name) + len(value) + 4)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Expect the body; the request's own time bounds that."""
        if self._resuming:
            return
        self._in_head, self._in_body = False, True
        self._expect_no_more()
        if not self.url.startswith(b"/"):
            self._ask_target()
        extensions: dict[str, Any] = {LEAVING: self._leaving, PEER: self.client}
        if self._crowded is not None:
            extensions[CROWDED] = self._crowded
        self.scope["extensions"] = extensions
        super().on_headers_complete()
        if self._ending:
            self.cycle.keep_alive = False

    def _ask_target(self) -> None:
        """Let the host in a target count, and no header that names another (RFC 9112, 3.2.2)."""
        target = httptools.parse_url(self.url)
        if target.host:
            host = b"[%b]" % target.host if b":" in target.host else target.host
            host = b"%b:%d" % (host, target.port) if target.port else host
            kept = [one for one in self.headers if one[0] != b"host"]
            self.headers[:] = [(b"host", host), *kept]

    def on_message_complete(self) -> None:
        """Wait for the next head."""
        if self._offered() and self._framing():
            return  # its body is still to come
        self._in_head, self._begun, self._in_body = True, False, False
        self._complete += 1
        self._parsed = self._unparsed = 0
        self._expect_no_more()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Bound what still comes of the body, which nobody reads."""
        super().on_response_complete()
        if self._in_body and not self.transport.is_closing():
            self._unset_keepalive_if_required()
            self._expect()

    def shutdown(self) -> None:
        """End the connection, once what has come on it, in part or unread, is answered."""
        self._ending = True
        # uvicorn sets a transport with the connection: none is there amid a TLS handshake, which is
        # ended by who accepted it.
        transport: asyncio.Transport | None = self.transport
        if transport is None or transport.is_closing():
            return
        if self._serving() is not None:
            super().shutdown()
        elif self._begun or has_arrived(self.transport.get_extra_info("socket")):
            self._expect()  # closed while bytes are unread, it would be reset
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        """Bound how long the client takes nothing."""
        super().pause_writing()
        self._take(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """The client takes what is sent."""
        super().resume_writing()
        self._stop_taking()

    def _count(self, size: int) -> None:
        self._parsed += size
        if self._parsed > self.bounds.head_bytes:
            raise HeadersTooLarge("over the limit")  # to the parser, which stops

    def _expect(self) -> None:
        if self._due is None:
            # One that finishes its handshake as the server ends has come with its request, or not.
            seconds = LAST_SECONDS if self._ending and not self._begun else self.head_seconds
            self._due = self.loop.call_later(seconds, self._overdue)

    def _expect_no_more(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _overdue(self) -> None:
        self._due = None
        if self._serving() is not None:
            self._expect()  # a request sent after another that is still being served
        else:
            self.transport.close()

    def _serving(self) -> RequestResponseCycle | None:
        """Return the last request that still waits for all of its reply."""
        cycle: Any = self.cycle  # None before the first
        return None if cycle is None or cycle.response_complete else cycle

    def _take(self, left: int) -> None:
        self._taking = self.loop.call_later(self.take_seconds, self._untaken, left)

    def _untaken(self, before: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left < before:
            self._take(left)
        else:
            self.transport.abort()

    def _stop_taking(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None

    def _refuse(self) -> None:
        """Tell what is wrong with the head, or with the chunks of a body, and end."""
        self._refused = True
        self._expect_no_more()
        cycle = self._serving()
        if cycle is not None and not self._in_body:
            cycle.keep_alive = False  # what came before is good, and is answered; then it ends
            return
        if self.pipeline or (cycle is not None and cycle.response_started):
            self.transport.close()  # amid another's reply nothing can be said
            return
        identity = request_id(text(self.headers or (), b"x-request-id"))
        family = self.family(bytes(getattr(self, "url", b"")).decode("latin-1").partition("?")[0])
        if self._parsed + self._unparsed > self.bounds.head_bytes:
            limit = f"the limit of {self.bounds.head_bytes} bytes (max_header_bytes)"
            error = HeadersTooLarge(f"The request's target and headers are over {limit}.")
            code, response = code_of(HeadersTooLarge), render(error, family)
        else:
            code = "malformed_request"
            response = render_as(MALFORMED, family, code, "The request is not HTTP/1.1.")
        self._write(response, identity)
        status, now = response.status_code, time.monotonic()
        report(request_id=identity, method="-", route="-", status=status, code=code, started=now)
        self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _write(self, response: Response, identity: str) -> None:
        lines = [STATUS_LINE[response.status_code]]
        for name, value in (
            *self.server_state.default_headers,
            *response.raw_headers,
            (b"x-request-id", identity.encode()),
            (b"connection", b"close"),
        ):
            lines += [name, b": ", value, b"\r\n"]
        self.transport.write(b"".join([*lines, b"\r\n", response.body]))


def protocol(family: Callable[[str], Family], bounds: Bounds, metrics: Metrics) -> type[Protocol]:
    """Return the class of connections.

    Args:
        family: Tells how a path's errors look.
        bounds: Of each, and of all.
        metrics: Where to count them.
    """
    members = {"family": staticmethod(family), "bounds": bounds, "metrics": metrics}
    return type("BoundedProtocol", (Protocol,), members)
