"""Means, intervals and differences of judged encoders, against those worked out by hand."""

import numpy as np
import pytest

from condensery.methods.judging.figures import Figure, Measured, make_report, means_of, part_of


def score(value: float, spread: float, seed: int = 0, count: int = 1000) -> dict[str, object]:
    drawn = np.random.default_rng(seed).normal(value, spread, size=count)
    return {"value": value, "resamples": drawn.tolist(), "others": {"more": 0.5}}


def encoder(name: str, scores: dict[str, dict[str, object]]) -> Measured:
    about = {"fingerprint": f"sha256:{name}", "dtype": "float32"}
    speed = {"texts_a_second": 10.0, "least": 9.0, "most": 11.0}
    return Measured(name, about, {"parameters": 7}, scores, speed)


def test_an_interval_of_many_resamples_is_their_middle() -> None:
    drawn = np.linspace(0, 1, 1001)
    figure = Figure.of(0.5, drawn.tolist())
    assert (figure.low, figure.high) == pytest.approx((0.025, 0.975))


def test_an_interval_of_few_is_students() -> None:
    figure = Figure.of(0.6, [0.5, 0.6, 0.7, 0.6])
    error = np.std([0.5, 0.6, 0.7, 0.6], ddof=1)
    assert figure.high - 0.6 == pytest.approx(3.18245 * error, rel=1e-5)  # 3 degrees, a table's
    assert 0.6 - figure.low == pytest.approx(3.18245 * error, rel=1e-5)


def test_a_mean_is_over_sets_and_its_error_is_that_of_independent_ones() -> None:
    figures = {
        "sts/a": Figure(0.8, 0, 0, 0.03),
        "sts/b": Figure(0.6, 0, 0, 0.04),
        "pairs/c": Figure(0.4, 0, 0, 0.12),
    }
    means = means_of(figures)
    assert set(means) == {"sts", "pairs", "mean"}
    assert means["sts"].value == pytest.approx(0.7)
    assert means["sts"].error == pytest.approx(0.025)
    assert means["mean"].value == pytest.approx(0.6)
    assert means["mean"].error == pytest.approx(0.13 / 3)


def test_differences_are_paired() -> None:
    """Both move together over the resamples: the difference hardly moves."""
    base = score(0.8, 0.05)
    moved = {**base, "value": 0.75, "resamples": [x - 0.05 for x in base["resamples"]]}  # type: ignore[attr-defined]
    first, other = encoder("first", {"sts/a": base}), encoder("other", {"sts/a": moved})
    difference = other.minus(first)["sts/a"]
    assert difference.value == pytest.approx(-0.05)
    assert (difference.low, difference.high) == pytest.approx((-0.05, -0.05))


def test_the_report_names_the_first_and_a_models_part_stands_alone() -> None:
    models = [
        encoder("first", {"sts/a": score(0.8, 0.01)}),
        encoder("other", {"sts/a": score(0.7, 0.01)}),
    ]
    about = {"sts/a": {"count": 12, "content": "sha256:x"}}
    report = {**make_report(models, about), "date": "2026-11-25", "command": "condensery"}
    other = report["models"]["other"]
    assert "minus_first" not in report["models"]["first"]
    assert other["minus_first"]["of"] == "first"
    assert other["minus_first"]["sets"]["sts/a"]["value"] == pytest.approx(-0.1)
    part = part_of(report, "other")
    assert part["sts/a"]["value"] == 0.7
    assert part["sts/a"]["fingerprint"] == "sha256:other"
    assert part["sts/a"]["count"] == 12
    assert part["speed"]["texts_a_second"] == 10.0
