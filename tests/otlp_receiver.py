"""Collectors of OpenTelemetry's spans, over gRPC and HTTP, as real as their protocol."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)


@dataclass(frozen=True)
class Received:
    """A span as it came."""

    name: str
    trace_id: str
    span_id: str
    parent: str
    kind: int
    fields: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]]
    began: int
    ended: int
    failed: bool


@dataclass
class Collector:
    """What came, and whether it is taken at once: while ``open`` is cleared, senders wait."""

    url: str = ""
    spans: list[Received] = field(default_factory=list)
    services: set[str] = field(default_factory=set)
    open: threading.Event = field(default_factory=threading.Event)

    def take(self, request: ExportTraceServiceRequest) -> None:
        self.open.wait(60)
        for group in request.resource_spans:
            self.services.add(str(read_fields(group.resource.attributes)["service.name"]))
            for scope in group.scope_spans:
                self.spans += map(read_span, scope.spans)

    def one(self, name: str) -> Received:
        (found,) = [span for span in self.spans if span.name == name]
        return found

    def children(self, parent: Received) -> list[Received]:
        found = [span for span in self.spans if span.parent == parent.span_id]
        return sorted(found, key=lambda span: (span.began, span.ended))


def read_span(span: Any) -> Received:
    return Received(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.kind,
        read_fields(span.attributes),
        [(event.name, read_fields(event.attributes)) for event in span.events],
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.status.code == span.status.STATUS_CODE_ERROR,
    )


def read_fields(attributes: Any) -> dict[str, Any]:
    return {attribute.key: read_value(attribute.value) for attribute in attributes}


def read_value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [read_value(item) for item in value.array_value.values]
    return getattr(value, kind)


class _Servicer(TraceServiceServicer):
    def __init__(self, collector: Collector) -> None:
        self.collector = collector

    def Export(self, request: Any, context: Any) -> Any:
        self.collector.take(request)
        return ExportTraceServiceResponse()


@contextmanager
def collecting_grpc() -> Iterator[Collector]:
    collector = Collector()
    collector.open.set()
    server = grpc.server(ThreadPoolExecutor(2))
    add_TraceServiceServicer_to_server(_Servicer(collector), server)
    collector.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collector
    finally:
        collector.open.set()
        server.stop(0).wait()


@contextmanager
def collecting_http() -> Iterator[Collector]:
    collector = Collector()
    collector.open.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces", self.path
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.take(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.url = f"http://127.0.0.1:{server.server_port}/v1/traces"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield collector
    finally:
        collector.open.set()
        server.shutdown()
        thread.join()
        server.server_close()
