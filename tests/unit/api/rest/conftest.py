"""The REST API over ASGI, without a socket."""

import asyncio
import contextlib
import json
import socket
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from condensery.api.rest import connections
from condensery.api.rest.app import build_app
from condensery.api.rest.connections import BoundedProtocol
from condensery.api.rest.http import RestServer
from condensery.api.rest.middleware import ON_DISCONNECT


@pytest.fixture
async def client(services):
    transport = httpx.ASGITransport(app=build_app(services), raise_app_exceptions=True)
    async with httpx.AsyncClient(transport=transport, base_url="http://door") as client:
        yield client


@dataclass
class Line:
    """One request over ASGI, and a client that can dawdle, leave, or be left.

    ``body`` is sent in one piece, unless it is a list of pieces; with ``unfinished`` set, more of
    it is to come, and never does.
    """

    app: Any
    path: str
    body: Any = b""
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)
    sent: list[dict[str, Any]] = field(default_factory=list)
    received: int = 0
    callbacks: dict[Any, Any] = field(default_factory=dict)
    pause: Any = None
    unfinished: bool = False

    def start(self) -> "asyncio.Task[None]":
        content = self.body
        if not isinstance(content, (bytes, list)):
            content = json.dumps(content).encode()
        self.pieces = content if isinstance(content, list) else [content]
        self.gone = asyncio.Event()
        headers = {"content-length": str(len(content))} if isinstance(content, bytes) else {}
        scope = {
            "type": "http",
            "method": self.method,
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "http_version": "1.1",
            "headers": [
                (name.encode(), value.encode())
                for name, value in {**headers, **self.headers}.items()
            ],
            "client": ("10.0.0.7", 5),
            "server": ("door", 80),
            "asgi": {"spec_version": "2.3"},
            "extensions": {ON_DISCONNECT: self.callbacks},
        }
        self.task = asyncio.create_task(self.app(scope, self._receive, self._send))
        return self.task

    async def run(self) -> "Line":
        self.start()
        return await self.end()

    async def end(self) -> "Line":
        """Wait until it is served, or dropped."""
        # Not wait_for, which would end it itself.
        done, _ = await asyncio.wait({self.task}, timeout=30)
        assert done, "it is still being served"
        self.task.result()
        return self

    async def until(self, so: Any) -> None:
        """Wait until ``so()`` is true."""
        async with asyncio.timeout(30):
            while not so():  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.001)

    def leave(self) -> None:
        self.gone.set()
        for callback in tuple(self.callbacks):
            callback()

    async def _receive(self) -> dict[str, Any]:
        self.received += 1
        if self.pieces:
            piece, *self.pieces = self.pieces
            return {
                "type": "http.request",
                "body": piece,
                "more_body": bool(self.pieces or self.unfinished),
            }
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)
        if self.pause is not None:
            await self.pause(message)

    @property
    def status(self) -> int:
        return self.sent[0]["status"]

    @property
    def reply_headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def content(self) -> bytes:
        return b"".join(message["body"] for message in self.sent[1:])

    @property
    def error(self) -> Any:
        return json.loads(self.content)["error"]


@pytest.fixture
def line(services):
    """Return a request that is not made yet."""
    app = build_app(services)

    def make(path: str, body: Any = b"", **options: Any) -> Line:
        return Line(app, path, body, **options)

    return make


@pytest.fixture
def serve(services):
    """Return what runs a server, with options of its own; it must end within its grace."""

    @contextlib.asynccontextmanager
    async def serving(host="127.0.0.1", **options):
        listener = socket.create_server((host, 0))
        listener.setblocking(False)
        rest = RestServer(services, listener, **options)
        await rest.started()
        try:
            yield listener.getsockname()[1]
        finally:
            await asyncio.wait_for(rest.stop(0), 30)

    return serving


@pytest.fixture
async def server(serve):
    """Return a running server's port."""
    async with serve() as port:
        yield port


@pytest.fixture
def brief(monkeypatch):
    """Wait less long for who is refused to read why."""
    monkeypatch.setattr(connections, "REFUSAL_LINGER_SECONDS", 0.2)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(BoundedProtocol, "head_seconds", 0.3)
    monkeypatch.setattr(BoundedProtocol, "take_seconds", 0.3)
    monkeypatch.setattr(connections, "REFUSAL_LINGER_SECONDS", 0.2)
