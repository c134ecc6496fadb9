"""TEI's names of what it and we count: those of text-embeddings-inference 1.9.

Its names, labels and buckets (``router/src/prometheus.rs``), so that dashboards and alerts made for
it work as they are. TEI knows one model; these are of all together.
"""

import collections
import threading
from bisect import bisect_left
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Literal

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from condensery.request_context import RequestStats

# Seconds, from 15 us to 14.5 s; tokens of a request; items and tokens of a batch.
TEI_DURATIONS = tuple(accumulate([1.5e-5, *[1.5] * 34], lambda value, factor: value * factor))
TEI_LENGTHS = tuple(float(2**k) for k in range(20))
TEI_SIZES = tuple(float(2**k) for k in range(13))
TEI_TOKENS = tuple(float(2**k) for k in range(21))

TeiFamily = Literal["embed", "predict"]
TEI_FAMILIES: dict[str, TeiFamily] = {"embed": "embed", "rerank": "predict", "classify": "predict"}
TEI_METHODS = ("single", "batch")
TEI_PARTS = ("duration", "tokenization_duration", "queue_duration", "inference_duration")

# By the class of an error; what is not named here is a fault of the model or of ours.
TEI_ERRORS = {
    "Overloaded": "overloaded",
    "Unavailable": "overloaded",
    "InputError": "validation",
    "TokenIdsRefused": "validation",
    "ModelNotFound": "validation",
    "Unauthenticated": "validation",
    "Forbidden": "validation",
    "HeadersTooLarge": "validation",
    "PayloadTooLarge": "batch_size",
    "EmptyInput": "empty",
    "ModelCannot": "model_type",
    "DeadlineExceeded": "dropped",
    "ExpiredInQueue": "dropped",
    "Cancelled": "dropped",
}
ALL_TEI_ERRORS = (*sorted({*TEI_ERRORS.values(), "inference"}), "tokenization", "missing_values")


class _TeiHistogram:
    """Counts of values up to each bound, and their sum."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def family(self, name: str, description: str) -> Metric:
        bounds = [*(str(bound).removesuffix(".0") for bound in self.bounds), "+Inf"]  # not "4.0"
        buckets = list(zip(bounds, accumulate(self.counts), strict=True))
        return HistogramMetricFamily(name, description, buckets=buckets, sum_value=self.sum)


class TeiMetrics(Collector):
    """Counts requests and batches as TEI does.

    Args:
        waiting: Returns how many items wait for a device.
    """

    def __init__(self, waiting: Callable[[], float]) -> None:
        self._waiting = waiting
        self._lock = threading.Lock()
        self._requests = collections.Counter(dict.fromkeys(TEI_METHODS, 0))
        self._successes = collections.Counter(dict.fromkeys(TEI_METHODS, 0))
        self._failures = collections.Counter(dict.fromkeys(ALL_TEI_ERRORS, 0))
        families = sorted(set(TEI_FAMILIES.values()))
        self._inputs = collections.Counter(dict.fromkeys(families, 0))
        self._done = collections.Counter(dict.fromkeys(families, 0))
        self._seconds = {
            f"{of}_{part}": _TeiHistogram(TEI_DURATIONS)
            for of in ("request", *families)
            for part in TEI_PARTS
        }
        self._lengths = _TeiHistogram(TEI_LENGTHS)
        self._batch_items = _TeiHistogram(TEI_SIZES)
        self._batch_tokens = _TeiHistogram(TEI_TOKENS)

    def request(self, task: str, code: str, stats: RequestStats, seconds: float) -> None:
        """Count a request that is over.

        Args:
            task: What it was for; only what TEI does too is counted.
            code: ``ok``, or the class of its error.
            seconds: That it took.
        """
        family = TEI_FAMILIES.get(task)
        if family is None or (code == "ok" and not stats.inputs):  # it only tokenised
            return
        # TEI ranks a query's texts as one request.
        method = "batch" if stats.inputs > 1 and task != "rerank" else "single"
        times = (seconds, stats.tokenizing, stats.wait_seconds, stats.forward_seconds)
        with self._lock:
            self._requests[method] += 1
            self._inputs[family] += stats.inputs
            if code != "ok":
                self._failures[TEI_ERRORS.get(code, "inference")] += 1
                return
            self._successes[method] += 1
            self._done[family] += stats.inputs
            self._lengths.observe(stats.tokens)
            for part, value in zip(TEI_PARTS, times, strict=True):
                self._seconds[f"request_{part}"].observe(value)
                self._seconds[f"{family}_{part}"].observe(value, stats.inputs)

    def batch(self, items: int, tokens: int) -> None:
        """Count a batch."""
        with self._lock:
            self._batch_items.observe(items)
            self._batch_tokens.observe(tokens)

    def collect(self) -> list[Metric]:
        """Return all of it, for a scrape."""
        with self._lock:
            families = [
                _tei_counter("te_request_count", "Requests.", self._requests, "method"),
                _tei_counter("te_request_success", "Requests answered.", self._successes, "method"),
                _tei_counter("te_request_failure", "Requests that failed.", self._failures, "err"),
                *(
                    _tei_counter(f"te_{family}_{name}", description, {"": counts[family]})
                    for name, description, counts in (
                        ("count", "Inputs.", self._inputs),
                        ("success", "Inputs answered.", self._done),
                    )
                    for family in counts
                ),
                *(times.family(f"te_{name}", "Seconds.") for name, times in self._seconds.items()),
                self._lengths.family("te_request_input_length", "Tokens of a request."),
                self._batch_items.family("te_batch_next_size", "Items of a batch."),
                self._batch_tokens.family("te_batch_next_tokens", "Tokens of a batch."),
            ]
        return [*families, GaugeMetricFamily("te_queue_size", "Items waiting.", self._waiting())]


def _tei_counter(name: str, description: str, counts: Mapping[str, int], label: str = "") -> Metric:
    metric = Metric(name, description, "unknown")
    for value, count in counts.items():
        metric.add_sample(name, {label: value} if label else {}, count)
    return metric
