"""What each request passes first: its page, its key, its time and its place; then its endpoint."""

import asyncio
import contextlib
import time

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from condensery.api.asking import TIMEOUT, key_name, patience, presented
from condensery.api.rest.doors import Guarded
from condensery.api.rest.errors import METHOD_NOT_ALLOWED, Family, render, render_as
from condensery.api.rest.exchange import CROWDED, PEER, Exchange, Headers, text
from condensery.api.rest.reporting import report, reports_all
from condensery.api.rest.routing import Access, Route, Table
from condensery.callers import Call, calling
from condensery.errors import CondenseryError, NotFound, Unavailable, code_of
from condensery.jobs.accounting import counting_refusals
from condensery.jobs.services import Services
from condensery.keys import Keys
from condensery.origins import Origins

TIMEOUT_HEADER = TIMEOUT.encode()
CLIENT_LEFT = 499
DRAIN_SECONDS = 1.0


class Front:
    """Serves every request: some endpoints directly, the others through FastAPI.

    Pure ASGI: Starlette's BaseHTTPMiddleware hides that a client has gone, and takes time.

    Args:
        app: FastAPI's, with every route.
        table: The same routes.
        hot: The endpoints that are served directly, by their routes' method and path.
        services: The running parts.
        origins: Whose web pages may ask, and by which names.
    """

    def __init__(
        self,
        app: ASGIApp,
        table: Table,
        hot: dict[tuple[str, str], Guarded],
        services: Services,
        origins: Origins,
    ) -> None:
        self._app = app
        self._table = table
        self._hot = hot
        self._services = services
        self._limits = services.limits
        self._origins = origins

    def family_of(self, path: str) -> Family:
        """Return how a path's errors look, where nothing else is known of a request."""
        found = self._table.find(path)
        return next(iter(found.values())).family if found else _stray(path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = Exchange(scope, receive, send, self._limits.max_body_bytes)
        # Who is told with a reply that the connection ends sends nothing into its end.
        ending = self._services.health.draining
        exchange.closing = ending or CROWDED in scope.get("extensions", ())
        exchange.reply_headers = self._origins.reply_headers(scope["headers"])
        scope["state"] = {"request_id": exchange.request_id}
        started = time.monotonic()
        call = Call(
            exchange.request_id,
            _peer(scope),
            started + self._limits.request_seconds,
            started=started,
        )
        found = self._table.find(scope["path"])
        with calling(call):
            try:
                await self._serve(scope, exchange, found, call)
            except asyncio.CancelledError:
                if exchange.status and not (exchange.left or exchange.complete):
                    raise
                _uncancel()
                if not exchange.status and not exchange.left:  # the server's grace is over
                    error = Unavailable("The server ended before this was done.")
                    await _send(scope, exchange, render(error, _family(scope, found)))
            finally:
                exchange.close()
                _report(scope, exchange, found, started)
                if self._services.slow.took_long(call):  # few requests
                    route = _nearest(scope, found)
                    self._services.slow.tell(
                        call,
                        door="rest",
                        route=route.template if route else "-",
                        status=CLIENT_LEFT if exchange.left else exchange.status,
                    )

    async def _serve(
        self, scope: Scope, exchange: Exchange, found: dict[str, Route], call: Call
    ) -> None:
        route = found.get(scope["method"])
        task = scope["state"]["task"] = route.task if route else None
        try:
            with counting_refusals(self._services, task, "rest"):
                self._check_page(scope)
                if (preflight := self._preflight(scope, found)) is not None:
                    await _send(scope, exchange, preflight)
                    return
                access = route.access if route else "any"
                name = _check_key(self._services.keys, scope["headers"], access)
                if name is not None:
                    call.caller = scope["state"]["key"] = name
                if route is None:
                    await _send(scope, exchange, _nowhere(scope, found))
                elif route.vital:
                    await self._answer(scope, exchange, route)
                else:
                    await self._check_open(scope, exchange)
                    waits = patience(text(scope["headers"], TIMEOUT_HEADER))
                    call.deadline = min(call.deadline, time.monotonic() + waits)
                    with self._services.admission.enter(exchange.size) as exchange.place:
                        await self._answer(scope, exchange, route)
        except CondenseryError as error:  # of the checks here: an endpoint's are replies already
            scope["state"]["code"] = code_of(type(error))
            await _send(scope, exchange, render(error, _family(scope, found)))

    def _check_page(self, scope: Scope) -> None:
        """Refuse what the page of another asks, on every route; before any key: pages have some."""
        server, peer = scope.get("server"), scope.get("extensions", {}).get(PEER)
        address = str(server[0]) if server else ""
        self._origins.check(scope["headers"], address, str(peer[0]) if peer else "")

    def _preflight(self, scope: Scope, found: dict[str, Route]) -> Response | None:
        """Answer a browser that asks what a page may send; it shows no key with that."""
        if scope["method"] != "OPTIONS":
            return None
        methods = sorted(found) or self._table.methods
        headers = self._origins.preflight_headers(scope["headers"], methods)
        return None if headers is None else Response(status_code=204, headers=headers)

    async def _answer(self, scope: Scope, exchange: Exchange, route: Route) -> None:
        endpoint = self._hot.get((route.method, route.path))
        if endpoint is None:
            await self._app(scope, exchange.receive, exchange.send)
            return
        await _send(scope, exchange, await endpoint(Request(scope, exchange.receive)))

    async def _check_open(self, scope: Scope, exchange: Exchange) -> None:
        """Refuse who comes after the last call, or is one too many, and end their connection."""
        health = self._services.health
        refusal: CondenseryError | None = scope.get("extensions", {}).get(CROWDED)
        if health.refusing:
            refusal = Unavailable(f"The server takes no new requests: {health.reason}.")
        if refusal is not None:
            exchange.closing = True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_SECONDS):
                    await exchange.drain()
            raise refusal


async def _send(scope: Scope, exchange: Exchange, response: Response) -> None:
    await response(scope, exchange.receive, exchange.send)


def _nowhere(scope: Scope, found: dict[str, Route]) -> Response:
    """Answer an unknown path, or a method that a path does not take."""
    method, path, family = scope["method"], scope["path"][:200], _family(scope, found)
    if not found:
        scope["state"]["code"] = code_of(NotFound)
        return render(NotFound(f"There is no {method} {path}; /docs lists what there is."), family)
    scope["state"]["code"] = code = "method_not_allowed"
    allowed = ", ".join(sorted(found))
    message = f"{path} does not take {method}; it takes {allowed}."
    response = render_as(METHOD_NOT_ALLOWED, family, code, message)
    response.headers["allow"] = allowed
    return response


def _family(scope: Scope, found: dict[str, Route]) -> Family:
    route = _nearest(scope, found)
    return route.family if route else _stray(scope["path"])


def _check_key(keys: Keys, headers: Headers, access: Access) -> str | None:
    """Return the name of the key that came; None where none is needed.

    Raises:
        Unauthenticated, Forbidden: As the keys say.
    """
    if access == "open" or keys.open:
        return None
    key = presented(text(headers, b"authorization"), text(headers, b"x-api-key"))
    return key_name(keys, key, None if access == "any" else access)


def _stray(path: str) -> Family:
    """Return the family of paths that there are not."""
    return "kserve" if path.startswith("/v2/") else "openai"


def _peer(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else "local"


def _uncancel() -> None:
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()


def _report(scope: Scope, exchange: Exchange, found: dict[str, Route], started: float) -> None:
    state = scope["state"]
    if exchange.status < 400 and not exchange.left and "code" not in state and not reports_all():
        return  # most requests
    route = _nearest(scope, found)
    report(
        request_id=exchange.request_id,
        method=scope["method"],
        route=route.template if route else "-",
        status=CLIENT_LEFT if exchange.left else exchange.status,
        code=state.get("code", "-"),
        started=started,
        key=state.get("key", "-"),
        expected=route is not None and route.access == "open",
    )


def _nearest(scope: Scope, found: dict[str, Route]) -> Route | None:
    """Return the path's route, of another method if need be."""
    return found.get(scope["method"]) or next(iter(found.values()), None)
