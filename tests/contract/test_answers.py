"""How an answer is asked for in full, and that both doors take it, and refuse it, alike."""

from typing import Any

import pytest

from condensery.client.grpc import GrpcClient
from condensery.client.rest import Client
from condensery.errors import (
    CondenseryError,
    ContextNotFound,
    EmptyInput,
    IndexNotFound,
    InputError,
    ModelNotFound,
    PayloadTooLarge,
)
from condensery.question import Answer, Delta, Likely
from condensery.values import Document

Clients = tuple[Client | GrpcClient, ...]

QUESTION = "Which lake does the Rhine pass through?"
PASSAGE = "The Rhine passes through Lake Constance."
HOT: dict[str, Any] = {"index": "samples", "max_tokens": 16, "temperature": 1.5}


def test_the_same_seed_says_the_same_at_both_doors(clients: Clients) -> None:
    texts = [client.answer(QUESTION, seed=7, **HOT).text for client in (*clients, *clients)]
    streamed = [list(client.answer_stream(QUESTION, seed=7, **HOT))[-1] for client in clients]
    assert {*texts, *(last.text for last in streamed if isinstance(last, Answer))} == {texts[0]}
    others = {clients[0].answer(QUESTION, seed=seed, **HOT).text for seed in range(4)}
    assert len(others) > 1, "the seed makes no difference"
    assert len({clients[0].answer(QUESTION, **HOT).text for _ in range(4)}) > 1, "none is drawn"


def test_an_answer_ends_before_its_stop_string(clients: Clients) -> None:
    whole = clients[0].answer(QUESTION, index="samples", max_tokens=24).text
    middle = len(whole) // 2
    stop = whole[middle : middle + 3]
    wanted = whole[: whole.index(stop)]
    for client in clients:
        for stops in (stop, ["never said by it", stop]):
            answer = client.answer(QUESTION, index="samples", max_tokens=24, stop=stops)
            assert (answer.text, answer.finish_reason) == (wanted, "stop")
        *events, last = client.answer_stream(QUESTION, index="samples", max_tokens=24, stop=stop)
        assert isinstance(last, Answer)
        assert last.text == wanted
        assert "".join(event.text for event in events if isinstance(event, Delta)) == wanted


def test_log_probabilities_are_those_of_its_tokens(clients: Clients) -> None:
    how: dict[str, Any] = {"documents": [PASSAGE], "max_tokens": 8, "logprobs": 3}
    answers = [client.answer(QUESTION, **how) for client in clients]
    for client, answer in zip(clients, answers, strict=True):
        assert answer.logprobs is not None
        assert len(answer.logprobs) == answer.usage.completion_tokens
        for token in answer.logprobs:
            assert len(token.top) == 3
            assert token.top[0].logprob == token.logprob, "greedy takes the likeliest"
            assert Likely(token.text, token.logprob) in token.top  # of equally likely ones any
            assert [logprob for _, logprob in token.top] == sorted(
                (logprob for _, logprob in token.top), reverse=True
            )
            assert token.logprob < 0
        *events, last = client.answer_stream(QUESTION, **how)
        assert isinstance(last, Answer)
        streamed = [
            token
            for event in events
            if isinstance(event, Delta) and event.logprobs is not None
            for token in event.logprobs
        ]
        assert [token.text for token in streamed] == [token.text for token in answer.logprobs]
        assert [token.text for token in last.logprobs or ()] == [token.text for token in streamed]
    rest, grpc = ([token.logprob for token in item.logprobs or ()] for item in answers)
    assert rest == pytest.approx(grpc, abs=1e-2)
    assert clients[0].answer(QUESTION, documents=[PASSAGE], max_tokens=2).logprobs is None


def test_below_the_threshold_it_says_that_the_passages_do_not_hold_it(clients: Clients) -> None:
    texts = []
    for client in clients:
        answer = client.answer(QUESTION, documents=[PASSAGE], min_relevance=1.0, logprobs=0)
        assert answer.finish_reason == "not_found"
        assert answer.usage.completion_tokens == 0
        assert answer.text
        texts.append(answer.text)
        kept = client.answer(QUESTION, documents=[PASSAGE], min_relevance=0.0, max_tokens=4)
        assert kept.finish_reason != "not_found"
    assert texts[0] == texts[1]


def test_a_budget_of_vectors_is_kept_and_reported(clients: Clients) -> None:
    for client in clients:
        whole = client.answer(QUESTION, index="samples", top_k=5, top_n=0, max_tokens=2)
        each = whole.usage.context_vectors // 5
        less = client.answer(
            QUESTION, index="samples", top_k=5, top_n=0, max_context_vectors=2 * each, max_tokens=2
        )
        assert 0 < less.usage.context_vectors <= 2 * each
        assert len(less.citations) < 5
        assert less.compression.reason


@pytest.mark.parametrize("search", ["dense", "bm25", "hybrid"])
def test_an_index_is_searched_by_vectors_by_words_or_by_both(clients: Clients, search: Any) -> None:
    results = [client.query("samples", QUESTION, search=search, top_k=4) for client in clients]
    ids = [[hit.passage.id for hit in hits] for hits in results]
    assert ids[0] == ids[1]
    assert len(ids[0]) == 4
    how: dict[str, Any] = {"index": "samples", "search": search, "top_k": 4, "top_n": 0}
    answers = [client.answer(QUESTION, max_tokens=2, **how) for client in clients]
    for answer in answers:
        assert {citation.id for citation in answer.citations} == set(ids[0])
    assert answers[0].text == answers[1].text


def test_a_comparison_holds_both_answers(clients: Clients) -> None:
    how: dict[str, Any] = {"documents": [PASSAGE], "max_tokens": 12}
    comparisons = [client.compare(QUESTION, **how) for client in clients]
    compressed = clients[0].answer(QUESTION, **how)
    plain = clients[0].answer(QUESTION, mode="off", **how)
    for item in comparisons:
        assert item.compressed.text == compressed.text
        assert item.plain.text == plain.text
        assert item.compressed.compression.status == "applied"
        assert item.plain.compression.status == "off"
        assert 0 <= item.f1 <= 1
        assert item.exact == (item.f1 == 1.0) or item.f1 < 1
        assert item.speedup > 0
        assert item.cosine is not None
        assert -1.001 <= item.cosine <= 1.001
        assert item.flops_saved == item.compressed.compression.flops_saved
    assert comparisons[0].f1 == comparisons[1].f1
    assert comparisons[0].cosine == pytest.approx(comparisons[1].cosine, abs=1e-2)


# What is wrong, the error's class, and the field that both doors name.
WRONG: dict[str, tuple[dict[str, Any], type[CondenseryError], str]] = {
    "documents and an index": (
        {"documents": ["a"], "index": "samples"},
        *(InputError, "documents"),
    ),
    "no documents": ({"documents": []}, EmptyInput, "documents"),
    "too many documents": ({"documents": ["a"] * 101}, PayloadTooLarge, "documents"),
    "a document of a megabyte": (
        {"documents": ["a", "a" * 2**20]},
        *(InputError, "documents[1].text"),
    ),
    "two documents of one id": (
        {"documents": [Document("a", "one"), Document("a", "two")]},
        *(InputError, "documents[1].id"),
    ),
    "an unknown pair": ({"index": "samples", "model": "nobody"}, ModelNotFound, "model"),
    "an unknown index": ({"index": "nowhere"}, IndexNotFound, "index"),
    "an unknown context": ({"context": "ctx_1"}, ContextNotFound, "context"),
    "too many to find": ({"index": "samples", "top_k": 101}, InputError, "index.top_k"),
    "too many to read": ({"index": "samples", "top_n": 101}, InputError, "rerank.top_n"),
    "too long an answer": ({"index": "samples", "max_tokens": 513}, InputError, "max_tokens"),
    "an unknown mode": ({"index": "samples", "mode": "hard"}, InputError, "compression.mode"),
    "an unknown search": ({"index": "samples", "search": "fuzzy"}, InputError, "index.mode"),
    "a rate that the pair has not": (
        {"index": "samples", "rate": 3},
        *(InputError, "compression.ratio"),
    ),
    "no vectors at all": (
        {"index": "samples", "max_context_vectors": 0},
        *(InputError, "compression.max_context_vectors"),
    ),
    "no time at all": ({"index": "samples", "target_ms": 0.0}, InputError, "compression.target_ms"),
    "no time to compress": (
        {"index": "samples", "compress_timeout_ms": 0.0},
        *(InputError, "compression.timeout_ms"),
    ),
    "a threshold over 1": ({"index": "samples", "min_relevance": 1.5}, InputError, "min_relevance"),
    "too hot": ({"index": "samples", "temperature": 2.5}, InputError, "temperature"),
    "no token at all": ({"index": "samples", "top_p": 0.0}, InputError, "top_p"),
    "too many log-probabilities": ({"index": "samples", "logprobs": 21}, InputError, "logprobs"),
    "an empty stop string": ({"index": "samples", "stop": ["a", ""]}, InputError, "stop[1]"),
    "too many stop strings": ({"index": "samples", "stop": ["a"] * 17}, InputError, "stop"),
    "an empty question": ({"question": " ", "index": "samples"}, InputError, "query"),
    "a question of nothing that is seen": (
        {"question": "\u200b\u0301\u00ad", "index": "samples"},
        InputError,
        "query",
    ),
    "too long a question": ({"question": "q" * 2**20, "index": "samples"}, InputError, "query"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_refused_alike_at_both_doors(clients: Clients, name: str) -> None:
    how, kind, field = WRONG[name]
    question = how.get("question", QUESTION)
    others = {key: value for key, value in how.items() if key != "question"}
    for client in clients:
        for call in (
            lambda door: door.answer(question, **others),
            lambda door: next(iter(door.answer_stream(question, **others))),
            lambda door: door.compare(question, **others),
        ):
            with pytest.raises(kind) as caught:
                call(client)
            assert type(caught.value) is kind
            assert caught.value.field == field
            assert len(caught.value.message) < 1000
