"""Questions there and back: what a client writes a door reads; and what is read by hand."""

import json
import math
from dataclasses import asdict
from typing import Any

import orjson
import pytest

from condensery import protobuf, wire
from condensery.api.grpc import convert
from condensery.api.grpc.convert import parse_documents
from condensery.api.rest.answers import finite
from condensery.api.rest.schemas.rag import AnswerRequest, CompareRequest, CompressRequest
from condensery.api.rest.validation import validate_body
from condensery.client import grpc as rpc
from condensery.client import rest
from condensery.client.operations import Operations
from condensery.client.questions import make_question
from condensery.client.rest import Client
from condensery.errors import InputError
from condensery.question import (
    Answer,
    Citation,
    Compression,
    Delta,
    Likely,
    Question,
    Retrieved,
    Timings,
    TokenLogprob,
    Usage,
)
from condensery.stubs import condensery_v1_pb2 as pb
from condensery.values import Document

OPERATIONS: Any = vars(Operations)

ALL_SAID: dict[str, Any] = {
    "index": "kb",
    "model": "pair",
    "top_k": 7,
    "search": "hybrid",
    "filter": {"must": [{"key": "year", "range": {"gte": 1900, "lt": 1950.5}}], "should": None},
    "top_n": 3,
    "mode": "required",
    "rate": 16,
    "max_context_vectors": 24,
    "target_ms": 250.0,
    "compress_timeout_ms": 80.5,
    "min_relevance": 0.25,
    "max_tokens": 9,
    "stop": ("\n", "."),
    "temperature": 0.5,
    "top_p": 0.75,
    "seed": -(2**63),
    "logprobs": 5,
}
ASKED: dict[str, dict[str, Any]] = {
    "all that can be said": ALL_SAID,
    "nothing but the question": {"index": "kb"},
    "documents": {"documents": ["one", Document("mine", "two", {"year": 1898})]},
    "a context": {"context": "ctx_1"},
    "every zero that means something": {
        "index": "kb",
        "top_n": 0,
        "min_relevance": 0.0,
        "seed": 0,
        "logprobs": 0,
        "temperature": 0.0,
    },
}

COMPRESSION = Compression("auto", "partial", 2, 60, 4, 10**13, 10**12, 1.5, (1,), (2, 0))
CITED = Citation(3, "a#0", "a", "text", 2, 6, 0.5, {"year": 1898})
LOGPROBS = (
    TokenLogprob("Lake", -0.25, (Likely("Lake", -0.25), Likely("The", -math.inf))),
    TokenLogprob("", -0.5),
)
ANSWER = Answer(
    id="ans_1",
    model="pair",
    answer="Lake Constance",
    finish_reason="stop",
    citations=(CITED,),
    compression=COMPRESSION,
    usage=Usage(10, 4, 3),
    timings=Timings(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0),
    logprobs=LOGPROBS,
)


def body_of(operation: str, *args: Any, **how: Any) -> Any:
    row = OPERATIONS[operation]
    return json.loads(rest.write_request(row, row.make(None, *args, **how)).content or b"null")


def message_of(operation: str, *args: Any, **how: Any) -> Any:
    row = OPERATIONS[operation]
    return rpc.write_request(row, row.make(None, *args, **how)).message


def over_rest(how: dict[str, Any]) -> Question:
    return validate_body(body_of("answer", "why?", **how), AnswerRequest)


def over_grpc(how: dict[str, Any]) -> Question:
    sent = message_of("answer", "why?", **how).SerializeToString()
    request = pb.AnswerRequest.FromString(sent)
    documents = parse_documents(request.documents, 64)
    return convert.read_question(request, documents, request.model or None)


@pytest.mark.parametrize("over", [over_rest, over_grpc])
@pytest.mark.parametrize("name", ASKED)
def test_a_door_reads_the_question_that_was_asked(over: Any, name: str) -> None:
    read, asked = asdict(over(ASKED[name])), asdict(make_question("why?", **ASKED[name]))
    assert [read.pop("stream", False), list(read.pop("documents") or ())] == [
        False,
        asked.pop("documents") or [],
    ]
    assert read == asked


def test_a_stream_and_a_comparison_ask_the_same_question() -> None:
    body = body_of("answer", "why?", **ALL_SAID)
    assert body_of("answer_stream", "why?", **ALL_SAID) == {**body, "stream": True}
    assert body_of("compare", "why?", **ALL_SAID) == body
    assert validate_body(body, CompareRequest)
    request = message_of("answer", "why?", **ALL_SAID)
    assert message_of("answer_stream", "why?", **ALL_SAID) == request
    assert message_of("compare", "why?", **ALL_SAID) == request


def test_an_answer_without_a_chance_comes_back_as_it_was() -> None:
    assert wire.read(Answer, json.loads(orjson.dumps(finite(ANSWER)))) == ANSWER
    sent = protobuf.write(pb.AnswerResponse, ANSWER).SerializeToString()
    assert protobuf.read(Answer, pb.AnswerResponse.FromString(sent)) == ANSWER


@pytest.mark.parametrize(
    "event",
    [
        Retrieved("ans_1", "pair", (CITED,), COMPRESSION),
        Delta("Lake"),
        Delta("", LOGPROBS),
        Delta("", ()),
        ANSWER,
    ],
    ids=["retrieved", "delta", "delta with logprobs", "delta without tokens", "answer"],
)
def test_an_event_comes_back_as_it_was(event: Any) -> None:
    sent = convert.write_event(event).SerializeToString()
    assert rpc.read_event(pb.AnswerEvent.FromString(sent)) == [event]


def test_an_event_of_a_newer_server_is_passed_over() -> None:
    assert rpc.read_event(pb.AnswerEvent()) == []
    assert rest.read_event(("something", {})) == []


def test_words_and_fields_of_a_newer_server_are_no_error() -> None:
    newer = {
        **json.loads(orjson.dumps(finite(ANSWER))),
        "finish_reason": "bored",
        "mood": {"good": True},
    }
    assert wire.read(Answer, json.loads(orjson.dumps(newer))).finish_reason == "bored"


@pytest.mark.parametrize("keep", [True, False])
def test_what_is_to_be_compressed_is_read_as_it_was_given(keep: bool) -> None:
    how: dict[str, Any] = {"model": "pair", "rate": 16, "ttl_seconds": 2.5, "keep": keep}
    documents = ["one", Document("mine", "two")]
    read = validate_body(body_of("compress", "why?", documents, **how), CompressRequest)
    assert [(item.id, item.text) for item in read.documents] == [("0", "one"), ("mine", "two")]
    assert (read.model, read.ratio, read.ttl_s) == ("pair", 16, 2.5)
    assert read.return_ == ("handle" if keep else "stats")
    request = message_of("compress", "why?", ["one"], **how)
    assert (request.model, request.ratio, request.ttl_s, request.keep) == ("pair", 16, 2.5, keep)
    bare = message_of("compress", "why?", ["one"])
    assert not bare.HasField("ratio")
    assert not bare.HasField("ttl_s")


def test_a_handle_is_released_by_its_name(script: Any) -> None:
    script.then(200, {"id": "ctx_1/..", "object": "context", "deleted": True})
    with Client(script.url) as client:
        client.release("ctx_1/..")
    assert script.requests == [("DELETE", "/v1/contexts/ctx_1%2F..", None)]


@pytest.mark.parametrize(
    ("operation", "how", "field"),
    [
        ("answer", {"question": "why?", "index": "kb", "top_k": 0}, "top_k"),
        ("answer", {"question": "why?", "index": "kb", "max_tokens": 0}, "max_tokens"),
        ("answer", {"question": "why?", "index": ""}, "index"),
        ("answer", {"question": "why?", "context": ""}, "context"),
        ("answer", {"question": "why?", "index": "kb", "documents": []}, "documents"),
        ("scroll", {"name": "kb", "limit": 0}, "limit"),
        ("delete", {"name": "kb", "ids": [], "filter": {}}, "ids"),
        ("query", {"name": "kb", "text": "why?", "vector": [1.0]}, "query"),
    ],
)
def test_what_a_message_would_take_for_its_default_is_refused(
    operation: str, how: Any, field: str
) -> None:
    with pytest.raises(InputError, match=field) as caught:
        message_of(operation, **how)
    assert caught.value.field == field


def test_zeros_that_the_contract_gives_a_meaning_are_sent_as_unset() -> None:
    assert message_of("query", "kb", "why?", top_k=0).top_k == 0
    assert message_of("rerank", "why?", ["one"], top_n=0).top_n == 0


@pytest.mark.parametrize(
    "how",
    [{"seed": 2**63}, {"top_n": -1}, {"max_tokens": 2**32}, {"stop": "\ud800"}],
    ids=str,
)
def test_what_no_message_can_hold_is_refused_before_it_is_sent(how: Any) -> None:
    with pytest.raises(InputError, match="can't be written"):
        message_of("answer", "why?", index="kb", **how)
