"""What stands around every call: bytes are read, errors become statuses, requests are counted."""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable
from contextlib import AbstractContextManager, ExitStack, aclosing, nullcontext
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError

from condensery import callers
from condensery.api import asking
from condensery.api.grpc import guarding
from condensery.api.grpc.calls import Call
from condensery.api.grpc.errors import Context, abort, code_of, refuse
from condensery.api.grpc.metadata import Metadata, find, host_of
from condensery.api.grpc.reading import Readers
from condensery.errors import CondenseryError, InputError, PayloadTooLarge
from condensery.jobs.accounting import account, counting_refusals
from condensery.jobs.services import Services

# A stream's time is looked at between its steps, so that what there is of it can still be told.
# This much later it is cut wherever it is: at a step that hangs, or a client that stopped reading.
STREAM_MARGIN_SECONDS = 1.0

Done = TypeVar("Done")

_log = logging.getLogger(__name__)


def handler(services: Services, call: Call[Any], readers: Readers) -> Any:
    """Return a call as gRPC wants it.

    To gRPC every request is a stream, of which one message is read: it would else read a message
    before we are asked, how many there may be and how long they may take.

    Messages come as bytes and are parsed here: gRPC would fail a malformed one with UNKNOWN and
    its own words. A stream is written from a coroutine, not yielded: a client that leaves cancels
    the coroutine wherever it is, and the generator behind it is closed at once.
    """

    async def handle(_: Any, context: Context) -> bytes | None:
        started = time.monotonic()
        metadata: Metadata = context.invocation_metadata() or ()
        asked = callers.Call(
            request_id=asking.request_id(find(metadata, "x-request-id")),
            caller=guarding.caller() or host_of(context.peer()),
            deadline=started + services.limits.request_seconds,
        )
        context.set_trailing_metadata((("x-request-id", asked.request_id),))
        outcome = "CANCELLED"  # unless it comes to an end of its own
        try:
            with callers.calling(asked):
                reply = await _serve(services, call, readers, context, asked)
            outcome = "OK"
            return reply
        except CondenseryError as error:
            outcome = code_of(error).name
            await refuse(context, error, asked.request_id)
        except Exception:  # a bug must not show the caller its traceback, nor end the connection
            outcome = "INTERNAL"
            _log.exception(
                "internal_error", extra={"call": call.path, "request_id": asked.request_id}
            )
            details = f"internal error; the server's log has it under request id {asked.request_id}"
            await abort(context, grpc.StatusCode.INTERNAL, details, asked.request_id)
        finally:
            _report(call, asked, outcome, started)

    if call.unary is not None:
        return grpc.stream_unary_rpc_method_handler(handle)
    return grpc.stream_stream_rpc_method_handler(handle)


async def _serve(
    services: Services, call: Call[Any], readers: Readers, context: Context, asked: callers.Call
) -> bytes | None:
    metadata: Metadata = context.invocation_metadata() or ()
    with ExitStack() as stack:
        with counting_refusals(services, call.task, "grpc"):
            asked.deadline = min(asked.deadline, _deadline(context, metadata))
            data = await _in_time(readers.read(context), asked)
            _check_size(data, services.limits.max_body_bytes)
            stack.enter_context(services.admission.enter(len(data)))
            given = _parse(call, data)
        model = str(getattr(given, call.model_field, "")) or find(metadata, "x-model")
        stack.enter_context(_counted(services, call, given, model))
        asked.check()
        if call.unary is not None:
            return await _in_time(call.unary(services, given, model), asked)
        await _in_time(
            _stream(services, call, given, model, context), asked, margin=STREAM_MARGIN_SECONDS
        )
        return None


async def _in_time(work: Awaitable[Done], asked: callers.Call, *, margin: float = 0.0) -> Done:
    seconds = asked.seconds_left + margin
    try:
        async with asyncio.timeout(None if math.isinf(seconds) else seconds) as limit:
            return await work
    except TimeoutError as late:
        if not limit.expired():  # something behind has a limit of its own
            raise
        raise asked.expired() from late


async def _stream(
    services: Services, call: Call[Any], given: Any, model: str | None, context: Context
) -> None:
    assert call.stream is not None
    async with aclosing(call.stream(services, given, model)) as stream:
        async for message in stream:
            try:
                await context.write(message)
            except grpc.aio.InternalError as error:  # gRPC's word for a client that left
                raise asyncio.CancelledError from error


def _deadline(context: Context, metadata: Metadata) -> float:
    seconds = asking.patience(find(metadata, asking.TIMEOUT))
    remaining: float | None = context.time_remaining()
    return time.monotonic() + (seconds if remaining is None else min(seconds, remaining))


def _check_size(data: bytes, most: int) -> None:
    if len(data) > most:
        raise PayloadTooLarge(
            f"The message has {len(data)} bytes, over the limit of {most} (max_body_bytes).",
            value=len(data),
        )


def _parse(call: Call[Any], data: bytes) -> Any:
    try:
        return call.request.FromString(data)
    except DecodeError as error:
        raise InputError(
            f"The message is no {call.request.DESCRIPTOR.full_name}: it is malformed, nested too "
            "deep, or holds text that is not UTF-8."
        ) from error


def _counted(
    services: Services, call: Call[Any], given: Any, model: str | None
) -> AbstractContextManager[Any]:
    if call.task is None:
        return nullcontext()
    index = getattr(given, call.index_field) if call.index_field else None
    return account(services, model or _pair(services, given), call.task, "grpc", index=index)


def _pair(services: Services, given: Any) -> str | None:
    """Return the pair that made the context that a request is about, if it is about one."""
    handle = getattr(given, "context", "")
    try:
        return services.contexts.get(callers.current().caller, handle).pair if handle else None
    except CondenseryError:  # the job itself will say so
        return None


def _report(call: Call[Any], asked: callers.Call, outcome: str, started: float) -> None:
    """Log how a call ended. Nothing of the caller's is in it but the id and the key's name."""
    level = logging.INFO
    if outcome == "OK":
        level = logging.DEBUG
    elif outcome == "INTERNAL":
        level = logging.ERROR
    if not _log.isEnabledFor(level):
        return
    _log.log(
        level,
        "reply",
        extra={
            "request_id": asked.request_id,
            "call": call.path,
            "status": outcome,
            "ms": round((time.monotonic() - started) * 1000, 1),
            "key": guarding.caller() or "-",
        },
    )
