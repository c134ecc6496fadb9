"""Which requests a front process answers itself, and what becomes of those that it passes on."""

import json
from pathlib import Path
from typing import Any

import pytest

from condensery.fronts.relay import FrontApp, RelayedApp
from condensery.jobs.services import Health, NotHere

BODY = b'{"inputs": "a text"}'


class Own:
    """The process's own API: it notes what it is asked, and may not know the model."""

    def __init__(self, knows: bool = True) -> None:
        self.knows = knows
        self.asked: list[str] = []
        self.scope: dict[str, Any] = {}

    def family_of(self, path: str) -> str:
        return "openai"

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked.append(scope["path"])
        self.scope = scope
        assert (await receive())["body"] == BODY
        if not self.knows:
            raise NotHere("model")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"own"})


async def ask(
    app: Any, path: str, method: str = "POST", headers: tuple[tuple[bytes, bytes], ...] = ()
) -> tuple[int, bytes]:
    """Return the status and the body of a reply."""
    replies: list[Any] = []
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"content-length", b"%d" % len(BODY)), *headers],
        "client": ("10.0.0.7", 5),
        "server": ("127.0.0.1", 8080),
        "scheme": "http",
        "extensions": {},
    }

    async def receive() -> Any:
        return {"type": "http.request", "body": BODY, "more_body": False}

    async def send(message: Any) -> None:
        replies.append(message)

    await app(scope, receive, send)
    body = b"".join(message.get("body", b"") for message in replies)
    return replies[0]["status"], body


@pytest.mark.parametrize("path", ["/embed", "/v1/embeddings", "/rerank", "/predict", "/v2/rerank"])
async def test_what_needs_a_model_alone_is_answered_here(path: str, tmp_path: Path) -> None:
    own: Any = Own()
    app = FrontApp(own, str(tmp_path / "nobody.sock"), Health())
    assert await ask(app, path) == (200, b"own")
    assert own.asked == [path]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/rag/answer"),
        ("GET", "/v1/indexes"),
        ("GET", "/readyz"),
        ("GET", "/metrics"),
        ("POST", "/tokenize"),
        ("POST", "/nowhere"),
        ("GET", "/embed"),
    ],
)
async def test_all_else_is_the_engines_and_without_it_unavailable(
    method: str, path: str, tmp_path: Path
) -> None:
    own: Any = Own()
    app = FrontApp(own, str(tmp_path / "nobody.sock"), Health())
    status, body = await ask(app, path, method)
    assert status == 503
    assert "does not answer" in json.loads(body)["error"]["message"]
    assert own.asked == []


async def test_what_turns_out_not_to_be_known_here_is_passed_on(tmp_path: Path) -> None:
    own: Any = Own(knows=False)
    app = FrontApp(own, str(tmp_path / "nobody.sock"), Health())
    status, _ = await ask(app, "/embed")
    assert status == 503  # of the engine, which is not there
    assert own.asked == ["/embed"]


async def test_the_engine_serves_what_is_passed_on_as_of_its_client() -> None:
    own: Any = Own()
    origin = {"client": ["10.1.1.1", 9], "server": ["0.0.0.0", 80], "peer": ["10.2.2.2", 7]}
    header = (b"x-condensery-front", json.dumps({**origin, "scheme": "https"}).encode())
    await ask(RelayedApp(own), "/v1/indexes", headers=(header,))
    assert own.scope["client"] == origin["client"]
    assert own.scope["server"] == origin["server"]
    assert own.scope["scheme"] == "https"
    assert own.scope["extensions"]["condensery.peer"] == origin["peer"]
    assert header[0] not in dict(own.scope["headers"])
