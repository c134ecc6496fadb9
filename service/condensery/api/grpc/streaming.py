"""How requests come over gRPC: their metadata, reading, size, time and count; streams of them.

Messages are read a limited number at a time, since each may be as large as the transport accepts
and admission counts a message only once it has come: as many as there may be calls would be 70 GB.
Replies to a stream of requests come in the order of its messages, a limited number at a time.
"""

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Any, TypeVar
from urllib.parse import unquote
from weakref import WeakValueDictionary

import grpc
from google.protobuf.message import DecodeError

from condensery import auth
from condensery.api.grpc.condensery_v1 import RpcMethod
from condensery.api.grpc.errors import CallContext, status_code_of
from condensery.auth import read_key
from condensery.errors import (
    CondenseryError,
    DeadlineExceeded,
    InputError,
    Overloaded,
    PayloadTooLarge,
    Unavailable,
)
from condensery.jobs.accounting import count_refusals, count_request
from condensery.jobs.services import Services
from condensery.jobs.validation import check_count
from condensery.request_context import (
    TRACE_HEADERS,
    RequestContext,
    current_request,
    serving_request,
)

Metadata = Iterable[tuple[str, str | bytes]]

ENTRY_OVERHEAD_BYTES = 32  # of an entry beside its name and value, as HTTP/2 counts


def find_metadata(metadata: Metadata, name: str) -> str | None:
    """Return the first text of that name; None if there is none."""
    for key, value in metadata:
        if key == name and isinstance(value, str):
            return value
    return None


def find_key(metadata: Metadata) -> str | None:
    """Return the API key in the metadata; None if there is none."""
    return read_key(find_metadata(metadata, "authorization"), find_metadata(metadata, "x-api-key"))


def metadata_bytes(metadata: Metadata) -> int:
    """Return the bytes of the metadata, as HTTP/2 counts them."""
    return sum(len(name) + len(value) + ENTRY_OVERHEAD_BYTES for name, value in metadata)


def peer_host(peer: str) -> str:
    """Return an address without its port: ``10.0.0.7`` of ``ipv4:10.0.0.7:52114``."""
    kind, _, address = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return peer
    return unquote(address).rpartition(":")[0].strip("[]")


# What a front process puts to a call that it passes on, and drops from what callers send.
FRONT_METADATA = "x-condensery-front"
# The name of a call's key, where keys are needed. Each call has a task, and so a context, of its
# own.
key_name: ContextVar[str | None] = ContextVar("key_name", default=None)


def caller_host(context: CallContext) -> str:
    """Return the address of a call's client, without its port.

    Over a Unix socket, which nobody else can reach, it is a front process that says so.
    """
    peer = str(context.peer())
    if peer.startswith("unix:"):
        return find_metadata(context.invocation_metadata() or (), FRONT_METADATA) or peer
    return peer_host(peer)


def caller_address(context: CallContext) -> str:
    """Return a caller's address; of IPv6 the first half, since callers choose the other."""
    return _network_of(caller_host(context))


@lru_cache(1024)  # of callers whose calls come again and again
def _network_of(host: str) -> str:
    try:
        address = ip_address(host)
    except ValueError:  # a socket of the file system
        return host
    if not isinstance(address, IPv6Address):
        return host
    return str(address.ipv4_mapped or f"{int(address) >> 64:x}")


def find_caller(context: CallContext) -> tuple[str | None, str]:
    """Return who calls, as key and address: behind either alone there may be several."""
    return key_name.get(), caller_address(context)


# Messages that are being read, were each as large as the transport accepts, may have this many
# times the bytes that admission accepts, since most are a thousandth of that; but never fewer than
# MIN_READERS are read at once.
READ_FACTOR = 32
MIN_READERS = 16
# Of those turns, one caller's, whose calls may send nothing; and one's that asks for health, for
# which nobody needs a key.
CALLER_SHARE = 1 / 4
HEALTH_SHARE = 1 / 32
# For reading one message; and for one to health, which needs no key and is small.
READ_SECONDS = 30.0
HEALTH_READ_SECONDS = 5.0


class MessageReaders:
    """Limits how many calls read their message at once, in all and of one caller; others wait.

    A small message is read in less than a millisecond. A call that sends none keeps its turn until
    its time is over: a caller's calls can't keep all turns, nor those of one connection all that
    its caller has, who may be many behind one address.

    Args:
        admission_bytes: The most that admission accepts, of all messages.
        message_bytes: The most that the transport accepts, of each.
        seconds: For reading one message.
        share: Of the turns, one caller's.
    """

    def __init__(
        self,
        admission_bytes: int,
        message_bytes: int,
        seconds: float,
        *,
        share: float = CALLER_SHARE,
    ) -> None:
        self._seconds = seconds
        self.limit = max(MIN_READERS, READ_FACTOR * admission_bytes // message_bytes)
        self.caller_limit = max(1, int(self.limit * share))
        self.connection_limit = max(1, self.caller_limit // 2)
        self._turns = asyncio.Semaphore(self.limit)
        self._turns_by: WeakValueDictionary[object, asyncio.Semaphore] = WeakValueDictionary()

    async def read(self, context: CallContext) -> bytes:
        """Return a call's message.

        Raises:
            DeadlineExceeded: It does not come.
            InputError: The call ended without one.
        """
        caller = find_caller(context)
        connection = self._turns_of((*caller, context.peer()), self.connection_limit)
        async with connection, self._turns_of(caller, self.caller_limit), self._turns:
            try:
                async with asyncio.timeout(self._seconds):
                    data: bytes | object = await context.read()
            except TimeoutError as late:
                raise DeadlineExceeded(
                    f"The message did not come within {self._seconds:g} s."
                ) from late
        if not isinstance(data, bytes):
            raise InputError("The call ended without a message.")
        return data

    def _turns_of(self, whose: object, limit: int) -> asyncio.Semaphore:
        return self._turns_by.setdefault(whose, asyncio.Semaphore(limit))


Result = TypeVar("Result")


async def run_in_time(
    work: Awaitable[Result], request_context: RequestContext, *, margin: float = 0.0
) -> Result:
    """Wait for ``work`` until the request's deadline, and ``margin`` seconds more.

    Raises:
        DeadlineExceeded: The time is over; ExpiredInQueue if no work had begun.
    """
    seconds = request_context.seconds_left + margin
    try:
        async with asyncio.timeout(None if math.isinf(seconds) else seconds) as limit:
            return await work
    except TimeoutError as late:
        if not limit.expired():  # the work has a time limit of its own
            raise
        raise request_context.expired() from late


def read_deadline(context: CallContext, metadata: Metadata) -> float:
    """Return until when the client waits, in seconds of ``time.monotonic``; may be infinite.

    Raises:
        InputError: The metadata hold a timeout that is no number of seconds.
    """
    seconds = auth.read_timeout(find_metadata(metadata, auth.REQUEST_TIMEOUT_HEADER))
    remaining: float | None = context.time_remaining()
    return time.monotonic() + (seconds if remaining is None else min(seconds, remaining))


def check_size(size: int, limit: int, *, what: str = "The message has") -> None:
    """Refuse a message, or a stream of them, of over ``limit`` bytes."""
    if size > limit:
        raise PayloadTooLarge(
            f"{what} {size} bytes, over the limit of {limit} (max_body_bytes).", value=size
        )


def parse_message(method: RpcMethod[Any], data: bytes) -> Any:
    """Parse the message of a method.

    Raises:
        InputError: It is not a request of that method.
    """
    try:
        return method.request.FromString(data)
    except DecodeError as error:
        raise InputError(
            f"The message is no {method.request.DESCRIPTOR.full_name}: it is malformed, nested too "
            "deep, or holds text that is not UTF-8."
        ) from error


def count_call(
    services: Services, method: RpcMethod[Any], request: Any, model: str | None
) -> AbstractContextManager[Any]:
    """Count a block's work as one request, of the model that it names."""
    if method.task is None:
        return nullcontext()
    index = getattr(request, method.index_field) if method.index_field else None
    return count_request(
        services, model or _model_of_context(services, request), method.task, "grpc", index=index
    )


def _model_of_context(services: Services, request: Any) -> str | None:
    """Return the pair that made the request's context; None without a context."""
    handle = getattr(request, "context", "")
    try:
        return services.contexts.get(current_request().caller, handle).model if handle else None
    except CondenseryError:  # the job raises it again
        return None


def begin_trace(services: Services, metadata: Metadata, request_context: RequestContext) -> None:
    """Trace a call, where calls are traced, as a part of what its metadata names."""
    if services.tracer is not None:
        values = {name: find_metadata(metadata, name) for name in TRACE_HEADERS}
        request_context.trace = services.tracer.begin(
            {name: value for name, value in values.items() if value is not None}
        )


def end_trace(method: RpcMethod[Any], request_context: RequestContext, outcome: str) -> None:
    """End a call's trace, if it has one; ``outcome`` is the name of gRPC's code."""
    if request_context.trace is not None:
        fields = {
            "rpc.system.name": "grpc",
            "rpc.method": method.path.lstrip("/"),
            "rpc.response.status_code": outcome,
            "condensery.request.id": request_context.request_id,
        }
        error = outcome if outcome in SERVER_FAULTS else None
        request_context.trace.end(method.path.lstrip("/"), fields, error=error)


# Those of gRPC's codes that are the server's failures, as OpenTelemetry has them.
SERVER_FAULTS = frozenset(
    {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
)
STREAM_RETRY_SECONDS = 1.0  # when to open a stream again after a refusal


class OpenStreams:
    """Limits how many streams are open at once: each may hold a message that is not counted yet.

    One caller's can't be all of them: they may send nothing for as long as a request may take.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.limit_each = limit - limit // 4
        self._callers: Counter[object] = Counter()
        self._open: set[StreamMessages] = set()
        self._closed = False

    @contextmanager
    def open(self, context: CallContext, idle_seconds: float) -> Iterator["StreamMessages"]:
        """Read a stream's messages in this block.

        Args:
            idle_seconds: How long the next message may take to come.

        Raises:
            Overloaded: Too many streams are open.
        """
        caller = find_caller(context)
        for count, limit, whose in (
            (len(self._open), self.limit, ""),
            (self._callers[caller], self.limit_each, " for one caller"),
        ):
            if count >= limit:
                raise Overloaded(
                    f"{count} streams are open, which is the limit{whose}.",
                    retry_after_seconds=STREAM_RETRY_SECONDS,
                )
        messages = StreamMessages(context, idle_seconds)
        if self._closed:
            messages.close()
        self._open.add(messages)
        self._callers[caller] += 1
        try:
            yield messages
        finally:
            self._open.discard(messages)
            self._callers[caller] -= 1
            if not self._callers[caller]:
                del self._callers[caller]

    def close(self) -> None:
        """Read no more messages: those that have come are answered."""
        self._closed = True
        for messages in self._open:
            messages.close()


class StreamMessages:
    """Reads a stream's messages, one by one."""

    def __init__(self, context: CallContext, idle_seconds: float) -> None:
        self._context = context
        self._idle_seconds = idle_seconds
        self._limit: asyncio.Timeout | None = None
        self._closed = False

    def close(self) -> None:
        """Wait for no more messages."""
        self._closed = True
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time())

    async def next(self) -> bytes | None:
        """Return the next message; None after the last.

        Raises:
            DeadlineExceeded: It does not come.
            Unavailable: The server is about to end.
        """
        seconds = 0.0 if self._closed else self._idle_seconds
        try:
            async with asyncio.timeout(seconds) as self._limit:
                data: bytes | object = await self._context.read()
        except TimeoutError as late:
            if self._closed:
                raise Unavailable("The server takes no new requests: it is about to end.") from late
            raise DeadlineExceeded(
                f"The next message did not come within {self._idle_seconds:g} s."
            ) from late
        finally:
            self._limit = None
        return data if isinstance(data, bytes) else None


@dataclass(frozen=True, slots=True)
class _PendingReply:
    """A reply to one message of a stream, in work or waiting to be written.

    Attributes:
        request_context: The message's own: its deadline and what it took.
        permit: Its share of admission; released once the client has the reply.
    """

    request_context: RequestContext
    permit: ExitStack
    data: "asyncio.Task[bytes]"


async def serve_stream(
    services: Services,
    method: RpcMethod[Any],
    streams: OpenStreams,
    context: CallContext,
    request_context: RequestContext,
) -> bytes | None:
    """Answer a call whose messages come as a stream.

    Raises:
        CondenseryError: Of the first message that fails, once all before it are answered.
    """
    metadata = context.invocation_metadata() or ()
    model = find_metadata(metadata, "x-model")
    with ExitStack() as stack:
        with count_refusals(services, method.task, "grpc"):
            deadline = read_deadline(context, metadata)
            messages = stack.enter_context(streams.open(context, services.limits.request_seconds))
        if method.gather is not None:  # one request, however many messages it comes in
            request_context.deadline = min(request_context.deadline, deadline)
            return await run_in_time(
                _answer_gathered(services, method, messages, request_context, model),
                request_context,
            )
        request_context.deadline = deadline
        await run_in_time(
            _StreamAnswerer(services, method, messages, request_context, model).answer(context),
            request_context,
        )
        return None


async def _answer_gathered(
    services: Services,
    method: RpcMethod[Any],
    messages: StreamMessages,
    request_context: RequestContext,
    model: str | None,
) -> bytes:
    limits = services.limits
    requests: list[Any] = []
    with ExitStack() as stack:
        with count_refusals(services, method.task, "grpc"):
            permit = stack.enter_context(services.admission.admit(0))
            while (data := await messages.next()) is not None:
                check_size(permit.size + len(data), limits.max_body_bytes, what="The messages have")
                permit.grow(len(data))
                requests.append(parse_message(method, data))
                check_count(requests, "messages", limits.max_items)
            check_count(requests, "messages", limits.max_items)  # there may be none
        stack.enter_context(count_call(services, method, requests[0], model))
        request_context.check()
        return await method.run(services, requests, model)


class _StreamAnswerer:
    """Reads messages and writes replies side by side.

    Messages are read while admission and the stream's own limit allow; what waits meanwhile makes
    batches. An error is raised in its message's place: those before it are answered first.
    """

    def __init__(
        self,
        services: Services,
        method: RpcMethod[Any],
        messages: StreamMessages,
        request_context: RequestContext,
        model: str | None,
    ) -> None:
        self._services = services
        self._method = method
        self._messages = messages
        self._stream_context = request_context
        self._model = model
        self._free = asyncio.Semaphore(method.at_once)
        # Replies that are not written yet; ``_order`` ends with the error, or None.
        self._replies: deque[_PendingReply] = deque()
        self._order: asyncio.Queue[_PendingReply | Exception | None] = asyncio.Queue()

    async def answer(self, context: CallContext) -> None:
        """Answer every message."""
        reading = asyncio.create_task(self._read())
        try:
            while (reply := await self._order.get()) is not None:
                if isinstance(reply, Exception):
                    raise reply
                data = await reply.data
                await run_in_time(write_message(context, data), reply.request_context)
                self._stream_context.work_begun = True
                self._replies.popleft().permit.close()
                self._free.release()
        finally:
            reading.cancel()
            unfinished = [reply.data for reply in self._replies]
            for task in unfinished:
                task.cancel()
            await asyncio.gather(reading, *unfinished, return_exceptions=True)
            for reply in self._replies:
                reply.permit.close()

    async def _read(self) -> None:
        end: Exception | None = None
        try:
            while True:
                await self._free.acquire()
                data = await self._messages.next()
                if data is None:
                    return
                await self._begin(data)
        except Exception as error:  # raised in its place, a bug too
            end = error
        finally:
            self._order.put_nowait(end)

    async def _begin(self, data: bytes) -> None:
        """Admit a message, and begin to answer it."""
        limits, stream = self._services.limits, self._stream_context
        request_context = RequestContext(
            request_id=stream.request_id,
            # A caller's streams and its single calls take turns, as two callers do: a query does
            # not wait for all that the streams have in the queue.
            caller=f"{stream.caller} (streams)",
            deadline=min(stream.deadline, time.monotonic() + limits.request_seconds),
        )
        if stream.trace is not None and self._services.tracer is not None:  # a part of the stream's
            request_context.trace = self._services.tracer.begin(stream.trace.headers)
        permit = ExitStack()

        async def enter() -> None:
            permit.enter_context(self._services.admission.admit(len(data)))

        with count_refusals(self._services, self._method.task, "grpc"):
            check_size(len(data), limits.max_body_bytes)
            await _retry_while_overloaded(enter, request_context)
        with serving_request(request_context):
            answering = asyncio.create_task(self._answer(data, request_context))
        reply = _PendingReply(request_context, permit, answering)
        self._replies.append(reply)
        self._order.put_nowait(reply)

    async def _answer(self, data: bytes, request_context: RequestContext) -> bytes:
        method, services = self._method, self._services
        outcome = "CANCELLED"  # unless it ends by itself
        try:
            with count_refusals(services, method.task, "grpc"):
                request = parse_message(method, data)
            with count_call(services, method, request, self._model):
                work = _retry_while_overloaded(
                    lambda: method.run(services, request, self._model), request_context
                )
                reply = await run_in_time(work, request_context)
            outcome = "OK"
            return reply
        except CondenseryError as error:
            outcome = status_code_of(error, method.family).name
            raise
        except Exception:
            outcome = "INTERNAL"
            raise
        finally:
            end_trace(method, request_context, outcome)
            services.slow.log(request_context, transport="grpc", route=method.path, status=outcome)


async def _retry_while_overloaded(
    work: Callable[[], Awaitable[Result]], request_context: RequestContext
) -> Result:
    """Do ``work``, and retry while the server is overloaded.

    Raises:
        Overloaded: The caller's time does not allow another try.
    """
    while True:
        try:
            return await work()
        except Overloaded as error:
            if error.retry_after_seconds >= request_context.seconds_left:
                raise
            await asyncio.sleep(error.retry_after_seconds)


async def write_message(context: CallContext, data: bytes) -> None:
    """Write a message of a stream; CancelledError if the client has left."""
    try:
        await context.write(data)
    except grpc.aio.InternalError as error:  # gRPC's word for a client that left
        raise asyncio.CancelledError from error
