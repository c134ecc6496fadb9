"""Requests as OpenTelemetry's spans, sent to a collector beside the requests.

While a request is served its stages are only noted: a name, two times and a few numbers. They
become spans once it is over. Sending is a thread's work; what a collector that is down or slow
does not take is dropped and counted, and no request waits for it.

No span holds text of users: names, counts and times alone.
"""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import condensery
from condensery.request_context import Fields, SpanEvent
from condensery.tracing.opening import SpanTarget

if TYPE_CHECKING:
    from condensery.metrics import Metrics

MAX_SPANS = 512  # of one request; a long list of texts takes more batches than anybody reads
SERVICE_NAME = "condensery"
LOG_SECONDS = 60.0  # at most one line in this time says that spans are lost
DEFAULT_QUEUE_SIZE = 2048  # OpenTelemetry's own

_log = logging.getLogger(__name__)
_propagator = TraceContextTextMapPropagator()


class Tracing:
    """Begins requests' traces, and sends their spans (``request_context.Tracer``).

    Args:
        target: Where to.
        exporter: What sends them; by default OTLP.
    """

    def __init__(
        self, target: SpanTarget, metrics: "Metrics", *, exporter: SpanExporter | None = None
    ) -> None:
        # Each failure is a line of theirs, with the collector's own words; we count, and say so.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._provider = TracerProvider(resource=_describe_service(), shutdown_on_exit=False)
        self._sender = _Sender(exporter or _make_exporter(target), metrics)
        self._provider.add_span_processor(self._sender)
        self._tracer = self._provider.get_tracer(SERVICE_NAME, condensery.__version__)

    def begin(self, headers: Mapping[str, str]) -> "Trace":
        """Begin a request's trace, as a part of its caller's where there is one.

        Args:
            headers: ``traceparent`` and ``tracestate``, as far as they came.
        """
        context = _propagator.extract(headers, Context())
        return Trace(self._tracer, self._tracer.start_span("request", context, SpanKind.SERVER))

    async def close(self, seconds: float) -> None:
        """Send what is left, for so long at most."""
        # Its own thread, which no exit of the process waits for: the SDK has no such bound.
        thread = threading.Thread(target=self._sender.shutdown, name="traces", daemon=True)
        thread.start()
        await asyncio.to_thread(thread.join, seconds)
        self._sender.give_up()


# Its name, when it began and ended, its fields, and what happened meanwhile.
_Stage: TypeAlias = tuple[str, float, float, Fields, Sequence[SpanEvent]]


class Trace:
    """One request's spans (``request_context.RequestTrace``).

    Attributes:
        trace_id: 32 hexadecimal digits.
        headers: What carries the trace on, to whatever is part of this request.
    """

    def __init__(self, tracer: Any, root: Span) -> None:
        self._tracer = tracer
        self._root = root
        self._context = set_span_in_context(root, Context())
        # From the clock of stages to that of spans.
        self._offset = time.time_ns() - time.perf_counter_ns()
        self._stages: list[_Stage] = []
        self._recording = root.is_recording()
        self.trace_id = f"{root.get_span_context().trace_id:032x}"
        self.headers: dict[str, str] = {}
        _propagator.inject(self.headers, self._context)

    def add(
        self,
        name: str,
        began: float,
        ended: float,
        fields: Fields | None = None,
        events: Sequence[SpanEvent] = (),
    ) -> None:
        """Note a stage, from any thread; times are ``time.perf_counter``'s."""
        if self._recording:
            self._stages.append((name, began, ended, fields or {}, events))

    def describe(self, fields: Fields) -> None:
        """Put facts on the request's own span."""
        self._root.set_attributes(fields)

    def start_call(self, name: str, fields: Fields) -> "OutgoingSpan":
        """Begin a span of a call to another server."""
        span = self._tracer.start_span(name, self._context, SpanKind.CLIENT, attributes=fields)
        return OutgoingSpan(span)

    def end(self, name: str, fields: Fields, *, error: str | None = None) -> None:
        """End the request: its stages become spans, and go on their way.

        Args:
            error: What kind of failure of the server it ended with, if it did.
        """
        stages, self._stages, self._recording = self._stages, [], False
        for stage, began, ended, facts, events in stages[:MAX_SPANS]:
            span = self._tracer.start_span(
                stage, self._context, attributes=facts, start_time=self._nanoseconds(began)
            )
            for at, event, numbers in events:
                span.add_event(event, numbers, self._nanoseconds(at))
            span.end(self._nanoseconds(ended))
        if len(stages) > MAX_SPANS:
            self._root.set_attribute("condensery.stages.left_out", len(stages) - MAX_SPANS)
        self._root.update_name(name)
        self._root.set_attributes(fields)
        _end_span(self._root, error)

    def _nanoseconds(self, at: float) -> int:
        return self._offset + round(at * 1e9)


class OutgoingSpan:
    """A call to another server.

    Attributes:
        headers: What carries the trace on to it.
    """

    def __init__(self, span: Span) -> None:
        self._span = span
        self.headers: dict[str, str] = {}
        _propagator.inject(self.headers, set_span_in_context(span, Context()))

    def end(self, fields: Fields, *, error: str | None = None) -> None:
        """End the call; ``error`` says what kind of failure it ended with, if it did."""
        self._span.set_attributes(fields)
        _end_span(self._span, error)


def _describe_service() -> Resource:
    """Return who sends the spans: as OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say it."""
    resource = Resource.create({"service.version": condensery.__version__})
    if str(resource.attributes["service.name"]).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": SERVICE_NAME}))
    return resource


def _end_span(span: Span, error: str | None) -> None:
    if error is not None:
        span.set_attribute("error.type", error)
        span.set_status(Status(StatusCode.ERROR))
    span.end()


def _make_exporter(target: SpanTarget) -> SpanExporter:
    if target.protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (
            OTLPSpanExporter as GrpcExporter,
        )

        return GrpcExporter(endpoint=target.endpoint)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (
        OTLPSpanExporter as HttpExporter,
    )

    return HttpExporter(endpoint=target.endpoint)


class _CountingExporter(SpanExporter):
    """Sends spans, and counts what became of them."""

    def __init__(self, exporter: SpanExporter, metrics: "Metrics") -> None:
        self._exporter = exporter
        self._spans = metrics.trace_spans
        self._logged = -LOG_SECONDS
        self._lock = threading.Lock()
        self._over = False
        self.done = 0  # spans that wait no more

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result = self._exporter.export(spans)
        except Exception as error:  # of a library: it must not end the thread that sends
            result, why = SpanExportResult.FAILURE, type(error).__name__
        else:
            why = "the collector did not take them"
        with self._lock:
            if not self._over:
                self.done += len(spans)
                sent = result is SpanExportResult.SUCCESS
                self._spans.labels("exported" if sent else "failed").inc(len(spans))
                if not sent:
                    self._say(why)
        return result

    def give_up(self, taken: int) -> int:
        """Count what of so many spans has still not been sent as dropped, and send no more."""
        with self._lock:
            self._over = True
            left = taken - self.done
            self._spans.labels("dropped").inc(left)
        if left:
            self.shutdown()
        return left

    def _say(self, reason: str) -> None:
        now = time.monotonic()
        if now - self._logged >= LOG_SECONDS:
            self._logged = now
            _log.warning("spans_lost", extra={"reason": reason})

    def shutdown(self) -> None:
        self._exporter.shutdown()


class _Sender(SpanProcessor):
    """The SDK's queue and its thread, with what finds the queue full counted."""

    def __init__(self, exporter: SpanExporter, metrics: "Metrics") -> None:
        self._counting = _CountingExporter(exporter, metrics)
        self._queue = BatchSpanProcessor(self._counting)
        self._size = _read_queue_size()
        self._spans = metrics.trace_spans
        self._taken = 0
        self._lock = threading.Lock()  # requests end in one loop; tests have more

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is None or not span.context.trace_flags.sampled:
            return
        with self._lock:
            # What is being sent counts too. The SDK itself drops what has waited longest, unseen.
            full = self._taken - self._counting.done >= self._size
            self._taken += not full
        if full:
            self._spans.labels("dropped").inc()
        else:
            self._queue.on_end(span)

    def shutdown(self) -> None:
        self._queue.shutdown()  # type: ignore[no-untyped-call] # theirs

    def give_up(self) -> None:
        """Count what was not sent in time, and send no more."""
        if left := self._counting.give_up(self._taken):
            _log.warning("spans_lost", extra={"reason": "the server ended", "spans": left})


def _read_queue_size() -> int:
    try:
        return int(os.environ.get("OTEL_BSP_MAX_QUEUE_SIZE", DEFAULT_QUEUE_SIZE))
    except ValueError:  # the SDK takes its default then, and so do we
        return DEFAULT_QUEUE_SIZE
