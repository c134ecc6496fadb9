"""Spans as collectors get them, over gRPC and HTTP; and collectors that are down, or slow."""

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest
from otlp_receiver import Collector, collecting_grpc, collecting_http

from condensery.metrics import Metrics
from condensery.request_context import RequestContext, serving_request
from condensery.runtime.encoder import Encoder
from condensery.runtime.workers import Workers
from condensery.tracing.opening import SpanTarget
from condensery.tracing.spans import Tracing

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = CALLER[:-2] + "00"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")


@pytest.fixture(params=["grpc", "http/protobuf"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def collector(protocol: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "30")  # it answers, however busy the machine
    collecting: AbstractContextManager[Collector] = (
        collecting_grpc() if protocol == "grpc" else collecting_http()
    )
    with collecting as made:
        yield made


def trace_to(url: str, protocol: str, metrics: Metrics) -> Tracing:
    return Tracing(SpanTarget(url, protocol), metrics)  # type: ignore[arg-type]


def outcomes(metrics: Metrics) -> dict[str, float]:
    def read(outcome: str) -> float:
        labels = {"outcome": outcome}
        return metrics.registry.get_sample_value("condensery_trace_spans_total", labels) or 0.0

    return {outcome: read(outcome) for outcome in ("exported", "failed", "dropped")}


async def test_a_request_is_a_span_of_its_callers_trace_and_its_stages_are_below_it(
    collector: Collector, protocol: str
) -> None:
    metrics = Metrics()
    tracing = trace_to(collector.url, protocol, metrics)
    before = time.time_ns()
    trace = tracing.begin({"traceparent": CALLER, "tracestate": "them=1"})
    now = time.perf_counter()
    trace.add("forward", now, now + 0.25, {"condensery.batch.items": 3})
    trace.add("generate", now, now + 1, {}, [(now + 0.5, "step", {"condensery.positions": 1})])
    call = trace.start_call("chat other", {"server.address": "there"})
    call.end({}, error="slow")
    trace.end("POST /v1/embeddings", {"http.response.status_code": 200})
    trace.add("late", now, now + 1)  # a worker that ends when the caller has left
    await tracing.close(30)
    root = collector.one("POST /v1/embeddings")
    assert (root.trace_id, root.parent) == tuple(CALLER.split("-")[1:3])
    assert root.fields == {"http.response.status_code": 200}
    assert {span.name for span in collector.children(root)} == {"forward", "generate", "chat other"}
    assert {span.trace_id for span in collector.spans} == {root.trace_id} == {trace.trace_id}
    forward, other = collector.one("forward"), collector.one("chat other")
    assert forward.fields == {"condensery.batch.items": 3}
    assert forward.ended - forward.began == pytest.approx(0.25e9, rel=1e-3)
    assert before <= forward.began <= time.time_ns()
    assert collector.one("generate").events == [("step", {"condensery.positions": 1})]
    assert (other.failed, other.fields["error.type"], root.failed) == (True, "slow", False)
    # What is called gets its own span as the parent, and the caller's state.
    assert call.headers["traceparent"] == f"00-{root.trace_id}-{other.span_id}-01"
    assert call.headers["tracestate"] == "them=1"
    assert outcomes(metrics) == {"exported": 4, "failed": 0, "dropped": 0}
    assert collector.services == {"condensery"}


async def test_what_its_caller_does_not_sample_is_passed_on_and_not_sent(
    collector: Collector, protocol: str
) -> None:
    tracing = trace_to(collector.url, protocol, Metrics())
    trace = tracing.begin({"traceparent": UNSAMPLED})
    trace.add("forward", 1.0, 2.0)
    headers = trace.start_call("chat", {}).headers
    trace.end("POST /embed", {})
    await tracing.close(30)
    assert collector.spans == []
    assert headers["traceparent"].split("-")[1::2] == [CALLER.split("-")[1], "00"]


async def test_a_caller_without_a_trace_or_with_a_broken_one_begins_one(
    collector: Collector, protocol: str
) -> None:
    tracing = trace_to(collector.url, protocol, Metrics())
    for headers in ({}, {"traceparent": "00-0-0-01"}, {"traceparent": "\udcff" * 500}):
        tracing.begin(headers).end("GET /", {})
    await tracing.close(30)
    assert [span.parent for span in collector.spans] == [""] * 3
    assert len({span.trace_id for span in collector.spans}) == 3


async def test_the_variables_name_the_service(
    collector: Collector, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "answers")
    tracing = trace_to(collector.url, protocol, Metrics())
    tracing.begin({}).end("GET /", {})
    await tracing.close(30)
    assert collector.services == {"answers"}


async def test_a_collector_that_is_down_costs_requests_nothing_and_is_counted(
    protocol: str, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = Metrics()
    path = "" if protocol == "grpc" else "/v1/traces"
    tracing = trace_to(f"http://127.0.0.1:{free_port}{path}", protocol, metrics)
    for _ in range(5):
        tracing.begin({}).end("POST /embed", {})
    await tracing.close(30)
    assert outcomes(metrics) == {"exported": 0, "failed": 5, "dropped": 0}


async def test_a_slow_collector_fills_a_queue_of_a_size_and_the_end_waits_only_so_long(
    collector: Collector, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "10")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "8")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4")
    collector.open.clear()
    metrics = Metrics()
    tracing = trace_to(collector.url, protocol, metrics)
    for _ in range(20):
        tracing.begin({}).end("POST /embed", {})
    assert outcomes(metrics) == {"exported": 0, "failed": 0, "dropped": 12}
    began = time.monotonic()
    await tracing.close(0.1)
    assert time.monotonic() - began < 20  # the collector holds its reply, and may for 30
    assert outcomes(metrics) == {"exported": 0, "failed": 0, "dropped": 20}


@pytest.fixture
def free_port() -> Iterator[int]:
    with socket.socket() as held:  # bound, and nobody listens
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


async def test_requests_that_share_a_batch_have_each_a_span_of_it(
    store_with_pair: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from condensery.store.store import ModelStore

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "30")
    metrics = Metrics()
    workers = Workers(1, torch.device("cpu"))
    encoder = Encoder.load(
        ModelStore(None, store_with_pair).open("minilm-l6"), workers, metrics=metrics
    )  # type: ignore[arg-type]
    with collecting_grpc() as collector:
        tracing = trace_to(collector.url, "grpc", metrics)

        async def embed(name: str, text: str) -> None:
            context = RequestContext(name, trace=tracing.begin({}))
            with serving_request(context):
                await encoder.embed([text])
            assert context.trace is not None
            context.trace.end(name, {})

        try:
            with workers.changed:  # until both wait, no batch is made
                both = asyncio.gather(embed("first", "peas"), embed("second", "Mendel"))
                while encoder._batcher.queued_tokens < 6:  # noqa: ASYNC110 - it has no event
                    await asyncio.sleep(0.001)
            await both
        finally:
            encoder.close()
            workers.close()
        await tracing.close(30)
    for name in ("first", "second"):
        stages = collector.children(collector.one(name))
        assert [span.name for span in stages] == ["tokenize", "queue", "forward"]
        assert stages[2].fields["condensery.batch.items"] == 2
        assert stages[2].fields["condensery.batch.requests"] == 2
        assert stages[2].fields["gen_ai.request.model"] == "minilm-l6"
