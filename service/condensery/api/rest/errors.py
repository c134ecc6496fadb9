"""Our errors as each family of REST clients reads them. FastAPI's own bodies never leave.

Families: ``tei`` (TEI's flat body), ``openai`` (OpenAI's nested one, ours too), ``rerank`` (one
body in which Cohere's, Jina's and OpenAI's clients each find their field) and ``kserve``.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import orjson
from starlette.responses import Response

from condensery import errors
from condensery.errors import CondenseryError, Overloaded, Unauthenticated, Unavailable, code_of

Family = Literal["tei", "openai", "rerank", "kserve"]
FAMILIES: tuple[Family, ...] = get_args(Family)
TeiType = Literal["Validation", "Empty", "Overloaded", "Backend", "Unhealthy"]

# When an unready server is worth asking again.
UNREADY_RETRY_SECONDS = 1.0

_INVALID = "invalid_request_error"
_SERVER = "server_error"


@dataclass(frozen=True, slots=True)
class Row:
    """How one class of errors leaves, a column for each family.

    Attributes:
        tei: HTTP status, and TEI's ``error_type``.
        openai: HTTP status, and OpenAI's ``error.type``.
        rerank: HTTP status.
        kserve: HTTP status.
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


ROWS: dict[type[CondenseryError], Row] = {
    #                             tei                  openai             rerank  kserve
    errors.CondenseryError: Row((500, "Backend"), (500, _SERVER), 500, 500),
    errors.InputError: Row((422, "Validation"), (400, _INVALID), 400, 400),
    errors.EmptyInput: Row((400, "Empty"), (400, _INVALID), 400, 400),
    errors.PayloadTooLarge: Row((413, "Validation"), (413, _INVALID), 413, 413),
    errors.HeadersTooLarge: Row((431, "Validation"), (431, _INVALID), 431, 431),
    errors.TokenIdsRefused: Row((422, "Validation"), (400, _INVALID), 400, 400),
    errors.ContextTooLong: Row((422, "Validation"), (400, _INVALID), 400, 400),
    errors.Unauthenticated: Row((401, "Validation"), (401, _INVALID), 401, 401),
    errors.Forbidden: Row((403, "Validation"), (403, "permission_error"), 403, 403),
    errors.NotFound: Row((404, "Validation"), (404, _INVALID), 404, 404),
    errors.ModelNotFound: Row((404, "Validation"), (404, _INVALID), 404, 404),
    errors.ModelCannot: Row((424, "Backend"), (404, _INVALID), 404, 404),
    errors.ModelAliasToNothing: Row((404, "Validation"), (404, _INVALID), 404, 404),
    errors.ReportNotFound: Row((404, "Validation"), (404, _INVALID), 404, 404),
    errors.IndexNotFound: Row((404, "Validation"), (404, _INVALID), 404, 404),
    errors.IndexClosed: Row((404, "Validation"), (404, _INVALID), 404, 404),
    errors.AliasNotFound: Row((404, "Validation"), (404, _INVALID), 404, 404),
    errors.AliasToNothing: Row((404, "Validation"), (404, _INVALID), 404, 404),
    errors.SnapshotNotFound: Row((404, "Validation"), (404, _INVALID), 404, 404),
    errors.RebuildNotFound: Row((404, "Validation"), (404, _INVALID), 404, 404),
    errors.ContextNotFound: Row((404, "Validation"), (404, _INVALID), 404, 404),
    errors.ContextExpired: Row((410, "Validation"), (410, _INVALID), 410, 410),
    errors.ContextLost: Row((410, "Validation"), (410, _INVALID), 410, 410),
    errors.Conflict: Row((409, "Validation"), (409, "conflict"), 409, 409),
    errors.IndexExists: Row((409, "Validation"), (409, "conflict"), 409, 409),
    errors.NameTaken: Row((409, "Validation"), (409, "conflict"), 409, 409),
    errors.AliasCircle: Row((409, "Validation"), (409, "conflict"), 409, 409),
    errors.IndexAliased: Row((409, "Validation"), (409, "conflict"), 409, 409),
    errors.LimitReached: Row((409, "Validation"), (409, "conflict"), 409, 409),
    errors.SnapshotDamaged: Row((409, "Validation"), (409, "conflict"), 409, 409),
    errors.SnapshotTooNew: Row((409, "Validation"), (409, "conflict"), 409, 409),
    errors.RebuildRunning: Row((409, "Validation"), (409, "conflict"), 409, 409),
    errors.TextsMissing: Row((409, "Validation"), (409, "conflict"), 409, 409),
    errors.EncoderMismatch: Row((409, "Validation"), (409, "conflict"), 409, 409),
    errors.ContextMismatch: Row((409, "Validation"), (409, "conflict"), 409, 409),
    errors.ModelInUse: Row((409, "Validation"), (409, "conflict"), 409, 409),
    errors.ModelNotLoaded: Row((409, "Backend"), (409, "conflict"), 409, 400),
    errors.ModelAliasTaken: Row((409, "Validation"), (409, "conflict"), 409, 409),
    errors.ModelAliasCircle: Row((409, "Validation"), (409, "conflict"), 409, 409),
    errors.Overloaded: Row((429, "Overloaded"), (429, "rate_limit_error"), 429, 429),
    errors.Unavailable: Row((503, "Unhealthy"), (503, "service_unavailable_error"), 503, 503),
    errors.DeadlineExceeded: Row((504, "Backend"), (504, "timeout"), 504, 504),
    errors.ExpiredInQueue: Row((408, "Backend"), (408, "timeout"), 408, 408),
    errors.ModelFault: Row((424, "Backend"), (500, _SERVER), 500, 500),
    errors.CompressionFailed: Row((424, "Backend"), (424, _SERVER), 424, 424),
    errors.StoreError: Row((500, "Backend"), (500, _SERVER), 500, 500),
    errors.CorruptModel: Row((500, "Backend"), (500, _SERVER), 500, 500),
    errors.StorageError: Row((500, "Backend"), (500, _SERVER), 500, 500),
    errors.StorageFull: Row((507, "Backend"), (507, _SERVER), 507, 507),
    errors.StorageReadOnly: Row((500, "Backend"), (500, _SERVER), 500, 500),
    errors.StartError: Row((500, "Backend"), (500, _SERVER), 500, 500),
    errors.PortTaken: Row((500, "Backend"), (500, _SERVER), 500, 500),
    errors.DataDirTaken: Row((500, "Backend"), (500, _SERVER), 500, 500),
    errors.SettingError: Row((500, "Backend"), (500, _SERVER), 500, 500),
}

# What only HTTP knows, and so is no class of ours.
METHOD_NOT_ALLOWED = Row((405, "Validation"), (405, _INVALID), 405, 405)
MALFORMED = Row((400, "Validation"), (400, _INVALID), 400, 400)

# Clients retry 409 and 5xx by themselves; these will not get better by that.
_HOPELESS = (errors.Conflict, errors.ModelFault, errors.StoreError, errors.StorageError)


def render(error: CondenseryError, family: Family) -> Response:
    """Return the reply that tells a family's client of ``error``."""
    body = error_body(error, family)
    return _reply(body, row_of(type(error)).status(family), _headers(error))


def render_as(row: Row, family: Family, code: str, message: str) -> Response:
    """Return the reply for what is no error of ours: a wrong method, no HTTP, a bug."""
    return _reply(BODIES[family](row, message, code, None), row.status(family))


def error_body(error: CondenseryError, family: Family) -> dict[str, Any]:
    """Return the JSON of an error."""
    kind = type(error)
    return BODIES[family](row_of(kind), error.message, code_of(kind), error.field)


def row_of(kind: type[CondenseryError]) -> Row:
    """Return the row of the nearest listed class."""
    return next(ROWS[base] for base in kind.__mro__ if base in ROWS)


def _tei(row: Row, message: str, code: str, field: str | None) -> dict[str, Any]:
    del code, field
    return {"error": message, "error_type": row.tei[1]}


def _openai(row: Row, message: str, code: str, field: str | None) -> dict[str, Any]:
    return {"error": {"message": message, "type": row.openai[1], "param": field, "code": code}}


def _rerank(row: Row, message: str, code: str, field: str | None) -> dict[str, Any]:
    return {"message": message, "detail": message, **_openai(row, message, code, field)}


def _kserve(row: Row, message: str, code: str, field: str | None) -> dict[str, Any]:
    del row, code, field
    return {"error": message}


BODIES: dict[Family, Callable[[Row, str, str, str | None], dict[str, Any]]] = {
    "tei": _tei,
    "openai": _openai,
    "rerank": _rerank,
    "kserve": _kserve,
}


def _reply(body: dict[str, Any], status: int, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(body), status, headers=headers, media_type="application/json")


def _headers(error: CondenseryError) -> dict[str, str]:
    if isinstance(error, Unauthenticated):
        return {"www-authenticate": "Bearer"}
    if isinstance(error, Overloaded):
        seconds = error.retry_after_seconds
    elif isinstance(error, Unavailable):
        seconds = UNREADY_RETRY_SECONDS
    else:
        return {"x-should-retry": "false"} if isinstance(error, _HOPELESS) else {}
    return {
        "retry-after": str(math.ceil(seconds)),
        "retry-after-ms": str(math.ceil(seconds * 1000)),
        "x-should-retry": "true",
    }
