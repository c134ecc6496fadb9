import numpy as np
import pytest

from condensery.methods.trainer.reports import bootstrap, paired_bootstrap, table


def test_the_bootstrap_brackets_the_mean_difference() -> None:
    rng = np.random.default_rng(1)
    worse = rng.random(400)
    better = worse + 0.2 + rng.normal(0, 0.3, 400)
    mean, low, high = paired_bootstrap(better.tolist(), worse.tolist())
    assert mean == pytest.approx((better - worse).mean())
    assert low < mean < high
    # As the normal approximation has it: 1.96 standard errors to each side.
    error = (better - worse).std() / 20
    assert mean - low == pytest.approx(1.96 * error, rel=0.15)
    assert high - mean == pytest.approx(1.96 * error, rel=0.15)


def test_the_bootstrap_is_paired_and_repeatable() -> None:
    hard_and_easy = [0.0, 1.0] * 50
    assert paired_bootstrap(hard_and_easy, hard_and_easy) == (0.0, 0.0, 0.0)
    shifted = [value + 0.1 for value in hard_and_easy]
    mean, low, high = paired_bootstrap(shifted, hard_and_easy)
    assert (mean, low, high) == pytest.approx((0.1, 0.1, 0.1))
    a, b = [0.0, 1.0, 1.0], [0.0, 0.0, 1.0]
    assert paired_bootstrap(a, b, seed=4) == paired_bootstrap(a, b, seed=4)


def test_a_difference_of_few_questions_is_not_certain() -> None:
    mean, low, high = paired_bootstrap([1.0] + [0.0] * 9, [0.0] * 10)
    assert (mean, low) == (pytest.approx(0.1), 0.0)
    assert high > 0.2


def test_each_column_is_resampled_as_numpy_would_alone() -> None:
    values = np.random.default_rng(3).random((37, 3))
    estimate = bootstrap(values, samples=1200, seed=5)  # more than two blocks
    picks = np.random.default_rng(5).integers(37, size=(1200, 37))
    for column in range(3):
        means = values[:, column][picks].mean(axis=1)
        low, high = np.percentile(means, [2.5, 97.5])
        assert estimate.mean[column] == pytest.approx(values[:, column].mean())
        assert (estimate.low[column], estimate.high[column]) == pytest.approx((low, high))


def test_an_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(7)
    # Each column is a sample of 80 questions, 30% of which a pair answers right.
    samples = (rng.random((80, 600)) < 0.3).astype(float)
    estimate = bootstrap(samples, samples=1000)
    held = (estimate.low <= 0.3) & (estimate.high >= 0.3)
    assert 0.91 < held.mean() < 0.98


def test_a_column_without_figures_is_left_out_and_a_hole_is_told() -> None:
    lines = table(("a", "b", "c"), [("x", "", "1"), ("y", "", "")])
    assert lines == ["| a | c |", "| --- | ---: |", "| x | 1 |", "| y | – |", ""]
    assert table(("a",), []) == []


def test_text_means_nothing_to_markdown() -> None:
    (_, _, row, _) = table(("a",), [("<b>| *two*\nlines_[x](y) `c`",)])
    assert row == r"| &lt;b>\| \*two\* lines\_\[x\](y) \`c\` |"
