"""The REST door's server: uvicorn in our loop, with our signals and our socket."""

import asyncio
import contextlib
import math
import socket
from collections.abc import Iterator

import uvicorn

from condensery.api.ports import BACKLOG, Tls
from condensery.api.rest import protocol
from condensery.api.rest.app import build
from condensery.errors import StartError
from condensery.jobs.services import Services
from condensery.origins import Origins, is_loopback, read_hosts, read_networks, read_origins


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
        allowed_hosts: Names that it may be asked by beside localhost, with commas between them; by
            default none on loopback, and all elsewhere.
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
    ) -> None:
        checked = allowed_hosts is not None or is_loopback(listener.getsockname()[0])
        origins = Origins(
            read_origins(cors_origin or ""),
            read_hosts(allowed_hosts or "") if checked else None,
            read_networks(trusted_proxies),
        )
        front = build(services, origins)
        bounds = protocol.Bounds(services.limits.max_header_bytes, max_connections)
        config = uvicorn.Config(
            front,
            http=protocol.protocol(front.family_of, bounds, services.metrics),
            proxy_headers=trusted_proxies is not None,
            timeout_keep_alive=protocol.IDLE_SECONDS,
            forwarded_allow_ips=trusted_proxies or "",
            lifespan="off",
            ws="none",
            access_log=False,
            log_config=None,
            server_header=False,
            backlog=BACKLOG,
            ssl_certfile=tls.cert if tls else None,
            ssl_keyfile=tls.key if tls else None,
        )
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
        """Stop listening, finish what is in flight for ``grace`` seconds at most, end."""
        self._server.config.timeout_graceful_shutdown = math.ceil(grace)
        self._server.should_exit = True
        await self.task

    def hurry(self) -> None:
        """End at once; what is in flight is cut off."""
        self._server.force_exit = True


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to us: the index is closed after the last request, not before."""
        yield
