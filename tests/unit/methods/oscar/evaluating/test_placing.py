import random
from typing import Any

import pytest

from condensery.methods.oscar.evaluating.placing import (
    answer_kind,
    contains_words,
    other_passages,
    place_among_others,
    replaced,
)

Row = dict[str, Any]


def row(context: str, title: str, answers: list[str], question: str = "what?") -> Row:
    return {"question": question, "context": context, "title": title, "answers": answers}


ROWS = [
    row(f"In town {t}{i} the mill number {10 * t + i} stands.", f"title {t}", [f"{10 * t + i}"])
    for t in range(1, 4)
    for i in range(3)
]


def test_the_gold_passage_stands_among_others_of_its_article_first() -> None:
    places = set()
    for seed in range(20):
        for row, (passages, at) in zip(
            ROWS, place_among_others(ROWS, 5, random.Random(seed)), strict=True
        ):
            assert passages[at] == row["context"]
            assert len(passages) == len(set(passages)) == 5
            own = {r["context"] for r in ROWS if r["title"] == row["title"]}
            assert own <= set(passages)
            places.add(at)
    assert places == set(range(5))
    for passages, _ in place_among_others(ROWS, 2, random.Random(0)):
        assert len({text.split()[2][0] for text in passages}) == 1  # both of one article


def test_too_few_passages_are_an_error_not_an_endless_search() -> None:
    with pytest.raises(ValueError, match="4 passages can't make 5"):
        place_among_others(ROWS[:4], 5, random.Random(0))
    with pytest.raises(ValueError, match="only 0 passages"):
        other_passages(ROWS[:3], 1, random.Random(0))  # one article


def test_passages_of_others_hold_no_answer_and_are_of_other_articles() -> None:
    rows = [*ROWS, row("The mill of Bo.", "title 4", ["Bo", "21"])]
    chosen = other_passages(rows, 5, random.Random(0))
    for asked_row, passages in zip(rows, chosen, strict=True):
        assert len(set(passages)) == 5
        own = {r["context"] for r in rows if r["title"] == asked_row["title"]}
        assert not own & set(passages)
        for passage in passages:
            assert not set(asked_row["answers"]) & set(passage.removesuffix(".").split())


def test_an_answer_that_is_a_letter_in_every_text_does_not_rule_all_out() -> None:
    rows = [*ROWS, row("The class P is large.", "title 4", ["P", "."])]
    with pytest.raises(ValueError, match="what"):
        other_passages([*ROWS, row("The mill.", "title 4", ["mill"])], 5, random.Random(0))
    assert len(other_passages(rows, 5, random.Random(0))[-1]) == 5


@pytest.mark.parametrize(
    ("text", "words", "verdict"),
    [
        ("the class p is", "p", True),
        ("the map", "p", False),
        ("maps", "map", False),
        ("a (map)", "map", True),
        ("1990s", "1990", False),
        ("end.", ".", False),
    ],
)
def test_words_are_found_whole(text: str, words: str, verdict: bool) -> None:
    assert contains_words(text, words) == verdict


def test_a_replaced_answer_is_gone_from_its_passage_and_another_of_its_sort_is_there() -> None:
    rows = [
        row("Anna met Bo. Anna left.", "t", ["Anna", "Anna Smith"]),
        row("Carla stayed.", "t", ["Carla"]),
        row("In 1912 it burnt.", "t", ["1912"]),
        row("In 1950 it rained.", "t", ["1950"]),
        row("It was red.", "t", ["red"]),  # no other answer of its sort
        row("Dora sat.", "t", ["Dora"], question="Who is Dora?"),  # the question tells it
    ]
    swapped = replaced(rows, random.Random(0))
    assert len(swapped) == 4
    for new in swapped:
        old = new["old"][0]
        (pick,) = new["answers"]
        assert old not in new["context"]
        assert pick in new["context"]
        assert answer_kind(pick) == answer_kind(old)
        (source,) = (r for r in rows if r["answers"] == new["old"])
        assert new["context"] == source["context"].replace(old, pick)
        assert new["question"] == source["question"]
    assert {r["answers"][0] for r in rows} == {"Anna", "Carla", "1912", "1950", "red", "Dora"}
    assert swapped[0]["context"].count(swapped[0]["answers"][0]) == 2


def test_an_answer_its_passage_spells_otherwise_can_not_be_replaced() -> None:
    rows = [row("ANNA left.", "t", ["Anna"]), row("Carla left.", "t", ["Carla"])]
    assert [new["old"] for new in replaced(rows, random.Random(0))] == [["Carla"]]


def test_sorts_tell_numbers_names_and_other_words() -> None:
    assert answer_kind("12 mills") == (True, False, 2)
    assert answer_kind("Old Mill") == (False, True, 2)
    assert answer_kind("a very old mill indeed") == (False, False, 4)


def test_passages_without_a_title_are_articles_of_their_own() -> None:
    rows = [{**row, "title": ""} for row in ROWS]
    for row, passages in zip(rows, other_passages(rows, 5, random.Random(0)), strict=True):
        assert row["context"] not in passages
