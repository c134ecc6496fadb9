import json
from pathlib import Path
from typing import Any

import pytest

from condensery.errors import InputError
from condensery.methods.trainer.questions import Rules, read_questions

SAVED = Path(__file__).with_name("saved_by_datasets")


def row(**changes: Any) -> dict[str, Any]:
    good = {"question": "Who sold it?", "answers": ["the Miller"], "context": "The miller sold it."}
    return {**good, **changes}


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_good_rows_are_read_with_their_places(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl",
        row(title="Mills"),
        row(context=None, passages=["One.", "The miller."], label="the miller did"),
        row(question="Who bought it?"),
    )
    (first, two, _), left_out = read_questions([path], Rules())
    assert left_out == {}
    assert (first.question, first.title) == ("Who sold it?", "Mills")
    assert first.passages == ("The miller sold it.",)
    assert (first.label, two.label, two.passages[0]) == ("the Miller", "the miller did", "One.")
    assert two.where == f"{path}, line 2"


def test_scores_are_read_one_for_each_passage(tmp_path: Path) -> None:
    passages = ["One.", "The miller."]
    path = write(tmp_path / "a.jsonl", row(), row(passages=passages, scores=[-1.5, 3]))
    (first, two), _ = read_questions([path], Rules())
    assert first.scores is None
    assert two.scores == (-1.5, 3.0)


def test_a_datasets_folder_is_read_alike() -> None:
    questions, _ = read_questions([SAVED / "dict"], Rules(), split="validation")
    assert [question.label for question in questions] == ["a3", "a1"]
    assert questions[1].where.endswith("validation/data-00000-of-00001.arrow, row 2")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"question": " "}, "question: ' ' is empty"),
        ({"question": None}, "question: None: Input should be a valid string"),
        ({"question": "Who \ud83d?"}, "question: 'Who \\ud83d?' holds half of a character"),
        ({"label": "\udc00"}, "label: '\\udc00' holds half of a character"),
        ({"answers": "x"}, "answers: 'x': Input should be a valid list"),
        ({"answers": [3]}, "answers.0: 3: Input should be a valid string"),
        ({"answers": []}, "answers: [] holds no answer"),
        ({"answers": ["", " "]}, "answers: ['', ' '] holds no answer"),
        ({"answers": ["the smith"]}, "answers: ['the smith'] stands in no passage"),
        ({"context": ""}, "context: ('',) holds no text"),
        ({"passages": ["", " "]}, "passages: ('', ' ') holds no text"),
        ({"label": "one two three four"}, "label: 'one two three four' has 4 tokens, more than 3"),
        ({"scores": [0.5, 1.0]}, "scores: 2 scores for 1 passages"),
        ({"scores": []}, "scores: 0 scores for 1 passages"),
        ({"scores": [float("nan")]}, "scores: [0] is nan, not a finite number"),
        ({"passages": ["The miller.", "b"], "scores": [1, -1e999]}, "scores: [1] is -inf, not"),
        ({"scores": ["1"]}, "scores.0: '1': Input should be a valid number"),
        ({"gold": [1]}, "gold: 1 is the place of none of 1 passages"),
        ({"gold": [0], "answers": []}, "answers: [] holds no answer"),
        ({"question": "who  SOLD it?"}, "stands in {path}, line 1 too"),
    ],
)  # fmt: skip
def test_what_is_wrong_names_file_line_field_and_value(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    path = tmp_path / "a.jsonl"
    bad = row(**{"question": "And who bought it?", **changes})
    write(path, row(), bad)
    rules = Rules(label_tokens=3)
    with pytest.raises(InputError) as caught:
        read_questions([path], rules)
    assert f"{path}, line 2: " in caught.value.message
    assert says.format(path=path) in caught.value.message
    questions, left_out = read_questions([path], rules, wrong="leave_out")
    assert len(questions) == 1
    assert sum(left_out.values()) >= 1


@pytest.mark.parametrize(
    ("rules", "changes"),
    [
        (Rules(answers=False), {"answers": []}),
        (Rules(answer_in_passages=False), {"answers": ["he did"]}),
        (Rules(passages=False), {"context": None}),
        (Rules(), {"label": "said otherwise", "answers": []}),
        (Rules(ranked=True), {"gold": [0], "answers": []}),
        (Rules(unanswerable=True), {"answers": []}),
        (Rules(), {"question": "Who sold it?", "context": "The miller, of Brenn."}),
    ],
)
def test_a_rule_that_is_not_asked_for_does_not_count(
    tmp_path: Path, rules: Rules, changes: dict[str, Any]
) -> None:
    path = write(tmp_path / "a.jsonl", row(), row(**{"question": "Another?", **changes}))
    assert len(read_questions([path], rules)[0]) == 2


def test_all_that_is_wrong_is_said_at_once_and_long_lists_are_counted(tmp_path: Path) -> None:
    bad = [row(question=f"q{i}", answers=["no such"]) for i in range(12)]
    path = write(tmp_path / "a.jsonl", row(question="", answers=[]), *bad)
    with pytest.raises(InputError) as caught:
        read_questions([path], Rules())
    lines = caught.value.message.splitlines()
    assert len(lines) == 11
    assert lines[0].startswith(f"{path}, line 1: question")
    assert lines[1].startswith(f"{path}, line 1: answers")
    assert lines[-1].startswith("and 4 more: {")
    assert "'answer not in passages': 12" in lines[-1]
    with pytest.raises(InputError, match=r"no question to train on in .*a\.jsonl"):
        read_questions([path], Rules(), wrong="leave_out")


def test_no_files_are_no_questions(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no question to train on in no files"):
        read_questions([], Rules())
    with pytest.raises(InputError, match=r"no question to train on in .*empty\.jsonl"):
        read_questions([write(tmp_path / "empty.jsonl")], Rules())


def test_a_row_says_that_nothing_answers_it_by_an_empty_list(tmp_path: Path) -> None:
    unanswerable = row(question="Who gave it?", answers=[])
    silent = {k: v for k, v in row(question="Who lent it?").items() if k != "answers"}
    path = write(tmp_path / "a.jsonl", row(), unanswerable, silent)
    rules = Rules(unanswerable=True)
    with pytest.raises(InputError, match=r"line 3: answers: \[\] holds no answer"):
        read_questions([path], rules)
    questions, _ = read_questions([path], rules, wrong="leave_out")
    assert [question.answerable for question in questions] == [True, False]


def test_another_wording_takes_the_questions_place_where_there_is_one(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", row(reworded="By whom?"), row(question="Who sold it?"))
    questions, _ = read_questions([path], Rules(), wording="reworded")
    assert [question.question for question in questions] == ["By whom?", "Who sold it?"]
    write(path, row(reworded=7))
    with pytest.raises(InputError, match="line 1: question: 7: "):
        read_questions([path], Rules(), wording="reworded")
