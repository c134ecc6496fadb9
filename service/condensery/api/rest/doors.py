"""What stands around every endpoint: errors become replies here, whatever happens behind."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope

from condensery.api.rest.errors import Family, render, render_fault
from condensery.errors import CondenseryError, PayloadTooLarge
from condensery.jobs.services import Services
from condensery.values import Embedded, Reranked

Endpoint: TypeAlias = Callable[[Request, Services], Awaitable[Response]]
Guarded: TypeAlias = Callable[[Request], Awaitable[Response]]

# A body that is refused is read on up to this many times the limit: a client that is cut off
# while it sends never reads why.
DRAIN_FACTOR = 4

_log = logging.getLogger(__name__)


def guard(endpoint: Endpoint, services: Services, family: Family) -> Guarded:
    """Return the endpoint with its errors made replies, in the bodies of its family.

    An endpoint whose family hangs on the body says so in ``request.state.family``.
    """

    async def guarded(request: Request) -> Response:
        try:
            return await endpoint(request, services)
        except CondenseryError as error:
            return render(error, _family(request, family))
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it
        # A bug must not take the connection down, nor show its traceback to the caller.
        except Exception:
            identity = request.state.request_id
            _log.exception("internal_error", extra={"request_id": identity})
            return render_fault(
                _family(request, family),
                500,
                "internal_error",
                f"Internal error; the server's log has it under request id {identity}.",
            )

    return guarded


def reply(content: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return ``content`` as JSON; numpy arrays are written as they are."""
    body = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, status, headers=headers, media_type="application/json")


def about(result: Embedded | Reranked) -> dict[str, str]:
    """Return the headers that name the model, and how many inputs were cut to fit it."""
    headers = {"x-model": result.model}
    if isinstance(result, Embedded):
        headers["x-model-revision"] = result.fingerprint
    if result.truncated:
        headers["x-truncated-inputs"] = str(len(result.truncated))
    return headers


class BodyLimit:
    """Hands a request's body on, and stops it where it is over the limit.

    Args:
        scope: The request's.
        receive: The server's.
        limit: Bytes.
    """

    def __init__(self, scope: Scope, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._limit = limit
        self._announced = _content_length(scope)
        self._bytes = 0

    async def __call__(self) -> Message:
        """Receive the next message.

        Raises:
            PayloadTooLarge: The body is announced to be over the limit, or has grown over it.
        """
        if self._announced > self._limit:  # not worth reading
            size, self._announced = self._announced, 0
            await self._drain()
            raise self._refusal(size)
        message = await self._receive()
        if message["type"] == "http.request":
            self._bytes += len(message.get("body", b""))
            if self._bytes > self._limit:
                size = self._bytes
                if message.get("more_body", False):
                    await self._drain()
                raise self._refusal(size)
        return message

    async def _drain(self) -> None:
        most = self._limit * DRAIN_FACTOR
        while self._bytes <= most:
            message = await self._receive()
            self._bytes += len(message.get("body", b""))
            if not message.get("more_body", False):
                return

    def _refusal(self, size: int) -> PayloadTooLarge:
        return PayloadTooLarge(
            f"body: {size} bytes or more, over the limit of {self._limit} (max_body_bytes).",
            field="body",
            value=size,
        )


def _content_length(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value[:20])
    return 0


def _family(request: Request, default: Family) -> Family:
    family: Family = getattr(request.state, "family", default)
    return family
