"""The REST door's server: uvicorn in our loop, with our signals and our socket."""

import asyncio
import contextlib
import errno
import math
import socket
from collections.abc import Iterator

import uvicorn

from condensery.api.rest.app import build
from condensery.errors import PortTaken, StartError
from condensery.jobs.services import Services

BACKLOG = 2048


class RestServer:
    """Uvicorn in our loop, with our signals and our socket.

    Args:
        services: The running parts.
        listener: Bound already.
        grace_seconds: For requests in flight, at ``stop``.
    """

    def __init__(self, services: Services, listener: socket.socket, grace_seconds: float) -> None:
        config = uvicorn.Config(
            build(services),
            lifespan="off",
            ws="none",
            access_log=False,
            log_config=None,
            server_header=False,
            backlog=BACKLOG,
            timeout_graceful_shutdown=math.ceil(grace_seconds),
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

    async def stop(self) -> None:
        """Stop listening, finish what is in flight, end."""
        self._server.should_exit = True
        await self.task


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to us: the index is closed after the last request, not before."""
        yield


def listen(host: str, port: int) -> socket.socket:
    """Bind the REST port; it is held from here on.

    Raises:
        PortTaken: Another process listens there, or the address is not ours.
    """
    return _bind(host, port, "port")


def check_free(host: str, port: int, setting: str) -> None:
    """Check that a port that is bound later is free, before seconds are spent on loading.

    Raises:
        PortTaken: It is not.
    """
    if port:
        _bind(host, port, setting).close()


def _bind(host: str, port: int, setting: str) -> socket.socket:
    flag = f"--{setting.replace('_', '-')}"
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise StartError(
            f"--host: {host!r} is no address of this machine: {error.strerror}.",
            field="host",
            value=host,
        ) from error
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # Linux lets two sockets bind one port with SO_REUSEADDR until one listens.
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise StartError(
                f"--host: {host!r} is no address of this machine.", field="host", value=host
            ) from error
        why = "is taken by another process" if error.errno == errno.EADDRINUSE else error.strerror
        raise PortTaken(
            f"{flag}: port {port} on {host} {why}; give another with {flag} or "
            f"CONDENSERY_{setting.upper()}.",
            field=setting,
            value=port,
        ) from error
    listener.setblocking(False)
    return listener
