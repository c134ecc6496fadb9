"""Questions that a service is judged by: read, checked, and what counts as right."""

import json
from pathlib import Path
from typing import Any

import pytest

from condensery.errors import InputError
from condensery.methods.rag.questions import is_right, read_judged_questions


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_questions_are_read_with_all_that_their_rows_have(tmp_path: Path) -> None:
    path = write(
        tmp_path / "q.jsonl",
        {"question": "Who?", "answers": ["Ada"], "passage_id": "a", "note": 1},
        {"question": "Where?", "answers": ["here", "there"], "passage_id": ["a", "b"]},
        {"question": "When?", "answerable": False},
        {"question": "Which?", "answers": ["this"], "answerable": True},
    )
    who, where, when, which = read_judged_questions(path)
    assert (who.place, who.documents, who.row["note"]) == (0, ("a",), 1)
    assert (where.answers, where.documents) == (("here", "there"), ("a", "b"))
    assert not when.answerable
    assert which.answerable
    assert which.documents == ()


def test_documents_may_be_named_by_another_field(tmp_path: Path) -> None:
    path = write(tmp_path / "q.jsonl", {"question": "Who?", "answers": ["Ada"], "source": "x"})
    (question,) = read_judged_questions(path, "source")
    assert question.documents == ("x",)


GOOD = {"question": "Who?", "answers": ["Ada"]}


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        ({"question": None}, "question", "None"),
        ({"question": " "}, "question", "' '"),
        ({"answers": "Ada"}, "answers", "'Ada'"),
        ({"answers": [1]}, "answers", "[1]"),
        ({"answers": ["the ..."]}, "answers", "the ..."),
        ({"answers": []}, "answers", "false"),
        ({"answerable": "no"}, "answerable", "'no'"),
        ({"answerable": False}, "answerable", "['Ada']"),
        ({"passage_id": 3}, "passage_id", "3"),
        ({"passage_id": ["a", ""]}, "passage_id", "['a', '']"),
    ],
)
def test_a_faulty_row_is_named_by_file_line_field_and_value(
    tmp_path: Path, change: dict[str, Any], field: str, value: str
) -> None:
    path = write(tmp_path / "q.jsonl", GOOD, {**GOOD, **change})
    with pytest.raises(InputError) as caught:
        read_judged_questions(path)
    assert f"{path}, line 2: {field}: " in caught.value.message
    assert value in caught.value.message


def test_every_faulty_row_is_told_at_once_and_an_empty_file_too(tmp_path: Path) -> None:
    path = write(tmp_path / "q.jsonl", {}, GOOD, {"question": "Who?"})
    with pytest.raises(InputError) as caught:
        read_judged_questions(path)
    assert "line 1" in caught.value.message
    assert "line 3" in caught.value.message
    with pytest.raises(InputError, match=r"empty\.jsonl"):
        read_judged_questions(write(tmp_path / "empty.jsonl"))


def test_right_is_a_gold_answers_whole_words_in_the_answer() -> None:
    assert is_right("the Lake  CONSTANCE!", ["Lake Constance"])
    assert is_right("It is Lake Constance, I think", ["x", "Lake Constance"])
    assert is_right("clip_grad_norm_", ["`clip_grad_norm_`"])
    assert not is_right("10", ["1"])
    assert not is_right("Lake of Constance", ["Lake Constance"])
    assert not is_right("", ["Lake Constance"])
