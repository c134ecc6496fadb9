"""TEI's gRPC contract, by stubs made from the contract alone, beside TEI's REST routes."""

import os

import grpc
import numpy as np
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from plain import ask

tei, stubs = grpc.protos_and_services("tei_v1.proto")
TEXTS = ["a river in Europe", "", "a bridge in Porto", "naïve façade 北京"]


@pytest.fixture
def channel():
    with grpc.insecure_channel(os.environ["SERVER_GRPC"]) as opened:
        yield opened


def test_texts_one_by_one_and_in_a_stream_are_rests(channel: grpc.Channel) -> None:
    wanted = np.array(ask("/embed", {"inputs": TEXTS}), np.float32)
    stub = stubs.EmbedStub(channel)
    alone = [stub.Embed(tei.EmbedRequest(inputs=text)) for text in TEXTS]
    streamed = stub.EmbedStream(tei.EmbedRequest(inputs=text) for text in TEXTS)
    for replies in (alone, streamed):
        rows = np.array([reply.embeddings for reply in replies])
        assert ((rows * wanted).sum(1) > 0.9995).all()


def test_passages_are_ranked_as_over_rest(channel: grpc.Channel) -> None:
    asked = {"query": "a river", "texts": TEXTS}
    ranks = stubs.RerankStub(channel).Rerank(tei.RerankRequest(**asked)).ranks
    wanted = ask("/rerank", asked)
    assert [rank.index for rank in ranks] == [rank["index"] for rank in wanted]


def test_tokens_go_there_and_back(channel: grpc.Channel) -> None:
    stub = stubs.TokenizeStub(channel)
    tokens = stub.Tokenize(tei.EncodeRequest(inputs=TEXTS[0], add_special_tokens=True)).tokens
    ids = [token.id for token in tokens]
    assert (
        stub.Decode(tei.DecodeRequest(ids=ids, skip_special_tokens=True)).text == TEXTS[0].lower()
    )


def test_codes_are_teis(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        stubs.EmbedStub(channel).Embed(tei.EmbedRequest(inputs="word " * 600))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(grpc.RpcError) as caught:
        stubs.EmbedStub(channel).EmbedSparse(tei.EmbedSparseRequest(inputs="a"))
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION


def test_the_server_describes_itself(channel: grpc.Channel) -> None:
    asked = reflection_pb2.ServerReflectionRequest(list_services="")
    (reply,) = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([asked]))
    names = {service.name for service in reply.list_services_response.service}
    assert {
        f"tei.v1.{name}" for name in ("Info", "Embed", "Predict", "Rerank", "Tokenize")
    } <= names
