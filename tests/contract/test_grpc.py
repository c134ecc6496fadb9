"""gRPC against the real server, beside REST: the same job behind each pair of doors."""

from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

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
    assert [one.index for one in ranked.results] == [one["index"] for one in rest]
    scores = [one["score"] for one in rest]
    assert [one.score for one in ranked.results] == pytest.approx(scores, abs=1e-3)
    body = {"query": question, "index": {"name": "samples", "top_k": 5}, "max_tokens": 8}
    answered = httpx.post(f"{live_server.url}/v1/rag/answer", json=body, timeout=60).json()
    asked = pb.AnswerRequest(query=question, index="samples", top_k=5, max_tokens=8)
    events = list(stubs.RagStub(channel).AnswerStream(asked))
    final = events[-1].final
    assert "".join(event.delta for event in events[1:-1]) == final.answer
    assert [one.id for one in final.citations] == [one["id"] for one in answered["citations"]]
    assert final.compression.vectors_out == answered["compression"]["vectors_out"] == 40
