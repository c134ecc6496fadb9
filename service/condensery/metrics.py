"""Every metric name, in one place.

Label sets are created at zero for each running model, so that a dashboard shows a line before
the first request.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from condensery.callers import current
from condensery.tei_metrics import TeiMetrics

Task = Literal["embed", "rerank", "classify", "compress", "answer", "compare", "index"]
Stage = Literal["tokenize", "queue", "forward", "compress", "generate", "index", "serialize"]
TASKS: tuple[Task, ...] = ("embed", "rerank", "classify", "compress", "answer", "compare", "index")
STAGES: tuple[Stage, ...] = (
    "tokenize",
    "queue",
    "forward",
    "compress",
    "generate",
    "index",
    "serialize",
)
PROTOCOLS = ("rest", "grpc")
FallbackReason = Literal["timeout", "fault"]
FALLBACK_REASONS: tuple[FallbackReason, ...] = ("timeout", "fault")
DOC_STATUSES = ("applied", "fallback", "left_out")
DROP_STAGES: tuple[Stage, ...] = ("queue", "forward", "compress", "generate")
CAUSES = ("client", "deadline")
REASONS = ("queue_tokens", "queue_seconds", "requests", "bytes", "connections", "context_bytes")

# Seconds, 0.1 ms to 60 s: a CPU query takes milliseconds, a long answer seconds.
SECONDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1),
    *(0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
TOKENS = tuple(float(2**k) for k in range(17))


class Metrics:
    """The service's metrics, in a registry of their own (several can live in one test).

    Args:
        tei: Whether to tell some of them under TEI's names too.
    """

    def __init__(self, *, tei: bool = True) -> None:
        self.registry = CollectorRegistry()
        reg = self.registry
        self.requests = Counter(
            "condensery_requests_total",
            "Requests answered, by outcome (ok, or the error's class).",
            ["model", "task", "protocol", "code"],
            registry=reg,
        )
        self.request_seconds = Histogram(
            "condensery_request_duration_seconds",
            "Time from a parsed request to its reply.",
            ["model", "task", "protocol"],
            buckets=SECONDS,
            registry=reg,
        )
        self.stage_seconds = Histogram(
            "condensery_stage_duration_seconds",
            "Time spent in one stage of a request or batch.",
            ["model", "stage"],
            buckets=SECONDS,
            registry=reg,
        )
        self.batch_tokens = Histogram(
            "condensery_batch_tokens",
            "Tokens in one forward pass (no padding).",
            ["model"],
            buckets=TOKENS,
            registry=reg,
        )
        self.batch_items = Histogram(
            "condensery_batch_items",
            "Items in one forward pass.",
            ["model"],
            buckets=TOKENS,
            registry=reg,
        )
        self.queue_requests = Gauge(
            "condensery_queue_requests", "Items waiting for a device.", ["model"], registry=reg
        )
        self.queue_tokens = Gauge(
            "condensery_queue_tokens", "Tokens waiting for a device.", ["model"], registry=reg
        )
        self.input_tokens = Counter(
            "condensery_input_tokens_total", "Tokens read.", ["model"], registry=reg
        )
        self.output_tokens = Counter(
            "condensery_output_tokens_total", "Tokens generated.", ["model"], registry=reg
        )
        self.truncated_inputs = Counter(
            "condensery_truncated_inputs_total", "Inputs cut to fit.", ["model"], registry=reg
        )
        self.forwards = Counter(
            "condensery_forward_passes_total", "Forward passes run.", ["model"], registry=reg
        )
        self.rejected = Counter(
            "condensery_rejected_total",
            "Requests refused for want of room, by the limit that was reached.",
            ["reason"],
            registry=reg,
        )
        self.connections = Gauge(
            "condensery_connections", "Open connections of the REST port.", registry=reg
        )
        self.cancelled = Counter(
            "condensery_cancelled_total",
            "Work dropped because its caller left or its time ran out, by how far it had come.",
            ["model", "stage", "cause"],
            registry=reg,
        )
        self.oom = Counter(
            "condensery_oom_total",
            "Batches that ran out of memory: split and tried again, or failed alone.",
            ["model", "action"],
            registry=reg,
        )
        self.worker_restarts = Counter(
            "condensery_worker_restarts_total",
            "Device workers replaced because they hung or died.",
            registry=reg,
        )
        self.heartbeat_age = Gauge(
            "condensery_heartbeat_age_seconds",
            "How long the oldest forward pass has been running.",
            registry=reg,
        )
        # These are the sums of the compression blocks that were told.
        self.compressed_docs = Counter(
            "condensery_compressed_docs_total",
            "Passages of answers: read as vectors, read as text for a failure, or left out.",
            ["model", "status"],
            registry=reg,
        )
        self.context_tokens_in = Counter(
            "condensery_context_tokens_in_total",
            "Tokens of the passages read as vectors.",
            ["model"],
            registry=reg,
        )
        self.context_vectors_out = Counter(
            "condensery_context_vectors_out_total",
            "Memory vectors that those passages became.",
            ["model"],
            registry=reg,
        )
        self.flops_used = Counter(
            "condensery_flops_used_total",
            "FLOPs of compressing passages and answering from them, by the configs' dimensions.",
            ["model"],
            registry=reg,
        )
        # What was saved is the difference, which may be negative: no counter of its own.
        self.flops_plain = Counter(
            "condensery_flops_plain_total",
            "FLOPs that the same answers would have taken from the passages' own tokens.",
            ["model"],
            registry=reg,
        )
        self.compression_fallback = Counter(
            "condensery_compression_fallback_total",
            "Passages read as text because their compression failed, by why it did.",
            ["model", "reason"],
            registry=reg,
        )
        self.contexts = Gauge(
            "condensery_contexts", "Compressed contexts held for later answers.", registry=reg
        )
        self.context_bytes = Gauge(
            "condensery_context_bytes", "Bytes that those contexts take.", registry=reg
        )
        self.ttft_seconds = Histogram(
            "condensery_ttft_seconds",
            "Time from a question to its answer's first token.",
            ["model"],
            buckets=SECONDS,
            registry=reg,
        )
        self.inter_token_seconds = Histogram(
            "condensery_inter_token_seconds",
            "Time between two tokens of an answer.",
            ["model"],
            buckets=SECONDS,
            registry=reg,
        )
        self.step_tokens = Histogram(
            "condensery_step_tokens",
            "Positions in one step of a generator: a token a sequence, and pieces of prompts.",
            ["model"],
            buckets=TOKENS,
            registry=reg,
        )
        self.sequences = Gauge(
            "condensery_sequences",
            "Answers being generated, and those that wait for room.",
            ["model", "state"],
            registry=reg,
        )
        self.decode_graphs = Gauge(
            "condensery_decode_graphs",
            "Captured graphs that a generator's steps of single tokens run as; 0: none.",
            ["model"],
            registry=reg,
        )
        self.decode_graph_failures = Counter(
            "condensery_decode_graph_failures_total",
            "Times that capturing them failed; steps then run slower, one kernel after another.",
            ["model"],
            registry=reg,
        )
        self.cache_positions = Gauge(
            "condensery_cache_positions",
            "Positions of the key/value cache that are taken, and how many there are.",
            ["model", "state"],
            registry=reg,
        )
        self.index_passages = Gauge(
            "condensery_index_passages", "Passages in an index.", ["index", "model"], registry=reg
        )
        self.index_snapshot_age = Gauge(
            "condensery_index_snapshot_age_seconds",
            "How old an index's newest snapshot is; of an index without one, there is none.",
            ["index"],
            registry=reg,
        )
        self.model_loaded = Gauge(
            "condensery_model_loaded",
            "1 while the model serves, 0 if it was refused.",
            ["model"],
            registry=reg,
        )
        self.model_state = Gauge(
            "condensery_model_state",
            "1 for what a model does: ready, loading, unloading, unavailable; while it is replaced"
            " it does two of them.",
            ["model", "state"],
            registry=reg,
        )
        self.model_load_seconds = Gauge(
            "condensery_model_load_seconds",
            "Time that loading what serves took, from its files; its warm-up is not counted.",
            ["model"],
            registry=reg,
        )
        self.model_memory_bytes = Gauge(
            "condensery_model_memory_bytes",
            "Bytes of the weights of what serves, by device.",
            ["model", "device"],
            registry=reg,
        )
        self.build_info = Gauge(
            "condensery_build_info", "Always 1; the version is a label.", ["version"], registry=reg
        )
        for reason in REASONS:
            self.rejected.labels(reason)
        self.tei: TeiMetrics | None = None
        if tei:
            self.tei = TeiMetrics(lambda: _sum(self.queue_requests))
            reg.register(self.tei)

    def prepare_model(self, model: str) -> None:
        """Create every label set of ``model`` at zero."""
        for task in TASKS:
            for protocol in PROTOCOLS:
                self.requests.labels(model, task, protocol, "ok")
                self.request_seconds.labels(model, task, protocol)
        for stage in STAGES:
            self.stage_seconds.labels(model, stage)
        for dropped in DROP_STAGES:
            for cause in CAUSES:
                self.cancelled.labels(model, dropped, cause)
        for state in ("running", "waiting"):
            self.sequences.labels(model, state)
        for state in ("used", "limit"):
            self.cache_positions.labels(model, state)
        for status in DOC_STATUSES:
            self.compressed_docs.labels(model, status)
        for fallback in FALLBACK_REASONS:
            self.compression_fallback.labels(model, fallback)
        for action in ("split", "failed"):
            self.oom.labels(model, action)
        for family in (
            self.batch_tokens,
            self.batch_items,
            self.queue_requests,
            self.queue_tokens,
            self.input_tokens,
            self.output_tokens,
            self.truncated_inputs,
            self.forwards,
            self.context_tokens_in,
            self.context_vectors_out,
            self.flops_used,
            self.flops_plain,
            self.ttft_seconds,
            self.inter_token_seconds,
            self.step_tokens,
            self.decode_graphs,
            self.decode_graph_failures,
            self.model_loaded,
        ):
            family.labels(model)

    @contextmanager
    def stage(self, model: str, stage: Stage) -> Iterator[None]:
        """Observe how long the block takes as ``stage`` of ``model``."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.observe(model, stage, time.perf_counter() - started)

    def observe(self, model: str, stage: Stage, seconds: float) -> None:
        """Observe a stage of ``model``, as one of the call that is being served as well."""
        self.stage_seconds.labels(model, stage).observe(seconds)
        stages = current().spent.stages
        stages[stage] = stages.get(stage, 0.0) + seconds


def _sum(gauge: Gauge) -> float:
    """Return a gauge's values of all labels together."""
    return sum(sample.value for metric in gauge.collect() for sample in metric.samples)
