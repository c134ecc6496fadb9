"""Our errors as gRPC statuses."""

import math
from typing import Any, Literal, NoReturn

import grpc
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from grpc import StatusCode

from condensery import errors
from condensery.errors import CondenseryError, Overloaded, Unavailable

Context = grpc.aio.ServicerContext[Any, Any]
Trailer = tuple[str, str | bytes]
# Whose contract a call is of: two have codes of their own for the same error.
Family = Literal["condensery", "tei"]

# When an unready server is worth asking again.
UNREADY_RETRY_SECONDS = 1.0

# Clients read 8 KiB of headers for sure. gRPC writes details percent-encoded.
MAX_DETAILS_BYTES = 4096
MAX_FIELD_CHARS = 256

CODES: dict[type[CondenseryError], StatusCode] = {
    errors.CondenseryError: StatusCode.INTERNAL,
    errors.InputError: StatusCode.INVALID_ARGUMENT,
    errors.EmptyInput: StatusCode.INVALID_ARGUMENT,
    errors.PayloadTooLarge: StatusCode.INVALID_ARGUMENT,  # RESOURCE_EXHAUSTED reads as "retry"
    errors.HeadersTooLarge: StatusCode.INVALID_ARGUMENT,
    errors.TokenIdsRefused: StatusCode.INVALID_ARGUMENT,
    errors.ContextTooLong: StatusCode.INVALID_ARGUMENT,
    errors.Unauthenticated: StatusCode.UNAUTHENTICATED,
    errors.Forbidden: StatusCode.PERMISSION_DENIED,
    errors.NotFound: StatusCode.NOT_FOUND,
    errors.ModelNotFound: StatusCode.NOT_FOUND,
    errors.ModelCannot: StatusCode.NOT_FOUND,
    errors.ModelAliasToNothing: StatusCode.NOT_FOUND,
    errors.ReportNotFound: StatusCode.NOT_FOUND,
    errors.IndexNotFound: StatusCode.NOT_FOUND,
    errors.IndexClosed: StatusCode.NOT_FOUND,
    errors.AliasNotFound: StatusCode.NOT_FOUND,
    errors.AliasToNothing: StatusCode.NOT_FOUND,
    errors.SnapshotNotFound: StatusCode.NOT_FOUND,
    errors.RebuildNotFound: StatusCode.NOT_FOUND,
    errors.ContextNotFound: StatusCode.NOT_FOUND,
    errors.ContextExpired: StatusCode.NOT_FOUND,
    errors.ContextLost: StatusCode.NOT_FOUND,
    errors.Conflict: StatusCode.FAILED_PRECONDITION,
    errors.IndexExists: StatusCode.ALREADY_EXISTS,
    errors.NameTaken: StatusCode.ALREADY_EXISTS,
    errors.AliasCircle: StatusCode.FAILED_PRECONDITION,
    errors.IndexAliased: StatusCode.FAILED_PRECONDITION,
    # RESOURCE_EXHAUSTED reads as "retry", here too
    errors.LimitReached: StatusCode.FAILED_PRECONDITION,
    errors.SnapshotDamaged: StatusCode.FAILED_PRECONDITION,
    errors.SnapshotTooNew: StatusCode.FAILED_PRECONDITION,
    errors.RebuildRunning: StatusCode.FAILED_PRECONDITION,
    errors.TextsMissing: StatusCode.FAILED_PRECONDITION,
    errors.EncoderMismatch: StatusCode.FAILED_PRECONDITION,
    errors.ContextMismatch: StatusCode.FAILED_PRECONDITION,
    errors.ModelInUse: StatusCode.FAILED_PRECONDITION,
    errors.ModelNotLoaded: StatusCode.FAILED_PRECONDITION,
    errors.ModelAliasTaken: StatusCode.FAILED_PRECONDITION,
    errors.ModelAliasCircle: StatusCode.FAILED_PRECONDITION,
    errors.Overloaded: StatusCode.RESOURCE_EXHAUSTED,
    errors.Unavailable: StatusCode.UNAVAILABLE,
    errors.DeadlineExceeded: StatusCode.DEADLINE_EXCEEDED,
    errors.ExpiredInQueue: StatusCode.DEADLINE_EXCEEDED,
    errors.ModelFault: StatusCode.INTERNAL,
    errors.CompressionFailed: StatusCode.INTERNAL,
    errors.StoreError: StatusCode.INTERNAL,
    errors.CorruptModel: StatusCode.INTERNAL,
    errors.StorageError: StatusCode.INTERNAL,
    errors.StorageFull: StatusCode.INTERNAL,
    errors.StorageReadOnly: StatusCode.INTERNAL,
    errors.StartError: StatusCode.INTERNAL,
    errors.PortTaken: StatusCode.INTERNAL,
    errors.DataDirTaken: StatusCode.INTERNAL,
    errors.SettingError: StatusCode.INTERNAL,
}

# TEI tells what is the model's fault, whether it can't do it or failed at it, in one way.
TEI_CODES: dict[type[CondenseryError], StatusCode] = {
    **CODES,
    errors.ModelCannot: StatusCode.FAILED_PRECONDITION,
    errors.ModelFault: StatusCode.FAILED_PRECONDITION,
}
TABLES: dict[Family, dict[type[CondenseryError], StatusCode]] = {
    "condensery": CODES,
    "tei": TEI_CODES,
}


def code_of(error: CondenseryError, family: Family = "condensery") -> StatusCode:
    """Return the status of the error's nearest listed class."""
    table = TABLES[family]
    return next(table[kind] for kind in type(error).__mro__ if kind in table)


def trailers(error: CondenseryError) -> tuple[Trailer, ...]:
    """Return what a client may want beside status and message.

    ``x-error`` is the error's class, ``x-field`` the request's field at fault. When to come back
    is said twice: ``grpc-retry-pushback-ms`` for gRPC's own retries, and in
    ``grpc-status-details-bin`` google.rpc's RetryInfo for clients with their own.
    """
    found: list[Trailer] = [("x-error", type(error).__name__)]
    if error.field is not None and _is_header(error.field):
        found.append(("x-field", error.field))
    seconds = _retry_seconds(error)
    if seconds is not None:
        milliseconds = math.ceil(seconds * 1000)
        found.append(("grpc-retry-pushback-ms", str(milliseconds)))
        found.append(("grpc-status-details-bin", _retry_info(error, milliseconds)))
    return tuple(found)


async def refuse(
    context: Context, error: CondenseryError, request_id: str, family: Family = "condensery"
) -> NoReturn:
    """End a call with ``error``."""
    await abort(context, code_of(error, family), error.message, request_id, *trailers(error))


async def abort(
    context: Context, code: StatusCode, message: str, request_id: str, *extra: Trailer
) -> NoReturn:
    """End a call with a status of any kind."""
    await context.abort(
        code, fit(message), trailing_metadata=(*extra, ("x-request-id", request_id))
    )
    raise AssertionError  # abort raises


def _retry_seconds(error: CondenseryError) -> float | None:
    if isinstance(error, Overloaded):
        return error.retry_after_seconds
    return UNREADY_RETRY_SECONDS if isinstance(error, Unavailable) else None


def _retry_info(error: CondenseryError, milliseconds: int) -> bytes:
    info = RetryInfo()
    info.retry_delay.FromMilliseconds(milliseconds)
    # Clients refuse details whose code and message are not those of the reply.
    status = Status(code=code_of(error).value[0], message=fit(error.message))
    status.details.add().Pack(info)
    written: bytes = status.SerializeToString()
    return written


def fit(message: str) -> str:
    """Return the message, cut if headers would not hold it."""
    message = message.encode("utf-8", "replace").decode()
    size = 0
    for place, char in enumerate(message):
        size += 1 if " " <= char <= "~" and char != "%" else 3 * len(char.encode())
        if size > MAX_DETAILS_BYTES:
            return message[:place] + "…"
    return message


def _is_header(text: str) -> bool:
    return text.isascii() and text.isprintable() and len(text) <= MAX_FIELD_CHARS
