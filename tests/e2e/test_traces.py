"""Requests of a real server as a real collector gets them, from both doors."""

from pathlib import Path

import grpc
import httpx
import pytest
from otlp_receiver import Received, collecting_grpc
from tests.conftest import serving

from condensery.stubs.condensery_v1_pb2 import AnswerRequest, EmbedBatchRequest
from condensery.stubs.condensery_v1_pb2_grpc import EmbeddingStub, RagStub

DOCUMENTS = ["Mendel studied seven traits of peas.", "Darwin sailed on the Beagle."]


def parent(number: int) -> tuple[str, str]:
    """Return a caller's trace, and what carries it."""
    trace = f"{number:032x}"
    return trace, f"00-{trace}-{number:016x}-01"


@pytest.mark.slow
def test_a_request_of_either_door_is_a_tree_of_stages_in_its_callers_trace(
    store_with_pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that what is here at the end came with the server's end.
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000")
    traces = dict(
        zip(("rest", "answer", "grpc", "bad", "stream"), map(parent, range(1, 6)), strict=True)
    )
    with collecting_grpc() as collector:
        flags = ("--otlp-endpoint", collector.url, "--log-level", "debug", "--no-samples")
        with serving(store_with_pair, tmp_path, *flags) as server:
            with httpx.Client(base_url=server.url, timeout=120) as client:

                def post(name: str, path: str, body: object) -> httpx.Response:
                    headers = {"traceparent": traces[name][1], "x-request-id": f"id-{name}"}
                    return client.post(path, json=body, headers=headers)

                embedded = post("rest", "/v1/embeddings", {"input": DOCUMENTS})
                assert embedded.status_code == 200, embedded.text
                asked = {"query": "How many traits?", "documents": DOCUMENTS, "max_tokens": 4}
                assert post("answer", "/v1/rag/answer", asked).status_code == 200
                assert post("bad", "/v1/embeddings", {"input": 7}).status_code == 400
                assert client.get("/health").status_code == 200
                assert client.get("/metrics").status_code == 200
            with grpc.insecure_channel(server.grpc) as channel:
                stub, rag = EmbeddingStub(channel), RagStub(channel)
                _, call = stub.EmbedBatch.with_call(
                    EmbedBatchRequest(texts=DOCUMENTS),
                    metadata=[("traceparent", traces["grpc"][1])],
                )
                documents = [{"text": text} for text in DOCUMENTS]
                request = AnswerRequest(query="How many?", documents=documents, max_tokens=3)
                list(rag.AnswerStream(request, metadata=[("traceparent", traces["stream"][1])]))
        log = server.log.read_text()

    def root(name: str) -> Received:
        trace, header = traces[name]
        (found,) = [span for span in collector.spans if span.parent == header.split("-")[2]]
        assert found.trace_id == trace
        return found

    def stages(name: str) -> list[str]:
        return [span.name for span in collector.children(root(name))]

    rest, called = root("rest"), root("grpc")
    assert embedded.headers["traceresponse"] == f"00-{rest.trace_id}-{rest.span_id}-01"
    trailers = dict(call.trailing_metadata())
    assert trailers["traceresponse"] == f"00-{called.trace_id}-{called.span_id}-01"
    assert rest.name == "POST /v1/embeddings"
    assert rest.fields["http.route"] == "/v1/embeddings"
    assert rest.fields["gen_ai.operation.name"] == "embeddings"
    assert rest.fields["gen_ai.usage.input_tokens"] > 10
    assert called.name == "condensery.v1.Embedding/EmbedBatch"
    assert called.fields["rpc.response.status_code"] == "OK"
    for name in ("rest", "grpc"):
        assert stages(name) == ["tokenize", "queue", "forward", "serialize"]
    for name, tokens in (("answer", 4), ("stream", 3)):
        found = stages(name)
        assert {"tokenize", "queue", "forward", "compress", "generate"} <= set(found)
        assert ("serialize" in found) == (name == "answer")  # a stream is, delta by delta
        (generated,) = [s for s in collector.children(root(name)) if s.name == "generate"]
        assert generated.fields["gen_ai.usage.output_tokens"] <= tokens
        assert len(generated.events) >= generated.fields["gen_ai.usage.output_tokens"]
    assert root("bad").fields["http.response.status_code"] == 400
    assert not root("bad").failed
    names = {span.name for span in collector.spans if not span.parent}
    assert not names, "probes and scrapers are not traced"
    (line,) = [line for line in log.splitlines() if "id-rest" in line and " reply " in line]
    assert f"trace_id='{rest.trace_id}'" in line
