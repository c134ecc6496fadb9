"""What stands around every call: bytes are read, errors become statuses, requests are counted."""

import asyncio
import logging
import secrets
from contextlib import AbstractContextManager, aclosing, nullcontext
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from condensery.api.grpc.calls import Call
from condensery.api.grpc.errors import code_of, fit, trailers
from condensery.errors import CondenseryError, InputError, PayloadTooLarge
from condensery.jobs.accounting import account
from condensery.jobs.services import Services

Context = grpc.aio.ServicerContext[Any, Any]

MAX_REQUEST_ID_CHARS = 128

_log = logging.getLogger(__name__)


def handler(services: Services, call: Call[Any]) -> Any:
    """Return a call as gRPC wants it.

    Messages come as bytes and are parsed here: gRPC would fail a malformed one with UNKNOWN and
    its own words. A stream is written from a coroutine, not yielded: a client that leaves cancels
    the coroutine wherever it is, and the generator behind it is closed at once.
    """

    async def handle(data: bytes, context: Context) -> bytes | None:
        request_id = _request_id(context)
        context.set_trailing_metadata((("x-request-id", request_id),))
        try:
            given = _parse(services, call, data)
            model = str(getattr(given, call.model_field, "")) or _metadata(context, "x-model")
            with _counted(services, call, given, model):
                if call.unary is not None:
                    return await call.unary(services, given, model)
                assert call.stream is not None
                async with aclosing(call.stream(services, given, model)) as stream:
                    async for message in stream:
                        await _write(context, message)
                return None
        except CondenseryError as error:
            code, details, extra = code_of(error), error.message, trailers(error)
        except Exception:  # a bug must not show the caller its traceback, nor end the connection
            _log.exception("internal_error", extra={"call": call.path, "request_id": request_id})
            code, extra = grpc.StatusCode.INTERNAL, ()
            details = f"internal error; the server's log has it under request id {request_id}"
        await context.abort(
            code, fit(details), trailing_metadata=(*extra, ("x-request-id", request_id))
        )
        raise AssertionError  # abort raises

    if call.unary is not None:
        return grpc.unary_unary_rpc_method_handler(handle)
    return grpc.unary_stream_rpc_method_handler(handle)


async def _write(context: Context, message: bytes) -> None:
    try:
        await context.write(message)
    except grpc.aio.InternalError as error:  # gRPC's word for a client that left as we wrote
        raise asyncio.CancelledError from error


def _parse(services: Services, call: Call[Any], data: bytes) -> Any:
    most = services.limits.max_body_bytes
    if len(data) > most:
        raise PayloadTooLarge(
            f"The message has {len(data)} bytes, over the limit of {most} (max_body_bytes).",
            value=len(data),
        )
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
    return account(services, model, call.task, "grpc", index=index)


def _metadata(context: Context, name: str) -> str | None:
    for key, value in context.invocation_metadata() or ():
        if key == name and isinstance(value, str):
            return value
    return None


def _request_id(context: Context) -> str:
    """Return the caller's id if it can stand in a header and a log line, else a new one."""
    given = _metadata(context, "x-request-id") or ""
    if given.isascii() and given.isprintable() and 0 < len(given) <= MAX_REQUEST_ID_CHARS:
        return given
    return secrets.token_hex(16)
