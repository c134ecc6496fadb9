"""Whether a difference between two sets of scores is one."""

from collections.abc import Sequence

import numpy as np


def paired_bootstrap(
    better: Sequence[float], worse: Sequence[float], *, samples: int = 10_000, seed: int = 0
) -> tuple[float, float, float]:
    """Return the mean difference and its 95% interval by resampling questions."""
    difference = np.asarray(better) - np.asarray(worse)
    rng = np.random.default_rng(seed)
    picks = rng.integers(len(difference), size=(samples, len(difference)))
    low, high = np.percentile(difference[picks].mean(axis=1), [2.5, 97.5])
    return float(difference.mean()), float(low), float(high)
