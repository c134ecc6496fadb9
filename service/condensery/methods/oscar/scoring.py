"""How good answers are, and whether a difference between two sets of scores is one."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from condensery.question import normalise_answer

BLOCK = 500  # resamples at a time: a few MB each


def match(answer: str, golds: Sequence[str]) -> float:
    """Return 1.0 if a gold answer stands in the answer when both are normalised, else 0.0.

    A gold answer of which nothing is left is found only in an answer of which nothing is left.

    Source: OSCAR, arXiv:2504.07109, appendix A.2 (accuracy).
    """
    text = normalise_answer(answer)
    return float(any(gold in text if gold else not text for gold in map(normalise_answer, golds)))


@dataclass(frozen=True, slots=True)
class Intervals:
    """Means of columns and the 95% intervals round them, (columns,) each."""

    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def bootstrap(values: ArrayLike, *, samples: int = 10_000, seed: int = 0) -> Intervals:
    """Return each column's mean and its 95% interval by resampling the rows.

    All columns are resampled alike, so that the interval of a column of differences is a paired
    one, and equal seeds compare.

    Args:
        values: (questions, columns).
        samples: How often the questions are drawn anew, as many as there are, with replacement.
        seed: Of the draws.
    """
    table = np.asarray(values, dtype=np.float64)
    count = len(table)
    rng = np.random.default_rng(seed)
    means = np.empty((samples, table.shape[1]))
    for first in range(0, samples, BLOCK):
        size = min(BLOCK, samples - first)
        picks = rng.integers(count, size=(size, count)) + count * np.arange(size)[:, None]
        # How often each question was drawn: one matrix product then serves all columns.
        drawn = np.bincount(picks.ravel(), minlength=size * count).reshape(size, count)
        means[first : first + size] = drawn.astype(np.float64) @ table / count
    low, high = np.percentile(means, [2.5, 97.5], axis=0)
    return Intervals(table.mean(axis=0), low, high)


def paired_bootstrap(
    better: Sequence[float], worse: Sequence[float], *, samples: int = 10_000, seed: int = 0
) -> tuple[float, float, float]:
    """Return the mean difference and its 95% interval by resampling questions."""
    difference = np.asarray(better) - np.asarray(worse)
    estimate = bootstrap(difference[:, None], samples=samples, seed=seed)
    return float(estimate.mean[0]), float(estimate.low[0]), float(estimate.high[0])
