import math
import random

import pytest

from condensery.methods.ranking.measures import ndcg


def by_hand(ranked: list[str], grades: dict[str, int], depth: int) -> float:
    gain = sum(grades.get(d, 0) / math.log2(p + 2) for p, d in enumerate(ranked[:depth]))
    best = sorted(grades.values(), reverse=True)[:depth]
    return gain / sum(grade / math.log2(p + 2) for p, grade in enumerate(best))


def test_ndcg_is_what_one_computes_by_hand() -> None:
    judged = {"q": {"a": 2, "b": 1}}
    # gains 1, 0, 2 at discounts 1, 1.585, 2: 2.0; at best 2 + 1 / 1.585: 2.631
    assert ndcg({"q": ["b", "x", "a"]}, judged)["q"] == pytest.approx(2 / 2.6309297, abs=1e-6)
    assert ndcg({"q": ["a", "b"]}, judged)["q"] == pytest.approx(1)


def test_ndcg_agrees_with_the_formula_on_random_orders() -> None:
    rng = random.Random(0)
    names = [f"d{i}" for i in range(30)]
    judged = {
        str(q): {name: rng.randint(1, 3) for name in rng.sample(names, rng.randint(1, 15))}
        for q in range(50)
    }
    ranked = {query: rng.sample(names, rng.randint(1, 30)) for query in judged}
    measured = ndcg(ranked, judged)
    for query, order in ranked.items():
        assert measured[query] == pytest.approx(by_hand(order, judged[query], 10), abs=1e-9)


def test_what_stands_below_the_depth_counts_nothing() -> None:
    order = [f"x{i}" for i in range(10)]
    assert ndcg({"q": [*order, "a"]}, {"q": {"a": 1}})["q"] == 0
    assert ndcg({"q": ["x", "a"]}, {"q": {"a": 1}}, depth=1)["q"] == 0
    assert ndcg({"q": ["x", "a"]}, {"q": {"a": 1}}, depth=2)["q"] > 0.6


def test_the_order_counts_whatever_the_names() -> None:
    """trec_eval sorts equal scores by name, last first; places are never equal."""
    for order in (["a", "z"], ["z", "a"]):
        expected = 1.0 if order[0] == "a" else 1 / math.log2(3)
        assert ndcg({"q": order}, {"q": {"a": 1}})["q"] == pytest.approx(expected)


def test_a_query_without_documents_counts_zero() -> None:
    assert ndcg({"q": []}, {"q": {"a": 1}, "r": {"b": 1}}) == {"q": 0.0, "r": 0.0}


def test_a_document_that_comes_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="'q'"):
        ndcg({"q": ["a", "b", "a"]}, {"q": {"a": 1}})
