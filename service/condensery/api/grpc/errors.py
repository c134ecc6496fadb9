"""Our errors as gRPC statuses."""

import math
from typing import Any, Literal, NoReturn

import grpc
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from grpc import StatusCode

from condensery import errors
from condensery.errors import CondenseryError, Unavailable

CallContext = grpc.aio.ServicerContext[Any, Any]
Trailer = tuple[str, str | bytes]
# The contract a call is of: each has its own codes for some errors.
Family = Literal["condensery", "tei"]

# When to try an unready server again.
UNREADY_RETRY_SECONDS = 1.0

# All clients read 8 KiB of headers. gRPC writes details percent-encoded.
MAX_DETAILS_BYTES = 4096
MAX_FIELD_CHARS = 256

# An error that is not listed has the code of its nearest parent.
STATUS_CODES: dict[type[CondenseryError], StatusCode] = {
    errors.CondenseryError: StatusCode.INTERNAL,
    # Also for payloads that are too large, as Conflict's is for limits: RESOURCE_EXHAUSTED reads as
    # "retry".
    errors.InputError: StatusCode.INVALID_ARGUMENT,
    errors.Unauthenticated: StatusCode.UNAUTHENTICATED,
    errors.Forbidden: StatusCode.PERMISSION_DENIED,
    errors.NotFound: StatusCode.NOT_FOUND,
    errors.Conflict: StatusCode.FAILED_PRECONDITION,
    errors.IndexExists: StatusCode.ALREADY_EXISTS,
    errors.NameTaken: StatusCode.ALREADY_EXISTS,
    errors.Overloaded: StatusCode.RESOURCE_EXHAUSTED,
    errors.Unavailable: StatusCode.UNAVAILABLE,
    errors.DeadlineExceeded: StatusCode.DEADLINE_EXCEEDED,
    errors.AnswerServerSlow: StatusCode.DEADLINE_EXCEEDED,
}

# TEI has one code for what is the model's fault, whether it can't do it or failed at it.
TEI_STATUS_CODES: dict[type[CondenseryError], StatusCode] = {
    **STATUS_CODES,
    errors.ModelCannot: StatusCode.FAILED_PRECONDITION,
    errors.ModelFault: StatusCode.FAILED_PRECONDITION,
    errors.CompressionFailed: StatusCode.INTERNAL,
}
STATUS_CODES_BY_FAMILY: dict[Family, dict[type[CondenseryError], StatusCode]] = {
    "condensery": STATUS_CODES,
    "tei": TEI_STATUS_CODES,
}


def status_code_of(error: CondenseryError, family: Family = "condensery") -> StatusCode:
    """Return the status of the error's nearest listed class."""
    table = STATUS_CODES_BY_FAMILY[family]
    return next(table[kind] for kind in type(error).__mro__ if kind in table)


def make_trailers(error: CondenseryError) -> tuple[Trailer, ...]:
    """Return what clients may need beside status and message.

    ``x-error`` is the error's class, ``x-field`` the request's field at fault. When to retry
    stands twice: in ``grpc-retry-pushback-ms`` for gRPC's own retries, and as google.rpc's
    RetryInfo in ``grpc-status-details-bin`` for clients with their own.
    """
    trailers: list[Trailer] = [("x-error", type(error).__name__)]
    if error.field is not None and _is_header(error.field):
        trailers.append(("x-field", error.field))
    seconds = _retry_seconds(error)
    if seconds is not None:
        milliseconds = math.ceil(seconds * 1000)
        trailers.append(("grpc-retry-pushback-ms", str(milliseconds)))
        trailers.append(("grpc-status-details-bin", _retry_info(error, milliseconds)))
    return tuple(trailers)


async def abort_with_error(
    context: CallContext, error: CondenseryError, request_id: str, family: Family = "condensery"
) -> NoReturn:
    """End a call with ``error``."""
    await abort_call(
        context, status_code_of(error, family), error.message, request_id, *make_trailers(error)
    )


async def abort_call(
    context: CallContext, code: StatusCode, message: str, request_id: str, *extra: Trailer
) -> NoReturn:
    """End a call with a status of any kind."""
    await context.abort(
        code, fit_details(message), trailing_metadata=(*extra, ("x-request-id", request_id))
    )
    raise AssertionError  # abort raises


def _retry_seconds(error: CondenseryError) -> float | None:
    if error.retry_after_seconds is None and isinstance(error, Unavailable):
        return UNREADY_RETRY_SECONDS
    return error.retry_after_seconds


def _retry_info(error: CondenseryError, milliseconds: int) -> bytes:
    info = RetryInfo()
    info.retry_delay.FromMilliseconds(milliseconds)
    # Clients refuse details whose code and message are not those of the reply.
    status = Status(code=status_code_of(error).value[0], message=fit_details(error.message))
    status.details.add().Pack(info)
    details: bytes = status.SerializeToString()
    return details


def fit_details(message: str) -> str:
    """Return the message, cut to what headers hold."""
    message = message.encode("utf-8", "replace").decode()
    size = 0
    for place, char in enumerate(message):
        size += 1 if " " <= char <= "~" and char != "%" else 3 * len(char.encode())
        if size > MAX_DETAILS_BYTES:
            return message[:place] + "…"
    return message


def _is_header(text: str) -> bool:
    return text.isascii() and text.isprintable() and len(text) <= MAX_FIELD_CHARS
