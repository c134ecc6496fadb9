"""Every metric name of ours, in one place (TEI's names: ``tei_metrics.py``).

Label sets are created at zero for each running model, so that a dashboard shows a line before the
first request.
"""

import collections
import math
import shutil
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.samples import Sample

from condensery.question import FinishReason
from condensery.request_context import MODEL_FIELD, current_request
from condensery.tei_metrics import TeiMetrics

# Writes are apart from what is asked of an index: they take as long as they are large.
Task = Literal[
    "embed", "rerank", "classify", "compress", "answer", "compare", "index", "index-write"
]
Stage = Literal["tokenize", "queue", "forward", "compress", "generate", "index", "serialize"]
FallbackReason = Literal["timeout", "fault"]
# Why the server that writes answers failed: no connection, its status (429, 5xx; another), no next
# words in time, what is no answer, an end in mid-stream, another model than a pair's generator.
AnswerServerFailure = Literal[
    "connection", "unavailable", "refused", "slow", "malformed", "cut", "mismatch"
]
# What became of an answer's shadow: compared; dropped, since callers came or enough wait, since the
# server ends, since it took too long, did not fit as text, or its pair serves no more; failed.
ShadowOutcome = Literal["done", "busy", "draining", "late", "too_long", "gone", "failed"]
_TASKS = ",".join(get_args(Task))

# Seconds, 0.1 ms to 60 s: a CPU query takes milliseconds, a long answer seconds.
SECONDS_BUCKETS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1),
    *(0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
TOKEN_BUCKETS = tuple(float(2**k) for k in range(17))
RELEVANCE_BUCKETS = tuple(k / 10 for k in range(1, 11))
AGREEMENT_BUCKETS = (0.0, *RELEVANCE_BUCKETS)


@dataclass(frozen=True, slots=True)
class _Declared:
    """A metric of ``Metrics``, made anew for each of its instances.

    Attributes:
        labels: Each with the values that are there, at zero, before the first event; None is the
            name of whichever model there is.
    """

    kind: type[Counter] | type[Gauge] | type[Histogram]
    name: str
    description: str
    labels: Mapping[str, Sequence[str] | None]
    options: Mapping[str, Any]

    def make(self, registry: CollectorRegistry) -> Counter | Gauge | Histogram:
        return self.kind(
            self.name, self.description, [*self.labels], registry=registry, **self.options
        )

    def label_sets(self, model: str | None) -> Iterator[tuple[str, ...]]:
        """Yield those of a model that are there at zero, or (None) those that are of no model."""
        if self.labels and (None in self.labels.values()) == (model is not None):
            yield from product(*((model or "",) if v is None else v for v in self.labels.values()))


# What these return stands in the class for what its instances have, and is typed as that. Labels
# are one string, blanks between them: ``model`` alone, others as ``state=used,limit``.
def _counter(name: str, description: str, labels: str = "") -> Any:
    return _Declared(Counter, name, description, _read_labels(labels), {})


def _gauge(name: str, description: str, labels: str = "") -> Any:
    return _Declared(Gauge, name, description, _read_labels(labels), {})


def _histogram(
    name: str, description: str, labels: str = "", *, buckets: tuple[float, ...] = SECONDS_BUCKETS
) -> Any:
    return _Declared(Histogram, name, description, _read_labels(labels), {"buckets": buckets})


def _read_labels(labels: str) -> dict[str, Sequence[str] | None]:
    parts = (label.partition("=") for label in labels.split())
    return {
        name: None if not equals else values.split(",") if values else ()
        for name, equals, values in parts
    }


class Metrics:
    """The service's metrics, in a registry of their own (several can live in one test).

    Args:
        tei: Whether to export some of them under TEI's names too.
    """

    requests: Counter = _counter(
        "condensery_requests_total",
        "Requests answered, by outcome (ok, or the error's class).",
        f"model task={_TASKS} protocol=rest,grpc code=ok",
    )
    request_seconds: Histogram = _histogram(
        "condensery_request_duration_seconds",
        "Time from a parsed request to its reply.",
        f"model task={_TASKS} protocol=rest,grpc",
    )
    stage_seconds: Histogram = _histogram(
        "condensery_stage_duration_seconds",
        "Time spent in one stage of a request or batch.",
        f"model stage={','.join(get_args(Stage))}",
    )
    batch_tokens: Histogram = _histogram(
        "condensery_batch_tokens",
        "Tokens in one forward pass (no padding).",
        "model",
        buckets=TOKEN_BUCKETS,
    )
    batch_items: Histogram = _histogram(
        "condensery_batch_items", "Items in one forward pass.", "model", buckets=TOKEN_BUCKETS
    )
    queue_requests: Gauge = _gauge(
        "condensery_queue_requests", "Items waiting for a device.", "model"
    )
    queue_tokens: Gauge = _gauge("condensery_queue_tokens", "Tokens waiting for a device.", "model")
    queue_tokens_limit: Gauge = _gauge(
        "condensery_queue_tokens_limit", "Most tokens that may wait for one model."
    )
    input_tokens: Counter = _counter("condensery_input_tokens_total", "Tokens read.", "model")
    output_tokens: Counter = _counter(
        "condensery_output_tokens_total", "Tokens generated.", "model"
    )
    truncated_inputs: Counter = _counter(
        "condensery_truncated_inputs_total", "Inputs cut to fit.", "model"
    )
    forwards: Counter = _counter("condensery_forward_passes_total", "Forward passes run.", "model")
    rejected: Counter = _counter(
        "condensery_rejected_total",
        "Requests refused because a limit was reached, by the limit.",
        "reason=queue_tokens,queue_seconds,requests,bytes,connections,context_bytes",
    )
    connections: Gauge = _gauge("condensery_connections", "Open connections of the REST port.")
    front_processes: Gauge = _gauge(
        "condensery_front_processes",
        "Front processes that serve REST and gRPC; 0 where the engine's own process does.",
    )
    cancelled: Counter = _counter(
        "condensery_cancelled_total",
        "Work dropped because its caller left or its time ran out, by how far it had come.",
        "model stage=queue,forward,compress,generate cause=client,deadline",
    )
    oom: Counter = _counter(
        "condensery_oom_total",
        "Batches that ran out of memory: split and tried again, or failed alone.",
        "model action=split,failed",
    )
    worker_restarts: Counter = _counter(
        "condensery_worker_restarts_total", "Device workers replaced because they hung or died."
    )
    heartbeat_age: Gauge = _gauge(
        "condensery_heartbeat_age_seconds", "How long the oldest forward pass has been running."
    )
    # These are the sums of the compression reports of all answers.
    compressed_docs: Counter = _counter(
        "condensery_compressed_docs_total",
        "Passages of answers: read as vectors, read as text for a failure, or left out.",
        "model status=applied,fallback,left_out",
    )
    context_tokens_in: Counter = _counter(
        "condensery_context_tokens_in_total", "Tokens of the passages read as vectors.", "model"
    )
    context_vectors_out: Counter = _counter(
        "condensery_context_vectors_out_total",
        "Memory vectors that those passages became.",
        "model",
    )
    flops_used: Counter = _counter(
        "condensery_flops_used_total",
        "FLOPs of compressing passages and answering from them, by the configs' dimensions.",
        "model",
    )
    # What was saved is the difference, which may be negative: no counter of its own.
    flops_plain: Counter = _counter(
        "condensery_flops_plain_total",
        "FLOPs that the same answers would have taken from the passages' own tokens.",
        "model",
    )
    compression_fallback: Counter = _counter(
        "condensery_compression_fallback_total",
        "Passages read as text because their compression failed, by why it did.",
        f"model reason={','.join(get_args(FallbackReason))}",
    )
    answers: Counter = _counter(
        "condensery_answers_total",
        "Answers given, by why they ended; not_found: no passage was relevant enough.",
        f"model finish={','.join(get_args(FinishReason))}",
    )
    relevance: Histogram = _histogram(
        "condensery_relevance",
        "Rerank scores of all passages that answers could choose from, 0 to 1.",
        "model",
        buckets=RELEVANCE_BUCKETS,
    )
    contexts: Gauge = _gauge("condensery_contexts", "Compressed contexts held for later answers.")
    context_bytes: Gauge = _gauge("condensery_context_bytes", "Bytes that those contexts take.")
    ttft_seconds: Histogram = _histogram(
        "condensery_ttft_seconds", "Time from a question to its answer's first token.", "model"
    )
    shadows: Counter = _counter(
        "condensery_shadows_total",
        "Answers drawn to be computed a second time, by what became of that.",
        f"model outcome={','.join(get_args(ShadowOutcome))}",
    )
    shadow_agreement: Histogram = _histogram(
        "condensery_shadow_agreement",
        "F1 of the words of an answer and of its shadow, 0 to 1.",
        "model",
        buckets=AGREEMENT_BUCKETS,
    )
    shadow_exact: Counter = _counter(
        "condensery_shadow_exact_total",
        "Shadows that say the same as the answer but for case, articles and punctuation.",
        "model",
    )
    answer_server_requests: Counter = _counter(
        "condensery_answer_server_requests_total",
        "Requests to the server that writes answers, retries included.",
    )
    answer_server_failures: Counter = _counter(
        "condensery_answer_server_failures_total",
        "Those of them that failed, by why, also where another try helped.",
        f"reason={','.join(get_args(AnswerServerFailure))}",
    )
    answer_server_ttft_seconds: Histogram = _histogram(
        "condensery_answer_server_ttft_seconds",
        "Time from a request to that server to its first words.",
    )
    inter_token_seconds: Histogram = _histogram(
        "condensery_inter_token_seconds", "Time between two tokens of an answer.", "model"
    )
    step_tokens: Histogram = _histogram(
        "condensery_step_tokens",
        "Positions in one step of a generator: tokens of answers, and pieces of prompts.",
        "model",
        buckets=TOKEN_BUCKETS,
    )
    sequences: Gauge = _gauge(
        "condensery_sequences",
        "Answers being generated, and those that wait for cache space.",
        "model state=running,waiting",
    )
    decode_graphs: Gauge = _gauge(
        "condensery_decode_graphs",
        "Captured graphs that a generator's steps of single tokens run as; 0: none.",
        "model",
    )
    decode_graph_failures: Counter = _counter(
        "condensery_decode_graph_failures_total",
        "Times that capturing them failed; steps then run slower, one kernel after another.",
        "model",
    )
    cache_positions: Gauge = _gauge(
        "condensery_cache_positions",
        "Positions of the key/value cache that are taken, and how many there are.",
        "model state=used,limit",
    )
    index_passages: Gauge = _gauge(
        "condensery_index_passages", "Passages in an index.", "index= model="
    )
    index_snapshot_age: Gauge = _gauge(
        "condensery_index_snapshot_age_seconds",
        "How old an index's newest snapshot is; of an index without one, there is none.",
        "index=",
    )
    index_cache_behind: Gauge = _gauge(
        "condensery_index_cache_behind_passages",
        "Passages changed since an index's FAISS file was written: what a start must catch up.",
        "index=",
    )
    index_database_up: Gauge = _gauge(
        "condensery_index_database_up",
        "1 while the database of the indexes' vectors answers; without one, 1 too.",
    )
    data_bytes: Gauge = _gauge(
        "condensery_data_bytes", "The data directory's disk: what is free, and all.", "state="
    )
    ready: Gauge = _gauge("condensery_ready", "1 while the server is ready for requests.")
    model_loaded: Gauge = _gauge(
        "condensery_model_loaded", "1 while the model serves, 0 if it was refused.", "model"
    )
    model_state: Gauge = _gauge(
        "condensery_model_state",
        "1 for what a model does: ready, loading, unloading, unavailable; while it is replaced"
        " it does two of them.",
        "model= state=",
    )
    model_load_seconds: Gauge = _gauge(
        "condensery_model_load_seconds",
        "Time that loading what serves took, from its files; its warm-up is not counted.",
        "model=",
    )
    model_memory_bytes: Gauge = _gauge(
        "condensery_model_memory_bytes",
        "Bytes of the weights of what serves, by device.",
        "model= device=",
    )
    trace_spans: Counter = _counter(
        "condensery_trace_spans_total",
        "Spans of requests: sent, refused by a collector or not reached it, dropped unsent.",
        "outcome=exported,failed,dropped",
    )
    gpu_memory_bytes: Gauge = _gauge(
        "condensery_gpu_memory_bytes",
        "Memory of a GPU that all its users have taken, and how much there is.",
        "device= state=",
    )
    gpu_utilisation: Gauge = _gauge(
        "condensery_gpu_utilisation_ratio",
        "Share of the driver's last sample in which a GPU ran anything, 0 to 1.",
        "device=",
    )
    gpu_power_watts: Gauge = _gauge(
        "condensery_gpu_power_watts", "What a GPU draws, in watts.", "device="
    )
    gpu_allocator_bytes: Gauge = _gauge(
        "condensery_gpu_allocator_bytes",
        "Memory that PyTorch has of a GPU: allocated to tensors, and reserved with it.",
        "device= state=",
    )
    build_info: Gauge = _gauge(
        "condensery_build_info", "Always 1; the version is a label.", "version="
    )

    def __init__(self, *, tei: bool = True) -> None:
        self.registry = SummedRegistry()
        for attribute, metric in vars(Metrics).items():
            if isinstance(metric, _Declared):
                setattr(self, attribute, metric.make(self.registry))
        self.prepare_model(None)
        self.tei: TeiMetrics | None = None
        if tei:
            self.tei = TeiMetrics(lambda: _sum_gauge(self.queue_requests))
            self.registry.register(self.tei)

    def prepare_model(self, model: str | None) -> None:
        """Create every label set of a model at zero; (None) those that are of no model."""
        for attribute, declared in vars(Metrics).items():
            if isinstance(declared, _Declared):
                for labels in declared.label_sets(model):
                    getattr(self, attribute).labels(*labels)

    @contextmanager
    def stage(self, model: str, stage: Stage) -> Iterator[None]:
        """Observe how long the block takes as ``stage`` of ``model``."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.observe(model, stage, time.perf_counter() - started)

    def observe(self, model: str, stage: Stage, seconds: float) -> None:
        """Observe a stage of ``model``, as one of the request that is being served as well."""
        self.stage_seconds.labels(model, stage).observe(seconds)
        call = current_request()
        stages = call.stats.stages
        stages[stage] = stages.get(stage, 0.0) + seconds
        # A generation's span, with its steps, is that of what generates.
        if call.trace is not None and stage != "generate":
            now = time.perf_counter()
            call.trace.add(stage, now - seconds, now, {MODEL_FIELD: model})


SampleKey = tuple[str, tuple[tuple[str, str], ...]]  # name, and labels in order


def key_of(sample: Sample) -> SampleKey:
    """Return what a sample is of."""
    return sample.name, tuple(sorted(sample.labels.items()))


class OtherProcesses:
    """Samples of other processes, added up; what one counted stays counted when it is gone.

    Args:
        is_counted: Whether a sample of this name is; others are of the moment.
    """

    def __init__(self, is_counted: Callable[[str], bool]) -> None:
        self._is_counted = is_counted
        self._lock = threading.Lock()
        self._latest: dict[str, Mapping[SampleKey, float]] = {}
        self._gone: collections.defaultdict[SampleKey, float] = collections.defaultdict(float)

    @property
    def names(self) -> list[str]:
        """The processes that are there."""
        with self._lock:
            return list(self._latest)

    def note(self, name: str, samples: Mapping[SampleKey, float]) -> None:
        """Note what a process's samples are now."""
        with self._lock:
            self._latest[name] = samples

    def remove(self, name: str) -> None:
        """Note that a process is gone."""
        with self._lock:
            for key, value in self._latest.pop(name, {}).items():
                if self._is_counted(key[0]):
                    self._gone[key] += value

    def total(self) -> Mapping[SampleKey, float]:
        """Return the sums over all processes, those that are gone included."""
        with self._lock:
            sums = collections.defaultdict(float, self._gone)
            for samples in self._latest.values():
                for key, value in samples.items():
                    sums[key] += value
            return sums


class SummedRegistry(CollectorRegistry):
    """A registry to whose samples those of other processes can be added.

    Attributes:
        others: Returns theirs, all together; families that are not registered here are left out.
        refresh: Reads theirs anew; awaited before a scrape.
    """

    others: Callable[[], Mapping[SampleKey, float]] | None = None
    refresh: Callable[[], Awaitable[None]] | None = None

    def collect(self) -> Iterator[Metric]:
        """Yield each family, the others' samples added to its own or put behind them."""
        added = {} if self.others is None else dict(self.others())
        for family in super().collect():
            if added:
                names = {family.name, *(sample.name for sample in family.samples)}
                own = [
                    sample._replace(value=sample.value + added.pop(key_of(sample), 0.0))
                    for sample in family.samples
                ]
                more = [key for key in added if key[0] in names]
                family.samples = own + [
                    Sample(name, dict(labels), added.pop((name, labels))) for name, labels in more
                ]
            yield family


def watch_disk(metrics: Metrics, folder: Path) -> None:
    """Let the metrics follow how much of a folder's disk is free, at each scrape."""

    def read(part: Literal["free", "total"]) -> float:
        try:
            return float(getattr(shutil.disk_usage(folder), part))
        except OSError:  # it is gone; the scrape goes on
            return math.nan

    metrics.data_bytes.labels("free").set_function(lambda: read("free"))
    metrics.data_bytes.labels("total").set_function(lambda: read("total"))


def _sum_gauge(gauge: Gauge) -> float:
    """Return a gauge's values of all labels together."""
    return sum(sample.value for metric in gauge.collect() for sample in metric.samples)
