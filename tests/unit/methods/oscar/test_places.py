import random
import re

import pytest
from tiny_pair import tiny_tokenizer

from condensery.methods.oscar.data import find_place, tokens_at

TEXT = (
    "In 1900 a mill was built by the river. The town grew. Much later, in spring, when all had "
    "been forgotten for many long years, there was a fire in the old market; it was again 1900 "
    "days before the bread oven was repaired, and long before 19001 was written anywhere."
)


def test_of_several_places_the_one_with_words_of_the_question_near_is_taken() -> None:
    first, second = (match.start() for match in re.finditer(r"\b1900\b", TEXT))
    assert find_place(TEXT, "1900", "when was the mill built by the river?") == first
    assert find_place(TEXT, "1900", "how many days before the bread oven was repaired?") == second
    assert find_place(TEXT, "1900", "what?") == first


def test_whole_words_come_before_parts_of_words() -> None:
    assert find_place("the tent of ten", "ten", "the tent?") == 12
    assert find_place("the tents", "ten", "what?") == 4


def test_upper_and_lower_case_are_alike_and_what_is_not_there_is_none() -> None:
    assert find_place("The MILL", "mill", "what?") == 4
    assert find_place("The mill", "bread", "what?") is None
    assert find_place("The mill", " ", "what?") is None
    assert find_place("a (b) c", "(b)", "what?") == 2  # no pattern


@pytest.mark.parametrize("seed", range(20))
def test_tokens_are_those_that_cover_the_characters(seed: int) -> None:
    rng = random.Random(seed)
    offsets = tiny_tokenizer().encode(TEXT, add_special_tokens=False).offsets
    start = rng.randrange(len(TEXT) - 10)
    end = start + rng.randint(1, 10)
    first, last = tokens_at(offsets, start, end)
    covered = [any(a <= at < b for a, b in offsets[first:last]) for at in range(start, end)]
    pieces = [any(a <= at < b for a, b in offsets) for at in range(start, end)]
    assert covered == pieces
    if last > first:
        assert offsets[first][1] > start
        assert offsets[last - 1][0] < end
    assert tokens_at(offsets, 10_000, 10_001) == (0, 0)
