"""What every request is put through, one of many in a stream too: its size, its time, its count."""

import asyncio
import math
import time
from collections.abc import Awaitable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from google.protobuf.message import DecodeError

from condensery import callers
from condensery.api import asking
from condensery.api.grpc.calls import Call
from condensery.api.grpc.errors import Context
from condensery.api.grpc.metadata import Metadata, find
from condensery.errors import CondenseryError, InputError, PayloadTooLarge
from condensery.jobs.accounting import account
from condensery.jobs.services import Services

Done = TypeVar("Done")


async def in_time(work: Awaitable[Done], asked: callers.Call, *, margin: float = 0.0) -> Done:
    """Wait for ``work`` as long as the caller does, and ``margin`` seconds more.

    Raises:
        DeadlineExceeded: Their time is over; ExpiredInQueue if nothing had begun.
    """
    seconds = asked.seconds_left + margin
    try:
        async with asyncio.timeout(None if math.isinf(seconds) else seconds) as limit:
            return await work
    except TimeoutError as late:
        if not limit.expired():  # something behind has a limit of its own
            raise
        raise asked.expired() from late


def deadline(context: Context, metadata: Metadata) -> float:
    """Return when the client waits no more, seconds of ``time.monotonic``; may be never.

    Raises:
        InputError: The metadata name a time that is none.
    """
    seconds = asking.patience(find(metadata, asking.TIMEOUT))
    remaining: float | None = context.time_remaining()
    return time.monotonic() + (seconds if remaining is None else min(seconds, remaining))


def check_size(size: int, most: int, *, what: str = "The message has") -> None:
    """Refuse a message, or a stream of them, of over ``most`` bytes."""
    if size > most:
        raise PayloadTooLarge(
            f"{what} {size} bytes, over the limit of {most} (max_body_bytes).", value=size
        )


def parse(call: Call[Any], data: bytes) -> Any:
    """Read a call's message.

    Raises:
        InputError: It is none of that call's.
    """
    try:
        return call.request.FromString(data)
    except DecodeError as error:
        raise InputError(
            f"The message is no {call.request.DESCRIPTOR.full_name}: it is malformed, nested too "
            "deep, or holds text that is not UTF-8."
        ) from error


def counted(
    services: Services, call: Call[Any], given: Any, model: str | None
) -> AbstractContextManager[Any]:
    """Count what is done in a block as one request, of the model that it names."""
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
