"""A client that says what a test tells it to, in the place of one that connects."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import pytest

from condensery.commands import common


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
