"""The shipped pair writes lower case; what callers get, by every door, is in the source's words."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from tests.command_line import run
from tests.conftest import LiveServer, serving

from condensery.client.grpc import GrpcClient
from condensery.client.rest import Client
from condensery.errors import InputError
from condensery.question import NOT_FOUND, Answer, Delta

pytestmark = pytest.mark.slow

ASYLUM = "In which asylum did van Gogh paint The Starry Night?"
CODE = "What does useFetch() take?"
PASSAGES = [
    "Bread is baked of flour and water. It takes an hour.",
    "The function `useFetch()` takes an undici.Dispatcher, and returns 🍕 a promise.",
]


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("shipped")
    with serving(folder / "store", folder) as server:
        yield server


@pytest.fixture(params=["rest", "grpc"])
def client(request: pytest.FixtureRequest, shipped: LiveServer) -> Iterator[Any]:
    door = Client(shipped.url) if request.param == "rest" else GrpcClient(shipped.grpc)
    with door as made:
        yield made


def check_places(answer: Answer, wanted: str, documents: dict[str, str] | None = None) -> None:
    assert (answer.answer, answer.grounded) == (wanted, True)
    (citation,) = (each for each in answer.citations if each.answer_start is not None)
    assert citation.answer_end is not None
    start, end = citation.answer_start, citation.answer_end
    assert citation.text[start - citation.start : end - citation.start] == wanted
    if documents is not None:
        assert documents[citation.document_id][start:end] == wanted


def test_accents_and_capitals_are_the_sources(client: Any) -> None:
    check_places(client.answer(ASYLUM, index="samples"), "Saint-Rémy")


def test_a_stream_joins_to_the_same_words(client: Any) -> None:
    *events, last = client.answer_stream(ASYLUM, index="samples", logprobs=0)
    check_places(last, "Saint-Rémy")
    deltas = [event for event in events if isinstance(event, Delta)]
    assert "".join(delta.text for delta in deltas) == "Saint-Rémy"
    tokens = [token.text for token in last.logprobs]
    assert "".join(tokens).replace("##", "") == "saint-remy", "a token is what the model wrote"
    assert last.usage.completion_tokens == len(tokens)


def test_code_is_the_sources(client: Any) -> None:
    documents = {str(place): text for place, text in enumerate(PASSAGES)}
    answer = client.answer(CODE, documents=PASSAGES, min_relevance=0.0)
    assert "Dispatcher" in answer.answer
    check_places(answer, answer.answer, documents)


def test_an_answer_that_stands_in_its_passage_ten_times_has_one_place(client: Any) -> None:
    sentence = "The Rhine passes through Lake Constance."
    passage = " ".join([sentence] * 10)
    asked = "What passes through Lake Constance?"
    answer = client.answer(asked, documents=[passage], min_relevance=0.0)
    assert answer.grounded
    (citation,) = answer.citations
    assert passage[citation.answer_start : citation.answer_end] == answer.answer
    assert "Rhine" in answer.answer


def check(answer: Answer, passage: str | None = None) -> None:
    """Check that an answer says where it stands, or that it does not, or what is near."""
    places = [c for c in answer.citations if c.answer_start is not None]
    if answer.finish_reason == "not_found":
        assert (answer.answer, answer.grounded) == (NOT_FOUND, None)
        assert answer.snippets
        for snippet in answer.snippets:
            assert 0 < len(snippet.text) <= 300
            assert passage is None or passage[snippet.start : snippet.end] == snippet.text
        return
    assert answer.snippets == ()
    assert bool(places) is answer.grounded
    words = [c.text[c.answer_start - c.start : c.answer_end - c.start] for c in places]
    assert not words or any(each and each in answer.answer for each in words)


ODD_QUESTIONS = {
    "another language": "In welchem Jahr sank die Vasa?",
    "another script": "湖はどこですか",
    "one word": "Mendel",
    "no word": "?!",
    "no letter": "🍕",
    "5,000 characters": "What did Mendel study in his garden? " * 135 + "Peas",
}
ODD_PASSAGES = {
    "table": "| lake | depth |\n|---|---|\n| Constance | 251 m |\n| Geneva | 310 m |\n" * 20,
    "code": "def lake(name):\n    return lakes[name]\n\nx = lake('Constance')\n" * 20,
    "one word": "lake",
    "no sentence": "lake " * 700,
    "no blank": "x" * 3900,
    "no word": "…!?",
}


@pytest.mark.parametrize("kind", ODD_QUESTIONS)
def test_an_odd_question_is_answered_or_not_found(client: Any, kind: str) -> None:
    for least in (None, 0.0):
        check(client.answer(ODD_QUESTIONS[kind], index="samples", min_relevance=least))


@pytest.mark.parametrize("kind", ODD_PASSAGES)
def test_an_odd_passage_is_read_or_nothing_is_found_in_it(client: Any, kind: str) -> None:
    passage = ODD_PASSAGES[kind]
    for least in (1.0, 0.0):
        asked = {"documents": [passage], "min_relevance": least}
        check(client.answer("How deep is Lake Constance?", **asked), passage)


def test_a_question_in_which_nothing_is_seen_is_refused(client: Any) -> None:
    with pytest.raises(InputError) as caught:
        client.answer("\u200b\u0301\u00ad", index="samples")
    assert caught.value.field == "query"


def test_where_none_is_found_the_nearest_sentences_are_shown(client: Any) -> None:
    answer = client.answer("Who is the king of Mars?", index="samples", min_relevance=1.0)
    assert (answer.answer, answer.finish_reason) == (NOT_FOUND, "not_found")
    assert answer.grounded is None
    assert len(answer.snippets) == 3
    *_, last = client.answer_stream("Who is the king of Mars?", index="samples", min_relevance=1.0)
    assert last.snippets == answer.snippets
    for snippet in answer.snippets:
        (document,) = client.get("samples", [snippet.document_id])
        assert document.text[snippet.start : snippet.end] == snippet.text


def test_what_another_condensery_lists_where_it_finds_none_is_not_taken_for_an_answer(
    shipped: LiveServer, tmp_path: Path
) -> None:
    """The one in front always asks; the one behind has the pair's own threshold."""
    how: dict[str, Any] = {"documents": PASSAGES, "max_tokens": 8}
    asked = "Who is the king of Mars?"
    with openai.OpenAI(base_url=f"{shipped.url}/v1", api_key="none", max_retries=0) as chat:
        listed = chat.chat.completions.create(
            model="oscar-mini",
            messages=[{"role": "user", "content": asked}],
            extra_body={"documents": PASSAGES},
        ).choices[0].message.content  # fmt: skip
    assert listed is not None
    assert listed.startswith(NOT_FOUND)
    assert "- **1**: The function" in listed
    flags = ("--answer-with", shipped.url, "--answer-model", "oscar-mini")
    flags += ("--answer-passages", "documents", "--answer-retries", "0")
    with serving(tmp_path / "store", tmp_path, *flags) as server, Client(server.url) as front:
        whole = front.answer(asked, min_relevance=0.0, **how)
        *_, streamed = front.answer_stream(asked, min_relevance=0.0, **how)
        for reply in (whole, streamed):
            assert (reply.answer, reply.finish_reason) == (NOT_FOUND, "not_found")
            assert (reply.generator, reply.grounded) == ("oscar-mini", None)
            assert len(reply.snippets) == 2, "its own"


def test_a_chat_is_in_the_sources_words(shipped: LiveServer) -> None:
    how: dict[str, Any] = {
        "model": "oscar-mini",
        "messages": [{"role": "user", "content": ASYLUM}],
        "extra_body": {"index": "samples"},
    }
    with openai.OpenAI(base_url=f"{shipped.url}/v1", api_key="none", max_retries=0) as chat:
        whole = chat.chat.completions.create(**how)
        chunks = list(chat.chat.completions.create(stream=True, **how))
    assert whole.choices[0].message.content == "Saint-Rémy"
    assert whole.condensery["grounded"] is True  # type: ignore[attr-defined]  # our own
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert said == "Saint-Rémy"


def test_the_command_line_has_them_too(shipped: LiveServer) -> None:
    printed = run("ask", ASYLUM, "--json", "--url", shipped.url).stdout
    assert json.loads(printed)["answer"] == "Saint-Rémy"


def test_the_report_of_a_comparison_has_them_on_both_sides(shipped: LiveServer) -> None:
    body = {"query": ASYLUM, "index": {"name": "samples"}}
    reply = httpx.post(f"{shipped.url}/v1/rag/compare", json=body, timeout=60).json()
    assert reply["compressed"]["answer"] == "Saint-Rémy"
    assert {"grounded", "snippets"} <= reply["plain"].keys()
