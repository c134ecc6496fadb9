"""HTTP/1.1: uvicorn in our event loop, with our signals, our socket and our connections."""

import asyncio
import contextlib
import logging
import math
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from ipaddress import IPv4Network, IPv6Network
from typing import Any, Protocol

import uvicorn
from starlette.types import Receive, Scope, Send

from condensery.api.ports import BACKLOG, LAST_SECONDS, Tls, has_arrived, refuse_new_connections
from condensery.api.rest.app import build_app
from condensery.api.rest.connections import (
    IDLE_SECONDS,
    BoundedProtocol,
    ConnectionBounds,
    make_protocol,
)
from condensery.api.rest.errors import Family
from condensery.api.rest.middleware import Middleware
from condensery.errors import StartError
from condensery.jobs.services import Services
from condensery.metrics import Metrics
from condensery.origins import Origins, is_loopback, read_hosts, read_networks, read_origins

# For a TLS handshake, before a connection is one.
HANDSHAKE_SECONDS = 10.0
# For the peer to confirm the end of a TLS connection.
TLS_CLOSE_SECONDS = 5.0

# Where no connection can be accepted, for want of file descriptors say, until it is tried again.
ACCEPT_RETRY_SECONDS = 1.0

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
