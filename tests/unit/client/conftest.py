"""A server that says what a test tells it to: what a real one says only when it is in trouble."""

import base64
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


@dataclass
class Reply:
    status: int
    body: Any
    headers: dict[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


@dataclass
class Script:
    """Replies to give in turn, the last one again and again; and the requests that came."""

    url: str
    replies: list[Reply] = field(default_factory=list)
    requests: list[tuple[str, str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    def then(self, status: int, body: Any, **headers: str) -> "Script":
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.replies.append(Reply(status, body, named))
        return self


@pytest.fixture
def script() -> Iterator[Script]:
    """A real HTTP server on loopback, and what it is to answer."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            sent = self.rfile.read(length)
            held.requests.append((self.command, self.path, json.loads(sent) if sent else None))
            held.headers.append({name.lower(): value for name, value in self.headers.items()})
            reply = held.replies.pop(0) if len(held.replies) > 1 else held.replies[0]
            content = reply.encode()
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_DELETE = answer

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    held = Script(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield held
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def free_port() -> Iterator[int]:
    """A port where nothing listens; it is held, so that nothing else can take it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Someone who takes connections, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        yield silent.getsockname()[1]


@pytest.fixture
def vectors_reply() -> Callable[[list[list[float]]], dict[str, Any]]:
    def reply(rows: list[list[float]]) -> dict[str, Any]:
        data = [
            {
                "object": "embedding",
                "index": place,
                "embedding": base64.b64encode(struct.pack(f"<{len(row)}f", *row)).decode(),
            }
            for place, row in enumerate(rows)
        ]
        return {"object": "list", "data": data, "model": "m", "usage": {}}

    return reply
