"""Our errors as gRPC statuses."""

import math

from grpc import StatusCode

from condensery import errors
from condensery.errors import CondenseryError, Overloaded

Trailer = tuple[str, str | bytes]

# Clients read 8 KiB of headers for sure. gRPC writes details percent-encoded.
MAX_DETAILS_BYTES = 4096
MAX_FIELD_CHARS = 256

CODES: dict[type[CondenseryError], StatusCode] = {
    errors.CondenseryError: StatusCode.INTERNAL,
    errors.InputError: StatusCode.INVALID_ARGUMENT,
    errors.EmptyInput: StatusCode.INVALID_ARGUMENT,
    errors.PayloadTooLarge: StatusCode.INVALID_ARGUMENT,  # RESOURCE_EXHAUSTED reads as "retry"
    errors.TokenIdsRefused: StatusCode.INVALID_ARGUMENT,
    errors.NotFound: StatusCode.NOT_FOUND,
    errors.ModelNotFound: StatusCode.NOT_FOUND,
    errors.IndexNotFound: StatusCode.NOT_FOUND,
    errors.Conflict: StatusCode.FAILED_PRECONDITION,
    errors.IndexExists: StatusCode.ALREADY_EXISTS,
    errors.EncoderMismatch: StatusCode.FAILED_PRECONDITION,
    errors.Overloaded: StatusCode.RESOURCE_EXHAUSTED,
    errors.Unavailable: StatusCode.UNAVAILABLE,
    errors.DeadlineExceeded: StatusCode.DEADLINE_EXCEEDED,
    errors.ModelFault: StatusCode.INTERNAL,
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


def code_of(error: CondenseryError) -> StatusCode:
    """Return the status of the error's nearest listed class."""
    return next(CODES[kind] for kind in type(error).__mro__ if kind in CODES)


def trailers(error: CondenseryError) -> tuple[Trailer, ...]:
    """Return what a client may want beside status and message.

    ``x-error`` is the error's class, ``x-field`` the request's field at fault,
    ``grpc-retry-pushback-ms`` when to come back.
    """
    found: list[Trailer] = [("x-error", type(error).__name__)]
    if error.field is not None and _is_header(error.field):
        found.append(("x-field", error.field))
    if isinstance(error, Overloaded):
        milliseconds = math.ceil(error.retry_after_seconds * 1000)
        found.append(("grpc-retry-pushback-ms", str(milliseconds)))
    return tuple(found)


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
