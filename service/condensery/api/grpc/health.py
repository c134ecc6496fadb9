"""Health checks, ``grpc.health.v1``: asked once, or watched.

They need no key, so they have limits of their own, in all and for each address: however many health
calls there are, they take no capacity from other calls.

This is not the servicer of grpcio-health-checking: there, when one watcher of a service leaves, the
others get no more updates, and a watcher delays the server's stop until the grace period is over.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from condensery.api.grpc.errors import CallContext, abort_with_error
from condensery.api.grpc.streaming import MessageReaders, caller_address
from condensery.auth import read_request_id
from condensery.errors import CondenseryError, Overloaded, shorten

HEALTH_SERVICE = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
HEALTH_PATHS = tuple(f"/{HEALTH_SERVICE}/{name}" for name in ("Check", "Watch"))
_HealthReply = health_pb2.HealthCheckResponse

# At once, in all and from one address. A client that watches has one call a connection; clients
# behind a proxy share one address. A single check takes a millisecond.
WATCHERS, WATCHERS_PER_ADDRESS = 1024, 128
CHECKS, CHECKS_PER_ADDRESS = 256, 32
HEALTH_CALLS = WATCHERS + CHECKS
HEALTH_RETRY_SECONDS = 5.0  # when a refused client may try again


class AddressLimits:
    """Limits how many calls are open at once, in all and from one address."""

    def __init__(self, what: str, limit: int, limit_per_address: int) -> None:
        self._what = what
        self._limit = limit
        self._limit_per_address = limit_per_address
        self._open: Counter[str] = Counter()

    @contextmanager
    def enter(self, address: str) -> Iterator[None]:
        """Count a call from an address as open during the block.

        Raises:
            Overloaded: A limit is reached.
        """
        if self._open[address] >= self._limit_per_address:
            self._refuse(self._limit_per_address, " from one address")
        if self._open.total() >= self._limit:
            self._refuse(self._limit)
        self._open[address] += 1
        try:
            yield
        finally:
            self._open[address] -= 1
            if not self._open[address]:
                del self._open[address]

    def _refuse(self, limit: int, where: str = "") -> NoReturn:
        message = f"Too many {self._what} at once: the limit is {limit}{where}."
        raise Overloaded(message, retry_after_seconds=HEALTH_RETRY_SECONDS)


class HealthService:
    """Reports whether the server is ready, and what it serves.

    Args:
        serves: Takes a name; returns whether that serves while the server is ready, or None where
            there is no such service or model. The server as a whole is called "".
        readers: Reads messages. Not the readers of other calls, so that no health call waits for
            those.
    """

    def __init__(self, serves: Callable[[str], bool | None], readers: MessageReaders) -> None:
        self._readers = readers
        self._serves = serves
        self._ready = False
        self._closed = self._ended = False
        self._changed = asyncio.Event()
        self._watching = AddressLimits("health watchers", WATCHERS, WATCHERS_PER_ADDRESS)
        self._checking = AddressLimits("health checks", CHECKS, CHECKS_PER_ADDRESS)

    def set_ready(self, ready: bool) -> None:
        """Change the status, and notify watchers."""
        self._ready = ready and not self._closed
        self.notify()

    def notify(self) -> None:
        """Let watchers look again at what serves."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def close(self) -> None:
        """Be ready no more; watchers are notified."""
        self._closed = True
        self.set_ready(False)

    def end(self) -> None:
        """End the calls of watchers, since the server stops.

        Not at once with ``close``: grpc's client drops replies that it has not handed out when the
        call ends.
        """
        self._ended = True
        self.notify()

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the service, for a server."""
        methods: dict[str, Any] = {
            "Check": grpc.stream_unary_rpc_method_handler(self._check),
            "Watch": grpc.stream_stream_rpc_method_handler(self._watch),
        }
        return grpc.method_handlers_generic_handler(HEALTH_SERVICE, methods)

    async def _check(self, _: Any, context: CallContext) -> bytes:
        with await self._enter(self._checking, context):
            service = await self._read(context)
        if self._serves(service) is None:
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"there is no service or model {shorten(service)}"
            )
        return self._status(service)

    async def _watch(self, _: Any, context: CallContext) -> None:
        with await self._enter(self._watching, context):
            service, last = await self._read(context), b""
            while True:
                changed = self._changed
                if (status := self._status(service)) != last:
                    await context.write(status)
                    last = status
                if self._ended:
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "the server is shutting down")
                await changed.wait()

    def _status(self, service: str) -> bytes:
        serves = self._serves(service)
        if serves is None:
            reply = _HealthReply(status=_HealthReply.SERVICE_UNKNOWN)
        else:
            ready = serves and self._ready
            reply = _HealthReply(status=_HealthReply.SERVING if ready else _HealthReply.NOT_SERVING)
        return reply.SerializeToString()

    async def _enter(self, limits: AddressLimits, context: CallContext) -> ExitStack:
        with ExitStack() as stack:
            try:
                stack.enter_context(limits.enter(caller_address(context)))
            except Overloaded as error:
                await abort_with_error(context, error, read_request_id(None))
            return stack.pop_all()

    async def _read(self, context: CallContext) -> str:
        try:
            data = await self._readers.read(context)
            return health_pb2.HealthCheckRequest.FromString(data).service
        except CondenseryError as error:
            await abort_with_error(context, error, read_request_id(None))
        except DecodeError:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                "the message is no grpc.health.v1.HealthCheckRequest",
            )
        raise AssertionError  # abort raises
