"""TEI's gRPC contract against the real server, beside TEI's REST routes: the same bits."""

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from condensery.stubs import tei_v1_pb2 as pb
from condensery.stubs import tei_v1_pb2_grpc as stubs

TEXTS = ["The Rhine passes through Lake Constance.", "", "a mill " * 30, "naïve façade 北京"]
QUESTION = "Which lake does the Rhine pass through?"


@pytest.fixture
def channel(live_server: Any) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(live_server.grpc) as channel:
        yield channel


@pytest.fixture
def rest(live_server: Any) -> Callable[[str, Any], Any]:
    def post(path: str, body: Any) -> Any:
        reply = httpx.post(f"{live_server.url}{path}", json=body, timeout=60)
        assert reply.status_code == 200, reply.text
        return reply.json()

    return post


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_has_the_same_bits_on_both_doors(
    channel: grpc.Channel, rest: Any, text: str
) -> None:
    stub = stubs.EmbedStub(channel)
    (wanted,) = rest("/embed", {"inputs": text})
    reply = stub.Embed(pb.EmbedRequest(inputs=text))
    assert np.array_equal(np.array(reply.embeddings, np.float32), np.array(wanted, np.float32))
    (rows,) = rest("/embed_all", {"inputs": text})
    each = stub.EmbedAll(pb.EmbedAllRequest(inputs=text)).token_embeddings
    got = np.array([row.embeddings for row in each], np.float32)
    assert np.array_equal(got, np.array(rows, np.float32))
    assert len(rows) == reply.metadata.compute_tokens


def test_too_long_a_text_is_cut_alike_at_either_end(channel: grpc.Channel, rest: Any) -> None:
    text = "alpha " * 600 + "omega " * 600
    for number, side in enumerate(("Right", "Left")):
        body = {"inputs": text, "truncate": True, "truncation_direction": side}
        asked = pb.EmbedRequest(inputs=text, truncate=True, truncation_direction=number)
        reply = stubs.EmbedStub(channel).Embed(asked)
        wanted = np.array(rest("/embed", body)[0], np.float32)
        assert np.array_equal(np.array(reply.embeddings, np.float32), wanted)


def test_passages_have_the_same_scores_on_both_doors(channel: grpc.Channel, rest: Any) -> None:
    texts = [TEXTS[0], "Helium is a gas.", "Lake Constance lies between three countries."]
    for raw in (False, True):
        wanted = rest("/rerank", {"query": QUESTION, "texts": texts, "raw_scores": raw})
        asked = pb.RerankRequest(query=QUESTION, texts=texts, raw_scores=raw, truncate=True)
        stub = stubs.RerankStub(channel)
        streamed = stub.RerankStream(
            pb.RerankStreamRequest(query=QUESTION, text=text, raw_scores=raw, truncate=True)
            for text in texts
        )
        for reply in (stub.Rerank(asked), streamed):
            assert [(rank.index, rank.score) for rank in reply.ranks] == [
                (item["index"], np.float32(item["score"])) for item in wanted
            ]


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_and_their_texts_are_the_same_on_both_doors(
    channel: grpc.Channel, rest: Any, text: str
) -> None:
    stub = stubs.TokenizeStub(channel)
    (wanted,) = rest("/tokenize", {"inputs": text})
    tokens = stub.Tokenize(pb.EncodeRequest(inputs=text, add_special_tokens=True)).tokens
    as_rest = [
        {
            "id": token.id,
            "text": token.text,
            "special": token.special,
            "start": token.start if token.HasField("start") else None,
            "stop": token.stop if token.HasField("stop") else None,
        }
        for token in tokens
    ]
    assert as_rest == wanted
    ids = [item["id"] for item in wanted]
    spelt = stub.Decode(pb.DecodeRequest(ids=ids, skip_special_tokens=True)).text
    assert [spelt] == rest("/decode", {"ids": ids})


def test_info_is_the_same_on_both_doors(channel: grpc.Channel, live_server: Any) -> None:
    info = stubs.InfoStub(channel).Info(pb.InfoRequest())
    wanted = httpx.get(f"{live_server.url}/info", timeout=60).json()
    for name in (
        *("version", "model_id", "model_sha", "model_dtype", "max_concurrent_requests"),
        *("max_input_length", "max_batch_tokens", "max_client_batch_size", "tokenization_workers"),
    ):
        assert getattr(info, name) == wanted[name], name
    assert "embedding" in wanted["model_type"]
    assert info.model_type == pb.MODEL_TYPE_EMBEDDING


def test_a_streams_messages_share_batches_and_keep_their_order(
    channel: grpc.Channel, metric: Callable[..., float]
) -> None:
    texts = [f"passage {n} of the river " + "and its banks " * (n % 17) for n in range(400)]
    stub = stubs.EmbedStub(channel)
    passes = metric("condensery_forward_passes_total", model="minilm-l6")
    replies = list(stub.EmbedStream(pb.EmbedRequest(inputs=text) for text in texts))
    ran = metric("condensery_forward_passes_total", model="minilm-l6") - passes
    assert len(replies) == 400
    assert ran < 200, f"{ran} forward passes for 400 messages"
    for place in (0, 7, 200, 399):
        alone = np.array(stub.Embed(pb.EmbedRequest(inputs=texts[place])).embeddings)
        assert float(alone @ np.array(replies[place].embeddings)) >= 0.9995


def test_what_a_request_took_is_in_the_metadata(channel: grpc.Channel) -> None:
    metadata = stubs.EmbedStub(channel).Embed(pb.EmbedRequest(inputs=TEXTS[0])).metadata
    assert metadata.compute_chars == len(TEXTS[0])
    assert metadata.compute_tokens == 9
    for part in (metadata.tokenization_time_ns, metadata.queue_time_ns, metadata.inference_time_ns):
        assert 0 < part <= metadata.total_time_ns
