"""The replicas' metrics among the doors' own: read regularly, and added up at each scrape.

So every name means what it does on one machine, and dashboards and alerts stay as they are. What a
replica counted stays counted when it is gone: a counter never falls.
"""

import threading
from collections import defaultdict
from collections.abc import Mapping

from condensery.cluster.deployments import Cluster
from condensery.metrics import Metrics, SampleKey

READ_SECONDS = 5.0
# What a model's runtime counts. All else is the doors': they know of all replicas.
COUNTED = (
    "condensery_batch_",
    "condensery_cancelled_total",
    "condensery_decode_graph_failures_total",
    "condensery_forward",
    "condensery_input_tokens",
    "condensery_inter_token_seconds",
    "condensery_oom_total",
    "condensery_rejected_total",
    "condensery_stage_seconds",
    "condensery_step_tokens",
    "condensery_truncated_inputs",
    "condensery_worker_restarts_total",
    "te_batch_",
)
# What it shows of the moment: gone with the replica.
SHOWN = (
    "condensery_cache_positions",
    "condensery_decode_graphs",
    "condensery_queue_",
    "condensery_sequences",
    "te_queue_size",
)
NOT_ADDED = ("condensery_queue_tokens_limit",)


class ReplicaMetrics:
    """Reads every replica's samples each few seconds, and adds them to the doors' families."""

    def __init__(self, cluster: Cluster, metrics: Metrics) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._latest: dict[str, Mapping[SampleKey, float]] = {}
        self._gone: defaultdict[SampleKey, float] = defaultdict(float)
        self._stop = threading.Event()
        metrics.registry.others = self.total
        self._thread = threading.Thread(target=self._run, name="replica-metrics", daemon=True)
        self._thread.start()

    def total(self) -> Mapping[SampleKey, float]:
        """Return the sums over all replicas, those that are gone included."""
        with self._lock:
            sums = defaultdict(float, self._gone)
            for samples in self._latest.values():
                for key, value in samples.items():
                    sums[key] += value
            return sums

    def read(self) -> None:
        """Read every replica that is up. Blocks for some seconds at most."""
        latest: dict[str, Mapping[SampleKey, float]] = {}
        for app in self._cluster.applications():
            try:
                latest.update(
                    (replica, {key: value for key, value in samples if is_read(key[0])})
                    for replica, samples in app.read_metrics()
                )
            except Exception:  # whatever Ray makes of a replica that just went; the next time
                with self._lock:  # none of them is known to be gone
                    known = self._latest.items()
                    latest |= {name: own for name, own in known if name.startswith(f"{app.name} ")}
        with self._lock:
            for replica in self._latest.keys() - latest.keys():
                for key, value in self._latest[replica].items():
                    if key[0].startswith(COUNTED):
                        self._gone[key] += value
            self._latest = latest

    def close(self) -> None:
        """Read no more."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(READ_SECONDS):
            self.read()


def is_read(name: str) -> bool:
    """Whether a replica's sample of this name is added to the doors'."""
    return name.startswith((*COUNTED, *SHOWN)) and not name.startswith(NOT_ADDED)
