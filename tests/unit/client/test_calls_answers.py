"""Questions and answers there and back: what a client writes a door reads, and the other way."""

import json
import math
from dataclasses import asdict, replace
from typing import Any

import orjson
import pytest

from condensery.api.grpc import convert as rpc
from condensery.api.grpc.convert import parse_documents, write_model
from condensery.api.rest.answers import finite
from condensery.api.rest.schemas.rag import AnswerRequest, CompareRequest, CompressRequest
from condensery.api.rest.validation import validate_body
from condensery.client import grpc_calls, grpc_replies, rest_calls, rest_replies
from condensery.client.operations import make_question
from condensery.client.rest import Client
from condensery.errors import InputError
from condensery.question import (
    Agreement,
    Answer,
    Citation,
    Comparison,
    Compressed,
    CompressedDocument,
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
from condensery.values import Document, ModelInfo, PairTraits, TokenUsage

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

COMPRESSION = Compression(
    mode="auto",
    status="partial",
    docs=2,
    tokens_in=60,
    vectors_out=4,
    flops_plain=10**13,
    flops_used=10**12,
    compress_ms=1.5,
    reason="no time",
    fallback_docs=(1,),
    left_out=(2, 0),
)
CITED = Citation(3, "a#0", "a", "text", 2, 6, 0.5, {"year": 1898})
ANSWER = Answer(
    id="ans_1",
    model="pair",
    answer="Lake Constance",
    finish_reason="stop",
    citations=(CITED, replace(CITED, index=1, relevance_score=None)),
    compression=COMPRESSION,
    usage=Usage(10, 4, 3),
    timings=Timings(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0),
    logprobs=(
        TokenLogprob("Lake", -0.25, (Likely("Lake", -0.25), Likely("The", -math.inf))),
        TokenLogprob("", -0.5),
    ),
)
COMPARISON = Comparison(ANSWER, replace(ANSWER, id="ans_2"), Agreement(False, 0.5, None), 1.5)
COMPRESSED = Compressed(
    id="cmp_1",
    model="pair",
    fingerprint="sha256:00",
    context="ctx_1",
    expires_at=1_700_000_000.25,
    results=(
        CompressedDocument(0, "a", 0.25, 60, 4, 2),
        CompressedDocument(1, "b", None, 0, 0, 1, "failed", "it is empty"),
    ),
    compression=COMPRESSION,
    usage=TokenUsage(60),
)


def over_rest(how: dict[str, Any]) -> Question:
    return validate_body(rest_calls.answer("why?", **how).body, AnswerRequest)


def over_grpc(how: dict[str, Any]) -> Question:
    sent = grpc_calls.answer("why?", **how).request.SerializeToString()
    given = pb.AnswerRequest.FromString(sent)
    return rpc.read_question(given, parse_documents(given.documents, 64), given.model or None)


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
    body = rest_calls.answer("why?", **ALL_SAID).body
    assert rest_calls.answer_stream("why?", **ALL_SAID).body == {**(body or {}), "stream": True}
    compared = rest_calls.compare("why?", **ALL_SAID)
    assert (compared.path, compared.body) == ("/v1/rag/compare", body)
    assert validate_body(body, CompareRequest)
    request = grpc_calls.answer("why?", **ALL_SAID).request
    assert grpc_calls.answer_stream("why?", **ALL_SAID).request == request
    assert grpc_calls.compare("why?", **ALL_SAID).request == request


@pytest.mark.parametrize("logprobs", [None, (), ANSWER.logprobs])
def test_an_answer_comes_back_as_it_was(logprobs: Any) -> None:
    whole = replace(ANSWER, logprobs=logprobs)
    assert rest_replies.read_answer(json.loads(orjson.dumps(finite(whole)))) == whole
    sent = rpc.write_answer(whole).SerializeToString()
    assert grpc_replies.read_answer(pb.AnswerResponse.FromString(sent)) == whole


@pytest.mark.parametrize(
    "event",
    [
        Retrieved("ans_1", "pair", (CITED,), COMPRESSION),
        Delta("Lake"),
        Delta("", ANSWER.logprobs),
        ANSWER,
    ],
    ids=["retrieved", "delta", "delta with logprobs", "answer"],
)
def test_an_event_comes_back_as_it_was(event: Any) -> None:
    sent = rpc.write_event(event).SerializeToString()
    assert grpc_replies.read_event(pb.AnswerEvent.FromString(sent)) == [event]


@pytest.mark.parametrize("cosine", [None, 0.0, 0.75])
def test_a_comparison_comes_back_as_it_was(script: Any, cosine: float | None) -> None:
    result = replace(COMPARISON, agreement=Agreement(False, 0.5, cosine))
    sent = rpc.write_comparison(result).SerializeToString()
    assert grpc_replies.read_comparison(pb.CompareResponse.FromString(sent)) == result
    written = replace(result, compressed=finite(result.compressed), plain=finite(result.plain))
    script.then(200, orjson.dumps(written))
    with Client(script.url) as client:
        assert client.compare("why?", index="kb") == result


@pytest.mark.parametrize("pair", [None, PairTraits((8, 1), (16, 128), False, 0, 0.25)])
def test_what_a_pair_can_do_comes_back_as_it_was(script: Any, pair: PairTraits | None) -> None:
    info = ModelInfo(
        id="pair",
        kind="oscar-pair",
        method="oscar",
        fingerprint="sha256:00",
        dims=None,
        max_tokens=128,
        dtype="float32",
        device="cpu",
        licence="Apache-2.0",
        created=1_700_000_000,
        pooling=None,
        pair=pair,
    )
    sent = pb.ListModelsResponse(models=[write_model(info)]).SerializeToString()
    assert grpc_replies.read_models(pb.ListModelsResponse.FromString(sent)) == [info]
    script.then(200, orjson.dumps({"data": [info]}))
    with Client(script.url) as client:
        assert client.models() == [info]


@pytest.mark.parametrize("context", [None, "ctx_1"])
def test_what_was_compressed_comes_back_as_it_was(context: str | None) -> None:
    result = replace(COMPRESSED, context=context, expires_at=context and COMPRESSED.expires_at)
    sent = rpc.write_compressed(result).SerializeToString()
    assert grpc_replies.read_compressed(pb.CompressResponse.FromString(sent)) == result


@pytest.mark.parametrize("keep", [True, False])
def test_what_is_to_be_compressed_is_read_as_it_was_given(keep: bool) -> None:
    how: dict[str, Any] = {"model": "pair", "rate": 16, "ttl_seconds": 2.5, "keep": keep}
    body = rest_calls.compress("why?", ["one", Document("mine", "two")], **how).body
    read = validate_body(body, CompressRequest)
    assert [(item.id, item.text) for item in read.documents] == [("0", "one"), ("mine", "two")]
    assert (read.model, read.ratio, read.ttl_s) == ("pair", 16, 2.5)
    assert read.return_ == ("handle" if keep else "stats")
    request: Any = grpc_calls.compress("why?", ["one"], **how).request
    assert (request.model, request.ratio, request.ttl_s, request.keep) == ("pair", 16, 2.5, keep)
    bare: Any = grpc_calls.compress("why?", ["one"]).request
    assert not bare.HasField("ratio")
    assert not bare.HasField("ttl_s")


def test_a_handle_is_released_by_its_name(script: Any) -> None:
    script.then(200, {"id": "ctx_1/..", "object": "context", "deleted": True})
    with Client(script.url) as client:
        client.release("ctx_1/..")
    assert script.requests == [("DELETE", "/v1/contexts/ctx_1%2F..", None)]


@pytest.mark.parametrize(
    ("how", "field"),
    [
        ({"index": "kb", "top_k": 0}, "top_k"),
        ({"index": "kb", "max_tokens": 0}, "max_tokens"),
        ({"index": ""}, "index"),
        ({"context": ""}, "context"),
        ({"index": "kb", "documents": []}, "documents"),
    ],
)
def test_what_a_message_would_take_for_its_default_is_refused(how: Any, field: str) -> None:
    with pytest.raises(InputError, match=field) as caught:
        grpc_calls.answer("why?", **how)
    assert caught.value.field == field


@pytest.mark.parametrize(
    "how",
    [{"seed": 2**63}, {"top_n": -1}, {"max_tokens": 2**32}, {"stop": "\ud800"}],
    ids=str,
)
def test_what_no_message_can_hold_is_refused_before_it_is_sent(how: Any) -> None:
    with pytest.raises(InputError, match="can't be written"):
        grpc_calls.answer("why?", index="kb", **how)
