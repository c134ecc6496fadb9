"""TEI's names of what we count, so that dashboards and alerts made for it work as they are.

Names, labels and buckets are those of text-embeddings-inference 1.9 (``router/src/prometheus.rs``).
TEI knows one model: these are of all together. prometheus_client would end a counter's name with
``_total``, and so these are written by a collector of our own, untyped.
"""

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Literal

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from condensery.callers import Spent

# Seconds, from 15 us to 14.5 s; tokens of a request; items and tokens of a batch.
DURATIONS = tuple(accumulate([1.5e-5, *[1.5] * 34], lambda value, factor: value * factor))
LENGTHS = tuple(float(2**k) for k in range(20))
SIZES = tuple(float(2**k) for k in range(13))
TOKENS = tuple(float(2**k) for k in range(21))

Family = Literal["embed", "predict"]
FAMILIES: dict[str, Family] = {"embed": "embed", "rerank": "predict", "classify": "predict"}
METHODS = ("single", "batch")
PARTS = ("duration", "tokenization_duration", "queue_duration", "inference_duration")

# By the class of an error; what is not named here is a fault of the model or of ours.
ERRORS = {
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
ALL_ERRORS = (*sorted({*ERRORS.values(), "inference"}), "tokenization", "missing_values")


class _Histogram:
    """Counts of values up to each bound, and their sum."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def family(self, name: str, what: str) -> Metric:
        bounds = [*(str(one).removesuffix(".0") for one in self.bounds), "+Inf"]  # "4", not "4.0"
        buckets = list(zip(bounds, accumulate(self.counts), strict=True))
        return HistogramMetricFamily(name, what, buckets=buckets, sum_value=self.sum)


class TeiMetrics(Collector):
    """Counts requests and batches as TEI does.

    Args:
        waiting: Returns how many items wait for a device.
    """

    def __init__(self, waiting: Callable[[], float]) -> None:
        self._waiting = waiting
        self._lock = threading.Lock()
        self._requests = Counter(dict.fromkeys(METHODS, 0))
        self._successes = Counter(dict.fromkeys(METHODS, 0))
        self._failures = Counter(dict.fromkeys(ALL_ERRORS, 0))
        families = sorted(set(FAMILIES.values()))
        self._inputs = Counter(dict.fromkeys(families, 0))
        self._done = Counter(dict.fromkeys(families, 0))
        self._seconds = {
            f"{of}_{part}": _Histogram(DURATIONS) for of in ("request", *families) for part in PARTS
        }
        self._lengths = _Histogram(LENGTHS)
        self._batch_items = _Histogram(SIZES)
        self._batch_tokens = _Histogram(TOKENS)

    def request(self, task: str, code: str, spent: Spent, seconds: float) -> None:
        """Count a request that is over.

        Args:
            task: What it was for; only what TEI does too is counted.
            code: ``ok``, or the class of its error.
            spent: Where its time went.
            seconds: That it took.
        """
        family = FAMILIES.get(task)
        if family is None or (code == "ok" and not spent.inputs):  # it only tokenised
            return
        # TEI ranks a query's texts as one request.
        method = "batch" if spent.inputs > 1 and task != "rerank" else "single"
        times = (seconds, spent.tokenizing, spent.waiting, spent.running)
        with self._lock:
            self._requests[method] += 1
            self._inputs[family] += spent.inputs
            if code != "ok":
                self._failures[ERRORS.get(code, "inference")] += 1
                return
            self._successes[method] += 1
            self._done[family] += spent.inputs
            self._lengths.observe(spent.tokens)
            for part, value in zip(PARTS, times, strict=True):
                self._seconds[f"request_{part}"].observe(value)
                self._seconds[f"{family}_{part}"].observe(value, spent.inputs)

    def batch(self, items: int, tokens: int) -> None:
        """Count a batch."""
        with self._lock:
            self._batch_items.observe(items)
            self._batch_tokens.observe(tokens)

    def collect(self) -> list[Metric]:
        """Return all of it, for a scrape."""
        with self._lock:
            found = [
                _counter("te_request_count", "Requests.", self._requests, "method"),
                _counter("te_request_success", "Requests answered.", self._successes, "method"),
                _counter("te_request_failure", "Requests that failed.", self._failures, "err"),
                *(
                    _counter(f"te_{family}_{what}", said, {"": counts[family]})
                    for what, said, counts in (
                        ("count", "Inputs.", self._inputs),
                        ("success", "Inputs answered.", self._done),
                    )
                    for family in counts
                ),
                *(one.family(f"te_{name}", "Seconds.") for name, one in self._seconds.items()),
                self._lengths.family("te_request_input_length", "Tokens of a request."),
                self._batch_items.family("te_batch_next_size", "Items of a batch."),
                self._batch_tokens.family("te_batch_next_tokens", "Tokens of a batch."),
            ]
        return [*found, GaugeMetricFamily("te_queue_size", "Items waiting.", self._waiting())]


def _counter(name: str, what: str, counts: Mapping[str, int], label: str = "") -> Metric:
    metric = Metric(name, what, "unknown")
    for value, count in counts.items():
        metric.add_sample(name, {label: value} if label else {}, count)
    return metric
