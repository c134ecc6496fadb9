"""Health as probes see it, several times a second."""

import asyncio
import time
from dataclasses import dataclass

import httpx
from doors import GrpcDoor

PERIOD = 0.1


@dataclass(frozen=True)
class Change:
    """What the probes say since ``at`` (seconds of ``time.monotonic``)."""

    at: float
    ready: int
    live: int
    serving: bool
    reason: str

    @property
    def health(self) -> tuple[int, int, bool]:
        return self.ready, self.live, self.serving


class HealthWatch:
    """Polls /readyz, /livez and gRPC health, and keeps each change; 0 is "no reply"."""

    def __init__(self, url: str, grpc: GrpcDoor) -> None:
        self.client = httpx.AsyncClient(base_url=url, timeout=2)
        self.grpc = grpc
        self.changes: list[Change] = []

    async def run(self) -> None:
        """Watch until cancelled."""
        async with self.client:
            while True:
                (ready, reason), (live, _), serving = await asyncio.gather(
                    self.probe("/readyz"), self.probe("/livez"), self.grpc.ready()
                )
                change = Change(time.monotonic(), ready, live, serving, reason)
                if not self.changes or self.changes[-1].health != change.health:
                    self.changes.append(change)
                await asyncio.sleep(PERIOD)

    async def probe(self, path: str) -> tuple[int, str]:
        try:
            reply = await self.client.get(path)
        except httpx.HTTPError:
            return 0, ""
        return reply.status_code, reply.text[:200]

    def after(self, at: float) -> list[Change]:
        return [change for change in self.changes if change.at >= at]

    def unready(self, at: float) -> Change | None:
        """Return the first moment after ``at`` when both doors said "not ready"."""
        return next((c for c in self.after(at) if c.ready == 503 and not c.serving), None)

    def ready_again(self, at: float) -> Change | None:
        return next((c for c in self.after(at) if c.ready == 200 and c.serving), None)

    def dead(self, at: float) -> Change | None:
        return next((c for c in self.after(at) if c.live not in (200, 0)), None)
