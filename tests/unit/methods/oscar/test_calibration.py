import math

import numpy as np
import pytest

from condensery.errors import InputError
from condensery.methods.oscar.calibration import Line, calibrate, fit
from condensery.methods.oscar.data import Example, QaData, RetrievedPassage


def drawn(count: int, slope: float, offset: float) -> tuple[list[float], list[bool]]:
    """Draw scores, and outcomes with the probabilities that a line through them gives."""
    rng = np.random.default_rng(0)
    scores = rng.normal(7, 3, count)  # far from zero: as a teacher's may be that only ranks
    odds = slope * scores + offset
    return scores.tolist(), (rng.random(count) < 1 / (1 + np.exp(-odds))).tolist()


def test_a_line_that_outcomes_were_drawn_from_is_found() -> None:
    line = fit(*drawn(20_000, 0.8, -6.5))
    assert line is not None
    assert line.slope == pytest.approx(0.8, rel=0.05)
    assert line.offset == pytest.approx(-6.5, rel=0.05)


def test_at_the_fit_the_mean_probability_is_the_share_that_holds() -> None:
    scores, holds = drawn(3000, 1.5, -12)
    line = fit(scores, holds)
    assert line is not None
    mean = np.mean([1 / (1 + math.exp(-line(score))) for score in scores])
    assert mean == pytest.approx(np.mean(holds), abs=0.002)


def test_scores_that_part_the_kinds_wholly_have_a_finite_line() -> None:
    scores = [*np.linspace(1, 2, 60), *np.linspace(8, 9, 60)]
    line = fit(scores, [False] * 60 + [True] * 60)
    assert line is not None
    assert 0 < line.slope < 20
    assert line(1) < -3 < 3 < line(9)


def test_too_few_of_either_kind_are_left_as_they_are() -> None:
    assert fit([1.0] * 49 + [0.0] * 500, [True] * 49 + [False] * 500) is None
    assert fit([], []) is None


def test_scores_the_wrong_way_round_are_refused() -> None:
    scores, holds = drawn(500, 0.8, -6)
    with pytest.raises(InputError, match="without an answer have the higher ones") as raised:
        fit([-score for score in scores], holds)
    assert raised.value.field == "scores"


def a_set(scores: list[float], holds: list[bool]) -> QaData:
    ids = np.array([5, 6], np.int32)
    examples = [
        Example(ids, 0, 0, int(held), None, score, (RetrievedPassage(1, 0, 0),))
        for score, held in zip(scores, holds, strict=True)
    ]
    return QaData(examples, [ids, ids], [[0], [1]])


def test_a_set_gets_log_odds_and_keeps_its_order_and_what_has_no_score() -> None:
    scores, holds = drawn(400, 0.8, -6)
    line = fit(scores, holds)
    assert line is not None
    data, figures = calibrate(a_set(scores, holds))
    assert [example.score for example in data.examples] == pytest.approx(
        [line(score) for score in scores]
    )
    assert np.argsort([e.score for e in data.examples]).tolist() == np.argsort(scores).tolist()
    assert all(math.isnan(example.beside[0].score) for example in data.examples)
    assert figures["slope"] == pytest.approx(line.slope, abs=1e-6)
    assert figures["offset"] == pytest.approx(line.offset, abs=1e-6)
    assert figures["mean_relevance"] == pytest.approx(figures["hold_an_answer"], abs=0.005)
    assert figures["hold_an_answer"] == pytest.approx(np.mean(holds), abs=1e-4)


def test_a_set_without_scores_or_with_few_is_as_it_was() -> None:
    bare = a_set([math.nan], [True])
    assert calibrate(bare) == (bare, {})
    few = a_set([2.0, -800.0], [True, False])
    data, figures = calibrate(few)
    assert data is few
    assert figures == {"mean_relevance": round(0.5 / (1 + math.exp(-2)), 4), "hold_an_answer": 0.5}
    assert Line(2, 1)(3) == 7
