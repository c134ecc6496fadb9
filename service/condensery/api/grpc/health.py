"""Health checks, ``grpc.health.v1``: asked once, or watched.

Not the servicer of grpcio-health-checking: when one of a service's watchers leaves, the others of
that service hear no more there, and a watcher holds up the server's end until the grace is over.
"""

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from condensery.api.asking import request_id
from condensery.api.grpc.errors import refuse
from condensery.api.grpc.reading import Readers
from condensery.errors import CondenseryError, shorten

SERVICE = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
PATHS = tuple(f"/{SERVICE}/{name}" for name in ("Check", "Watch"))
Context = grpc.aio.ServicerContext[Any, Any]
_Reply = health_pb2.HealthCheckResponse


class Health:
    """Tells whether the server is ready, and what it serves.

    Args:
        serves: Given a name, tells whether that serves while the server is ready; None where there
            is no such thing. The server as a whole is called "".
        readers: How messages are read; not those of other calls, for which nobody's health waits.
    """

    def __init__(self, serves: Callable[[str], bool | None], readers: Readers) -> None:
        self._readers = readers
        self._serves = serves
        self._ready = False
        self._closed = False
        self._changed = asyncio.Event()

    def set_ready(self, ready: bool) -> None:
        """Change what is told, and tell those who watch."""
        self._ready = ready and not self._closed
        self.tell()

    def tell(self) -> None:
        """Look again at what serves, and tell those who watch."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def close(self) -> None:
        """Be ready no more; whoever watches hears that, and that the server goes."""
        self._closed = True
        self.set_ready(False)

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the service, for a server."""
        methods: dict[str, Any] = {
            "Check": grpc.stream_unary_rpc_method_handler(self._check),
            "Watch": grpc.stream_stream_rpc_method_handler(self._watch),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def _check(self, _: Any, context: Context) -> bytes:
        service = await self._read(context)
        if self._serves(service) is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service {shorten(service)} here")
        return self._told(service)

    async def _watch(self, _: Any, context: Context) -> None:
        service = await self._read(context)
        last = b""
        while True:
            changed = self._changed
            if (told := self._told(service)) != last:
                await context.write(told)
                last = told
            if self._closed:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the server is shutting down")
            await changed.wait()

    def _told(self, service: str) -> bytes:
        serves = self._serves(service)
        if serves is None:
            reply = _Reply(status=_Reply.SERVICE_UNKNOWN)
        else:
            well = serves and self._ready
            reply = _Reply(status=_Reply.SERVING if well else _Reply.NOT_SERVING)
        return reply.SerializeToString()

    async def _read(self, context: Context) -> str:
        try:
            data = await self._readers.read(context)
            return health_pb2.HealthCheckRequest.FromString(data).service
        except CondenseryError as error:
            await refuse(context, error, request_id(None))
        except DecodeError:
            await _refuse(context)


async def _refuse(context: Context) -> NoReturn:
    await context.abort(
        grpc.StatusCode.INVALID_ARGUMENT, "the message is no grpc.health.v1.HealthCheckRequest"
    )
    raise AssertionError  # abort raises
