import numpy as np
import pytest

from condensery.methods.oscar.evaluating.figures import KEPT, abstention


def worth(threshold: float, there: list[tuple[float, float]], missing: list[float]) -> float:
    """SQuAD 2.0's score by its definition, the mean over both kinds."""
    gold = [f1 if relevance >= threshold else 0.0 for relevance, f1 in there]
    none = [1.0 if relevance < threshold else 0.0 for relevance in missing]
    return float(np.mean(gold) + np.mean(none)) / 2


def test_where_scores_part_cleanly_the_threshold_stands_between() -> None:
    there = [(0.7 + 0.01 * i, 0.8) for i in range(20)]
    missing = [0.1 + 0.01 * i for i in range(20)]
    figures = abstention("gold_among_five", there, missing)
    assert 0.29 < figures["threshold"] <= 0.7
    at = {point["min_relevance"]: point for point in figures["curve"]}
    chosen = at[figures["threshold"]]
    assert (chosen["answered"], chosen["wrong_without_gold"]) == (100.0, 0.0)
    assert chosen["f1_answered"] == pytest.approx(80.0)
    assert at[0.0] == {
        "min_relevance": 0.0,
        "answered": 100.0,
        "f1_answered": 80.0,
        "wrong_without_gold": 100.0,
    }


def test_the_curve_counts_as_a_loop_would_and_the_rule_holds() -> None:
    rng = np.random.default_rng(2)
    there = [
        (float(r), float(f)) for r, f in zip(rng.beta(4, 2, 300), rng.random(300), strict=True)
    ]
    missing = rng.beta(2, 4, 200).tolist()
    figures = abstention("gold_among_five", there, missing)
    thresholds = [point["min_relevance"] for point in figures["curve"]]
    assert thresholds == sorted(set(thresholds))
    assert len(thresholds) > 30
    for point in figures["curve"]:
        t = point["min_relevance"]
        f1s = [f1 for relevance, f1 in there if relevance >= t]
        assert point["answered"] == pytest.approx(100 * len(f1s) / 300, abs=0.01)
        if f1s:
            assert point["f1_answered"] == pytest.approx(100 * np.mean(f1s), abs=0.01)
        wrong = sum(relevance >= t for relevance in missing)
        assert point["wrong_without_gold"] == pytest.approx(wrong / 2, abs=0.01)
    whole = np.mean([f1 for _, f1 in there])
    allowed = [t for t in thresholds if np.mean([f * (r >= t) for r, f in there]) >= KEPT * whole]
    assert 0 < len(allowed) < len(thresholds)
    assert figures["threshold"] == max(allowed, key=lambda t: worth(t, there, missing))


def test_without_anything_to_gain_it_answers_always() -> None:
    # What is missing scores higher than what is there.
    figures = abstention("gold_among_five", [(0.2, 1.0)] * 10, [0.9] * 10)
    assert figures["threshold"] == 0.0


def test_scores_all_close_to_nothing_have_a_curve_too() -> None:
    there = [(0.001 + 0.0001 * i, 1.0) for i in range(10)]
    figures = abstention("gold_among_five", there, [0.0001] * 10)
    assert 0.0001 < figures["threshold"] <= 0.001
    saturated = abstention("gold_among_five", [(1.0, 1.0)] * 5, [0.5] * 5)
    assert 0.5 < saturated["threshold"] <= 1.0
