"""Pairs of texts that people scored, and how well vectors' cosines agree with them."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from condensery.errors import InputError, shorten
from condensery.methods.trainer.rows import read_rows


@dataclass(frozen=True, slots=True)
class Similarities:
    """Pairs of texts that people scored: what sentence encoders are measured by.

    Attributes:
        name: The set's.
        pairs: Texts.
        scores: As many; more is more alike.
    """

    name: str
    pairs: Sequence[tuple[str, str]]
    scores: NDArray[np.float64]


def read_similarities(path: Path) -> Similarities:
    """Read rows of ``text1``, ``text2`` and ``score``.

    Raises:
        InputError: A row is of another form; names file, line, field and value.
    """
    pairs: list[tuple[str, str]] = []
    scores: list[float] = []
    for row in read_rows(path):
        texts = row.value.get("text1"), row.value.get("text2")
        score = row.value.get("score")
        for name, text in zip(("text1", "text2"), texts, strict=True):
            if not isinstance(text, str) or not text.strip():
                raise InputError(f"{row.where}: {name}: {shorten(text)} is no text", field=name)
        if isinstance(score, bool) or not isinstance(score, int | float) or isnan(score):
            raise InputError(f"{row.where}: score: {shorten(score)} is no number", field="score")
        pairs.append((str(texts[0]), str(texts[1])))
        scores.append(float(score))
    if len(set(scores)) < 2:
        raise InputError(f"{path}: holds no two rows of different scores", field="score")
    return Similarities(f"{path.parent.name}/{path.name.split('.')[0]}", pairs, np.array(scores))


def spearman(left: NDArray[Any], right: NDArray[Any], scores: NDArray[np.float64]) -> float:
    """Return Spearman's correlation of cosines of vectors (pairs, dims) with scores."""
    return float(spearmanr((left * right).sum(1), scores).statistic)
