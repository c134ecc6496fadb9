"""The replicas' metrics among the doors' own: read at each scrape, and added up.

So every name means what it does on one machine, and dashboards and alerts stay as they are. What a
replica counted stays counted when it is gone: a counter never falls. They are read between scrapes
too, so that little is lost with a replica that is killed.
"""

import asyncio
import threading
from collections import defaultdict
from collections.abc import Mapping

from condensery.cluster.deployments import Cluster
from condensery.cluster.messages import COUNTED
from condensery.metrics import Metrics, SampleKey

READ_SECONDS = 10.0  # between readings that no scrape asks for
SCRAPE_SECONDS = 2.0  # that a scrape waits for replicas; those that are late count as last time


class ReplicaMetrics:
    """Reads every replica's samples each few seconds, and adds them to the doors' families."""

    def __init__(self, cluster: Cluster, metrics: Metrics) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._latest: dict[str, Mapping[SampleKey, float]] = {}
        self._gone: defaultdict[SampleKey, float] = defaultdict(float)
        self._stop = threading.Event()
        self._reading = threading.Lock()
        self._refreshing: asyncio.Task[None] | None = None
        metrics.registry.others = self.total
        metrics.registry.refresh = self.refresh
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

    async def refresh(self) -> None:
        """Read every replica, as they are now; those that are slow count as last time.

        One reading serves all scrapes that come meanwhile: a replica that hangs holds one thread.
        """
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(asyncio.to_thread(self.read))
        await asyncio.wait({self._refreshing}, timeout=SCRAPE_SECONDS)

    def read(self) -> None:
        """Read every replica that is up. Blocks for some seconds at most."""
        with self._reading:
            self._read_all()

    def _read_all(self) -> None:
        latest: dict[str, Mapping[SampleKey, float]] = {}
        for app in self._cluster.applications():
            try:
                latest.update((replica, dict(samples)) for replica, samples in app.read_metrics())
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
