from collections.abc import Sequence

import pytest

from condensery.methods.rerank.negatives import Mined
from condensery.methods.rerank.sets import RankingSets
from condensery.methods.rerank.sources import Query
from condensery.methods.rerank.training import measure, order_of, reciprocal_rank

SETS = RankingSets(
    passages=("p0", "p1", "p2", "p3"),
    train=(),
    held_out=(
        Query("a", (1,), (), "", ""),
        Query("b", (0, 3), (), "", ""),
        Query("c", (2,), (), "", ""),
    ),
    report={},
)
MINED = Mined(
    negatives=[],
    candidates=[[0, 1, 2], [1, 2, 3, 0], [2, 0]],
    encoder=[[0.1, 0.9, 0.5], [0.9, 0.8, 0.1, 0.2], [0.1, 0.2]],
)
SCORES = {
    ("a", "p0"): 5.0, ("a", "p1"): 1.0, ("a", "p2"): 2.0,
    ("b", "p1"): 0.0, ("b", "p2"): 1.0, ("b", "p3"): 7.0, ("b", "p0"): 0.5,
    ("c", "p2"): 3.0, ("c", "p0"): 1.0,
}  # fmt: skip


def scorer(query: str, passages: Sequence[str]) -> list[float]:
    return [SCORES[query, passage] for passage in passages]


def test_figures_are_those_worked_out_by_hand() -> None:
    figures = measure(scorer, SETS, MINED)
    assert figures["bm25"] == pytest.approx(
        {"mrr": 100 * (1 / 2 + 1 / 3 + 1) / 3, "gold_first": 100 / 3}
    )
    assert figures["encoder"] == pytest.approx(
        {"mrr": 100 * (1 + 1 / 3 + 1 / 2) / 3, "gold_first": 100 / 3}
    )
    assert figures["cross_encoder"] == pytest.approx(
        {"mrr": 100 * (1 / 3 + 1 + 1) / 3, "gold_first": 200 / 3}
    )
    minus = figures["cross_encoder_minus_bm25"]
    assert isinstance(minus, dict)
    assert minus["mrr"] == pytest.approx(100 * (-1 / 6 + 2 / 3 + 0) / 3)
    assert minus["low_95"] < minus["mrr"] < minus["high_95"]
    assert (figures["queries"], figures["candidates"]) == (3, 3)


def test_some_of_the_queries_may_be_measured_and_there_may_be_no_encoder() -> None:
    figures = measure(scorer, SETS, Mined([], MINED.candidates, []), most=1)
    assert figures["bm25"] == {"mrr": 50, "gold_first": 0}
    assert figures["queries"] == 1
    assert "encoder" not in figures


def test_equals_keep_their_order_and_no_gold_passage_counts_nothing() -> None:
    assert order_of([1.0, 2.0, 2.0, 3.0]) == [3, 1, 2, 0]
    assert reciprocal_rank([4, 5], [6]) == 0
