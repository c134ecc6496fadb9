import pytest

from condensery.errors import InputError
from condensery.methods.oscar.evaluating.settings import (
    FIXED,
    PASSAGES,
    Capabilities,
    choose,
    retrieved,
)

EVERYTHING = Capabilities(gold=True, corpus=100, scores=True)


def keys(
    names: list[str], passages: list[int], can: Capabilities = EVERYTHING, read: int = 3
) -> list[str]:
    return [setting.key for setting in choose(names, passages, read, can, by_words=True)]


def test_without_names_all_is_measured_that_can_be() -> None:
    fixed = [setting.key for setting in FIXED]
    ks = [f"{family}_{k}" for k in (1, 5) for family in ("plain", "compressed", "reranked", "bm25")]
    assert keys([], [5, 1]) == fixed + ks
    assert keys([], [1], Capabilities(gold=True, corpus=0, scores=True)) == fixed
    without = keys([], [2], Capabilities(gold=False, corpus=9, scores=False))
    assert without == ["no_passage", "plain_2", "compressed_2", "bm25_2"]
    assert PASSAGES == (1, 2, 5, 10, 20, 50)


def test_names_choose_settings_and_families_in_the_reports_order() -> None:
    assert keys(["plain_7", "gold", "bm25", "gold"], [2]) == ["gold", "bm25_2", "plain_7"]


@pytest.mark.parametrize(
    ("names", "passages", "can", "says"),
    [
        (["golden"], [1], EVERYTHING, "'golden' is none of no_passage, .*plain_K"),
        (["plain_0"], [1], EVERYTHING, "'plain_0' is none of"),
        (["gold"], [1], Capabilities(False, 9, True), "gold needs every question's passage"),
        (["plain"], [1], Capabilities(True, 0, True), "plain needs a corpus"),
        (["reranked"], [1], Capabilities(True, 9, False), "reranked needs a pair that scores"),
        (
            ["gold_among_five_best_one"],
            [1],
            Capabilities(True, 9, False),
            "needs a pair that scores",
        ),
        ([], [5, 10], Capabilities(True, 9, True), "passages: 10 is more than the corpus has, 9"),
        (
            ["bm25_10"],
            [5],
            Capabilities(True, 9, True),
            "passages: 10 is more than the corpus has, 9",
        ),
        ([], [0], EVERYTHING, "passages: 0 is less than 1"),
    ],
)
def test_what_can_not_be_measured_is_refused_by_name(
    names: list[str], passages: list[int], can: Capabilities, says: str
) -> None:
    with pytest.raises(InputError, match=says):
        keys(names, passages, can)


def test_reading_none_is_refused() -> None:
    with pytest.raises(InputError, match="read: 0 is less than 1"):
        keys([], [1], read=0)


def test_settings_that_ask_the_same_share_their_answers() -> None:
    def asks(family: str, count: int, read: int = 3, *, by_words: bool = True) -> str:
        return retrieved(family, count, read, by_words=by_words).asks

    assert asks("bm25", 5) == asks("bm25", 50) == asks("plain", 3)
    assert asks("bm25", 2) == asks("plain", 2)
    assert asks("compressed", 1) == asks("reranked", 1)
    # Not those that differ in what is read, in its order, or in where it is from.
    assert asks("reranked", 3) != asks("compressed", 3)
    assert asks("reranked", 5) != asks("reranked", 50)
    assert asks("reranked", 5, 2) != asks("reranked", 5, 3)
    assert asks("bm25", 5, by_words=False) != asks("plain", 3, by_words=False)
    assert asks("bm25", 5, by_words=False) == asks("bm25", 5)
