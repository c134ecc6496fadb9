"""Routes, the table that finds them by path, and the guard around every endpoint.

The guard bounds a request's time, and makes errors replies of the route's family.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import Receive, Scope, Send

from condensery.api.rest.errors import ERROR_ROWS, Family, render_error, render_row
from condensery.auth import KeyScope
from condensery.errors import CondenseryError, code_of
from condensery.jobs.services import Services
from condensery.metrics import Task
from condensery.request_context import LATE_MARGIN_SECONDS, current_request

Endpoint: TypeAlias = Callable[[Request, Services], Awaitable[Response]]
GuardedEndpoint: TypeAlias = Callable[[Request], Awaitable[Response]]
T = TypeVar("T")

Access = KeyScope | Literal["any", "open"]
ErrorTypes = tuple[type[CondenseryError], ...]

_SLASHES = re.compile("/{2,}")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Route:
    """A path and a method.

    Attributes:
        path: Starlette's pattern.
        task: Its label in the metrics; None is not counted.
        access: The scope that a key needs, once there are keys; ``any`` takes every key, ``open``
            needs none.
        family: Of clients: how its errors look.
        other_family: A second one, where the body decides.
        body: The request's schema; ``optional`` bodies may be left out, a ``form`` is a multipart
            one, whose files lie on the disk.
        reply: The reply's type; ``media`` is its content type, and where it ``streams``, it can be
            server-sent events instead: ours, or OpenAI's chunks or its responses' events.
        other_media: Another content type that the reply can have, as text.
        parameters: Its own, in path and query, as OpenAPI has them; ``name`` is described for all.
        fails: The errors that it has beside those of all routes, for the description.
        vital: Whether it answers while the server is full or shuts down: health and metrics.
    """

    method: str
    path: str
    endpoint: Endpoint
    task: Task | None = None
    access: Access = "infer"
    family: Family = "openai"
    other_family: Family | None = None
    body: Any = None
    optional: bool = False
    form: bool = False
    reply: Any = None
    media: str = "application/json"
    streams: Literal["events", "chunks", "responses"] | None = None
    other_media: str | None = None
    parameters: tuple[Mapping[str, Any], ...] = ()
    fails: ErrorTypes = ()
    vital: bool = False

    @property
    def template(self) -> str:
        """The path as it is described, and logged."""
        return self.path.replace(":path}", "}")


class RouteTable:
    """Finds the routes of a path, before anything else is known of a request.

    What takes GET takes HEAD too. Where a path is none, it is taken without the slashes that
    clients put at the end of theirs or between it and that of their base.

    Args:
        table: Of two patterns that match, the first counts; a path without a pattern goes first.
    """

    def __init__(self, table: Sequence[Route]) -> None:
        self._exact: dict[str, dict[str, Route]] = {}
        patterns: dict[str, dict[str, Route]] = {}
        for route in table:
            target = patterns if "{" in route.path else self._exact
            target.setdefault(route.path, {})[route.method] = route
        for routes in (*self._exact.values(), *patterns.values()):
            if "GET" in routes:
                routes["HEAD"] = routes["GET"]  # uvicorn sends the head of the reply alone
        self.methods = sorted({route.method for route in table})
        self._patterns = [(compile_path(path)[0], routes) for path, routes in patterns.items()]

    def find(self, path: str) -> tuple[dict[str, Route], dict[str, str]]:
        """Return the routes by method, none where nothing is at that path, and its parameters."""
        exact = self._exact.get(path)
        if exact is not None:
            return exact, {}
        plain = _SLASHES.sub("/", path).rstrip("/") or "/"
        if plain != path:
            return self.find(plain)
        for regex, routes in self._patterns:
            if match := regex.match(path):
                return routes, match.groupdict()
        return {}, {}


def guard_endpoint(endpoint: Endpoint, services: Services, family: Family) -> GuardedEndpoint:
    """Return the endpoint bounded by its request's time, its errors made replies of its family.

    An endpoint whose family depends on the body sets ``request.state.family``.
    """

    async def guarded(request: Request) -> Response:
        try:
            return await run_in_time(endpoint(request, services))
        except CondenseryError as error:
            request.state.code = code_of(type(error))
            return render_error(error, _family_of(request, family))
        except ClientDisconnect:
            return NoReply()
        # A bug must not take the connection down, nor show its traceback to the caller.
        except Exception:
            request.state.code = "internal_error"
            request_id = request.state.request_id
            _log.exception("internal_error", extra={"request_id": request_id})
            return render_row(
                ERROR_ROWS[CondenseryError],
                _family_of(request, family),
                "internal_error",
                f"Internal error; the server's log has it under request id {request_id}.",
            )

    return guarded


async def run_in_time(work: Awaitable[T]) -> T:
    """Wait for ``work`` until the request's deadline, then cancel it.

    Raises:
        DeadlineExceeded: The deadline has passed; ExpiredInQueue if no work had begun.
    """
    context = current_request()
    try:
        async with asyncio.timeout(context.seconds_left + LATE_MARGIN_SECONDS) as limit:
            return await work
    except TimeoutError as late:
        if not limit.expired():  # a timeout inside `work`
            raise
        raise context.expired() from late


class NoReply(Response):
    """The reply to a client that has left: nothing is sent."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send nothing."""


def _family_of(request: Request, default: Family) -> Family:
    family: Family = getattr(request.state, "family", default)
    return family
