import pytest

from condensery.agreement import exact, f1, normalise


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
    assert normalise(text) == wanted


def test_a_match_is_exact_once_normalised() -> None:
    assert exact("the Denver Broncos!", ["Carolina", "Denver Broncos"]) == 1.0
    assert exact("Denver", ["Denver Broncos"]) == 0.0
    assert exact("", ["a"]) == 1.0


def test_f1_is_the_best_overlap_counting_each_word_once() -> None:
    assert f1("Denver Broncos", ["the Denver Broncos"]) == 1.0
    assert f1("in Denver", ["Denver Broncos"]) == pytest.approx(0.5)
    assert f1("old old mill", ["old mill"]) == pytest.approx(0.8)
    assert f1("mill", ["river", "old mill"]) == pytest.approx(2 / 3)
    assert f1("mill", ["river"]) == 0.0
    assert f1("", ["river"]) == 0.0
