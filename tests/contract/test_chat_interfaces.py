"""What Open WebUI and LibreChat send, of a real server: their requests, and how they read replies.

Neither program can be installed beside the tests. ``recorded/`` has their requests, long prompts in
fewer words, each with how the program reads the reply; ``recorded`` there says how they were had.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

RECORDED = [
    (path.stem, request)
    for path in sorted((Path(__file__).parent / "recorded").glob("*.json"))
    for request in json.loads(path.read_text())["requests"]
]
MODEL = "docs"
INDEX = {"name": "samples", "top_k": 5}


@pytest.fixture(scope="module")
def model(live_server: Any) -> Iterator[str]:
    """The model that a user of the program chooses: an alias that carries an index."""
    url = f"{live_server.url}/v1/models/aliases"
    named = {"aliases": {MODEL: "oscar-mini@samples?top_k=5"}}
    httpx.post(url, json=named, timeout=60).raise_for_status()
    yield MODEL
    httpx.post(url, json={"aliases": {MODEL: None}}, timeout=60).raise_for_status()


@pytest.mark.parametrize(
    "request_", [pytest.param(sent, id=f"{app}: {sent['what']}") for app, sent in RECORDED]
)
def test_a_recorded_request_gets_what_its_program_can_read(
    request_: dict[str, Any], live_server: Any, model: str
) -> None:
    body = request_.get("body")
    reply = httpx.request(
        "GET" if body is None else "POST",
        live_server.url + request_["path"],
        json=body,
        headers=request_["headers"],
        timeout=300,
    )
    READERS[request_["read_as"]](reply, body, live_server.url)


def read_models(reply: httpx.Response, _: Any, __: str) -> None:
    """Both list the ids of ``data``; Open WebUI shows a name where there is one, too."""
    assert reply.status_code == 200, reply.text
    models = reply.json()["data"]
    assert {MODEL, "oscar-mini"} <= {model["id"] for model in models}
    assert all(isinstance(model.get("name", model["id"]), str) for model in models)


def read_chunks(reply: httpx.Response, body: Any, url: str) -> None:
    """Line by line: what is behind ``data:``, until ``[DONE]``; the first choice's delta."""
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in reply.text.splitlines() if line.strip()]
    assert all(line.startswith("data:") for line in lines)
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data:")) for line in lines[:-1]]
    choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    joined = "".join(choice["delta"].get("content") or "" for choice in choices)
    if body.get("temperature"):  # tokens are drawn
        assert joined
    else:
        assert joined == plain_answer(url, body)
    assert not any(choice["delta"].get("tool_calls") for choice in choices)
    assert choices[-1]["finish_reason"] in ("stop", "length")
    if (body.get("stream_options") or {}).get("include_usage"):
        assert chunks[-1]["usage"]["completion_tokens"] > 0
        assert chunks[-1]["choices"] == []


def read_events(reply: httpx.Response, body: Any, url: str) -> None:
    """Of responses the events with text, and the last one."""
    assert reply.status_code == 200, reply.text
    lines = [line for line in reply.text.splitlines() if line.startswith("data:")]
    events = [json.loads(line.removeprefix("data:")) for line in lines]
    kinds = ("response.output_text.delta", "response.completed", "response.incomplete")
    joined = "".join(event["delta"] for event in events if event["type"] == kinds[0])
    assert joined == plain_answer(url, body)
    assert events[-1]["type"] in kinds[1:]
    assert events[-1]["response"]["usage"]["output_tokens"] > 0


def read_whole(reply: httpx.Response, body: Any, url: str) -> None:
    """The message of the only choice."""
    assert reply.status_code == 200, reply.text
    (choice,) = reply.json()["choices"]
    assert choice["message"]["content"] == plain_answer(url, body)
    assert not choice["message"].get("tool_calls")


def read_json_inside(reply: httpx.Response, _: Any, __: str) -> None:
    """Open WebUI reads what is between the first brace and the last; without it has its own.

    A refusal is read the same way: the title is then the question, and there are no tags.
    """
    if reply.status_code != 200:
        read_refusal(reply, None, "")
        return
    (choice,) = reply.json()["choices"]
    text = choice["message"]["content"]
    assert isinstance(text, str)
    with pytest.raises(ValueError, match="Expecting"):
        json.loads(text[text.find("{") : text.rfind("}") + 1])


def read_refusal(reply: httpx.Response, _: Any, __: str) -> None:
    """Both show the error's message; it names the field."""
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["message"].startswith(error["param"])


READERS: dict[str, Callable[[httpx.Response, Any, str], None]] = {
    "models": read_models,
    "chunks": read_chunks,
    "events": read_events,
    "whole": read_whole,
    "json inside": read_json_inside,
    "refusal": read_refusal,
}


def plain_answer(url: str, body: dict[str, Any]) -> str:
    """Return what `/v1/rag/answer` says to the last question of a user's, asked alike."""
    turns = body.get("messages") or body["input"]
    question = next(turn["content"] for turn in reversed(turns) if turn["role"] == "user")
    if isinstance(question, list):
        question = "\n".join(part["text"] for part in question)
    asked = {name: body[name] for name in ("temperature", "top_p", "stop") if name in body}
    if "max_tokens" in body:
        asked["max_tokens"] = min(body["max_tokens"], 512)
    asked |= {"query": question, "index": INDEX, "model": "oscar-mini"}
    reply = httpx.post(f"{url}/v1/rag/answer", json=asked, timeout=300).raise_for_status().json()
    return str(reply["answer"])
