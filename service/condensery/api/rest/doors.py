"""What stands around every endpoint: errors become replies here, whatever happens behind."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from condensery.api.rest.errors import ROWS, Family, render, render_as
from condensery.callers import current
from condensery.errors import CondenseryError, code_of
from condensery.jobs.services import Services
from condensery.jobs.similarity import Alike
from condensery.values import Embedded, EmbeddedTokens, Predicted, Reranked

Endpoint: TypeAlias = Callable[[Request, Services], Awaitable[Response]]
Guarded: TypeAlias = Callable[[Request], Awaitable[Response]]
T = TypeVar("T")

# What waits in a queue watches its own time, and counts it as that; this is for all else.
LATE_SECONDS = 0.01

_log = logging.getLogger(__name__)


def guard(endpoint: Endpoint, services: Services, family: Family) -> Guarded:
    """Return the endpoint bounded by its call's time, its errors made replies of its family.

    An endpoint whose family hangs on the body says so in ``request.state.family``.
    """

    async def guarded(request: Request) -> Response:
        try:
            return await in_time(endpoint(request, services))
        except CondenseryError as error:
            request.state.code = code_of(type(error))
            return render(error, _family(request, family))
        except ClientDisconnect:
            return Silence()
        # A bug must not take the connection down, nor show its traceback to the caller.
        except Exception:
            request.state.code = "internal_error"
            identity = request.state.request_id
            _log.exception("internal_error", extra={"request_id": identity})
            return render_as(
                ROWS[CondenseryError],
                _family(request, family),
                "internal_error",
                f"Internal error; the server's log has it under request id {identity}.",
            )

    return guarded


async def in_time(work: Awaitable[T]) -> T:
    """Wait for ``work`` as long as the call's caller does; then it is cancelled.

    Raises:
        DeadlineExceeded: Their time is over; ExpiredInQueue if nothing had begun.
    """
    call = current()
    try:
        async with asyncio.timeout(call.seconds_left + LATE_SECONDS) as limit:
            return await work
    except TimeoutError as late:
        if not limit.expired():  # something behind has a limit of its own
            raise
        raise call.expired() from late


class Silence(Response):
    """The reply to a client that has left: none."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send nothing."""


def reply(content: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return ``content`` as JSON; numpy arrays are written as they are."""
    body = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, status, headers=headers, media_type="application/json")


def about(result: Embedded | EmbeddedTokens | Alike | Reranked | Predicted) -> dict[str, str]:
    """Return the headers that name the model, what it took, and how many inputs were cut to fit."""
    headers = {"x-model": result.model, **_took(result.tokens)}
    if result.fingerprint:
        headers["x-model-revision"] = result.fingerprint
    cut = len(result.truncated)
    if isinstance(result, Reranked):
        cut += result.query_truncated
    if cut:
        headers["x-truncated-inputs"] = str(cut)
    return headers


def _took(tokens: int) -> dict[str, str]:
    """Return TEI's headers of what a request took, milliseconds."""
    call = current()
    spent = call.spent
    total = time.monotonic() - call.started
    seconds = {
        "compute": total - spent.waiting,
        "total": total,
        "tokenization": spent.tokenizing,
        "queue": spent.waiting,
        "inference": spent.running,
    }
    return {
        "x-compute-type": "gpu" if spent.device == "cuda" else "cpu",
        "x-compute-characters": str(spent.characters),
        "x-compute-tokens": str(tokens),
        **{f"x-{name}-time": str(round(1000 * value)) for name, value in seconds.items()},
    }


def _family(request: Request, default: Family) -> Family:
    family: Family = getattr(request.state, "family", default)
    return family
