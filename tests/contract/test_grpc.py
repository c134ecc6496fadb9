"""gRPC against the real server, beside REST: the same job behind each pair of doors."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from grpc import StatusCode
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from condensery.stubs import condensery_v1_pb2 as pb
from condensery.stubs import condensery_v1_pb2_grpc as stubs

TEXT = "The Rhine passes through Lake Constance."


@pytest.fixture
def channel(live_server: Any) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(live_server.grpc) as channel:
        yield channel


def over_grpc(channel: grpc.Channel, texts: list[str]) -> Any:
    reply = stubs.EmbeddingStub(channel).EmbedBatch(pb.EmbedBatchRequest(texts=texts))
    return np.frombuffer(reply.vectors, "<f4").reshape(len(texts), reply.dims)


def test_rest_and_grpc_give_the_same_bits_for_the_same_batch(
    live_server: Any, channel: grpc.Channel
) -> None:
    rest = httpx.post(f"{live_server.url}/embed", json={"inputs": [TEXT]}, timeout=60).json()
    assert np.array_equal(over_grpc(channel, [TEXT]), np.array(rest, np.float32))


def test_a_text_has_the_same_vector_alone_and_in_a_batch(channel: grpc.Channel) -> None:
    alone = over_grpc(channel, [TEXT])[0]
    batch = over_grpc(channel, ["short", TEXT, "a longer text of many more words " * 20])
    assert float(alone @ batch[1]) >= 0.9995


def test_rest_and_grpc_rank_and_answer_alike(live_server: Any, channel: grpc.Channel) -> None:
    question = "Which lake does the Rhine pass through?"
    passages = [TEXT, "Helium is a gas."]
    ranked = stubs.RerankStub(channel).Rerank(pb.RerankRequest(query=question, passages=passages))
    rest = httpx.post(
        f"{live_server.url}/rerank", json={"query": question, "texts": passages}, timeout=60
    ).json()
    assert [result.index for result in ranked.results] == [entry["index"] for entry in rest]
    scores = [item["score"] for item in rest]
    assert [result.score for result in ranked.results] == pytest.approx(scores, abs=1e-3)
    body = {"query": question, "index": {"name": "samples", "top_k": 5}, "max_tokens": 8}
    answered = httpx.post(f"{live_server.url}/v1/rag/answer", json=body, timeout=60).json()
    asked = pb.AnswerRequest(query=question, index="samples", top_k=5, max_tokens=8)
    events = list(stubs.RagStub(channel).AnswerStream(asked))
    final = events[-1].final
    assert "".join(event.delta for event in events[1:-1]) == final.answer
    assert [citation.id for citation in final.citations] == [
        citation["id"] for citation in answered["citations"]
    ]
    assert final.compression.vectors_out == answered["compression"]["vectors_out"] == 40


def test_a_number_that_is_too_large_is_named_alike_by_both_doors(
    live_server: Any, channel: grpc.Channel
) -> None:
    vector = np.zeros(384, "<f4")
    vector[3] = 2e16
    fingerprint = fingerprint_of(channel)
    document = {"id": "large", "text": "a", "vector": vector.tolist()}
    reply = httpx.post(
        f"{live_server.url}/v1/indexes/samples/documents",
        json={"documents": [document], "fingerprint": fingerprint},
        timeout=60,
    )
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["param"] == "documents[0].vector[3]"
    asked = pb.UpsertRequest(
        index="samples",
        documents=[pb.Document(id="large", text="a")],
        vectors=vector.tobytes(),
        fingerprint=fingerprint,
    )
    with pytest.raises(grpc.RpcError) as caught:
        stubs.IndexStub(channel).Upsert(asked, timeout=60)
    assert caught.value.code() is StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == error["message"]


EMBED = "/condensery.v1.Embedding/EmbedBatch"
LIMIT = 8 * 2**20


def embed(channel: grpc.Channel, **request: Any) -> Any:
    return stubs.EmbeddingStub(channel).EmbedBatch(pb.EmbedBatchRequest(**request), timeout=60)


def query(channel: grpc.Channel, **request: Any) -> Any:
    asked = pb.QueryRequest(**{"index": "samples", **request})
    return stubs.IndexStub(channel).Query(asked, timeout=60)


BAD: dict[str, tuple[Callable[[grpc.Channel], Any], StatusCode, str, str]] = {
    "an unknown model": (
        lambda c: embed(c, texts=["a"], model="nope"),
        *(StatusCode.NOT_FOUND, "ModelNotFound", "'nope'"),
    ),
    "an unknown index": (
        lambda c: query(c, index="nope", query="a"),
        *(StatusCode.NOT_FOUND, "IndexNotFound", "'nope'"),
    ),
    "an empty list": (
        lambda c: embed(c, texts=[]),
        *(StatusCode.INVALID_ARGUMENT, "EmptyInput", "texts"),
    ),
    "a text over max length x 250 characters": (
        lambda c: embed(c, texts=["a" * 200_000]),
        *(StatusCode.INVALID_ARGUMENT, "InputError", "texts[0]: 200000 characters"),
    ),
    "10,000 inputs": (
        lambda c: embed(c, texts=["a"] * 10_000),
        *(StatusCode.INVALID_ARGUMENT, "PayloadTooLarge", "10000"),
    ),
    "a NaN vector": (
        lambda c: query(
            c, vector=np.full(384, np.nan, "<f4").tobytes(), fingerprint=fingerprint_of(c)
        ),
        *(StatusCode.INVALID_ARGUMENT, "InputError", "vector[0]: nan"),
    ),
    "a vector of another size": (
        lambda c: query(c, vector=np.ones(3, "<f4").tobytes(), fingerprint=fingerprint_of(c)),
        *(StatusCode.INVALID_ARGUMENT, "InputError", "384"),
    ),
    "another encoder's vector": (
        lambda c: query(c, vector=np.ones(384, "<f4").tobytes(), fingerprint="sha256:00"),
        *(StatusCode.FAILED_PRECONDITION, "EncoderMismatch", "sha256:00"),
    ),
    "bytes that are no vector": (
        lambda c: query(c, vector=b"abc"),
        *(StatusCode.INVALID_ARGUMENT, "InputError", "vector: 3 bytes"),
    ),
    "a malformed message": (
        lambda c: c.unary_unary(EMBED)(b"\xff\xff\xff", timeout=60),
        *(StatusCode.INVALID_ARGUMENT, "InputError", "malformed"),
    ),
    "a malformed message to a stream": (
        lambda c: list(c.unary_stream("/condensery.v1.Rag/AnswerStream")(b"\xff", timeout=60)),
        *(StatusCode.INVALID_ARGUMENT, "InputError", "malformed"),
    ),
    "broken UTF-8": (
        lambda c: c.unary_unary(EMBED)(b"\x12\x02\xff\xfe", timeout=60),
        *(StatusCode.INVALID_ARGUMENT, "InputError", "UTF-8"),
    ),
    "a message over the limit": (
        lambda c: embed(c, texts=["a" * LIMIT]),
        *(StatusCode.INVALID_ARGUMENT, "PayloadTooLarge", str(LIMIT)),
    ),
    "a message far over the limit": (
        lambda c: embed(c, texts=["a" * (3 * LIMIT // 2)]),
        *(StatusCode.INVALID_ARGUMENT, "PayloadTooLarge", str(LIMIT)),
    ),
}


def fingerprint_of(channel: grpc.Channel) -> str:
    listed = stubs.ModelsStub(channel).List(pb.ListModelsRequest(), timeout=60)
    return str(listed.models[0].fingerprint)


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gets_its_own_error_and_the_service_goes_on(
    channel: grpc.Channel, name: str
) -> None:
    call, code, kind, says = BAD[name]
    with pytest.raises(grpc.RpcError) as caught:
        call(channel)
    error: Any = caught.value
    assert error.code() is code, error.details()
    assert says in error.details()
    assert dict(error.trailing_metadata())["x-error"] == kind
    assert embed(channel, texts=["still there"]).dims == 384


def test_the_empty_text_and_a_long_one_are_embedded_and_cuts_are_reported(
    channel: grpc.Channel,
) -> None:
    reply = embed(channel, texts=["", "word " * 1000])
    assert list(reply.truncated) == [1]
    vectors = np.frombuffer(reply.vectors, "<f4").reshape(2, reply.dims)
    assert np.isfinite(vectors).all()
    with pytest.raises(grpc.RpcError) as caught:
        embed(channel, texts=["", "word " * 1000], truncate=False)
    error: Any = caught.value
    assert error.code() is StatusCode.INVALID_ARGUMENT
    assert dict(error.trailing_metadata())["x-field"] == "texts[1]"


def test_health_and_reflection_answer(channel: grpc.Channel) -> None:
    serving = health_pb2.HealthCheckResponse.SERVING
    described = ProtoReflectionDescriptorDatabase(channel)
    services = [name for name in described.get_services() if name.startswith("condensery.v1.")]
    assert len(services) == 7
    for service in ("", *services):
        asked = health_pb2.HealthCheckRequest(service=service)
        assert health_pb2_grpc.HealthStub(channel).Check(asked, timeout=60).status == serving
    file = described.FindFileContainingSymbol("condensery.v1.Rag")
    assert file == described.FindFileByName("condensery/stubs/condensery_v1.proto")
    assert {service.name for service in file.service} == {item.split(".")[-1] for item in services}


def test_the_request_id_comes_back(channel: grpc.Channel) -> None:
    stub = stubs.EmbeddingStub(channel)
    _, call = stub.EmbedBatch.with_call(
        pb.EmbedBatchRequest(texts=["a"]), metadata=(("x-request-id", "mine"),), timeout=60
    )
    assert dict(call.trailing_metadata())["x-request-id"] == "mine"


def test_a_client_that_leaves_an_answer_ends_it(live_server: Any, channel: grpc.Channel) -> None:
    before = cancelled(live_server)
    asked = pb.AnswerRequest(query="Which lake?", index="samples", max_tokens=512)
    deadline = time.monotonic() + 90
    # Few of so many are whole before they are left, but on a busy machine all may be.
    while cancelled(live_server) == before:
        assert time.monotonic() < deadline, "no answer was ended"
        streams = [stubs.RagStub(channel).AnswerStream(asked, timeout=60) for _ in range(40)]
        assert next(streams[0]).WhichOneof("event") == "retrieved"
        for stream in streams:
            stream.cancel()
        heard = time.monotonic() + 5
        while cancelled(live_server) == before and time.monotonic() < heard:
            time.sleep(0.1)


def cancelled(live_server: Any) -> float:
    """Count the answers over gRPC whose clients left."""
    label = 'code="Cancelled",model="oscar-mini",protocol="grpc",task="answer"'
    for line in httpx.get(f"{live_server.url}/metrics", timeout=60).text.splitlines():
        if line.startswith(f"condensery_requests_total{{{label}}}"):
            return float(line.split()[-1])
    return 0.0
