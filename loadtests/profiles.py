"""How a load's rate goes over time, what it mixes, and which bounds it must keep."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

Job = Literal["embed 1", "embed 16", "rerank 8", "query", "answer", "answer streamed", "write 4"]

MIXES: dict[str, dict[Job, int]] = {
    "mix": {
        "embed 1": 10,
        "embed 16": 2,
        "rerank 8": 3,
        "query": 5,
        "answer": 1,
        "answer streamed": 2,
        "write 4": 1,
    },
    "embed": {"embed 1": 5, "embed 16": 1},
    "rerank": {"rerank 8": 1},
    "answer": {"answer": 1, "answer streamed": 2},
    "write": {"write 4": 3, "query": 1},
}


@dataclass(frozen=True)
class Profile:
    """A load.

    Attributes:
        points: Seconds and the rate then, requests a second; between two it changes evenly.
        p95_ms: Bound of 95 in 100 replies of each kind; 0: none, the curves are what is wanted.
        refuses: Whether refusals that say when to come back are right replies.
        growth_mib: Bound of the server's memory, the last third of the run over the first.
    """

    points: tuple[tuple[float, float], ...]
    p95_ms: float = 0.0
    refuses: bool = False
    growth_mib: float = 0.0

    @property
    def seconds(self) -> float:
        return self.points[-1][0]

    def changed(self, rate: float, seconds: float, p95_ms: float) -> "Profile":
        """Return it with another highest rate, length or bound; 0 changes nothing."""
        faster = rate / max(value for _, value in self.points) if rate else 1.0
        longer = seconds / self.seconds if seconds else 1.0
        points = tuple((at * longer, value * faster) for at, value in self.points)
        return replace(self, points=points, p95_ms=p95_ms or self.p95_ms)


PROFILES = {
    "smoke": Profile(((0, 4), (30, 4)), p95_ms=5000),
    "ramp": Profile(((0, 1), (300, 50)), refuses=True),
    "spike": Profile(((0, 4), (60, 4), (61, 40), (90, 40), (91, 4), (180, 4)), refuses=True),
    "soak": Profile(((0, 8), (3600, 8)), p95_ms=5000, growth_mib=64),
    "overload": Profile(((0, 100), (120, 100)), refuses=True, growth_mib=128),
}


def users_at(profile: Profile, seconds: float) -> float | None:
    """Return the rate at a time; None once it is over."""
    for (start, low), (end, high) in zip(profile.points, profile.points[1:], strict=False):
        if start <= seconds < end:
            return low + (high - low) * (seconds - start) / (end - start)
    return None


def judge(profile: Profile, stats: Any, jobs: Mapping[Job, int]) -> list[str]:
    """Return the bounds that a run broke; ``stats`` are locust's."""
    broken = [
        f"{failure.method} {failure.name}: {failure.occurrences} x {str(failure.error)[:200]}"
        for failure in stats.errors.values()
    ]
    named = {entry.name for entry in stats.entries.values() if entry.num_requests}
    if not named:
        broken.append("nothing was answered")
    if profile.p95_ms:
        for entry in stats.entries.values():
            p95 = entry.get_response_time_percentile(0.95) or math.nan
            if entry.name in jobs and p95 > profile.p95_ms:
                broken.append(f"{entry.method} {entry.name}: p95 {p95:.0f} ms > {profile.p95_ms:g}")
    return broken
