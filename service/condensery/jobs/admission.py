"""How much may be in the house at once: requests, and bytes of their bodies. One rule, both doors.

Tokens are bounded where they queue (``runtime.batcher``); this bounds what comes before: bodies
being read, parsed and tokenised, and replies being written.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from condensery.errors import Overloaded
from condensery.metrics import Metrics

RATE_MEMORY = 0.95  # weight of the past in the drain rate, per request that leaves


class Place:
    """A request's place inside, which grows with a body of unknown length."""

    __slots__ = ("_admission", "size")

    def __init__(self, admission: "Admission", size: int) -> None:
        self._admission = admission
        self.size = size

    def grow(self, size: int) -> None:
        """Hold ``size`` bytes more.

        Raises:
            Overloaded: There is no room for them.
        """
        self._admission.check_bytes(size, alone=self._admission.requests == 1)
        self._admission.bytes += size
        self.size += size


class Admission:
    """Counts the requests inside and their bytes.

    Args:
        max_requests: Requests inside at once.
        max_bytes: Bytes of their bodies; one request that finds nobody inside always fits.
        metrics: Where to count those refused.
    """

    def __init__(
        self,
        max_requests: int = 4096,
        max_bytes: int = 64 * 2**20,
        metrics: Metrics | None = None,
    ) -> None:
        self._metrics = metrics
        self.max_requests = max_requests
        self.max_bytes = max_bytes
        self.requests = 0
        self.bytes = 0
        self._seconds_each = 0.0  # between two requests that leave
        self._last_left = math.nan

    @contextmanager
    def enter(self, size: int) -> Iterator[Place]:
        """Hold a place for a request with a body of ``size`` bytes, as far as that is known.

        Raises:
            Overloaded: There is none; ``retry_after_seconds`` is when there should be.
        """
        if self.requests >= self.max_requests:
            raise self._refusal(
                "requests",
                f"{self.requests} requests are being served, the limit (max_requests).",
                1 + self.requests - self.max_requests,
            )
        self.check_bytes(size, alone=not self.requests)
        place = Place(self, size)
        self.requests += 1
        self.bytes += size
        try:
            yield place
        finally:
            self.requests -= 1
            self.bytes -= place.size
            self._left()

    def check_bytes(self, size: int, *, alone: bool) -> None:
        """Raise Overloaded if ``size`` bytes more have no room; ``alone``, they always have."""
        if alone or self.bytes + size <= self.max_bytes:
            return
        mean = max(1.0, self.bytes / self.requests)
        raise self._refusal(
            "bytes",
            f"{self.bytes} bytes of requests are being served and {size} more are over the "
            f"limit of {self.max_bytes} (max_inflight_bytes).",
            (self.bytes + size - self.max_bytes) / mean,
        )

    def _left(self) -> None:
        now = time.monotonic()
        if not math.isnan(self._last_left):
            gap = min(now - self._last_left, 60.0)
            past = self._seconds_each or gap
            self._seconds_each = RATE_MEMORY * past + (1 - RATE_MEMORY) * gap
        # An empty house says nothing of how fast a full one drains.
        self._last_left = now if self.requests else math.nan

    def _refusal(self, reason: str, message: str, requests: float) -> Overloaded:
        if self._metrics is not None:
            self._metrics.rejected.labels(reason).inc()
        seconds = requests * (self._seconds_each or 1.0)
        return Overloaded(message, retry_after_seconds=min(60.0, max(0.1, seconds)))
