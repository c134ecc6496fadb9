"""Answers that another server writes, over REST: what the replies say, and each fault's status."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest
from scripted_server import CUT, HOLD, answer, head, refuse, say, scripted, unused_url

from condensery.api.rest.app import build_app
from condensery.runtime.answer_server import AnswerServerConfig, RemoteGenerator

RAG, CHAT = "/v1/rag/answer", "/v1/chat/completions"
DOCUMENTS = ["some words", {"id": "best", "text": "gold"}]
BODIES: dict[str, dict[str, Any]] = {
    RAG: {"query": "where?", "documents": DOCUMENTS},
    CHAT: {"messages": [{"role": "user", "content": "where?"}], "documents": DOCUMENTS},
}
OK = answer("Seven", " traits")
Door = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]


@pytest.fixture
def door(services: Any) -> Door:
    """Serve with the answers of the server at a URL."""

    @asynccontextmanager
    async def opened(url: str, patience: float = 60) -> AsyncIterator[httpx.AsyncClient]:
        config = AnswerServerConfig(
            f"{url}/chat/completions", "qwen", retries=0, timeout_seconds=patience
        )
        made = RemoteGenerator(config, services.metrics)
        app = build_app(replace(services, answer_server=made))
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url="http://door") as client:
            yield client
        await made.close()

    return opened


async def test_an_answer_names_its_generator_whole_and_streamed(door: Door) -> None:
    async with scripted(OK) as server, door(server.url) as client:
        whole = await client.post(RAG, json=BODIES[RAG])
        streamed = await client.post(RAG, json={**BODIES[RAG], "stream": True})
        refused = await client.post(RAG, json={**BODIES[RAG], "min_relevance": 1})
    assert (whole.json()["answer"], whole.json()["generator"]) == ("Seven traits", "qwen")
    assert whole.headers["x-model"] == "pair"
    blocks = [block.split("\ndata: ") for block in streamed.text.strip().split("\n\n")]
    events = {name: json.loads(data) for name, data in blocks if data != "[DONE]"}
    assert events["event: search_results"]["generator"] == "qwen"
    assert events["event: final_answer"]["generator"] == "qwen"
    assert [name for name, _ in blocks].count("event: message") == 2, "deltas are not as they came"
    assert refused.json()["generator"] is None


async def test_a_chat_has_the_text_and_names_its_generator(door: Door) -> None:
    async with scripted(OK) as server, door(server.url) as client:
        whole = (await client.post(CHAT, json=BODIES[CHAT])).json()
        reply = await client.post(CHAT, json={**BODIES[CHAT], "stream": True})
    assert whole["choices"][0]["message"]["content"] == "Seven traits"
    assert whole["condensery"]["generator"] == "qwen"
    assert whole["usage"] == {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
    chunks = [
        json.loads(line.removeprefix("data: "))
        for line in reply.text.strip().split("\n\n")
        if not line.endswith("[DONE]")
    ]
    said = [chunk["choices"][0]["delta"].get("content") for chunk in chunks]
    assert [text for text in said if text] == ["Seven", " traits"]
    assert chunks[-1]["condensery"]["generator"] == "qwen"


FAULTS = {
    "rubbish": ([head(media="text/html"), b"<html>"], 502, "answer_server_fault"),
    "cut": ([head(), say("Se"), CUT], 502, "answer_server_fault"),
    "401": (refuse("401 Unauthorized"), 502, "answer_server_fault"),
    "slow": ([head(), HOLD], 504, "answer_server_slow"),
    "429": (
        refuse("429 Too Many Requests", retry_after="17"),
        503,
        "answer_server_unavailable",
    ),
    "down": (None, 503, "answer_server_unavailable"),
}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("name", FAULTS)
async def test_each_fault_has_its_status_and_is_an_event_of_a_stream(
    door: Door, name: str, path: str
) -> None:
    script, status, code = FAULTS[name]
    async with scripted(script or OK) as server:
        url = server.url if script else await unused_url()
        # A connection has half of it: on a busy machine a short time is over before it stands.
        async with door(url, 2 if name == "slow" else 60) as client:
            whole = await client.post(path, json=BODIES[path])
            streamed = await client.post(path, json={**BODIES[path], "stream": True})
            ready = await client.get("/readyz")
            embedded = await client.post("/v1/embeddings", json={"input": "a"})
    assert (whole.status_code, whole.json()["error"]["code"]) == (status, code)
    assert whole.headers["x-should-retry"] == ("true" if status == 503 else "false")
    if name == "429":
        assert whole.headers["retry-after"] == "17"
    assert streamed.status_code == 200
    assert f'"code":"{code}"' in streamed.text
    assert streamed.text.endswith("data: [DONE]\n\n")
    assert ('"Se"' in streamed.text) == (name == "cut"), "what was said is passed on"
    assert (ready.status_code, embedded.status_code) == (200, 200)
