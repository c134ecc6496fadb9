"""Streams of requests: replies in the order of the messages, so many in the house at once."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc

from condensery import callers
from condensery.api.grpc.calls import Call
from condensery.api.grpc.errors import Context, code_of
from condensery.api.grpc.metadata import find
from condensery.api.grpc.requests import check_size, counted, deadline, in_time, parse
from condensery.errors import CondenseryError, DeadlineExceeded, Overloaded, Unavailable
from condensery.jobs.accounting import counting_refusals
from condensery.jobs.checks import check_count
from condensery.jobs.services import Services

Done = TypeVar("Done")

RETRY_SECONDS = 1.0  # when it is worth opening a stream again, if there are too many


class Streams:
    """The streams that are open, so many at most: each may hold a message that nobody counts yet.

    Args:
        most: That may be open at once.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._open: set[Messages] = set()
        self._closed = False

    @contextmanager
    def open(self, context: Context, idle_seconds: float) -> Iterator["Messages"]:
        """Read a stream's messages in this block.

        Args:
            context: The call's.
            idle_seconds: How long the next message may take to come.

        Raises:
            Overloaded: There are as many as may be.
        """
        if len(self._open) >= self.most:
            raise Overloaded(
                f"{len(self._open)} streams are open, the limit.", retry_after_seconds=RETRY_SECONDS
            )
        messages = Messages(context, idle_seconds)
        if self._closed:
            messages.close()
        self._open.add(messages)
        try:
            yield messages
        finally:
            self._open.discard(messages)

    def close(self) -> None:
        """Read no more messages: those that have come are answered."""
        self._closed = True
        for messages in self._open:
            messages.close()


class Messages:
    """Reads a stream's messages, one by one.

    Args:
        context: The call's.
        idle_seconds: How long the next one may take to come.
    """

    def __init__(self, context: Context, idle_seconds: float) -> None:
        self._context = context
        self._idle_seconds = idle_seconds
        self._limit: asyncio.Timeout | None = None
        self._closed = False

    def close(self) -> None:
        """Wait for no more."""
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
class _Reply:
    """A message's answer in the making.

    Attributes:
        asked: The message, as a call of its own: its time and where that goes.
        place: What it holds of the house's room; left once the client has the reply.
        data: The reply's bytes.
    """

    asked: callers.Call
    place: ExitStack
    data: "asyncio.Task[bytes]"


async def serve_stream(
    services: Services, call: Call[Any], streams: Streams, context: Context, asked: callers.Call
) -> bytes | None:
    """Answer a call whose messages come as a stream.

    Raises:
        CondenseryError: Of the first message that fails, once all before it are answered.
    """
    metadata = context.invocation_metadata() or ()
    model = find(metadata, "x-model")
    with ExitStack() as stack:
        with counting_refusals(services, call.task, "grpc"):
            patience = deadline(context, metadata)
            messages = stack.enter_context(streams.open(context, services.limits.request_seconds))
        if call.gather is not None:  # one request, however many messages it comes in
            asked.deadline = min(asked.deadline, patience)
            return await in_time(_gather(services, call, messages, asked, model), asked)
        asked.deadline = patience
        await in_time(_Stream(services, call, messages, asked, model).answer(context), asked)
        return None


async def _gather(
    services: Services,
    call: Call[Any],
    messages: Messages,
    asked: callers.Call,
    model: str | None,
) -> bytes:
    assert call.gather is not None
    limits = services.limits
    given: list[Any] = []
    with ExitStack() as stack:
        with counting_refusals(services, call.task, "grpc"):
            place = stack.enter_context(services.admission.enter(0))
            while (data := await messages.next()) is not None:
                check_size(place.size + len(data), limits.max_body_bytes, what="The messages have")
                place.grow(len(data))
                given.append(parse(call, data))
                check_count(given, "messages", limits.max_items)
            check_count(given, "messages", limits.max_items)  # none came
        stack.enter_context(counted(services, call, given[0], model))
        asked.check()
        return await call.gather(services, given, model)


class _Stream:
    """Reads messages and writes replies side by side.

    Messages are read while there is room, here and in the house; what waits in the meantime makes
    batches. A fault is kept in its place: what came before it is answered first.
    """

    def __init__(
        self,
        services: Services,
        call: Call[Any],
        messages: Messages,
        asked: callers.Call,
        model: str | None,
    ) -> None:
        self._services = services
        self._call = call
        self._messages = messages
        self._asked = asked
        self._model = model
        self._room = asyncio.Semaphore(call.at_once)
        # What was read and is not written; then why there is no more, None at the end.
        self._replies: deque[_Reply] = deque()
        self._order: asyncio.Queue[_Reply | Exception | None] = asyncio.Queue()

    async def answer(self, context: Context) -> None:
        """Answer every message."""
        reading = asyncio.create_task(self._read())
        try:
            while (reply := await self._order.get()) is not None:
                if isinstance(reply, Exception):
                    raise reply
                data = await reply.data
                await in_time(_write(context, data), reply.asked)
                self._asked.began = True
                self._replies.popleft().place.close()
                self._room.release()
        finally:
            reading.cancel()
            left = [reply.data for reply in self._replies]
            for task in left:
                task.cancel()
            await asyncio.gather(reading, *left, return_exceptions=True)
            for reply in self._replies:
                reply.place.close()

    async def _read(self) -> None:
        end: Exception | None = None
        try:
            while True:
                await self._room.acquire()
                data = await self._messages.next()
                if data is None:
                    return
                await self._begin(data)
        except Exception as error:  # told in its place, a bug too
            end = error
        finally:
            self._order.put_nowait(end)

    async def _begin(self, data: bytes) -> None:
        """Let a message in, and begin to answer it."""
        limits, stream = self._services.limits, self._asked
        asked = callers.Call(
            request_id=stream.request_id,
            # Who has a stream open asks beside it as well: the two take turns, as two callers do,
            # and a query does not wait for all that the streams have in the queue.
            caller=f"{stream.caller} (streams)",
            deadline=min(stream.deadline, time.monotonic() + limits.request_seconds),
        )
        place = ExitStack()

        async def enter() -> None:
            place.enter_context(self._services.admission.enter(len(data)))

        with counting_refusals(self._services, self._call.task, "grpc"):
            check_size(len(data), limits.max_body_bytes)
            await _patiently(enter, asked)
        with callers.calling(asked):
            answering = asyncio.create_task(self._do(data, asked))
        reply = _Reply(asked, place, answering)
        self._replies.append(reply)
        self._order.put_nowait(reply)

    async def _do(self, data: bytes, asked: callers.Call) -> bytes:
        call, services = self._call, self._services
        assert call.each is not None
        do, outcome = call.each, "CANCELLED"  # unless it comes to an end of its own
        try:
            with counting_refusals(services, call.task, "grpc"):
                given = parse(call, data)
            with counted(services, call, given, self._model):
                work = _patiently(lambda: do(services, given, self._model), asked)
                reply = await in_time(work, asked)
            outcome = "OK"
            return reply
        except CondenseryError as error:
            outcome = code_of(error, call.family).name
            raise
        except Exception:
            outcome = "INTERNAL"
            raise
        finally:
            services.slow.tell(asked, door="grpc", route=call.path, status=outcome)


async def _patiently(work: Callable[[], Awaitable[Done]], asked: callers.Call) -> Done:
    """Do ``work``, again when there should be room if there is none.

    Raises:
        Overloaded: There will be none in the caller's time.
    """
    while True:
        try:
            return await work()
        except Overloaded as full:
            if full.retry_after_seconds >= asked.seconds_left:
                raise
            await asyncio.sleep(full.retry_after_seconds)


async def _write(context: Context, data: bytes) -> None:
    try:
        await context.write(data)
    except grpc.aio.InternalError as error:  # gRPC's word for a client that left
        raise asyncio.CancelledError from error
