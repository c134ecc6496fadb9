"""HTTP/1.1: uvicorn in our event loop, with our signals and socket, and the limits that it lacks.

The number of connections is limited, from when they are accepted. A request's head is limited in
bytes and time; so are the rest of a body after its reply, and the time in which a client reads
nothing of a reply. Invalid HTTP is refused with one of our error bodies.
"""

import asyncio
import contextlib
import logging
import math
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from typing import Any, Protocol

import httptools
import uvicorn
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from condensery.api.ports import BACKLOG, LAST_SECONDS, Tls, has_arrived, refuse_new_connections
from condensery.api.rest.app import build_app
from condensery.api.rest.errors import MALFORMED, Family, render_error, render_row
from condensery.api.rest.middleware import (
    BODY_COMPLETE,
    ON_DISCONNECT,
    PEER_ADDRESS,
    TOO_MANY_CONNECTIONS,
    Middleware,
    find_text_header,
    log_reply,
)
from condensery.auth import read_request_id
from condensery.errors import HeadersTooLarge, Overloaded, StartError, code_of
from condensery.jobs.services import Services
from condensery.metrics import Metrics
from condensery.origins import Origins, is_loopback, read_hosts, read_networks, read_origins

# For a whole head, from the connection's beginning or the head's first byte; and for the rest of a
# body, from its reply.
HEAD_SECONDS = 10.0
# For a TLS handshake, before that.
HANDSHAKE_SECONDS = 10.0
# For the peer to confirm the end of a TLS connection.
TLS_CLOSE_SECONDS = 5.0
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

# Where no connection can be accepted, for want of file descriptors say, until it is tried again.
ACCEPT_RETRY_SECONDS = 1.0

_FRAMING_HEADERS = (b"content-length", b"transfer-encoding")

_log = logging.getLogger(__name__)


class RestApp(Protocol):
    """What a server serves."""

    def family_of(self, path: str) -> Family:
        """Return the family of a path's errors, where nothing else of the request is known."""
        ...

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        ...


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes the event loop: uvloop's, where there is one for this platform.

    With httptools (which uvicorn takes by itself where it is) it more than halves what a short
    request costs beside the model: 310 to 150 us.
    """
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


class RestServer:
    """Uvicorn in our loop, with our signals and our socket.

    Args:
        tls: The certificate to show; None speaks plain HTTP.
        trusted_proxies: Addresses or networks, with commas between them, whose requests' header
            ``X-Forwarded-For`` names the client. From others it is ignored: one client could pose
            as many, and get as many shares of the queue.
        cors_origin: Origins whose web pages may use it, with commas between them.
        allowed_hosts: Host names that requests may have beside localhost and ``host``, with commas
            between them; by default none on loopback, and all elsewhere.
        host: The setting of the address to listen on.
        address: What the listener is reached at, where that is not its own: other processes listen
            there, and what they pass on comes by a Unix socket.
        wrap: Returns what is served, given the REST API.
    """

    def __init__(
        self,
        services: Services,
        listener: socket.socket,
        *,
        tls: Tls | None = None,
        max_connections: int = 4096,
        trusted_proxies: str | None = None,
        cors_origin: str | None = None,
        allowed_hosts: str | None = None,
        host: str = "localhost",
        address: str | None = None,
        wrap: Callable[[Middleware], "RestApp"] = lambda app: app,
    ) -> None:
        own = listener.getsockname()[0] if address is None else address
        checked = allowed_hosts is not None or is_loopback(own)
        origins = Origins(
            read_origins(cors_origin or ""),
            read_hosts(allowed_hosts or "") | read_hosts(host) if checked else None,
            read_networks(trusted_proxies),
        )
        app = wrap(build_app(services, origins))
        bounds = ConnectionBounds(services.limits.max_header_bytes, max_connections)
        # Those of other processes are not callers': they count their own.
        metrics = services.metrics if address is None else Metrics(tei=False)
        config = uvicorn.Config(
            app,
            http=make_protocol(app.family_of, bounds, metrics),
            proxy_headers=trusted_proxies is not None,
            timeout_keep_alive=IDLE_SECONDS,
            forwarded_allow_ips=",".join(_with_mapped_addresses(origins.proxies)),
            lifespan="off",
            ws="none",
            access_log=False,
            log_config=None,
            server_header=False,
            backlog=BACKLOG,
            ssl_certfile=tls.cert if tls else None,
            ssl_keyfile=tls.key if tls else None,
        )
        self._listener = listener
        self._server = _UvicornServer(config)
        self.task = asyncio.create_task(self._server.serve(sockets=[listener]))

    async def started(self) -> None:
        """Wait until it accepts connections.

        Raises:
            StartError: It ended instead.
        """
        while not self._server.started:
            if self.task.done():
                await self.task
                raise StartError("The REST server ended as it started; the log says why.")
            await asyncio.sleep(0.01)

    async def stop(self, grace: float) -> None:
        """Accept waiting connections, stop listening, finish running requests, end.

        Args:
            grace: Seconds for all of that; what still runs then is cut off.
        """
        began = time.monotonic()
        refuse_new_connections(self._listener)
        last = began + min(LAST_SECONDS, grace)
        while not (self._server.force_exit or self.task.done()):
            now = time.monotonic()
            if now >= last and (now >= began + grace or not has_arrived(self._listener)):
                break
            await asyncio.sleep(0.01)
        left = max(0.0, began + grace - time.monotonic())
        self._server.config.timeout_graceful_shutdown = math.ceil(left)
        self._server.should_exit = True
        await self.task

    def hurry(self) -> None:
        """End at once; running requests are cut off."""
        self._server.force_exit = True


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
        # During a TLS handshake there is no transport yet; _TlsListener ends that.
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


def _with_mapped_addresses(networks: Iterable[IPv4Network | IPv6Network]) -> Iterator[str]:
    """Yield networks, those of IPv4 also as an IPv6 socket shows their addresses."""
    for network in networks:
        yield str(network)
        if isinstance(network, IPv4Network):
            yield f"::ffff:{network.network_address}/{96 + network.prefixlen}"


class _UvicornServer(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to us: the index is closed after the last request, not before."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections; with TLS by ``_TlsListener``, which counts them at once."""
        await super().startup(sockets if self.config.ssl is None else [])
        if self.config.ssl is not None:
            listeners: Sequence[Any] = [
                _TlsListener(sock, self._make_protocol, self.config.ssl) for sock in sockets or ()
            ]
            self.servers.extend(listeners)

    def _make_protocol(self) -> BoundedProtocol:
        kind: Any = self.config.http_protocol_class
        protocol: BoundedProtocol = kind(
            config=self.config, server_state=self.server_state, app_state={}
        )
        return protocol


class _TlsListener:
    """Accepts connections, counts them, and limits the time of each TLS handshake.

    The event loop's own server reports a connection only once its handshake is done: those that
    never begin one would be limited by file descriptors alone.
    """

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: Callable[[], BoundedProtocol],
        context: ssl.SSLContext,
    ) -> None:
        self._listener = listener
        self._make_protocol = make_protocol
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._listen()

    def close(self) -> None:
        """Accept no more; handshakes that are not done in a moment are cancelled."""
        self._loop.remove_reader(self._listener)
        if self._retry is not None:
            self._retry.cancel()
        self._loop.call_later(LAST_SECONDS, self._cancel_handshakes)

    async def wait_closed(self) -> None:
        """Wait until no handshake is under way."""
        await asyncio.gather(*self._handshakes, return_exceptions=True)

    def _cancel_handshakes(self) -> None:
        for task in self._handshakes:
            task.cancel()

    def _listen(self) -> None:
        self._retry = None
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(BACKLOG):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:  # the client has left
                continue
            except OSError as error:  # no file descriptors, or no memory
                _log.error("not_accepted", extra={"reason": error.strerror})
                self._loop.remove_reader(self._listener)
                self._retry = self._loop.call_later(ACCEPT_RETRY_SECONDS, self._listen)
                return
            protocol = self._make_protocol()
            if not protocol.accepted():
                connection.close()
                continue
            connection.setblocking(False)
            task = self._loop.create_task(self._handshake(connection, protocol))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _handshake(self, connection: socket.socket, protocol: BoundedProtocol) -> None:
        """Do the handshake; the protocol then serves the connection, and sees its end."""
        try:
            await self._loop.connect_accepted_socket(
                lambda: protocol,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=TLS_CLOSE_SECONDS,
            )
        except (OSError, asyncio.CancelledError):  # ssl.SSLError is an OSError
            pass
        finally:
            if protocol.transport is None:
                protocol.handshake_failed()
