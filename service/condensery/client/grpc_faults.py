"""What can go wrong over gRPC, as our errors."""

from collections.abc import Iterable
from typing import Any

import grpc

from condensery import errors
from condensery.client.faults import Fault, rebuild
from condensery.errors import CondenseryError

# Where a reply names no class of ours, its code is all there is to go by.
NEAREST: dict[grpc.StatusCode, type[CondenseryError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: errors.InputError,
    grpc.StatusCode.UNAUTHENTICATED: errors.Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: errors.Forbidden,
    grpc.StatusCode.NOT_FOUND: errors.NotFound,
    grpc.StatusCode.ALREADY_EXISTS: errors.IndexExists,
    grpc.StatusCode.FAILED_PRECONDITION: errors.Conflict,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.Overloaded,
    grpc.StatusCode.UNAVAILABLE: errors.Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlineExceeded,
}


def read_fault(error: Any, address: str) -> Fault:
    """Read a refusal: ours by its trailing metadata, or the transport's own.

    Args:
        error: A ``grpc.RpcError`` of a call, which has the methods of a call.
        address: Of the server, to be named where the message is not the server's.
    """
    trailer = _text(error.trailing_metadata() or ())
    message, code = error.details() or "", error.code()
    name = trailer.get("x-error")
    if name is None:
        message = f"{address}: {message or code.name}"
    pushback = trailer.get("grpc-retry-pushback-ms", "")
    return rebuild(
        name,
        NEAREST.get(code, CondenseryError),
        message,
        field=trailer.get("x-field"),
        retry_after_seconds=float(pushback) / 1000 if pushback.isdigit() else None,
    )


def _text(metadata: Iterable[tuple[str, str | bytes]]) -> dict[str, str]:
    return {name: value for name, value in metadata if isinstance(value, str)}
