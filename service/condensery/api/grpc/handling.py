"""What stands around every call: bytes are read, errors become statuses, requests are counted."""

import asyncio
import logging
import time
from contextlib import ExitStack, aclosing
from typing import Any

import grpc

from condensery import callers
from condensery.api import asking
from condensery.api.grpc import guarding
from condensery.api.grpc.calls import Call
from condensery.api.grpc.errors import Context, abort, code_of, refuse
from condensery.api.grpc.metadata import Metadata, find, host_of
from condensery.api.grpc.reading import Readers
from condensery.api.grpc.requests import check_size, counted, deadline, in_time, parse
from condensery.api.grpc.streaming import Streams, serve_stream
from condensery.errors import CondenseryError
from condensery.jobs.accounting import counting_refusals
from condensery.jobs.services import Services

# A stream's time is looked at between its steps, so that what there is of it can still be told.
# This much later it is cut wherever it is: at a step that hangs, or a client that stopped reading.
STREAM_MARGIN_SECONDS = 1.0

_log = logging.getLogger(__name__)


def handler(services: Services, call: Call[Any], readers: Readers, streams: Streams) -> Any:
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
            started=started,
        )
        context.set_trailing_metadata((("x-request-id", asked.request_id),))
        outcome = "CANCELLED"  # unless it comes to an end of its own
        try:
            with callers.calling(asked):
                if call.streamed:
                    reply = await serve_stream(services, call, streams, context, asked)
                else:
                    reply = await _serve(services, call, readers, context, asked)
            outcome = "OK"
            return reply
        except CondenseryError as error:
            outcome = code_of(error, call.family).name
            await refuse(context, error, asked.request_id, call.family)
        except Exception:  # a bug must not show the caller its traceback, nor end the connection
            outcome = "INTERNAL"
            _log.exception(
                "internal_error", extra={"call": call.path, "request_id": asked.request_id}
            )
            details = f"internal error; the server's log has it under request id {asked.request_id}"
            await abort(context, grpc.StatusCode.INTERNAL, details, asked.request_id)
        finally:
            _report(call, asked, outcome, started)
            if call.each is None:  # of a stream of requests each is told by itself
                services.slow.tell(asked, door="grpc", route=call.path, status=outcome)

    if call.unary is not None or call.gather is not None:
        return grpc.stream_unary_rpc_method_handler(handle)
    return grpc.stream_stream_rpc_method_handler(handle)


async def _serve(
    services: Services, call: Call[Any], readers: Readers, context: Context, asked: callers.Call
) -> bytes | None:
    metadata: Metadata = context.invocation_metadata() or ()
    with ExitStack() as stack:
        with counting_refusals(services, call.task, "grpc"):
            asked.deadline = min(asked.deadline, deadline(context, metadata))
            data = await in_time(readers.read(context), asked)
            check_size(len(data), services.limits.max_body_bytes)
            stack.enter_context(services.admission.enter(len(data)))
            given = parse(call, data)
        model = str(getattr(given, call.model_field, "")) or find(metadata, "x-model")
        stack.enter_context(counted(services, call, given, model))
        asked.check()
        if call.unary is not None:
            return await in_time(call.unary(services, given, model), asked)
        await in_time(
            _stream(services, call, given, model, context), asked, margin=STREAM_MARGIN_SECONDS
        )
        return None


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
