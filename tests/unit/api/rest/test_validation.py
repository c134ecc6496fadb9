import pytest
from pydantic import ValidationError

from condensery.api.rest.schemas.index import IdsRequest, QueryRequest, UpsertRequest
from condensery.api.rest.schemas.inference import (
    OpenAIEmbedRequest,
    RerankRequest,
    TeiRerankRequest,
)
from condensery.api.rest.schemas.rag import (
    AnswerRequest,
    ChatRequest,
    CompareRequest,
    CompressRequest,
)
from condensery.api.rest.validation import validate_body
from condensery.errors import InputError, TokenIdsRefused


def test_of_a_long_name_a_message_has_the_beginning():
    with pytest.raises(InputError) as caught:
        validate_body({"query": "q", "n" * 10_000: 1}, AnswerRequest)
    assert str(caught.value.field).startswith("nnn")
    assert len(caught.value.message) < 1000


@pytest.mark.parametrize(
    ("schema", "data", "field", "message"),
    [
        (OpenAIEmbedRequest, {}, "input", "input: this field is missing"),
        (OpenAIEmbedRequest, [], "body", "body: .* is not a JSON object"),
        (OpenAIEmbedRequest, {"input": 5}, "input", "5 is neither a string nor a list"),
        (OpenAIEmbedRequest, {"input": None}, "input", "None is neither"),
        (OpenAIEmbedRequest, {"input": ["a", 1.5]}, "input[1]", "1.5: .*valid string"),
        (OpenAIEmbedRequest, {"input": ["a", None]}, "input[1]", "None"),
        (OpenAIEmbedRequest, {"input": "a", "model": 5}, "model", "5: .*valid string"),
        (OpenAIEmbedRequest, {"input": "a", "dimensions": "8"}, "dimensions", "'8': .*integer"),
        (OpenAIEmbedRequest, {"input": "a", "encoding_format": "hex"}, "encoding_format", "'hex'"),
        (RerankRequest, {"query": "q", "documents": ["a", 5]}, "documents[1]", "5"),
        (RerankRequest, {"query": "q", "documents": [{"t": 1}]}, "documents[0].text", "missing"),
        (
            AnswerRequest,
            {"query": "q", "colour": 1},
            "colour",
            "unknown field, with value 1; known",
        ),
        (AnswerRequest, {"query": "q", "index": {"name": "a", "k": 5}}, "index.k", "unknown field"),
        (AnswerRequest, {"query": "q", "temperature": 2.5}, "temperature", "2.5: .*less than"),
        (AnswerRequest, {"query": "q", "top_p": 0}, "top_p", "0: .*greater than 0"),
        (AnswerRequest, {"query": "q", "seed": 2**63}, "seed", "9223372036854775808: .*less than"),
        (AnswerRequest, {"query": "q", "logprobs": 21}, "logprobs", "21: .*less than"),
        (AnswerRequest, {"query": "q", "logprobs": True}, "logprobs", "True: .*integer"),
        (AnswerRequest, {"query": "q", "min_relevance": 1.5}, "min_relevance", "1.5: .*less than"),
        (AnswerRequest, {"query": "q", "stop": 5}, "stop", "5: .*list"),
        (AnswerRequest, {"query": "q", "stop": ["a", 5]}, "stop[1]", "5: .*string"),
        (AnswerRequest, {"query": "q", "index": {"name": "a", "mode": "x"}}, "index.mode", "'x'"),
        (AnswerRequest, {"query": "q", "rerank": {"top_n": "5"}}, "rerank.top_n", "'5'"),
        (AnswerRequest, {"query": "q", "compression": {"mode": "on"}}, "compression.mode", "'on'"),
        (AnswerRequest, {"query": "q", "compression": {"ratio": 0}}, "compression.ratio", "0: "),
        (
            AnswerRequest,
            {"query": "q", "compression": {"timeout_ms": -1}},
            "compression.timeout_ms",
            "-1: .*greater than or equal to 1",
        ),
        (AnswerRequest, {"query": "q", "stream": 1}, "stream", "1: .*boolean"),
        (AnswerRequest, {"query": "q", "max_tokens": 2.0}, "max_tokens", "2.0: .*integer"),
        (AnswerRequest, {"query": "q", "temperature": True}, "temperature", "True: .*number"),
        (AnswerRequest, {"query": "q", "index": "kb"}, "index", "'kb': Input should be an object"),
        (AnswerRequest, {"query": "q", "documents": "a"}, "documents", "'a': .*valid list"),
        (AnswerRequest, {"query": "q", "documents": [["a"]]}, "documents[0]", "an object"),
        (AnswerRequest, {"query": "q", "rerank": None}, "rerank", "None: Input should be an obj"),
        (CompareRequest, {"query": "q", "stream": True}, "stream", "True: Input should be False"),
        (CompressRequest, {"query": "q", "documents": ["a"], "return": "it"}, "return", "'it'"),
        (CompressRequest, {"query": "q", "documents": ["a"], "ttl_s": "9"}, "ttl_s", "'9': "),
        (
            CompressRequest,
            {"query": "q", "documents": ["a"], "returns": "stats"},
            "returns",
            "unknown field, with value 'stats'; known: .*ratio, ttl_s, return\\.",
        ),
        (ChatRequest, {"messages": []}, "messages", "at least 1"),
        (ChatRequest, {"messages": [{"content": "q"}]}, "messages[0].role", "missing"),
        (
            ChatRequest,
            {"messages": [{"role": "user"}], "compression": {"rate": 4}},
            "compression.rate",
            "unknown field",
        ),
        (
            UpsertRequest,
            {"documents": [{"id": "a", "vector": [1, "x"]}]},
            "documents[0].vector[1]",
            "'x': .*number",
        ),
    ],
)
def test_a_wrong_field_is_named_with_its_value(schema, data, field, message):
    with pytest.raises(InputError, match=message) as caught:
        validate_body(data, schema)
    assert caught.value.field == field
    assert caught.value.message.startswith(f"{field}: ")


@pytest.mark.parametrize("ids", [[1, 2], [[1, 2]], [[1, 2], [3]], ["text", [1]]])
def test_token_ids_are_refused_by_the_name_of_the_clients_setting(ids):
    with pytest.raises(TokenIdsRefused, match="check_embedding_ctx_length=False"):
        validate_body({"input": ids}, OpenAIEmbedRequest)


def test_one_text_becomes_a_list():
    assert validate_body({"input": ""}, OpenAIEmbedRequest).input == [""]
    documents = validate_body(
        {"query": "q", "documents": ["a", {"text": "b"}]}, RerankRequest
    ).documents
    assert [document.text for document in documents] == ["a", "b"]


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        (OpenAIEmbedRequest, {"input": [5.5] * 100}),
        (TeiRerankRequest, {"query": "q", "texts": [5] * 100}),
        (RerankRequest, {"query": "q", "documents": [5] * 100}),
        (UpsertRequest, {"documents": [5] * 100}),
        (UpsertRequest, {"documents": [{"id": "a", "vector": ["x"] * 100}]}),
        (IdsRequest, {"ids": [5] * 100}),
        (QueryRequest, {"vector": ["x"] * 100}),
        (AnswerRequest, {"query": "q", "documents": [5] * 100}),
    ],
)
def test_of_many_wrong_items_the_first_is_enough(schema, data):
    """To find a million of them, and to describe each, takes seconds."""
    with pytest.raises(InputError) as caught:
        validate_body(data, schema)
    assert isinstance(caught.value.__cause__, ValidationError)
    assert caught.value.__cause__.error_count() <= 2  # an object, or a string that stands for one


@pytest.mark.parametrize("within", [False, True])
def test_a_body_of_ours_with_very_many_fields_is_refused_at_once(within):
    fields = {f"f{place}": 1 for place in range(1000)}
    data = {"query": "q", "documents": [fields]} if within else fields
    with pytest.raises(InputError, match="an object of 1000 fields"):
        validate_body(data, AnswerRequest)
