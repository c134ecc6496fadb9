"""What every request passes before its endpoint: checks of its origin, key, deadline and size.

``Exchange`` is one request and its reply: it limits the body, and sees the client disconnect.
Replies are logged as events, which hold nothing that the caller wrote but the request's id.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from condensery.api.rest.endpoint import Access, GuardedEndpoint, Route, RouteTable
from condensery.api.rest.errors import METHOD_NOT_ALLOWED, Family, render_error, render_row
from condensery.auth import (
    REQUEST_TIMEOUT_HEADER,
    Keys,
    check_any_key,
    read_key,
    read_request_id,
    read_timeout,
)
from condensery.errors import (
    CondenseryError,
    ExpiredInQueue,
    NotFound,
    PayloadTooLarge,
    Unavailable,
    code_of,
)
from condensery.jobs.accounting import count_refusals
from condensery.jobs.services import NotHere, Permit, Services
from condensery.origins import Origins
from condensery.request_context import (
    TRACE_HEADERS,
    TRACE_REPLY_HEADER,
    RequestContext,
    serving_request,
)

_log = logging.getLogger(__name__)


TIMEOUT_HEADER_BYTES = REQUEST_TIMEOUT_HEADER.encode()
CLIENT_LEFT_STATUS = 499
DRAIN_SECONDS = 1.0
# For the first piece of a body, and each next one: the bytes that its head announces are held from
# other requests meanwhile.
BODY_PIECE_SECONDS = 10.0
# Of a body that is refused, up to this many times the limit is still read: a client that is cut off
# while it sends does not read the reply.
DRAIN_FACTOR = 4
MOST_DRAINED = 32 * 2**20

# An extension of ASGI's scope: a dict whose keys are called when the connection is lost.
ON_DISCONNECT = "condensery.leaving"
# An extension: the connection's peer, though a proxy may name another client.
PEER_ADDRESS = "condensery.peer"
# An extension: the error of a connection that is over the limit.
TOO_MANY_CONNECTIONS = "condensery.crowded"
# An extension that is there once all of the body has come.
BODY_COMPLETE = "condensery.body_complete"

Headers = Iterable[tuple[bytes, bytes]]


class Exchange:
    """Passes on a request's body within its limits, and its reply; sees the client disconnect.

    Then the task that serves the request is cancelled, and ``left`` is set. The protocol calls
    back through ``scope["extensions"][ON_DISCONNECT]``: a task of its own that waited for ASGI's
    ``http.disconnect`` would take 20 us of each request.

    Args:
        max_body: Bytes.
        limit_name: The setting that they are.
        spooled: Whether the body goes to the disk, and so does not count in memory.

    Attributes:
        request_id: The caller's if it can stand in a header and a log line, else a new one.
        announced_bytes: Of the body, as its header says, up to the limit.
        status: Of the reply; 0 until it begins.
        complete: Whether all of the reply was sent.
        left: Whether the client disconnected before that.
        closing: Whether the reply announces that the connection ends with it.
        reply_headers: Headers that are added to every reply.
        permit: Admission's, on which the bytes of an unannounced body are counted.
    """

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        max_body: int,
        *,
        limit_name: str = "max_body_bytes",
        spooled: bool = False,
    ) -> None:
        headers = scope["headers"]
        self.request_id = read_request_id(find_text_header(headers, b"x-request-id"))
        length = find_header(headers, b"content-length")
        # Of a number too long for any body the first digits do; not of the zeros before one.
        digits = length.lstrip(b"0")[:20] if length and length.isdigit() else b""
        self._announced = int(digits or b"0")
        # A body over the limit is refused as that, and not because admission is full.
        self.announced_bytes = 0 if spooled else min(self._announced, max_body)
        self.status = 0
        self.complete = False
        self.left = False
        self.closing = False
        self.reply_headers: list[tuple[bytes, bytes]] = []
        self.permit: Permit | None = None
        self._spooled = spooled
        self._grows = length is None and not spooled
        self._expects = find_header(headers, b"expect") is not None
        self._limit = max_body
        self._limit_name = limit_name
        self._receive = receive
        self._send = send
        self._bytes = 0
        self._task = asyncio.current_task()
        self._extensions: Mapping[str, Any] = scope.get("extensions", {})
        self._callbacks: dict[Any, Any] = self._extensions.get(ON_DISCONNECT, {})
        self._callbacks[self._on_disconnect] = None

    async def receive(self) -> Message:
        """Receive the next message.

        Raises:
            PayloadTooLarge: The body is announced to be over the limit, or has grown over it.
            Overloaded: Admission has no room for the rest of the body.
            ExpiredInQueue: No more of it comes.
        """
        if self._announced > self._limit:  # not worth reading
            size, self._announced = self._announced, 0
            if not self._expects:  # else the client waits for "100 Continue", and sends nothing
                await self.drain()
            raise self._refusal(size)
        message = await self._receive_soon()
        if message["type"] != "http.request":
            self.left = True
            return message
        more = message.get("more_body", False)
        size = len(message.get("body", b""))
        self._bytes += size
        if self._bytes > self._limit:
            size = self._bytes
            if more:
                await self.drain()
            raise self._refusal(size)
        if self._grows and self.permit is not None:
            self.permit.grow(size)
        return message

    async def send(self, message: Message) -> None:
        """Send the next message of the reply; its head gets the request's id."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", ()), (b"x-request-id", self.request_id.encode())]
            headers += self.reply_headers
            if self.closing:
                headers.append((b"connection", b"close"))
            message["headers"] = headers
        elif not message.get("more_body", False):
            self.complete = True
            self.close()
        await self._send(message)

    def close(self) -> None:
        """Stop watching for a disconnect."""
        self._callbacks.pop(self._on_disconnect, None)

    def _on_disconnect(self) -> None:
        self.left = True
        if self._task is not None:
            self._task.cancel()

    async def drain(self) -> None:
        """Read the rest of the body, while it comes, and drop it: so the client reads its reply."""
        most = DRAIN_FACTOR * self._limit
        if self._spooled:  # of which all that would take too long
            most = min(most, self._bytes + MOST_DRAINED)
        with contextlib.suppress(ExpiredInQueue):
            while self._bytes <= most:
                message = await self._receive_soon()
                self._bytes += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return

    async def _receive_soon(self) -> Message:
        if BODY_COMPLETE in self._extensions:  # as of most requests: a timer takes 8 us
            return await self._receive()
        try:
            async with asyncio.timeout(BODY_PIECE_SECONDS) as limit:
                return await self._receive()
        except TimeoutError as late:
            if not limit.expired():  # a timeout of the server's
                raise
            which = "nothing more" if self._bytes else "nothing"
            raise ExpiredInQueue.at(
                "body", f"{which} of it came for {BODY_PIECE_SECONDS:g} s.", self._bytes
            ) from late

    def _refusal(self, size: int) -> PayloadTooLarge:
        limit = f"the limit of {self._limit} ({self._limit_name})"
        return PayloadTooLarge.at("body", f"{size} bytes or more, over {limit}.", size)


class Middleware:
    """Serves every request: checks it, finds its route, and calls the endpoint.

    Pure ASGI: Starlette's BaseHTTPMiddleware hides a client's disconnect, and takes time.

    Args:
        endpoints: What answers, by method and path of the route.
        origins: Which web pages and host names are allowed.
    """

    def __init__(
        self,
        table: RouteTable,
        endpoints: Mapping[tuple[str, str], GuardedEndpoint],
        describe: Callable[[], Mapping[str, Any]],
        services: Services,
        origins: Origins,
    ) -> None:
        self._table = table
        self._endpoints = endpoints
        self._describe = describe
        self._services = services
        self._limits = services.limits
        self._origins = origins

    def family_of(self, path: str) -> Family:
        """Return the family of a path's errors, where nothing else of the request is known.

        An empty path is not known either; it is not ``/``, where TEI's clients post.
        """
        routes = self._table.find(path)[0] if path else {}
        return next(iter(routes.values())).family if routes else _family_of_unknown_path(path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; the server is told to send nothing else, no start and no websocket."""
        assert scope["type"] == "http", scope["type"]
        routes, scope["path_params"] = self._table.find(scope["path"])
        exchange = self._make_exchange(scope, receive, send, routes.get(scope["method"]))
        # A client that reads this in its reply sends no further request on the connection.
        draining = self._services.health.draining
        exchange.closing = draining or TOO_MANY_CONNECTIONS in scope.get("extensions", ())
        exchange.reply_headers = self._origins.reply_headers(scope["headers"])
        scope["state"] = {
            "request_id": exchange.request_id,
            "describe": self._describe,
            "reply_headers": exchange.reply_headers,
        }
        started = time.monotonic()
        context = RequestContext(
            exchange.request_id,
            _client_address(scope),
            started + self._limits.request_seconds,
            started=started,
        )
        if self._services.tracer is not None:
            self._begin_trace(scope, exchange, routes, context)
        with serving_request(context):
            passed_on = False
            try:
                await self._serve(scope, exchange, routes, context)
            except NotHere:  # whoever serves it tells of it; a span that never ends is not sent
                passed_on = True
                raise
            except asyncio.CancelledError:
                if exchange.status and not (exchange.left or exchange.complete):
                    raise
                if (task := asyncio.current_task()) is not None:
                    task.uncancel()
                if not exchange.status and not exchange.left:  # the server's grace time is over
                    error = Unavailable("The server ended before this was done.")
                    response = render_error(error, _family_of_path(scope, routes))
                    await response(scope, exchange.receive, exchange.send)
            finally:
                exchange.close()
                if not passed_on:
                    self._report(scope, exchange, routes, context)

    def _report(
        self, scope: Scope, exchange: Exchange, routes: dict[str, Route], context: RequestContext
    ) -> None:
        """Log how a request ended, and end its trace."""
        _log_exchange(scope, exchange, routes, context.started)
        if context.trace is not None:
            _end_trace(scope, exchange, routes, context)
        if self._services.slow.took_long(context):  # few requests
            route = _nearest_route(scope, routes)
            self._services.slow.log(
                context,
                transport="rest",
                route=route.template if route else "-",
                status=CLIENT_LEFT_STATUS if exchange.left else exchange.status,
            )

    def _make_exchange(
        self, scope: Scope, receive: Receive, send: Send, route: Route | None
    ) -> Exchange:
        spooled = route is not None and route.form
        name = "max_upload_bytes" if spooled else "max_body_bytes"
        limit: int = getattr(self._limits, name)
        return Exchange(scope, receive, send, limit, limit_name=name, spooled=spooled)

    def _begin_trace(
        self, scope: Scope, exchange: Exchange, routes: dict[str, Route], context: RequestContext
    ) -> None:
        """Trace a request, but for what probes and scrapers ask all day."""
        route, tracer = routes.get(scope["method"]), self._services.tracer
        if tracer is None or (route is not None and route.vital):
            return
        values = {name: find_text_header(scope["headers"], name.encode()) for name in TRACE_HEADERS}
        trace = tracer.begin({name: value for name, value in values.items() if value is not None})
        context.trace = trace
        reply = (TRACE_REPLY_HEADER.encode(), trace.headers[TRACE_HEADERS[0]].encode())
        exchange.reply_headers = [*exchange.reply_headers, reply]

    async def _serve(
        self, scope: Scope, exchange: Exchange, routes: dict[str, Route], context: RequestContext
    ) -> None:
        route = routes.get(scope["method"])
        task = scope["state"]["task"] = route.task if route else None
        try:
            with count_refusals(self._services, task, "rest"):
                self._check_page(scope)
                if (preflight := self._preflight(scope, routes)) is not None:
                    await preflight(scope, exchange.receive, exchange.send)
                    return
                access = route.access if route else "any"
                name = _check_key(self._services.keys, scope["headers"], access)
                if name is not None:
                    context.caller = scope["state"]["key"] = name
                if route is None:
                    response = _no_route_reply(scope, routes)
                    await response(scope, exchange.receive, exchange.send)
                elif route.vital:
                    await self._answer(scope, exchange, route)
                else:
                    await self._check_open(scope, exchange)
                    timeout = read_timeout(find_text_header(scope["headers"], TIMEOUT_HEADER_BYTES))
                    context.deadline = min(context.deadline, time.monotonic() + timeout)
                    with self._services.admission.admit(
                        exchange.announced_bytes
                    ) as exchange.permit:
                        await self._answer(scope, exchange, route)
        except CondenseryError as error:  # of these checks: an endpoint's are replies already
            scope["state"]["code"] = code_of(type(error))
            response = render_error(error, _family_of_path(scope, routes))
            await response(scope, exchange.receive, exchange.send)

    def _check_page(self, scope: Scope) -> None:
        """Refuse requests of foreign web pages, before their keys are read: a page may have one."""
        server, peer = scope.get("server"), scope.get("extensions", {}).get(PEER_ADDRESS)
        address = str(server[0]) if server else ""
        self._origins.check(scope["headers"], address, str(peer[0]) if peer else "")

    def _preflight(self, scope: Scope, routes: dict[str, Route]) -> Response | None:
        """Answer a CORS preflight request, which comes without a key."""
        if scope["method"] != "OPTIONS":
            return None
        methods = sorted(routes) or self._table.methods
        headers = self._origins.preflight_headers(scope["headers"], methods)
        return None if headers is None else Response(status_code=204, headers=headers)

    async def _answer(self, scope: Scope, exchange: Exchange, route: Route) -> None:
        endpoint = self._endpoints[route.method, route.path]
        response = await endpoint(Request(scope, exchange.receive))
        await response(scope, exchange.receive, exchange.send)

    async def _check_open(self, scope: Scope, exchange: Exchange) -> None:
        """Refuse requests on surplus connections, and all at the end; close the connection then."""
        health = self._services.health
        refusal: CondenseryError | None = scope.get("extensions", {}).get(TOO_MANY_CONNECTIONS)
        if health.refusing:
            refusal = Unavailable(f"The server takes no new requests: {health.reason}.")
        if refusal is not None:
            exchange.closing = True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_SECONDS):
                    await exchange.drain()
            raise refusal


def _end_trace(
    scope: Scope, exchange: Exchange, routes: dict[str, Route], context: RequestContext
) -> None:
    route = _nearest_route(scope, routes)
    status = CLIENT_LEFT_STATUS if exchange.left else exchange.status
    # The pattern of the path: the path itself is the caller's text.
    where = {} if route is None else {"http.route": route.template}
    fields = {
        "http.request.method": scope["method"],
        "http.response.status_code": status,
        "url.scheme": scope.get("scheme", "http"),
        "condensery.request.id": context.request_id,
        **where,
    }
    error = str(scope["state"].get("code", status)) if status >= 500 else None
    assert context.trace is not None
    context.trace.end(
        f"{scope['method']} {where.get('http.route', '')}".strip(), fields, error=error
    )


def log_reply(
    *,
    request_id: str,
    method: str,
    route: str,
    status: int,
    code: str,
    started: float,
    key: str = "-",
    expected: bool = False,
) -> None:
    """Log how a request ended: refusals at info, failures of the server at error, others at debug.

    Args:
        route: The path's pattern, since the path itself is the caller's text.
        status: HTTP's; 499 where the client left.
        code: The error's; "-" if there is none.
        started: When the request came, in seconds of ``time.monotonic``.
        expected: Whether a 5xx is a regular answer: a probe's "not ready".
    """
    level = logging.INFO if status >= 400 or code != "-" else logging.DEBUG
    if status >= 500 and not expected:
        level = logging.ERROR
    if not _log.isEnabledFor(level):
        return
    _log.log(
        level,
        "reply",
        extra={
            "request_id": request_id,
            "method": method,
            "route": route,
            "status": status,
            "code": code,
            "ms": round((time.monotonic() - started) * 1000, 1),
            "key": key,
        },
    )


def find_header(headers: Headers, name: bytes) -> bytes | None:
    """Return the first header of a name, which is in lower case; None if there is none."""
    for key, value in headers:
        if key == name:
            return value
    return None


def find_text_header(headers: Headers, name: bytes) -> str | None:
    """Return the first header of a name as text."""
    value = find_header(headers, name)
    return None if value is None else value.decode("utf-8", "surrogateescape")


def _no_route_reply(scope: Scope, routes: dict[str, Route]) -> Response:
    """Answer an unknown path, or a method that a path does not take."""
    method, path, family = scope["method"], scope["path"][:200], _family_of_path(scope, routes)
    if not routes:
        scope["state"]["code"] = code_of(NotFound)
        return render_error(
            NotFound(f"There is no {method} {path}; /docs lists what there is."), family
        )
    scope["state"]["code"] = code = "method_not_allowed"
    allowed = ", ".join(sorted(routes))
    message = f"{path} does not take {method}; it takes {allowed}."
    response = render_row(METHOD_NOT_ALLOWED, family, code, message)
    response.headers["allow"] = allowed
    return response


def _family_of_path(scope: Scope, routes: dict[str, Route]) -> Family:
    route = _nearest_route(scope, routes)
    return route.family if route else _family_of_unknown_path(scope["path"])


def _check_key(keys: Keys, headers: Headers, access: Access) -> str | None:
    """Return the name of the request's key; None where none is needed.

    Raises:
        Unauthenticated: There is no key, or an unknown one.
        Forbidden: The key lacks the route's scope.
    """
    if access == "open" or keys.open:
        return None
    key = read_key(
        find_text_header(headers, b"authorization"), find_text_header(headers, b"x-api-key")
    )
    return check_any_key(keys, key, None if access == "any" else access)


def _family_of_unknown_path(path: str) -> Family:
    """Return the family of paths without a route; ``/vertex`` is one of a build of TEI."""
    if path == "/vertex":
        return "tei"
    return "kserve" if path.startswith(("/v2/", "/api/")) else "openai"


def _client_address(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else "local"


def _log_exchange(
    scope: Scope, exchange: Exchange, routes: dict[str, Route], started: float
) -> None:
    state = scope["state"]
    if (
        exchange.status < 400
        and not exchange.left
        and "code" not in state
        and not _log.isEnabledFor(logging.DEBUG)
    ):
        return  # most requests
    route = _nearest_route(scope, routes)
    log_reply(
        request_id=exchange.request_id,
        method=scope["method"],
        route=route.template if route else "-",
        status=CLIENT_LEFT_STATUS if exchange.left else exchange.status,
        code=state.get("code", "-"),
        started=started,
        key=state.get("key", "-"),
        expected=route is not None and route.access == "open",
    )


def _nearest_route(scope: Scope, routes: dict[str, Route]) -> Route | None:
    """Return the path's route for the method, or else for any other."""
    return routes.get(scope["method"]) or next(iter(routes.values()), None)
