"""Bodies as the questions that the jobs get."""

from dataclasses import asdict, fields

import pytest

from condensery.api.rest.schemas.rag import AnswerIndex, AnswerRequest, CompareRequest
from condensery.api.rest.validation import validate_body
from condensery.errors import EmptyInput, InputError, ModelFault, rename_field
from condensery.question import AnswerCompression, AnswerRerank, Sampling
from condensery.values import Document

FULL = {
    "query": "where?",
    "index": {"name": "kb", "top_k": 7, "mode": "hybrid", "filter": {"must": []}},
    "rerank": {"top_n": 0},
    "compression": {
        "mode": "required",
        "ratio": 16,
        "max_context_vectors": 40,
        "target_ms": 50,
        "timeout_ms": 200.5,
    },
    "min_relevance": 0.25,
    "model": "pair",
    "max_tokens": 9,
    "temperature": 0.7,
    "top_p": 0.9,
    "seed": -3,
    "stop": ["\n", "END"],
    "logprobs": 0,
}


def test_each_field_is_heard():
    asked = validate_body(FULL, AnswerRequest)
    assert asked == AnswerRequest(
        "where?",
        index=AnswerIndex("kb", 7, "hybrid", {"must": []}),
        rerank=AnswerRerank(0),
        compression=AnswerCompression("required", 16, 40, 50.0, 200.5),
        min_relevance=0.25,
        model="pair",
        max_tokens=9,
        temperature=0.7,
        top_p=0.9,
        seed=-3,
        stop=("\n", "END"),
        logprobs=0,
    )
    assert asked.sampling == Sampling(0.7, 0.9, -3, 0)
    without = {"documents", "context", "stream"}  # of the three, an index is given
    default = AnswerRequest("where?")
    same = [
        entry.name
        for entry in fields(AnswerRequest)
        if getattr(asked, entry.name) == getattr(default, entry.name)
    ]
    assert set(same) == without | {"query"}


def test_a_comparison_asks_what_an_answer_does():
    compared = validate_body(FULL, CompareRequest)
    assert asdict(compared) == asdict(validate_body(FULL, AnswerRequest))


def test_what_is_left_out_or_null_is_the_questions_own_default():
    (bare, document) = ({"query": "q", "documents": ["a"]}, Document("0", "a"))
    nulls = {"model": None, "seed": None, "stop": None, "logprobs": None, "min_relevance": None}
    for more in ({}, nulls, {"rerank": {"top_n": None}}, {"compression": {"ratio": None}}):
        asked = validate_body({**bare, **more}, AnswerRequest)
        assert asked == AnswerRequest("q", documents=(document,))


def test_one_stop_string_is_a_list_of_one():
    body = {"query": "q", "context": "ctx_a", "stop": "END"}
    asked = validate_body(body, AnswerRequest)
    assert asked == AnswerRequest("q", context="ctx_a", stop=("END",))


def test_a_document_without_an_id_has_its_place():
    documents = ["a", {"id": "", "text": "b"}, {"text": "c", "metadata": {"n": 1}}]
    asked = validate_body({"query": "q", "documents": documents}, AnswerRequest)
    assert asked.documents == (
        Document("0", "a"),
        Document("", "b"),
        Document("2", "c", {"n": 1}),
    )


def test_what_is_wrong_is_named_as_the_body_names_it():
    here = "messages[2].content"
    with (
        pytest.raises(EmptyInput, match=r"^messages\[2\].content: no query") as caught,
        rename_field("query", here),
    ):
        raise EmptyInput("query: no query", field="query")
    assert caught.value.field == here
    for other in (InputError("top_n: no", field="top_n"), ModelFault("query")):
        with pytest.raises(type(other)) as untouched, rename_field("query", here):
            raise other
        assert untouched.value is other
