import numpy as np
import pytest

from condensery.methods.oscar.scoring import paired_bootstrap


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
