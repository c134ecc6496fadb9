import pytest

from condensery.index.fusion import fuse
from condensery.values import Hit


def ranking(*ids: str) -> list[Hit]:
    return [
        Hit(identity, identity, "", 0, 0, score=100.0 - place) for place, identity in enumerate(ids)
    ]


def ids(hits: list[Hit]) -> list[str]:
    return [hit.passage.id for hit in hits]


def test_a_score_is_the_sum_of_the_places_reciprocals() -> None:
    hits = fuse([ranking("a", "b", "c"), ranking("c", "a", "d")], 10)
    expected = {
        "a": 1 / 61 + 1 / 62,
        "c": 1 / 63 + 1 / 61,
        "b": 1 / 62,
        "d": 1 / 63,
    }
    assert ids(hits) == list(expected)
    assert [hit.score for hit in hits] == pytest.approx(list(expected.values()))


def test_what_two_rankings_hold_goes_before_what_is_first_in_one() -> None:
    assert ids(fuse([ranking("a", "x"), ranking("b", "x")], 1)) == ["x"]


def test_of_equal_passages_the_first_rankings_comes_first() -> None:
    first, other = ranking("z", "y", "x"), ranking("a", "b", "c")
    assert ids(fuse([first, other], 6)) == ["z", "a", "y", "b", "x", "c"]
    assert ids(fuse([other, first], 6)) == ["a", "z", "b", "y", "c", "x"]
    assert ids(fuse([ranking("p", "q"), ranking("q", "p")], 2)) == ["p", "q"]


def test_one_ranking_keeps_its_order_and_none_gives_none() -> None:
    assert ids(fuse([ranking("b", "a"), []], 5)) == ["b", "a"]
    assert fuse([[], []], 5) == []


def test_no_more_than_asked_for_come() -> None:
    assert ids(fuse([ranking("a", "b", "c"), ranking()], 2)) == ["a", "b"]
