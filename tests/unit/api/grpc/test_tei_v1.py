"""TEI's contract: its messages, its codes, its streams."""

from collections.abc import Awaitable
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from condensery.errors import ModelFault, Overloaded, Unavailable
from condensery.jobs.services import Services
from condensery.stubs import tei_v1_pb2 as pb
from condensery.stubs import tei_v1_pb2_grpc as stubs

OTHER = (("x-model", "other"),)

# What TEI's file calls them on the wire: a client of it was compiled against these.
WIRE = {
    "EmbedRequest": "inputs=1 truncate=2 normalize=3 truncation_direction=4 prompt_name=5 "
    "dimensions=6",
    "EmbedResponse": "embeddings=1 metadata=2",
    "EmbedSparseRequest": "inputs=1 truncate=2 truncation_direction=3 prompt_name=4",
    "EmbedSparseResponse": "sparse_embeddings=1 metadata=2",
    "SparseValue": "index=1 value=2",
    "EmbedAllRequest": "inputs=1 truncate=2 truncation_direction=3 prompt_name=4",
    "EmbedAllResponse": "token_embeddings=1 metadata=2",
    "TokenEmbedding": "embeddings=1",
    "Metadata": "compute_chars=1 compute_tokens=2 total_time_ns=3 tokenization_time_ns=4 "
    "queue_time_ns=5 inference_time_ns=6",
    "PredictRequest": "inputs=1 truncate=2 raw_scores=3 truncation_direction=4",
    "PredictPairRequest": "inputs=1 truncate=2 raw_scores=3 truncation_direction=4",
    "Prediction": "score=1 label=2",
    "PredictResponse": "predictions=1 metadata=2",
    "RerankRequest": "query=1 texts=2 truncate=3 raw_scores=4 return_text=5 truncation_direction=6",
    "RerankStreamRequest": "query=1 text=2 truncate=3 raw_scores=4 return_text=5 "
    "truncation_direction=6",
    "Rank": "index=1 text=2 score=3",
    "RerankResponse": "ranks=1 metadata=2",
    "EncodeRequest": "inputs=1 add_special_tokens=2 prompt_name=3",
    "SimpleToken": "id=1 text=2 special=3 start=4 stop=5",
    "EncodeResponse": "tokens=1",
    "DecodeRequest": "ids=1 skip_special_tokens=2",
    "DecodeResponse": "text=1",
    "InfoRequest": "",
    "InfoResponse": "version=1 sha=2 docker_label=3 model_id=4 model_sha=5 model_dtype=6 "
    "model_type=7 max_concurrent_requests=8 max_input_length=9 max_batch_tokens=10 "
    "max_batch_requests=11 max_client_batch_size=12 tokenization_workers=13",
}


async def refused(call: Awaitable[Any]) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


def field_of(error: grpc.aio.AioRpcError) -> str | None:
    return dict(error.trailing_metadata() or ()).get("x-field")


def test_names_and_numbers_are_teis() -> None:
    result = {
        name: " ".join(f"{field.name}={field.number}" for field in message.fields)
        for name, message in pb.DESCRIPTOR.message_types_by_name.items()
    }
    assert result == WIRE
    assert pb.DESCRIPTOR.package == "tei.v1"
    services = pb.DESCRIPTOR.services_by_name
    assert {
        name: [item.name for item in service.methods] for name, service in services.items()
    } == {
        "Info": ["Info"],
        "Embed": [
            *("Embed", "EmbedStream", "EmbedSparse", "EmbedSparseStream"),
            *("EmbedAll", "EmbedAllStream"),
        ],
        "Predict": ["Predict", "PredictPair", "PredictStream", "PredictPairStream"],
        "Rerank": ["Rerank", "RerankStream"],
        "Tokenize": ["Tokenize", "TokenizeStream", "Decode", "DecodeStream"],
    }


async def test_a_text_has_the_vector_that_the_job_gives(
    channel: grpc.aio.Channel, services: Services, registry: Any
) -> None:
    stub = stubs.EmbedStub(channel)
    reply = await stub.Embed(pb.EmbedRequest(inputs="two words"))
    wanted = await services.registry.encoder().embed(["two words"])
    assert list(reply.embeddings) == wanted.vectors[0].tolist()
    assert reply.metadata.compute_tokens == 2
    assert reply.metadata.total_time_ns > 0
    request = pb.EmbedRequest(
        inputs="a b",
        prompt_name="query",
        normalize=False,
        truncation_direction=pb.TRUNCATION_DIRECTION_LEFT,
    )
    await stub.Embed(request, metadata=OTHER)
    other = registry.encoders["other"]
    assert (other.asked, other.sides) == ([("a b", "query: ", False)], ["left"])


async def test_vectors_are_scaled_unless_told_otherwise(
    channel: grpc.aio.Channel, registry: Any
) -> None:
    await stubs.EmbedStub(channel).Embed(pb.EmbedRequest(inputs="a"))
    assert registry.encoders["words"].asked == [("a", "", True)]


async def test_each_token_has_its_vector(channel: grpc.aio.Channel) -> None:
    stub = stubs.EmbedStub(channel)
    reply = await stub.EmbedAll(pb.EmbedAllRequest(inputs="a b c"))
    assert len(reply.token_embeddings) == 3
    (item,) = (await stub.EmbedAll(pb.EmbedAllRequest(inputs="c"))).token_embeddings
    assert reply.token_embeddings[2] == item
    assert reply.metadata.compute_tokens == 3


@pytest.mark.usefixtures("classifiers")
async def test_texts_and_pairs_have_labels_the_likeliest_first(channel: grpc.aio.Channel) -> None:
    stub = stubs.PredictStub(channel)
    reply = await stub.Predict(pb.PredictRequest(inputs="neon", raw_scores=True))
    assert [(item.label, item.score) for item in reply.predictions] == [
        ("neutral", 2.0),
        ("entailment", 1.0),
        ("contradiction", 0.0),
    ]
    pair = await stub.PredictPair(pb.PredictPairRequest(inputs=["ccc", "ee"]))
    assert pair.predictions[0].label == "entailment"
    assert sum(item.score for item in pair.predictions) == pytest.approx(1)
    alone = await stub.PredictPair(pb.PredictPairRequest(inputs=["ccc"]))
    assert alone.predictions[0].label == "contradiction"
    error = await refused(stub.PredictPair(pb.PredictPairRequest(inputs=["a", "b", "c"])))
    assert (error.code(), field_of(error)) == (StatusCode.INVALID_ARGUMENT, "inputs")
    crossed = pb.PredictRequest(inputs="rr", raw_scores=True)
    reply = await stub.Predict(crossed, metadata=(("x-model", "cross"),))
    assert [(item.label, item.score) for item in reply.predictions] == [("relevant", 2.0)]


async def test_passages_are_ranked_with_their_text_where_it_is_wanted(
    channel: grpc.aio.Channel,
) -> None:
    rerank = stubs.RerankStub(channel).Rerank
    request = pb.RerankRequest(query="q", texts=["none", "gold gold", "gold"], raw_scores=True)
    ranks = (await rerank(request)).ranks
    assert [(item.index, item.score) for item in ranks] == [(1, 2.0), (2, 1.0), (0, 0.0)]
    assert not any(item.HasField("text") for item in ranks)
    request.return_text = True
    assert [item.text for item in (await rerank(request)).ranks] == ["gold gold", "gold", "none"]
    likely = await rerank(pb.RerankRequest(query="q", texts=["gold"]))
    assert likely.ranks[0].score == pytest.approx(1 / (1 + 2.718281828**-1))


async def test_passages_that_come_one_by_one_are_ranked_alike(channel: grpc.aio.Channel) -> None:
    stub = stubs.RerankStub(channel)
    texts = ["none", "gold gold", "gold"]
    request = pb.RerankRequest(query="q", texts=texts, raw_scores=True, return_text=True)
    one_by_one = [
        pb.RerankStreamRequest(query="q", text=text, raw_scores=not place, return_text=not place)
        for place, text in enumerate(texts)  # the first says how
    ]
    reply = await stub.RerankStream(iter(one_by_one))
    assert reply.ranks == (await stub.Rerank(request)).ranks
    assert reply.metadata.compute_tokens == 4


@pytest.mark.parametrize(
    ("second", "field"),
    [
        (pb.RerankStreamRequest(query="other", text="b"), "query"),
        (pb.RerankStreamRequest(query="q", text="b", truncate=True), "truncate"),
        (
            pb.RerankStreamRequest(query="q", text="b", truncation_direction=1),
            "truncation_direction",
        ),
    ],
)
async def test_a_stream_ranks_for_one_query_in_one_way(
    channel: grpc.aio.Channel, second: pb.RerankStreamRequest, field: str
) -> None:
    first = pb.RerankStreamRequest(query="q", text="a")
    error = await refused(stubs.RerankStub(channel).RerankStream(iter([first, second])))
    assert (error.code(), field_of(error)) == (StatusCode.INVALID_ARGUMENT, field)
    assert "message 1" in (error.details() or "")


async def test_a_stream_of_passages_is_as_bounded_as_a_list(
    channel: grpc.aio.Channel, services: Services
) -> None:
    rerank = stubs.RerankStub(channel).RerankStream
    request = pb.RerankStreamRequest(query="q", text="a")
    for messages, says in (
        ([], "empty"),
        ([request] * 51, "51 items, over the limit of 50"),
        ([pb.RerankStreamRequest(query="q", text="a" * 3000)] * 8, "20000 (max_body_bytes)"),
    ):
        error = await refused(rerank(iter(messages)))
        assert error.code() is StatusCode.INVALID_ARGUMENT
        assert says in (error.details() or "")
    assert (services.admission.requests, services.admission.bytes) == (0, 0)


async def test_tokens_have_places_and_spell_texts(channel: grpc.aio.Channel) -> None:
    stub = stubs.TokenizeStub(channel)
    tokens = (await stub.Tokenize(pb.EncodeRequest(inputs="ab  c", add_special_tokens=True))).tokens
    mark, first, second = tokens
    assert (mark.text, mark.special, mark.HasField("start")) == ("<s>", True, False)
    assert (first.text, first.special, first.start, first.stop) == ("ab", False, 0, 2)
    assert (second.id, second.start, second.stop) == (1, 4, 5)
    bare = await stub.Tokenize(pb.EncodeRequest(inputs="c", prompt_name="query"))
    assert [item.text for item in bare.tokens] == ["query:", "c"]
    assert (await stub.Decode(pb.DecodeRequest(ids=[0, 5]))).text == "0 5"
    skipped = pb.DecodeRequest(ids=[0, 5], skip_special_tokens=True)
    assert (await stub.Decode(skipped)).text == "5"
    error = await refused(stub.Decode(pb.DecodeRequest(ids=[5, 999_999])))
    assert error.code() is StatusCode.INVALID_ARGUMENT
    assert (error.details() or "").startswith("ids: 999999 is not a token id")
    assert field_of(error) == "ids"


async def test_info_is_of_the_model_that_is_asked_for(
    channel: grpc.aio.Channel, services: Services, registry: Any, classifier_of: Any
) -> None:
    info = stubs.InfoStub(channel).Info
    result = await info(pb.InfoRequest())
    assert (result.model_id, result.model_type) == ("words", pb.MODEL_TYPE_EMBEDDING)
    assert (result.model_sha, result.max_input_length) == ("sha256:words", 16)
    assert result.max_client_batch_size == services.limits.max_items
    assert result.max_concurrent_requests == services.admission.max_requests
    registry.classifiers["nli"] = classifier_of("nli", "a", "b")
    types = {"pair": pb.MODEL_TYPE_RERANKER, "nli": pb.MODEL_TYPE_CLASSIFIER}
    for name, kind in types.items():
        reply = await info(pb.InfoRequest(), metadata=(("x-model", name),))
        assert (reply.model_id, reply.model_type) == (name, kind)
    error = await refused(info(pb.InfoRequest(), metadata=(("x-model", "nope"),)))
    assert error.code() is StatusCode.NOT_FOUND


async def test_a_model_that_can_not_do_it_is_a_failed_precondition(
    channel: grpc.aio.Channel,
) -> None:
    for call, says in (
        (stubs.EmbedStub(channel).EmbedSparse(pb.EmbedSparseRequest(inputs="a")), "'words'"),
        (stubs.PredictStub(channel).Predict(pb.PredictRequest(inputs="a")), "classifier"),
    ):
        error = await refused(call)
        assert error.code() is StatusCode.FAILED_PRECONDITION
        assert says in (error.details() or "")
    sparse = stubs.EmbedStub(channel).EmbedSparseStream(iter([pb.EmbedSparseRequest(inputs="a")]))
    assert (await refused(sparse.read())).code() is StatusCode.FAILED_PRECONDITION


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (ModelFault("words: NaN"), StatusCode.FAILED_PRECONDITION),
        (Overloaded("full"), StatusCode.RESOURCE_EXHAUSTED),
        (Unavailable("draining"), StatusCode.UNAVAILABLE),
        (RuntimeError("secret"), StatusCode.INTERNAL),
    ],
)
async def test_codes_are_teis(
    channel: grpc.aio.Channel, registry: Any, fault: Exception, code: StatusCode
) -> None:
    registry.encoders["words"].fails = fault
    error = await refused(stubs.EmbedStub(channel).Embed(pb.EmbedRequest(inputs="a")))
    assert error.code() is code
    assert "secret" not in (error.details() or "")


LONG = "b " * 20


@pytest.mark.parametrize(
    ("message", "field", "says"),
    [
        (pb.EmbedRequest(inputs=LONG), "inputs", "inputs has 20 tokens"),
        (pb.EmbedRequest(inputs="a" * 4001), "inputs", "4001"),
        (pb.EmbedRequest(inputs="a", dimensions=3), "dimensions", "3"),
        (pb.EmbedRequest(inputs="a", prompt_name="x"), "prompt_name", "'x'"),
        (pb.EmbedRequest(inputs="a", truncation_direction=7), "truncation_direction", "7"),
    ],
)
async def test_what_is_wrong_is_named_as_the_message_calls_it(
    channel: grpc.aio.Channel, message: pb.EmbedRequest, field: str, says: str
) -> None:
    error = await refused(stubs.EmbedStub(channel).Embed(message))
    assert (error.code(), field_of(error)) == (StatusCode.INVALID_ARGUMENT, field)
    assert says in (error.details() or "")


async def test_too_long_a_text_is_cut_where_that_is_allowed(channel: grpc.aio.Channel) -> None:
    reply = await stubs.EmbedStub(channel).Embed(pb.EmbedRequest(inputs=LONG, truncate=True))
    assert len(reply.embeddings) == 8


async def test_an_unknown_model_is_not_found(channel: grpc.aio.Channel) -> None:
    call = stubs.EmbedStub(channel).Embed(
        pb.EmbedRequest(inputs="a"), metadata=(("x-model", "nope"),)
    )
    assert (await refused(call)).code() is StatusCode.NOT_FOUND


async def test_calls_are_counted_as_rests_are(
    channel: grpc.aio.Channel, services: Services
) -> None:
    await stubs.EmbedStub(channel).Embed(pb.EmbedRequest(inputs="a"), metadata=OTHER)
    call = stubs.EmbedStub(channel).EmbedStream(iter([pb.EmbedRequest(inputs="a")] * 3))
    assert len([reply async for reply in call]) == 3
    value = services.metrics.registry.get_sample_value
    labels = {"task": "embed", "protocol": "grpc", "code": "ok"}
    assert value("condensery_requests_total", {**labels, "model": "other"}) == 1
    assert value("condensery_requests_total", {**labels, "model": "words"}) == 3


async def test_the_info_of_an_empty_house_is_unavailable(
    channel: grpc.aio.Channel, registry: Any
) -> None:
    registry.encoders.clear()
    registry.pairs.clear()
    error = await refused(stubs.InfoStub(channel).Info(pb.InfoRequest()))
    assert error.code() is StatusCode.UNAVAILABLE
