"""Documents compressed once, and answered from later: what a handle is good for, and for whom."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.contract.conftest import DOORS
from tests.contract.test_guarded import make

from condensery.client.grpc import AsyncGrpcClient, GrpcClient
from condensery.client.rest import AsyncClient, Client
from condensery.errors import (
    ContextExpired,
    ContextMismatch,
    ContextNotFound,
    EmptyInput,
    InputError,
)
from condensery.question import Answer, Delta, Retrieved
from condensery.values import Document

Clients = tuple[Client | GrpcClient, ...]

QUESTION = "Which lake does the Rhine pass through?"
DOCUMENTS = [
    Document("rhine", "The Rhine passes through Lake Constance.", {"kind": "river"}),
    Document("bread", "Bread rises because yeast makes gas."),
    Document("long", "The river passes many towns and some lakes on its way to the sea. " * 30),
]
ASKED: dict[str, Any] = {"top_n": 2, "max_tokens": 12, "logprobs": 1}


def content_of(answer: Answer) -> tuple[Any, ...]:
    """What an answer says, but for its name and the time it took."""
    citations = [
        (citation.index, citation.id, citation.text, citation.start, citation.end)
        for citation in answer.citations
    ]
    block = answer.compression
    return answer.text, citations, block.status, block.tokens_in, block.vectors_out, answer.usage


def test_an_answer_from_a_context_is_that_from_its_documents(
    clients: Clients, client: Client | GrpcClient, metric: Callable[..., float]
) -> None:
    whole = client.answer(QUESTION, documents=DOCUMENTS, **ASKED)
    compressed = client.compress(QUESTION, DOCUMENTS)
    assert compressed.context is not None
    passes = {"model": "oscar-mini", "stage": "compress"}
    before = metric("condensery_stage_duration_seconds_count", **passes)
    assert before > 0
    for door in clients:  # who compressed at one door may ask at the other
        later = door.answer(QUESTION, context=compressed.context, **ASKED)
        assert content_of(later) == content_of(whole)
        assert [citation.relevance_score for citation in later.citations] == pytest.approx(
            [item.relevance_score for item in whole.citations], abs=1e-6
        )
        *_, last = door.answer_stream(QUESTION, context=compressed.context, **ASKED)
        assert isinstance(last, Answer)
        assert content_of(last) == content_of(whole)
    again = metric("condensery_stage_duration_seconds_count", **passes)
    assert again == before, "it was compressed once more"
    assert whole.text


def test_each_document_is_reported_in_its_place(client: Client | GrpcClient) -> None:
    started = time.time()
    compressed = client.compress(QUESTION, [*DOCUMENTS, "a text without a name", " "])
    assert [document.index for document in compressed.documents] == [0, 1, 2, 3, 4]
    assert [entry.id for entry in compressed.documents] == ["rhine", "bread", "long", "3", "4"]
    *read, blank = compressed.documents
    for document in read:
        assert (document.status, document.reason) == ("applied", None)
        assert document.relevance_score is not None
        assert 0 < document.relevance_score < 1
        assert document.vectors_out > 0
    assert [document.windows > 1 for document in read] == [False, False, True, False]
    assert (blank.vectors_out, blank.relevance_score) == (0, None)
    assert blank.reason
    assert compressed.compression.vectors_out == sum(
        document.vectors_out for document in compressed.documents
    )
    assert compressed.model == "oscar-mini"
    assert compressed.fingerprint.startswith("sha256:")
    assert compressed.expires_at == pytest.approx(started + 600, abs=60)
    ranked = client.rerank(QUESTION, [document.text for document in DOCUMENTS])
    scores = {item.index: item.score for item in ranked}
    assert [document.relevance_score for document in compressed.documents[:3]] == pytest.approx(
        [scores[place] for place in range(3)], abs=1e-2
    )


def test_without_keeping_nothing_is_held(
    client: Client | GrpcClient, metric: Callable[..., float]
) -> None:
    held = metric("condensery_contexts")
    compressed = client.compress(QUESTION, DOCUMENTS, keep=False)
    assert (compressed.context, compressed.expires_at) == (None, None)
    assert metric("condensery_contexts") <= held  # others' may have ended
    kept = client.compress(QUESTION, DOCUMENTS)
    assert [document.vectors_out for document in kept.documents] == [
        item.vectors_out for item in compressed.documents
    ]


def test_a_released_context_is_gone(client: Client | GrpcClient) -> None:
    context = client.compress(QUESTION, DOCUMENTS).context
    assert context is not None
    client.release(context)
    for call in (
        lambda: client.answer(QUESTION, context=context),
        lambda: next(iter(client.answer_stream(QUESTION, context=context))),
        lambda: client.compare(QUESTION, context=context),
        lambda: client.release(context),
        lambda: client.answer(QUESTION, context="ctx_of_nobody"),
    ):
        with pytest.raises(ContextNotFound) as caught:
            call()
        assert not isinstance(caught.value, ContextExpired)
        assert caught.value.field == "context"


def test_a_context_whose_time_is_over_says_so(client: Client | GrpcClient) -> None:
    compressed = client.compress(QUESTION, DOCUMENTS, ttl_seconds=1.0)
    assert compressed.context is not None
    assert compressed.expires_at is not None
    time.sleep(max(0.0, compressed.expires_at - time.time()) + 0.2)
    with pytest.raises(ContextExpired) as caught:
        client.answer(QUESTION, context=compressed.context)
    assert caught.value.field == "context"
    with pytest.raises(ContextExpired):
        client.release(compressed.context)


def test_a_context_serves_its_own_question_only(client: Client | GrpcClient) -> None:
    context = client.compress(QUESTION, DOCUMENTS).context
    for call in (client.answer, client.compare):
        with pytest.raises(ContextMismatch) as caught:
            call("Why does bread rise?", context=context)
        assert caught.value.field == "context"
        assert "Rhine" not in caught.value.message


@pytest.mark.parametrize("door", DOORS)
def test_another_keys_context_is_not_found(guarded_server: Any, door: str) -> None:
    with (
        make(guarded_server, door, "infer") as mine,
        make(guarded_server, door, "admin") as other,
        make(guarded_server, "grpc" if door == "rest" else "rest", "infer") as opposite,
    ):
        context = mine.compress(QUESTION, DOCUMENTS).context
        for call in (
            lambda: other.answer(QUESTION, context=context),
            lambda: other.release(context),
            lambda: opposite.answer(QUESTION, context="ctx_of_nobody"),
        ):
            with pytest.raises(ContextNotFound, match="no such handle"):
                call()
        assert opposite.answer(QUESTION, context=context, max_tokens=2).citations
        opposite.release(context)


@pytest.mark.parametrize(
    ("how", "kind", "field"),
    [
        ({"documents": []}, EmptyInput, "documents"),
        ({"documents": ["a"] * 101}, InputError, "documents"),
        ({"question": " "}, InputError, "query"),
        ({"rate": 3}, InputError, "ratio"),
        ({"ttl_seconds": 0.25}, InputError, "ttl_s"),
        ({"ttl_seconds": 1e9}, InputError, "ttl_s"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_can_not_be_compressed_is_refused_by_field(
    clients: Clients, how: dict[str, Any], kind: type[Exception], field: str
) -> None:
    question, documents = how.get("question", QUESTION), how.get("documents", DOCUMENTS)
    others = {name: how[name] for name in how.keys() - {"question", "documents"}}
    errors = []
    for client in clients:
        with pytest.raises(kind) as caught:
            client.compress(question, documents, **others)
        error: Any = caught.value
        errors.append((type(error), error.message, error.field))
    assert errors[0] == errors[1]
    assert errors[0][2] == field


async def test_the_async_clients_do_the_same(
    async_client: AsyncClient | AsyncGrpcClient, clients: Clients
) -> None:
    compressed = await async_client.compress(QUESTION, DOCUMENTS)
    assert compressed.context is not None
    answer = await async_client.answer(QUESTION, context=compressed.context, **ASKED)
    assert content_of(answer) == content_of(
        clients[0].answer(QUESTION, documents=DOCUMENTS, **ASKED)
    )
    events = [
        event async for event in async_client.answer_stream(QUESTION, context=compressed.context)
    ]
    assert isinstance(events[0], Retrieved)
    assert isinstance(events[1], Delta)
    comparison = await async_client.compare(QUESTION, context=compressed.context, max_tokens=4)
    assert comparison.compressed.compression.status == "applied"
    assert comparison.plain.compression.status == "off"
    await async_client.release(compressed.context)
    with pytest.raises(ContextNotFound):
        await async_client.release(compressed.context)
