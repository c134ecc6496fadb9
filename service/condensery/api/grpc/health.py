"""Health checks, ``grpc.health.v1``: asked once, or watched.

They need no key, so that they are bounded by themselves, in all and for each address: whoever asks,
or watches, for ever and a thousand times takes no place of who has work to be done.

Not the servicer of grpcio-health-checking: when one of a service's watchers leaves, the others of
that service hear no more there, and a watcher holds up the server's end until the grace is over.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from ipaddress import IPv6Address, ip_address
from typing import Any, NoReturn
from weakref import WeakValueDictionary

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from condensery.api.asking import request_id
from condensery.api.grpc.errors import refuse
from condensery.api.grpc.metadata import host_of
from condensery.api.grpc.reading import Readers
from condensery.errors import CondenseryError, Overloaded, shorten

SERVICE = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
PATHS = tuple(f"/{SERVICE}/{name}" for name in ("Check", "Watch"))
Context = grpc.aio.ServicerContext[Any, Any]
_Reply = health_pb2.HealthCheckResponse

# At once, in all and from one address. A client that watches has one call a connection; behind a
# proxy the clients have one address together. One that asks once is gone in a millisecond.
WATCHERS, WATCHERS_PER_ADDRESS = 1024, 128
CHECKS, CHECKS_PER_ADDRESS = 256, 32
CALLS = WATCHERS + CHECKS
# When it is worth trying again.
RETRY_SECONDS = 5.0


class Places:
    """So many at once, and so many of one address.

    Args:
        what: They are, in the refusal.
        most: In all.
        most_each: From one address.
    """

    def __init__(self, what: str, most: int, most_each: int) -> None:
        self._what = what
        self._most = most
        self._most_each = most_each
        self._taken: Counter[str] = Counter()

    @contextmanager
    def enter(self, address: str) -> Iterator[None]:
        """Hold a place in the block.

        Raises:
            Overloaded: There is none.
        """
        if self._taken[address] >= self._most_each:
            self._refuse(self._most_each, " from one address")
        if self._taken.total() >= self._most:
            self._refuse(self._most)
        self._taken[address] += 1
        try:
            yield
        finally:
            self._taken[address] -= 1
            if not self._taken[address]:
                del self._taken[address]

    def _refuse(self, most: int, where: str = "") -> NoReturn:
        message = f"There are as many {self._what} at once as may be: {most}{where}."
        raise Overloaded(message, retry_after_seconds=RETRY_SECONDS)


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
        self._closed = self._ended = False
        self._changed = asyncio.Event()
        # Who sends no message holds a turn of reading until its time is over: one address can't
        # hold them all.
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._turns_each = max(1, readers.most // 32)
        self._watching = Places("health watchers", WATCHERS, WATCHERS_PER_ADDRESS)
        self._checking = Places("health checks", CHECKS, CHECKS_PER_ADDRESS)

    def set_ready(self, ready: bool) -> None:
        """Change what is told, and tell those who watch."""
        self._ready = ready and not self._closed
        self.tell()

    def tell(self) -> None:
        """Look again at what serves, and tell those who watch."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def close(self) -> None:
        """Be ready no more; whoever watches hears that."""
        self._closed = True
        self.set_ready(False)

    def end(self) -> None:
        """Tell whoever watches that the server goes.

        Not at once with ``close``: grpc's client forgets what it was told before the end of a call
        and has not handed out yet.
        """
        self._ended = True
        self.tell()

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the service, for a server."""
        methods: dict[str, Any] = {
            "Check": grpc.stream_unary_rpc_method_handler(self._check),
            "Watch": grpc.stream_stream_rpc_method_handler(self._watch),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def _check(self, _: Any, context: Context) -> bytes:
        with await self._enter(self._checking, context):
            service = await self._read(context)
        if self._serves(service) is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service {shorten(service)} here")
        return self._told(service)

    async def _watch(self, _: Any, context: Context) -> None:
        with await self._enter(self._watching, context):
            await self._tell_changes(await self._read(context), context)

    async def _tell_changes(self, service: str, context: Context) -> None:
        last = b""
        while True:
            changed = self._changed
            if (told := self._told(service)) != last:
                await context.write(told)
                last = told
            if self._ended:
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

    async def _enter(self, places: Places, context: Context) -> ExitStack:
        with ExitStack() as stack:
            try:
                stack.enter_context(places.enter(_address_of(context)))
            except Overloaded as error:
                await refuse(context, error, request_id(None))
            return stack.pop_all()

    async def _read(self, context: Context) -> str:
        address = _address_of(context)
        turns = self._turns.setdefault(address, asyncio.Semaphore(self._turns_each))
        try:
            async with turns:
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


def _address_of(context: Context) -> str:
    """Return what tells callers apart; of IPv6 half an address, whose other half they choose."""
    host = host_of(context.peer())
    try:
        address = ip_address(host)
    except ValueError:  # a socket of the file system
        return host
    if not isinstance(address, IPv6Address):
        return host
    return str(address.ipv4_mapped or f"{int(address) >> 64:x}")
