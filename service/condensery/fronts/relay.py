"""Requests that a front process passes on to the engine's, whole; over a Unix socket, as HTTP/1.1.

The engine serves them as if they had come to it: its checks, its errors, its streams. Where they
came from goes with them in a header that is dropped from what callers send.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import httpx
from starlette.types import Message, Receive, Scope, Send

from condensery.api.rest.endpoint import RouteTable
from condensery.api.rest.errors import Family, render_error
from condensery.api.rest.middleware import (
    ON_DISCONNECT,
    PEER_ADDRESS,
    TOO_MANY_CONNECTIONS,
    Middleware,
    find_header,
)
from condensery.api.rest.routes import route_sections
from condensery.errors import Unavailable
from condensery.fronts.registry import NotHere
from condensery.jobs.services import Health

ORIGIN_HEADER = b"x-condensery-front"
# Of one connection (RFC 9110, 7.6.1), or for it alone: a front process has read a whole head.
_HOP_BY_HOP = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer"),
        *(b"transfer-encoding", b"upgrade", b"expect", ORIGIN_HEADER),
    }
)
_OF_A_REPLY = _HOP_BY_HOP | {b"date"}  # each server puts its own
# What a front process answers itself: these tasks need a model, and nothing else that the engine
# has; but for texts to tokens and back, for which a front process has no tokenizer.
OWN_TASKS = frozenset({"embed", "rerank", "classify"})
ENGINE_PATHS = frozenset({"/tokenize", "/decode"})


class FrontApp:
    """What a front process serves: some requests itself, all others by the engine.

    Args:
        own: The REST API over the engine's models.
        engine: Path of the engine's socket.
    """

    def __init__(self, own: Middleware, engine: str, health: Health) -> None:
        self._own = own
        self._health = health
        routes = [route for section in route_sections().values() for route in section]
        self._table = RouteTable(routes)
        # No connection is kept: one that the engine has ended would cost a request.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._client = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=engine, limits=limits),
            timeout=None,
            trust_env=False,
        )

    def family_of(self, path: str) -> Family:
        """Return the family of a path's errors, where nothing else of the request is known."""
        return self._own.family_of(path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        route = self._table.find(scope["path"])[0].get(scope["method"])
        if TOO_MANY_CONNECTIONS in scope.get("extensions", ()) and not (route and route.vital):
            await self._own(scope, receive, send)  # which refuses it
            return
        if route is None or route.task not in OWN_TASKS or route.path in ENGINE_PATHS:
            await self._relay(scope, receive, send)
            return
        body = _KeptBody(receive)
        try:
            await self._own(scope, body.receive, send)
        except NotHere:
            await self._relay(scope, body.again, send)

    async def _relay(self, scope: Scope, receive: Receive, send: Send) -> None:
        callbacks = scope.get("extensions", {}).get(ON_DISCONNECT, {})
        task = asyncio.current_task()
        assert task is not None
        started = left = False

        def leave() -> None:
            nonlocal left
            left = True
            task.cancel()

        async def forward(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        callbacks[leave] = None
        try:
            await self._pass_on(scope, receive, forward)
        except httpx.TransportError:
            if started:  # the connection ends in the middle of the reply, as the engine's did
                raise
            await self._refuse("The engine's process does not answer.", scope, receive, send)
        except asyncio.CancelledError:
            if started and not left:
                raise
            task.uncancel()
            if not left:  # the server's grace time is over
                await self._refuse("The server ended before this was done.", scope, receive, send)
        finally:
            callbacks.pop(leave, None)

    async def _refuse(self, message: str, scope: Scope, receive: Receive, send: Send) -> None:
        error = Unavailable(message, retry_after_seconds=2.0)
        await render_error(error, self.family_of(scope["path"]))(scope, receive, send)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        closing = (b"connection", b"close")
        ends = self._health.draining or TOO_MANY_CONNECTIONS in scope.get("extensions", ())
        target = scope["raw_path"] + (
            b"?" + scope["query_string"] if scope["query_string"] else b""
        )
        request = httpx.Request(
            scope["method"],
            httpx.URL(scheme="http", host="engine", raw_path=target),
            headers=[
                *((name, value) for name, value in scope["headers"] if name not in _HOP_BY_HOP),
                (ORIGIN_HEADER, _write_origin(scope)),
            ],
            content=_body(receive) if _has_body(scope) else None,
        )
        async with contextlib.aclosing(await self._client.send(request, stream=True)) as reply:
            headers = [
                (name.lower(), value)
                for name, value in reply.headers.raw
                if name.lower() not in _OF_A_REPLY
            ]
            start = {"type": "http.response.start", "status": reply.status_code}
            await send({**start, "headers": [*headers, closing] if ends else headers})
            async for piece in reply.aiter_raw():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

    async def close(self) -> None:
        """Pass nothing on any more."""
        await self._client.aclose()


class RelayedApp:
    """What the engine serves on its own socket: requests as front processes got them."""

    def __init__(self, app: Middleware) -> None:
        self._app = app

    def family_of(self, path: str) -> Family:
        """Return the family of a path's errors, where nothing else of the request is known."""
        return self._app.family_of(path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, as one of the client and by the address that it came from."""
        origin = _read_origin(find_header(scope["headers"], ORIGIN_HEADER))
        scope["headers"] = [pair for pair in scope["headers"] if pair[0] != ORIGIN_HEADER]
        scope["client"], scope["server"] = origin.get("client"), origin.get("server")
        scope["scheme"] = origin.get("scheme", "http")
        scope["extensions"][PEER_ADDRESS] = origin.get("peer")
        await self._app(scope, receive, send)


class _KeptBody:
    """A request's body, which can be read once more as far as it was."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._kept: list[Message] = []

    async def receive(self) -> Message:
        message = await self._receive()
        self._kept.append(message)
        return message

    async def again(self) -> Message:
        return self._kept.pop(0) if self._kept else await self._receive()


def _has_body(scope: Scope) -> bool:
    headers = scope["headers"]
    return any(find_header(headers, name) for name in (b"content-length", b"transfer-encoding"))


async def _body(receive: Receive) -> AsyncGenerator[bytes, None]:
    more = True
    while more:
        message = await receive()
        if message["type"] != "http.request":  # the client has left; the task is cancelled
            return
        yield message.get("body", b"")
        more = message.get("more_body", False)


def _write_origin(scope: Scope) -> bytes:
    origin = {
        "client": scope.get("client"),
        "server": scope.get("server"),
        "scheme": scope.get("scheme", "http"),
        "peer": scope.get("extensions", {}).get(PEER_ADDRESS),
    }
    return json.dumps(origin).encode()


def _read_origin(value: bytes | None) -> Mapping[str, Any]:
    origin: Mapping[str, Any] = json.loads(value) if value else {}
    return origin
