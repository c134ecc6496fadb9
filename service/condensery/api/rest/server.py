"""The REST door's server: uvicorn in our loop, with our signals and our socket."""

import asyncio
import contextlib
import logging
import math
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from ipaddress import IPv4Network, IPv6Network
from typing import Any

import uvicorn

from condensery.api.ports import BACKLOG, LAST_SECONDS, Tls, has_arrived, refuse_newcomers
from condensery.api.rest import protocol
from condensery.api.rest.app import build
from condensery.api.rest.protocol import Protocol
from condensery.errors import StartError
from condensery.jobs.services import Services
from condensery.origins import Origins, is_loopback, read_hosts, read_networks, read_origins

# Where no connection can be accepted, for want of files say, until it is tried again.
ACCEPT_RETRY_SECONDS = 1.0

_log = logging.getLogger(__name__)


class RestServer:
    """Uvicorn in our loop, with our signals and our socket.

    Args:
        services: The running parts.
        listener: Bound already.
        tls: The certificate to show; None speaks plain HTTP.
        max_connections: At once.
        trusted_proxies: Addresses or networks, with commas between them: where a request comes
            from one, its ``X-Forwarded-For`` tells who asks. From anybody else it tells nothing:
            one client could pose as many, and take as many turns.
        cors_origin: Origins whose web pages may use it, with commas between them.
        allowed_hosts: Names that it may be asked by beside localhost and ``host``, with commas
            between them; by default none on loopback, and all elsewhere.
        host: By which it was told to listen.
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
    ) -> None:
        checked = allowed_hosts is not None or is_loopback(listener.getsockname()[0])
        origins = Origins(
            read_origins(cors_origin or ""),
            read_hosts(allowed_hosts or "") | read_hosts(host) if checked else None,
            read_networks(trusted_proxies),
        )
        front = build(services, origins)
        bounds = protocol.Bounds(services.limits.max_header_bytes, max_connections)
        config = uvicorn.Config(
            front,
            http=protocol.protocol(front.family_of, bounds, services.metrics),
            proxy_headers=trusted_proxies is not None,
            timeout_keep_alive=protocol.IDLE_SECONDS,
            forwarded_allow_ips=",".join(_as_seen(origins.proxies)),
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
        self._server = _Uvicorn(config)
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
        """Take who waits, stop listening, finish what is in flight, end.

        Args:
            grace: Seconds for all of that; what is left then is cut off.
        """
        began = time.monotonic()
        refuse_newcomers(self._listener)
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
        """End at once; what is in flight is cut off."""
        self._server.force_exit = True


def _as_seen(networks: Iterable[IPv4Network | IPv6Network]) -> Iterator[str]:
    """Yield networks as peers are seen to be of them: of IPv4 also on a socket of both kinds."""
    for one in networks:
        yield str(one)
        if isinstance(one, IPv4Network):
            yield f"::ffff:{one.network_address}/{96 + one.prefixlen}"


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to us: the index is closed after the last request, not before."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections; with TLS by ourselves, so that they count before their handshake."""
        await super().startup(sockets if self.config.ssl is None else [])
        if self.config.ssl is not None:
            listeners: Sequence[Any] = [
                _TlsListener(one, self._make, self.config.ssl) for one in sockets or ()
            ]
            self.servers.extend(listeners)

    def _make(self) -> Protocol:
        kind: Any = self.config.http_protocol_class
        made: Protocol = kind(config=self.config, server_state=self.server_state, app_state={})
        return made


class _TlsListener:
    """Accepts connections, and shakes hands with each within its time.

    The event loop's own server tells nobody of a connection before its handshake is done: those
    that never begin one are bounded by nothing but files.

    Args:
        listener: Bound, and listening.
        make: Makes a connection's protocol.
        context: With the certificate.
    """

    def __init__(
        self, listener: socket.socket, make: Callable[[], Protocol], context: ssl.SSLContext
    ) -> None:
        self._listener = listener
        self._make = make
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._shaking: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._listen()

    def close(self) -> None:
        """Accept no more, and end what is not made in a moment; what is made is answered."""
        self._loop.remove_reader(self._listener)
        if self._retry is not None:
            self._retry.cancel()
        self._loop.call_later(LAST_SECONDS, self._give_up)

    async def wait_closed(self) -> None:
        """Wait until no handshake is under way."""
        await asyncio.gather(*self._shaking, return_exceptions=True)

    def _give_up(self) -> None:
        for task in self._shaking:
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
            except ConnectionAbortedError:  # who came has left
                continue
            except OSError as error:  # no files, or no memory
                _log.error("not_accepted", extra={"reason": error.strerror})
                self._loop.remove_reader(self._listener)
                self._retry = self._loop.call_later(ACCEPT_RETRY_SECONDS, self._listen)
                return
            made = self._make()
            if not made.accepted():
                connection.close()
                continue
            connection.setblocking(False)
            task = self._loop.create_task(self._shake(connection, made))
            self._shaking.add(task)
            task.add_done_callback(self._shaking.discard)

    async def _shake(self, connection: socket.socket, made: Protocol) -> None:
        """Shake hands; the protocol then serves the connection, and sees its end."""
        try:
            await self._loop.connect_accepted_socket(
                lambda: made,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=protocol.HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=protocol.GOODBYE_SECONDS,
            )
        except (OSError, asyncio.CancelledError):  # ssl.SSLError is an OSError
            pass
        finally:
            if made.transport is None:
                made.not_made()
