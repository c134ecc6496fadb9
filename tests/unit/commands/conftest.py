"""A client that says what a test tells it to, in the place of one that connects; a real door."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import pytest

from condensery.api.rest.http import RestServer
from condensery.commands import common
from condensery.jobs.indexes import create_index
from condensery.jobs.services import Services


@dataclass
class Client:
    """Gives the same reply to every question, and keeps what was asked."""

    reply: Any = None
    asked: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def answer(self, *args: Any, **how: Any) -> Any:
        self.asked.append(("answer", args, how))
        return self.reply

    def answer_stream(self, *args: Any, **how: Any) -> Iterator[Any]:
        self.asked.append(("answer_stream", args, how))
        yield from self.reply

    def compare(self, *args: Any, **how: Any) -> Any:
        self.asked.append(("compare", args, how))
        return self.reply

    def embed(self, *args: Any, **how: Any) -> Any:
        self.asked.append(("embed", args, how))
        return self.reply

    def rerank(self, *args: Any, **how: Any) -> Any:
        self.asked.append(("rerank", args, how))
        return self.reply

    def query(self, *args: Any, **how: Any) -> Any:
        self.asked.append(("query", args, how))
        return self.reply

    def count(self, *args: Any, **how: Any) -> Any:
        self.asked.append(("count", args, how))
        return (300, 300)

    def drop_index(self, *args: Any, **how: Any) -> None:
        self.asked.append(("drop_index", args, how))

    def compress(self, *args: Any, **how: Any) -> Any:
        self.asked.append(("compress", args, how))
        return self.reply


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    client = Client()
    monkeypatch.setattr(common, "open_client", lambda args: client)
    return client


@pytest.fixture
def url(services: Services) -> Iterator[str]:
    """A REST door in a thread of its own, with stand-in models."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> RestServer:
        await create_index(services, "kb", encoder="other")
        rest = RestServer(services, listener)
        await rest.started()
        return rest

    rest = asyncio.run_coroutine_threadsafe(start(), loop).result(60)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    asyncio.run_coroutine_threadsafe(rest.stop(0), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
