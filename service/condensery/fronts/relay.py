"""Requests that a front process passes on to the engine's, whole; over a Unix socket, as HTTP/1.1.

The engine serves them as if they had come to it: its checks, its errors, its streams. Where they
came from goes with them in a header that is dropped from what callers send. All else of a head goes
as it came, and a reply may come before its request's body is sent: clients' libraries do neither.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import httptools
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
from condensery.jobs.services import Health, NotHere

ORIGIN_HEADER = b"x-condensery-front"
PIECE_BYTES = 64 * 1024
# Of one connection (RFC 9110, 7.6.1). What a client expects before it sends, the engine decides.
_HOP_BY_HOP = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer"),
        *(b"transfer-encoding", b"upgrade", ORIGIN_HEADER),
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
        self._engine = engine
        self._health = health
        routes = [route for section in route_sections().values() for route in section]
        self._table = RouteTable(routes)

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
        except (OSError, httptools.HttpParserError):
            if started:  # the connection ends in the middle of the reply, as the engine's did
                return
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
        reader, writer = await asyncio.open_unix_connection(self._engine)
        body = _Body(scope, receive, writer)
        reply = _ReplyParser(head_alone=scope["method"] == "HEAD")
        try:
            writer.write(_write_head(scope, body))
            if not body.expected:
                body.begin()
            while not reply.complete:
                data = await reader.read(PIECE_BYTES)
                if not data:
                    raise ConnectionResetError("the engine's connection ended")
                reply.parser.feed_data(data)
                if reply.go_on:
                    body.begin()
                for message in reply.take():
                    if message["type"] == "http.response.start" and self._ends(scope):
                        message["headers"].append((b"connection", b"close"))
                    await send(message)
        finally:
            await body.end()
            writer.close()

    def _ends(self, scope: Scope) -> bool:
        """Whether the client's connection is to end with this reply."""
        return self._health.draining or TOO_MANY_CONNECTIONS in scope.get("extensions", ())


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


class _Body:
    """A request's body, sent on while its reply is awaited.

    Attributes:
        chunked: Whether its length is not known.
        expected: Whether the client sends it only once the engine asks for it.
    """

    def __init__(self, scope: Scope, receive: Receive, writer: asyncio.StreamWriter) -> None:
        headers = scope["headers"]
        self.chunked = find_header(headers, b"transfer-encoding") is not None
        self._empty = not self.chunked and find_header(headers, b"content-length") is None
        self.expected = not self._empty and find_header(headers, b"expect") is not None
        self._receive = receive
        self._writer = writer
        self._sending: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin to send it; once."""
        if self._sending is None and not self._empty:
            self._sending = asyncio.create_task(self._send())

    async def end(self) -> None:
        """Send no more of it."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.wait({self._sending})
            if not self._sending.cancelled():
                self._sending.exception()  # the engine ended first, and has replied

    async def _send(self) -> None:
        more = True
        while more:
            message = await self._receive()
            if message["type"] != "http.request":  # the client has left; all this is cancelled
                return
            more = message.get("more_body", False)
            piece = message.get("body", b"")
            if self.chunked:
                framed = b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b""
                piece = framed if more else framed + b"0\r\n\r\n"
            self._writer.write(piece)
            await self._writer.drain()


class _ReplyParser:
    """An engine's reply, as ASGI's messages.

    Args:
        head_alone: Whether it has no body, whatever its head says.

    Attributes:
        go_on: Whether the engine has asked for the body.
        complete: Whether all of it has come.
    """

    def __init__(self, *, head_alone: bool) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.go_on = False
        self.complete = False
        self._head_alone = head_alone
        self._headers: list[tuple[bytes, bytes]] = []
        self._messages: list[Message] = []

    def take(self) -> list[Message]:
        """Return what has come since."""
        messages, self._messages = self._messages, []
        return messages

    def on_header(self, name: bytes, value: bytes) -> None:
        if (name := name.lower()) not in _OF_A_REPLY:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self.parser.get_status_code()
        headers, self._headers = self._headers, []
        if status == 100:
            self.go_on = True
            return
        self._messages.append({"type": "http.response.start", "status": status, "headers": headers})
        if self._head_alone:
            self._end()

    def on_body(self, body: bytes) -> None:
        if not self.complete:
            self._messages.append({"type": "http.response.body", "body": body, "more_body": True})

    def on_message_complete(self) -> None:
        if not self.complete and self.parser.get_status_code() != 100:
            self._end()

    def _end(self) -> None:
        self.complete = True
        self._messages.append({"type": "http.response.body", "body": b""})


def _write_head(scope: Scope, body: _Body) -> bytes:
    target = scope["raw_path"]
    if scope["query_string"]:
        target += b"?" + scope["query_string"]
    lines = [b"%b %b HTTP/1.1" % (scope["method"].encode("latin-1"), target)]
    lines += [b"%b: %b" % pair for pair in scope["headers"] if pair[0] not in _HOP_BY_HOP]
    lines.append(b"%b: %b" % (ORIGIN_HEADER, _write_origin(scope)))
    if body.chunked:
        lines.append(b"transfer-encoding: chunked")
    # No connection is kept: one that the engine has ended would cost a request.
    lines.append(b"connection: close")
    return b"\r\n".join([*lines, b"", b""])


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
