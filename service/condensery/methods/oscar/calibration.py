"""A teacher's scores as log-odds: what the rerank head is regressed to, and served as.

A cross-encoder that is trained to tell passages of one question apart has logits without a zero
of their own. A line through them makes log-odds of holding an answer (Platt scaling, 1999).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from condensery.errors import InputError
from condensery.methods.oscar.data import Example, QaData, RetrievedPassage

LEAST = 50  # passages with an answer, and without, for a fit


@dataclass(frozen=True, slots=True)
class Line:
    """``slope * score + offset`` is the log-odds; the slope is above 0, so no order changes."""

    slope: float
    offset: float

    def __call__(self, score: float) -> float:
        """Return the log-odds; no score stays none."""
        return self.slope * score + self.offset


def fit(scores: Sequence[float], holds: Sequence[bool]) -> Line | None:
    """Fit a line by logistic regression, its targets smoothed as Platt's, so that it is finite.

    Args:
        scores: A teacher's logits.
        holds: Whether each passage holds an answer.

    Returns:
        The line; None if there are too few passages of either kind.

    Raises:
        InputError: Passages without an answer have the higher scores.
    """
    x, right = np.asarray(scores, np.float64), np.asarray(holds, bool)
    most, fewest = int(right.sum()), int((~right).sum())
    if min(most, fewest) < LEAST:
        return None
    mean, spread = x.mean(), max(float(x.std()), 1e-6)
    columns = np.stack([(x - mean) / spread, np.ones_like(x)], axis=1)
    target = np.where(right, (most + 1) / (most + 2), 1 / (fewest + 2))
    weights = np.zeros(2)
    for _ in range(100):  # Newton's method; what is lowered is convex
        p = 0.5 + np.tanh(columns @ weights / 2) / 2
        curvature = (columns * (p * (1 - p))[:, None]).T @ columns + 1e-6 * np.eye(2)
        step = np.linalg.solve(curvature, columns.T @ (target - p))
        weights += step / max(1.0, float(np.abs(step).max()))
        if float(np.abs(step).max()) < 1e-9:
            break
    slope = float(weights[0] / spread)
    if slope <= 0:
        raise InputError(
            f"scores: passages without an answer have the higher ones (slope {slope:.3g} over "
            f"{len(x)})",
            field="scores",
            value=slope,
        )
    return Line(slope, float(weights[1] - slope * mean))


def calibrate(data: QaData) -> tuple[QaData, dict[str, float]]:
    """Make log-odds of a set's scores, and say how.

    Returns:
        The set, the same if it has no or too few scores; and ``slope`` and ``offset`` if it was
        changed, ``mean_relevance`` (of the scores, as they are served) and ``hold_an_answer`` (of
        the scored passages) if it has any.

    Raises:
        InputError: Passages without an answer have the higher scores.
    """
    scored = list(_scored(data))
    if not scored:
        return data, {}
    scores, holds = zip(*scored, strict=True)
    line = fit(scores, holds)
    figures: dict[str, float] = {}
    if line is not None:
        examples = [
            replace(
                example,
                score=line(example.score),
                beside=tuple(replace(other, score=line(other.score)) for other in example.beside),
            )
            for example in data.examples
        ]
        data = replace(data, examples=examples)
        figures = {"slope": round(line.slope, 6), "offset": round(line.offset, 6)}
        scores = tuple(line(score) for score in scores)
    # tanh: exp overflows at a logit of -800
    figures["mean_relevance"] = round(
        sum(0.5 + math.tanh(s / 2) / 2 for s in scores) / len(scores), 4
    )
    figures["hold_an_answer"] = round(sum(holds) / len(holds), 4)
    return data, figures


def _scored(data: QaData) -> Iterator[tuple[float, bool]]:
    for example in data.examples:
        places: list[Example | RetrievedPassage] = [example, *example.beside]
        for place in places:
            if not math.isnan(place.score):
                yield place.score, place.end > place.start
