import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

from condensery.errors import EmptyInput, InputError
from condensery.methods.oscar.evaluating.questions import sample_questions
from condensery.methods.trainer.rows import read_rows

Row = dict[str, Any]


def write(path: Path, rows: list[Row]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_questions_are_sampled_as_ever_by_the_seed(tmp_path: Path, rows: list[Row]) -> None:
    path = tmp_path / "dev.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps({**row, "id": "x", "answer_start": [3]}) + "\n" for row in rows)
    questions = sample_questions(path, 5, 17)
    wanted = random.Random(17).sample([row.value for row in read_rows(path)], 5)
    assert [row["question"] for row in questions.rows] == [row["question"] for row in wanted]
    assert [row["context"] for row in questions.rows] == [row["context"] for row in wanted]
    assert (questions.total, questions.repeated, questions.file) == (len(rows), 0, "dev.jsonl.gz")
    assert questions.with_gold
    assert questions.sha256 == sample_questions(path, 5, 17).sha256
    assert questions.sha256 != sample_questions(path, 5, 18).sha256
    assert len(sample_questions(path, 1000, 17).rows) == len(rows)


def test_a_question_asked_twice_of_a_passage_is_asked_once_with_both_answers(
    tmp_path: Path, rows: list[Row]
) -> None:
    again = {**rows[0], "question": " What NUMBER is the mill in the old  market?"}
    path = write(tmp_path / "q.jsonl", [rows[0], {**again, "answers": ["ten", "10"]}, rows[1]])
    questions = sample_questions(path, 10, 0)
    assert (len(questions.rows), questions.repeated) == (2, 1)
    (row,) = [row for row in questions.rows if row["context"] == rows[0]["context"]]
    assert set(row["answers"]) == {"10", "ten"}


def test_a_passage_and_a_title_may_be_missing(tmp_path: Path) -> None:
    path = write(tmp_path / "q.jsonl", [{"question": "who?", "answers": ["Bo", " "]}])
    questions = sample_questions(path, 1, 0)
    assert questions.rows == [{"question": "who?", "answers": ["Bo"], "context": "", "title": ""}]
    assert not questions.with_gold


def test_all_that_is_wrong_is_said_at_once_with_its_line(tmp_path: Path) -> None:
    path = write(
        tmp_path / "q.jsonl",
        [
            {"question": "who?", "answers": ["Bo"]},
            {"question": " ", "answers": ["Bo"]},
            {"question": "who?", "answers": []},
            {"question": "who?", "answers": [" "]},
            {"question": "who?"},
            {"question": "who?", "answers": "Bo"},
        ],
    )
    with pytest.raises(InputError) as caught:
        sample_questions(path, 1, 0)
    lines = caught.value.message.splitlines()
    assert [line.split("line ")[1][0] for line in lines] == ["2", "3", "4", "5", "6"]
    assert "question: ' ' is empty" in lines[0]
    assert "answers: [] holds no answer" in lines[1]
    assert "answers: 'Bo'" in lines[4]


def test_of_many_wrong_rows_the_first_ten_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "q.jsonl", [{"question": "who?", "answers": []}] * 25)
    with pytest.raises(InputError, match="and 15 more"):
        sample_questions(path, 1, 0)


def test_no_question_and_no_count_are_errors(tmp_path: Path, rows: list[Row]) -> None:
    with pytest.raises(EmptyInput, match="holds none"):
        sample_questions(write(tmp_path / "q.jsonl", []), 1, 0)
    with pytest.raises(InputError, match="count: 0"):
        sample_questions(write(tmp_path / "q.jsonl", rows), 0, 0)
    with pytest.raises(InputError, match=r"missing\.jsonl"):
        sample_questions(tmp_path / "missing.jsonl", 1, 0)
