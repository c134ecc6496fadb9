"""Our errors as each family of REST clients reads them. FastAPI's own bodies never leave.

Families: ``tei`` (TEI's flat body), ``openai`` (OpenAI's nested one, ours too) and ``rerank`` (one
body in which Cohere's, Jina's and OpenAI's clients each find their field).
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import orjson
from starlette.responses import Response

from condensery import errors
from condensery.errors import CondenseryError, Overloaded, Unavailable, code_of

Family = Literal["tei", "openai", "rerank"]

# When an unready server is worth asking again.
UNREADY_RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one class of errors leaves.

    Attributes:
        status: HTTP status.
        tei_status: That of TEI's routes, where it differs.
        tei_type: TEI's ``error_type``.
        type: OpenAI's ``error.type``.
    """

    status: int
    tei_type: Literal["Validation", "Empty", "Overloaded", "Backend", "Unhealthy"]
    type: str
    tei_status: int | None = None


_INVALID = "invalid_request_error"
_SERVER = "server_error"

OUTCOMES: dict[type[CondenseryError], Outcome] = {
    errors.CondenseryError: Outcome(500, "Backend", _SERVER),
    errors.InputError: Outcome(400, "Validation", _INVALID, tei_status=422),
    errors.EmptyInput: Outcome(400, "Empty", _INVALID),
    errors.PayloadTooLarge: Outcome(413, "Validation", _INVALID),
    errors.TokenIdsRefused: Outcome(400, "Validation", _INVALID, tei_status=422),
    errors.NotFound: Outcome(404, "Validation", _INVALID),
    errors.ModelNotFound: Outcome(404, "Validation", _INVALID),
    errors.IndexNotFound: Outcome(404, "Validation", _INVALID),
    errors.Conflict: Outcome(409, "Validation", "conflict"),
    errors.IndexExists: Outcome(409, "Validation", "conflict"),
    errors.EncoderMismatch: Outcome(409, "Validation", "conflict"),
    errors.Overloaded: Outcome(429, "Overloaded", "rate_limit_error"),
    errors.Unavailable: Outcome(503, "Unhealthy", "service_unavailable_error"),
    errors.DeadlineExceeded: Outcome(504, "Backend", "timeout"),
    errors.ModelFault: Outcome(500, "Backend", _SERVER, tei_status=424),
    errors.StoreError: Outcome(500, "Backend", _SERVER),
    errors.CorruptModel: Outcome(500, "Backend", _SERVER),
    errors.StorageError: Outcome(500, "Backend", _SERVER),
    errors.StorageFull: Outcome(507, "Backend", _SERVER),
    errors.StorageReadOnly: Outcome(500, "Backend", _SERVER),
    errors.StartError: Outcome(500, "Backend", _SERVER),
    errors.PortTaken: Outcome(500, "Backend", _SERVER),
    errors.DataDirTaken: Outcome(500, "Backend", _SERVER),
    errors.SettingError: Outcome(500, "Backend", _SERVER),
}

# Clients retry 409 and 5xx by themselves; these will not get better by that.
_HOPELESS = (errors.Conflict, errors.ModelFault, errors.StoreError, errors.StorageError)


def render(error: CondenseryError, family: Family) -> Response:
    """Return the reply that tells a family's client of ``error``."""
    outcome = outcome_of(error)
    status = outcome.tei_status if family == "tei" and outcome.tei_status else outcome.status
    body = error_body(error, family)
    return Response(
        orjson.dumps(body), status, headers=_headers(error), media_type="application/json"
    )


def render_fault(family: Family, status: int, code: str, message: str) -> Response:
    """Return a reply for what is no error of ours: an unknown path or method, a bug."""
    server = status >= 500
    outcome = Outcome(
        status, "Backend" if server else "Validation", _SERVER if server else _INVALID
    )
    body = _bodies(message, code, None, outcome, family)
    return Response(orjson.dumps(body), status, media_type="application/json")


def error_body(error: CondenseryError, family: Family) -> dict[str, Any]:
    """Return the JSON of an error."""
    return _bodies(error.message, code_of(type(error)), error.field, outcome_of(error), family)


def outcome_of(error: CondenseryError) -> Outcome:
    """Return the row of the nearest listed class."""
    return next(OUTCOMES[kind] for kind in type(error).__mro__ if kind in OUTCOMES)


def _bodies(
    message: str, code: str, field: str | None, outcome: Outcome, family: Family
) -> dict[str, Any]:
    if family == "tei":
        return {"error": message, "error_type": outcome.tei_type}
    nested = {"message": message, "type": outcome.type, "param": field, "code": code}
    if family == "openai":
        return {"error": nested}
    return {"message": message, "detail": message, "error": nested}


def _headers(error: CondenseryError) -> dict[str, str]:
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
