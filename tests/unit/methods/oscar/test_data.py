import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_pair import tiny_tokenizer

from condensery.methods.oscar.data import (
    QaData,
    QuestionTexts,
    TrainingSets,
    crop,
    open_sets,
    save_sets,
    tokenise,
)

TOKENIZER = tiny_tokenizer()
CONTEXT = "The Mill of Brenn was sold in 1912. It stands on the river Mell, in Mell town."


def row(answer: str, context: str = CONTEXT, **changes: Any) -> QuestionTexts:
    fields = {"question": "what?", "answers": [answer], "label": answer, "title": "t", **changes}
    return QuestionTexts(passages=[context], **fields)


def answer_text(data: QaData, context: str = CONTEXT) -> str:
    """Read the answer back out of the passage, by the tokenizer's own offsets."""
    (example,) = data.examples
    offsets = TOKENIZER.encode(context, add_special_tokens=False).offsets
    return context[offsets[example.start][0] : offsets[example.end - 1][1]]


@pytest.mark.parametrize("answer", ["The Mill", "Brenn", "1912", "Mell town", "river Mell, in"])
def test_the_span_points_at_the_answer(answer: str) -> None:
    assert answer_text(tokenise([row(answer)], TOKENIZER)) == answer


def test_an_answer_in_other_letters_is_found_and_one_without_text_left_out() -> None:
    assert answer_text(tokenise([row("the mill OF brenn")], TOKENIZER)) == "The Mill of Brenn"
    rows = [row("", context=""), row("mill", context="")]
    assert tokenise(rows, TOKENIZER).examples == []


def test_an_answer_within_a_word_takes_the_whole_pieces_it_touches() -> None:
    text = "It was the Millwright"  # pieces a letter each, so the span is exact
    assert answer_text(tokenise([row("Mill", context=text)], TOKENIZER), text) == "Mill"
    text = "an old-town mill"  # "old", "-", "town", "mill"
    answer = answer_text(tokenise([row("ld-to", context=text)], TOKENIZER), text)
    assert answer == "old-town"


def words_of(data: QaData, ids: Any) -> str:
    return str(TOKENIZER.decode(list(ids)))


def retrieved(scores: list[float] | None, label: str = "old mill") -> QaData:
    passages = ["the bread", "a market and an old mill", "old mill, old stone", "new town"]
    return tokenise(
        [QuestionTexts("what is old?", passages, ["old mill"], label, scores)], TOKENIZER
    )


def test_without_scores_the_first_passage_with_the_answer_is_read_and_others_with_it_go() -> None:
    (example,) = retrieved(None).examples
    assert example.passage == 1
    assert [other.passage for other in example.beside] == [0, 3]
    assert all(other.start == other.end for other in example.beside)
    assert all(math.isnan(score) for score in (example.score, *(o.score for o in example.beside)))
    assert example.label is None


def test_with_scores_the_best_passage_with_the_answer_is_read_and_all_others_stay() -> None:
    data = retrieved([9.0, -1.0, 3.0, -4.0])
    (example,) = data.examples
    assert (example.passage, example.score) == (2, 3.0)
    assert [(o.passage, o.score) for o in example.beside] == [(0, 9.0), (1, -1.0), (3, -4.0)]
    second = example.beside[1]
    assert words_of(data, data.passages[1][second.start : second.end]) == "old mill"
    assert words_of(data, data.passages[2][example.start : example.end]) == "old mill"


def test_a_label_in_other_words_is_learnt_and_the_answer_still_pointed_at() -> None:
    data = retrieved(None, label="the market and the mill")
    (example,) = data.examples
    assert example.label is not None
    assert words_of(data, example.label) == "the market and the mill"
    assert words_of(data, data.passages[1][example.start : example.end]) == "old mill"


def test_a_label_that_no_passage_holds_is_kept_without_a_place() -> None:
    asked = QuestionTexts("why?", ["the bread", "new town"], [], "river stone")
    data = tokenise([asked], TOKENIZER)
    (example,) = data.examples
    assert (example.passage, example.start, example.end) == (0, 0, 0)
    assert example.beside == ()  # nothing is known of them
    (example,) = tokenise([replace(asked, scores=[1.0, 2.0])], TOKENIZER).examples
    assert (example.passage, example.score) == (1, 2.0)
    assert [other.passage for other in example.beside] == [0]


def test_passages_are_shared_and_grouped_by_article() -> None:
    rows = [
        row("Mell"),
        row("1912"),
        row("bread", context="New bread.", title="t"),
        row("stone", context="Old stone.", title="u"),
        row("mill", context="A mill.", title=""),
        row("town", context="A town.", title=""),
    ]
    data = tokenise(rows, TOKENIZER)
    assert [example.passage for example in data.examples] == [0, 0, 1, 2, 3, 4]
    assert data.group == [[0, 1], [0, 1], [2], [3], [4]]
    for passage, text in zip(data.passages, (CONTEXT, "New bread."), strict=False):
        assert passage.tolist() == TOKENIZER.encode(text, add_special_tokens=False).ids


@given(
    length=st.integers(1, 300), size=st.integers(1, 200), seed=st.integers(0, 99), data=st.data()
)
def test_a_crop_holds_the_span_and_is_as_long_as_asked(
    length: int, size: int, seed: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, length - 1))
    end = data.draw(st.integers(start, length))
    first, last = crop(length, start, end, size, random.Random(seed))
    assert 0 <= first <= start <= end <= last <= length
    assert last - first == min(length, max(size, end - start))


def test_crops_of_every_place_occur() -> None:
    rng = random.Random(0)
    starts = {crop(20, 8, 10, 6, rng)[0] for _ in range(200)}
    assert starts == set(range(4, 9))


def test_a_question_that_only_names_its_gold_is_an_example_for_each() -> None:
    texts = ["the bread", "old mill", "new town"]
    data = tokenise([QuestionTexts("what is old?", texts, [], "", gold=(1, 2))], TOKENIZER)
    assert [example.passage for example in data.examples] == [1, 2]
    for example in data.examples:
        assert example.ranked_only
        assert example.start == example.end
        assert [other.passage for other in example.beside] == [0]


def test_a_question_that_its_passages_do_not_answer_is_an_example_for_each(tmp_path: Path) -> None:
    texts = ["the bread", "old mill"]
    question = QuestionTexts("what is new?", texts, [], "", answerable=False)
    data = tokenise([question], TOKENIZER)
    assert [(x.passage, x.answerable, x.ranked_only) for x in data.examples] == [
        (0, False, True),
        (1, False, True),
    ]
    save_sets(tmp_path, TrainingSets([(data, 1.0)], [], {}))
    (again, _), *_ = open_sets(tmp_path).sets
    assert [x.answerable for x in again.examples] == [False, False]
