import pytest

from condensery.agreement import exact_match, f1_score, normalise_answer


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("The  Mill", "mill"),
        ("a U.S. Navy-ship, an old one!", "us navyship old one"),
        ("Theatre and another", "theatre and another"),
        ("10,000", "10000"),
        ("the", ""),
        ("  ", ""),
    ],
)
def test_texts_are_normalised_as_squads_script_does(text: str, wanted: str) -> None:
    assert normalise_answer(text) == wanted


def test_a_match_is_exact_once_normalised() -> None:
    assert exact_match("the Denver Broncos!", ["Carolina", "Denver Broncos"]) == 1.0
    assert exact_match("Denver", ["Denver Broncos"]) == 0.0
    assert exact_match("", ["a"]) == 1.0


def test_f1_is_the_best_overlap_counting_each_word_once() -> None:
    assert f1_score("Denver Broncos", ["the Denver Broncos"]) == 1.0
    assert f1_score("in Denver", ["Denver Broncos"]) == pytest.approx(0.5)
    assert f1_score("old old mill", ["old mill"]) == pytest.approx(0.8)
    assert f1_score("mill", ["river", "old mill"]) == pytest.approx(2 / 3)
    assert f1_score("mill", ["river"]) == 0.0
    assert f1_score("", ["river"]) == 0.0
