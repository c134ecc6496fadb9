"""The replicas' metrics among the doors' own: read at each scrape, and added up.

So every name means what it does on one machine, and dashboards and alerts stay as they are. What a
replica counted stays counted when it is gone: a counter never falls. They are read between scrapes
too, so that little is lost with a replica that is killed.
"""

import asyncio
import threading

from condensery.cluster.deployments import Cluster
from condensery.cluster.messages import COUNTED
from condensery.metrics import Metrics, OtherProcesses

READ_SECONDS = 10.0  # between readings that no scrape asks for
SCRAPE_SECONDS = 2.0  # that a scrape waits for replicas; those that are late count as last time


class ReplicaMetrics:
    """Reads every replica's samples each few seconds, and adds them to the doors' families."""

    def __init__(self, cluster: Cluster, metrics: Metrics) -> None:
        self._cluster = cluster
        self._replicas = OtherProcesses(lambda name: name.startswith(COUNTED))
        self._stop = threading.Event()
        self._reading = threading.Lock()
        self._refreshing: asyncio.Task[None] | None = None
        metrics.registry.others = self._replicas.total
        metrics.registry.refresh = self.refresh
        self._thread = threading.Thread(target=self._run, name="replica-metrics", daemon=True)
        self._thread.start()

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
        here: set[str] = set()
        for app in self._cluster.applications():
            try:
                for replica, samples in app.read_metrics():
                    self._replicas.note(replica, dict(samples))
                    here.add(replica)
            except Exception:  # whatever Ray makes of a replica that just went; the next time
                # none of them is known to be gone
                here |= {name for name in self._replicas.names if name.startswith(f"{app.name} ")}
        for replica in self._replicas.names:
            if replica not in here:
                self._replicas.remove(replica)

    def close(self) -> None:
        """Read no more."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(READ_SECONDS):
            self.read()
