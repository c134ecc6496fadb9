"""Our errors as each family of REST clients reads them.

Families: ``tei`` (TEI's flat body), ``openai`` (OpenAI's nested one, ours too), ``rerank`` (one
body in which Cohere's, Jina's and OpenAI's clients each find their field) and ``kserve``.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import orjson
from starlette.responses import Response

from condensery import errors
from condensery.errors import (
    CondenseryError,
    Unauthenticated,
    Unavailable,
    code_of,
)

Family = Literal["tei", "openai", "rerank", "kserve"]
FAMILIES: tuple[Family, ...] = get_args(Family)
TeiType = Literal["Validation", "Empty", "Overloaded", "Backend", "Unhealthy"]

# When an unready server is worth asking again.
UNREADY_RETRY_SECONDS = 1.0

_INVALID = "invalid_request_error"
_SERVER = "server_error"


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """How a class of errors is replied, a column for each family.

    Attributes:
        tei: HTTP status, and TEI's ``error_type``.
        openai: HTTP status, and OpenAI's ``error.type``; of the others the status alone.
    """

    tei: tuple[int, TeiType]
    openai: tuple[int, str]
    rerank: int
    kserve: int

    def status(self, family: Family) -> int:
        """Return a family's HTTP status."""
        if family == "tei":
            return self.tei[0]
        if family == "openai":
            return self.openai[0]
        return self.rerank if family == "rerank" else self.kserve


# A class without a row has that of its nearest ancestor here.
ERROR_ROWS: dict[type[CondenseryError], ErrorRow] = {
    #                             tei                  openai             rerank  kserve
    errors.CondenseryError: ErrorRow((500, "Backend"), (500, _SERVER), 500, 500),
    errors.InputError: ErrorRow((422, "Validation"), (400, _INVALID), 400, 400),
    errors.EmptyInput: ErrorRow((400, "Empty"), (400, _INVALID), 400, 400),
    errors.PayloadTooLarge: ErrorRow((413, "Validation"), (413, _INVALID), 413, 413),
    errors.HeadersTooLarge: ErrorRow((431, "Validation"), (431, _INVALID), 431, 431),
    errors.Unauthenticated: ErrorRow((401, "Validation"), (401, _INVALID), 401, 401),
    errors.Forbidden: ErrorRow((403, "Validation"), (403, "permission_error"), 403, 403),
    errors.NotFound: ErrorRow((404, "Validation"), (404, _INVALID), 404, 404),
    errors.ModelCannot: ErrorRow((424, "Backend"), (404, _INVALID), 404, 404),
    errors.ContextExpired: ErrorRow((410, "Validation"), (410, _INVALID), 410, 410),
    errors.ContextLost: ErrorRow((410, "Validation"), (410, _INVALID), 410, 410),
    errors.Conflict: ErrorRow((409, "Validation"), (409, "conflict"), 409, 409),
    errors.ModelNotLoaded: ErrorRow((409, "Backend"), (409, "conflict"), 409, 400),
    errors.Overloaded: ErrorRow((429, "Overloaded"), (429, "rate_limit_error"), 429, 429),
    errors.Unavailable: ErrorRow((503, "Unhealthy"), (503, "service_unavailable_error"), 503, 503),
    errors.DeadlineExceeded: ErrorRow((504, "Backend"), (504, "timeout"), 504, 504),
    errors.ExpiredInQueue: ErrorRow((408, "Backend"), (408, "timeout"), 408, 408),
    errors.ModelFault: ErrorRow((424, "Backend"), (500, _SERVER), 500, 500),
    errors.CompressionFailed: ErrorRow((424, "Backend"), (424, _SERVER), 424, 424),
    errors.AnswerServerFault: ErrorRow((502, "Backend"), (502, _SERVER), 502, 502),
    errors.AnswerServerSlow: ErrorRow((504, "Backend"), (504, "timeout"), 504, 504),
    errors.VectorDatabaseFault: ErrorRow((502, "Backend"), (502, _SERVER), 502, 502),
    errors.StoreError: ErrorRow((500, "Backend"), (500, _SERVER), 500, 500),
    errors.StorageError: ErrorRow((500, "Backend"), (500, _SERVER), 500, 500),
    errors.StorageFull: ErrorRow((507, "Backend"), (507, _SERVER), 507, 507),
    errors.StartError: ErrorRow((500, "Backend"), (500, _SERVER), 500, 500),
}

# Errors that only HTTP has, and so are no classes of ours.
METHOD_NOT_ALLOWED = ErrorRow((405, "Validation"), (405, _INVALID), 405, 405)
MALFORMED = ErrorRow((400, "Validation"), (400, _INVALID), 400, 400)

# Clients retry 409 and 5xx by themselves; for these that is of no use.
_NOT_RETRIED = (
    errors.Conflict,
    errors.ModelFault,
    errors.AnswerServerFault,
    errors.VectorDatabaseFault,
    errors.StoreError,
    errors.StorageError,
)


@dataclass(frozen=True, slots=True)
class TeiError:
    """What is wrong, as TEI says it."""

    error: str
    error_type: TeiType


@dataclass(frozen=True, slots=True)
class ErrorDetail:
    """What is wrong, and where."""

    message: str
    type: str
    param: str | None
    code: str


@dataclass(frozen=True, slots=True)
class OpenAIError:
    """What is wrong, as OpenAI says it, and as we do."""

    error: ErrorDetail


@dataclass(frozen=True, slots=True)
class RerankError:
    """What is wrong, where Cohere's, Jina's and OpenAI's clients each look for it."""

    message: str
    detail: str
    error: ErrorDetail


@dataclass(frozen=True, slots=True)
class KServeError:
    """What is wrong, as KServe says it."""

    error: str


ErrorBody = TeiError | OpenAIError | RerankError | KServeError


def render_error(error: CondenseryError, family: Family) -> Response:
    """Return the reply for ``error``, as a family's clients expect it."""
    body = make_error_body(error, family)
    return _reply(body, find_row(type(error)).status(family), _headers(error))


def render_row(row: ErrorRow, family: Family, code: str, message: str) -> Response:
    """Return the reply for what is no error of ours: a wrong method, no HTTP, a bug."""
    return _reply(ERROR_BODIES[family](row, message, code, None), row.status(family))


def make_error_body(error: CondenseryError, family: Family) -> ErrorBody:
    """Return the body of an error."""
    kind = type(error)
    return ERROR_BODIES[family](find_row(kind), error.message, code_of(kind), error.field)


def find_row(kind: type[CondenseryError]) -> ErrorRow:
    """Return the row of the nearest class that has one."""
    return next(ERROR_ROWS[base] for base in kind.__mro__ if base in ERROR_ROWS)


def _tei(row: ErrorRow, message: str, _code: str, _field: str | None) -> TeiError:
    return TeiError(message, row.tei[1])


def _openai(row: ErrorRow, message: str, code: str, field: str | None) -> OpenAIError:
    return OpenAIError(ErrorDetail(message, row.openai[1], field, code))


def _rerank(row: ErrorRow, message: str, code: str, field: str | None) -> RerankError:
    return RerankError(message, message, ErrorDetail(message, row.openai[1], field, code))


def _kserve(_row: ErrorRow, message: str, _code: str, _field: str | None) -> KServeError:
    return KServeError(message)


ERROR_BODIES: dict[Family, Callable[[ErrorRow, str, str, str | None], ErrorBody]] = {
    "tei": _tei,
    "openai": _openai,
    "rerank": _rerank,
    "kserve": _kserve,
}


def _reply(body: ErrorBody, status: int, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(body), status, headers=headers, media_type="application/json")


def _headers(error: CondenseryError) -> dict[str, str]:
    if isinstance(error, Unauthenticated):
        return {"www-authenticate": "Bearer"}
    seconds = error.retry_after_seconds
    if seconds is None and isinstance(error, Unavailable):
        seconds = UNREADY_RETRY_SECONDS
    if seconds is None:
        return {"x-should-retry": "false"} if isinstance(error, _NOT_RETRIED) else {}
    return {
        "retry-after": str(math.ceil(seconds)),
        "retry-after-ms": str(math.ceil(seconds * 1000)),
        "x-should-retry": "true",
    }
