"""A server whose answers a second one writes, both real: by every door."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from tests.conftest import LiveServer, serving

from condensery.client.grpc import GrpcClient
from condensery.client.rest import Client
from condensery.question import NOT_FOUND, Answer, Delta, Retrieved

QUESTION = "Which lake does the Rhine pass through?"
PASSAGE = "The Rhine passes through Lake Constance."
KEY = "the-key-for-the-server-behind"


@dataclass(frozen=True)
class Both:
    front: LiveServer
    behind: LiveServer


@pytest.fixture(scope="module")
def both(
    store_with_pair: Path, live_server: LiveServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Both]:
    folder = tmp_path_factory.mktemp("front")
    flags = ("--answer-with", live_server.url, "--answer-model", "oscar-mini")
    flags += ("--answer-passages", "documents", "--answer-retries", "0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONDENSERY_ANSWER_KEY", KEY)
        with serving(store_with_pair, folder, *flags) as front:
            yield Both(front, live_server)


@pytest.fixture(params=["rest", "grpc"])
def front(request: pytest.FixtureRequest, both: Both) -> Iterator[Client | GrpcClient]:
    made = Client(both.front.url) if request.param == "rest" else GrpcClient(both.front.grpc)
    with made:
        yield made


def test_the_text_is_what_the_server_behind_says(front: Client | GrpcClient, both: Both) -> None:
    how: dict[str, Any] = {"documents": [PASSAGE], "max_tokens": 24}
    with Client(both.behind.url) as behind:
        wanted = behind.answer(QUESTION, **how)
    whole = front.answer(QUESTION, **how)
    assert (whole.answer, whole.finish_reason) == (wanted.answer, wanted.finish_reason)
    assert whole.usage.completion_tokens == wanted.usage.completion_tokens
    assert (wanted.generator, whole.generator) == (None, "oscar-mini")
    assert (whole.compression.status, whole.compression.vectors_out) == ("off", 0)
    assert (whole.compression.flops_plain, whole.compression.flops_used > 0) == (0, True)
    first, *deltas, last = front.answer_stream(QUESTION, **how)
    assert isinstance(first, Retrieved)
    assert isinstance(last, Answer)
    assert first.generator == last.generator == "oscar-mini"
    assert len(deltas) > 1, "the words came in one piece"
    assert "".join(d.text for d in deltas if isinstance(d, Delta)) == last.text == wanted.answer


def test_passages_are_found_and_cited_in_front(front: Client | GrpcClient) -> None:
    whole = front.answer(QUESTION, index="samples", top_k=5, top_n=2, max_tokens=4)
    assert len(whole.citations) == 2
    assert all(citation.relevance_score is not None for citation in whole.citations)


def test_under_the_threshold_the_server_behind_is_not_asked(
    front: Client | GrpcClient, both: Both
) -> None:
    def asked() -> float:
        text = httpx.get(f"{both.front.url}/metrics", timeout=60).text
        lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
        return float(lines["condensery_answer_server_requests_total"])

    before = asked()
    whole = front.answer(QUESTION, documents=[PASSAGE], min_relevance=1.0)
    assert (whole.answer, whole.finish_reason) == (NOT_FOUND, "not_found")
    assert whole.generator is None
    assert asked() == before
    front.answer(QUESTION, documents=[PASSAGE], max_tokens=2)
    assert asked() == before + 1


def test_the_key_for_the_server_behind_is_in_no_log(both: Both) -> None:
    log = both.front.log.read_text()
    assert both.behind.url in log, "it does not say who writes the answers"
    assert KEY not in log


def test_openais_client_streams_it(both: Both) -> None:
    how: dict[str, Any] = {
        "model": "oscar-mini",
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": 8,
        "extra_body": {"documents": [PASSAGE]},
    }
    url = f"{both.front.url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        whole = client.chat.completions.create(**how)
        chunks = list(client.chat.completions.create(stream=True, **how))
    assert whole.condensery["generator"] == "oscar-mini"  # type: ignore[attr-defined]  # our own
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert said == whole.choices[0].message.content
