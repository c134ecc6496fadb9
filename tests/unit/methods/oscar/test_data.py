import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_pair import tiny_tokenizer

from condensery.errors import InputError
from condensery.methods.oscar.data import QaData, crop, load_qa, read_jsonl

TOKENIZER = tiny_tokenizer()
CONTEXT = "The Mill of Brenn was sold in 1912. It stands on the river Mell, in Mell town."


def row(answer: str, context: str = CONTEXT, **changes: Any) -> dict[str, Any]:
    return {"question": "what?", "answers": [answer], "context": context, "title": "t", **changes}


def answer_text(data: QaData, context: str = CONTEXT) -> str:
    """Read the answer back out of the passage, by the tokenizer's own offsets."""
    (example,) = data.examples
    offsets = TOKENIZER.encode(context, add_special_tokens=False).offsets
    return context[offsets[example.start][0] : offsets[example.end - 1][1]]


@pytest.mark.parametrize(
    ("line", "reason"), [('{"a": ', "Expecting value"), ("[1]", "not a JSON object")]
)
def test_a_bad_line_is_named_with_its_file_and_number(
    tmp_path: Path, line: str, reason: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"a": 1}}\n{{"a": 2}}\n{line}\n')
    rows = read_jsonl(path)
    assert [next(rows), next(rows)] == [{"a": 1}, {"a": 2}]
    with pytest.raises(InputError, match=rf"rows\.jsonl, line 3: {reason}"):
        next(rows)


@pytest.mark.parametrize("answer", ["The Mill", "Brenn", "1912", "Mell town", "river Mell, in"])
def test_the_span_points_at_the_answer(answer: str) -> None:
    assert answer_text(load_qa([row(answer)], TOKENIZER)) == answer


def test_a_given_place_wins_over_the_first_occurrence() -> None:
    second = CONTEXT.rindex("Mell")
    first, later = (
        load_qa([given], TOKENIZER).examples[0]
        for given in (row("Mell"), row("Mell", answer_start=[second]))
    )
    assert later.start > first.start
    assert answer_text(load_qa([row("Mell", answer_start=[second])], TOKENIZER)) == "Mell"


def test_an_answer_in_other_letters_is_found_and_a_missing_one_left_out() -> None:
    assert answer_text(load_qa([row("the mill OF brenn")], TOKENIZER)) == "The Mill of Brenn"
    rows = [row("Paris"), row("", context=""), {**row("x"), "answers": []}]
    assert load_qa(rows, TOKENIZER).examples == []


def test_an_answer_within_a_word_takes_the_whole_pieces_it_touches() -> None:
    text = "It was the Millwright"  # pieces a letter each, so the span is exact
    assert answer_text(load_qa([row("Mill", context=text)], TOKENIZER), text) == "Mill"
    text = "an old-town mill"  # "old", "-", "town", "mill"
    found = answer_text(load_qa([row("ld-to", context=text)], TOKENIZER), text)
    assert found == "old-town"


def test_passages_are_shared_and_grouped_by_article() -> None:
    rows = [
        row("Mell"),
        row("1912"),
        row("bread", context="New bread.", title="t"),
        row("stone", context="Old stone.", title="u"),
        row("mill", context="A mill.", title=""),
        row("town", context="A town.", title=""),
    ]
    data = load_qa(rows, TOKENIZER)
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


def test_rows_keep_their_json(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(row(answer)) + "\n" for answer in ("a", "b"))
    assert list(read_jsonl(path)) == [row("a"), row("b")]
