"""Which bounds a load must keep, and its rate at a time.

What the profiles and mixes are is in the package, since `condensery plan` plans for them.
"""

import math
from collections.abc import Mapping
from typing import Any

from condensery.capacity.traffic import JOBS, MIXES, PROFILES, Job, Profile

__all__ = ["JOBS", "MIXES", "PROFILES", "Job", "Profile", "judge", "users_at"]


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
