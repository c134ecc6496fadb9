"""When a pair should rather not answer: a curve over thresholds of relevance, and one of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

POINTS = 40  # of the curve: quantiles of the scores seen, wherever a pair's scores lie
KEPT = 0.95  # of the F1 on questions whose passage is there
RULE = (
    "of the thresholds that keep 95% of the F1 on questions whose passage is there, the one with "
    "the highest mean over both kinds of questions of SQuAD 2.0's score (F1 if answered and the "
    "passage is there, 1 if not answered and it is not, else 0); of equal ones the lowest"
)


def abstention(
    setting: str, there: Sequence[tuple[float, float]], missing: Sequence[float]
) -> dict[str, Any]:
    """Return the curve, and the threshold that ``RULE`` recommends; 0 is to answer always.

    A question is answered where its best passage's relevance reaches the threshold, as in the
    service (``min_relevance``).

    Args:
        setting: Where the questions with their passage are from, for the report.
        there: The relevance of the best passage (0 to 1) and the F1 (0 to 1) of each of them.
        missing: The relevance of the best passage of questions no passage of which holds the
            answer.

    Source: the rule's score is that of SQuAD 2.0 (Rajpurkar et al., 2018), which likewise takes
    the threshold at which it is best.
    """
    relevance, f1 = np.array([one for one, _ in there]), np.array([one for _, one in there])
    without = np.array(missing)
    quantiles = np.quantile(np.concatenate([relevance, without]), np.linspace(0, 1, POINTS + 1))
    thresholds = np.unique([0.0, *np.floor(quantiles * 1e4) / 1e4])
    curve: list[dict[str, float | None]] = []
    best, chosen = -1.0, 0.0
    for threshold in thresholds.tolist():
        answered, wrong = relevance >= threshold, without >= threshold
        curve.append(
            {
                "min_relevance": threshold,
                "answered": round(100 * float(answered.mean()), 2),
                "f1_answered": round(100 * float(f1[answered].mean()), 2)
                if answered.any()
                else None,
                "wrong_without_gold": round(100 * float(wrong.mean()), 2),
            }
        )
        kept = float((f1 * answered).mean())
        worth = kept + float((~wrong).mean())
        if kept >= KEPT * float(f1.mean()) and worth > best + 1e-12:
            best, chosen = worth, threshold
    return {"threshold": chosen, "setting": setting, "rule": RULE, "curve": curve}
