"""Callers of the real server who leave, or whose time runs out: what they asked for is dropped."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from grpc import StatusCode

from condensery.stubs import condensery_v1_pb2 as pb
from condensery.stubs import condensery_v1_pb2_grpc as stubs

TEXTS = ["the river passes through a town with an old stone mill " * 10] * 16
TOKENS = 16 * 112
TIMEOUT = "x-request-timeout-ms"


@pytest.fixture
def channel(live_server: Any) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(live_server.grpc) as channel:
        yield channel


@pytest.fixture
def metric(live_server: Any) -> Callable[..., float]:
    """Read a metric of the server: the sum of all its samples that have these labels."""

    def read(name: str, **labels: str) -> float:
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        text = httpx.get(f"{live_server.url}/metrics", timeout=60).text
        return sum(
            float(line.rpartition(" ")[2])
            for line in text.splitlines()
            if line.partition("{")[0] == name and all(item in line for item in wanted)
        )

    return read


def embed(channel: grpc.Channel, texts: list[str], **metadata: str) -> Any:
    asked = pb.EmbedBatchRequest(texts=texts)
    headers = tuple((name.replace("_", "-"), value) for name, value in metadata.items())
    return stubs.EmbeddingStub(channel).EmbedBatch.future(asked, timeout=60, metadata=headers)


def until(happened: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def test_who_leaves_the_queue_is_never_computed_for_and_harms_nobody(
    channel: grpc.Channel, metric: Callable[..., float]
) -> None:
    wanted = embed(channel, TEXTS[:1]).result().vectors
    left = {"stage": "queue", "cause": "client", "model": "minilm-l6"}

    def some_leave() -> tuple[float, float]:
        """Return how many were dropped from the queue, and how many tokens were computed."""
        before = metric("condensery_cancelled_total", **left)
        ran = metric("condensery_batch_tokens_sum", model="minilm-l6")
        staying = embed(channel, TEXTS)
        leaving = [embed(channel, TEXTS) for _ in range(20)]
        until(lambda: metric("condensery_queue_tokens", model="minilm-l6") > 10 * TOKENS)
        for item in leaving:
            item.cancel()
        vectors = np.frombuffer(staying.result().vectors, "<f4").reshape(len(TEXTS), -1)
        alone = np.frombuffer(wanted, "<f4")
        assert (vectors @ alone).min() > 0.9995, "a batch-mate was harmed"
        until(lambda: metric("condensery_queue_tokens", model="minilm-l6") == 0)
        return (
            metric("condensery_cancelled_total", **left) - before,
            metric("condensery_batch_tokens_sum", model="minilm-l6") - ran,
        )

    # On a busy machine most may have been computed before the server hears that they left.
    deadline = time.monotonic() + 60
    while True:
        gone, computed = some_leave()
        if gone >= 10 and computed < 10 * TOKENS:
            break
        assert time.monotonic() < deadline, f"{gone} dropped, {computed} tokens computed"


def test_a_request_without_time_to_wait_is_refused_and_never_computed(
    channel: grpc.Channel, metric: Callable[..., float]
) -> None:
    late = {"stage": "queue", "cause": "deadline", "model": "minilm-l6"}
    before = metric("condensery_cancelled_total", **late)
    refused = 0
    deadline = time.monotonic() + 60
    # On a busy machine some are told so before they come to the queue, where it is counted.
    while metric("condensery_cancelled_total", **late) - before < 4:
        assert time.monotonic() < deadline, "too few were dropped from the queue"
        patient = [embed(channel, TEXTS) for _ in range(8)]
        hurried = [embed(channel, TEXTS, **{TIMEOUT: "30"}) for _ in range(8)]
        for call in hurried:
            with suppress(grpc.RpcError):
                call.result()
            if call.code() is not StatusCode.OK:
                assert call.code() is StatusCode.DEADLINE_EXCEEDED
                refused += dict(call.trailing_metadata())["x-error"] == "ExpiredInQueue"
        for call in patient:
            assert call.result().dims == 384
    assert refused


def test_who_leaves_an_answer_ends_its_generation(
    channel: grpc.Channel, metric: Callable[..., float]
) -> None:
    left = {"stage": "generate", "cause": "client"}
    before = metric("condensery_cancelled_total", **left)
    asked = pb.AnswerRequest(query="Which lake?", index="samples", max_tokens=512)
    deadline = time.monotonic() + 60
    while metric("condensery_cancelled_total", **left) == before:
        assert time.monotonic() < deadline, "no generation was ended"
        # So many that they are far from their end when one has begun, also on a busy machine.
        rag = stubs.RagStub(channel)
        streams = [rag.AnswerStream(asked, timeout=60) for _ in range(40)]
        assert "delta" in (event.WhichOneof("event") for event in streams[0])
        for stream in streams:
            stream.cancel()
        until(lambda: not metric("condensery_sequences"))


def test_an_answer_whose_time_runs_out_ends_between_its_steps(
    channel: grpc.Channel, metric: Callable[..., float]
) -> None:
    late = {"cause": "deadline", "model": "oscar-mini"}
    before = metric("condensery_cancelled_total", **late)
    asked = pb.AnswerRequest(query="Which lake?", index="samples", max_tokens=512)
    milliseconds = 100.0
    for _ in range(40):  # until it is enough to begin, and not to end
        stream = stubs.RagStub(channel).AnswerStream(
            asked, timeout=60, metadata=((TIMEOUT, str(round(milliseconds))),)
        )
        events = []
        with suppress(grpc.RpcError):
            for event in stream:
                events.append(event.WhichOneof("event"))  # noqa: PERF401  # what came before it ended
        if stream.code() is StatusCode.OK:
            milliseconds *= 0.6
            continue
        assert stream.code() is StatusCode.DEADLINE_EXCEEDED
        if "delta" in events:
            break
        milliseconds *= 1.5
    assert "delta" in events, f"never between its beginning and its end; {milliseconds:.0f} ms"
    assert dict(stream.trailing_metadata())["x-error"] == "DeadlineExceeded"
    assert metric("condensery_cancelled_total", **late) > before
