import json
import random
from pathlib import Path
from typing import Any

import pytest
from tiny_pair import tiny_tokenizer

from condensery.errors import InputError
from condensery.methods.reader.batches import PairForm, collate, draw_rows
from condensery.methods.reader.data import (
    find_answer,
    find_spans,
    load_data,
)
from condensery.methods.trainer.questions import Rules, TrainingQuestion, read_questions

FORM = PairForm(start=2, end=3)
HELD = "the dev paragraph has words of its own that no other text may share for ten in a row"


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def asked(folder: Path, *passages: str, answers: list[str]) -> TrainingQuestion:
    row = {"question": "what?", "passages": passages, "answers": answers}
    rules = Rules(answer_in_passages=False)
    questions, _ = read_questions([write(folder / "one.jsonl", [row])], rules)
    return questions[0]


@pytest.mark.parametrize(
    ("passages", "answers", "expected"),
    [
        (["in 1912 and 12 mills"], ["12"], (0, 12, 14)),  # whole words first
        (["The Mill, a mill"], ["mill"], (0, 12, 16)),  # the case as it is given first
        (["The Mill"], ["mill"], (0, 4, 8)),
        (["millstone"], ["mill"], (0, 0, 4)),
        (["it cost $5 (all)"], ["$5"], (0, 8, 10)),
        (["no", "the old town"], ["new", "old"], (1, 4, 7)),
        (["no", "nothing"], ["mill"], None),
    ],
)
def test_an_answer_is_found_as_whole_words_first(
    tmp_path: Path, passages: list[str], answers: list[str], expected: object
) -> None:
    assert find_answer(asked(tmp_path, *passages, answers=answers)) == expected


def test_a_span_is_the_answer_s_tokens_and_others_hold_none(
    questions: Path, rows: list[dict[str, Any]]
) -> None:
    tokenizer = tiny_tokenizer()
    read, _ = read_questions([questions], Rules())
    spots = find_spans(read, tokenizer)
    assert len(spots.examples) == len(rows)
    for spot, row in zip(spots.examples, rows, strict=True):
        tokens = spots.passages[spot.passage][spot.start : spot.end]
        text = "".join(tokenizer.decode(tokens.tolist()).replace("##", "").split())
        assert text == row["answers"][0]
        assert spot.passage not in spot.others
        for other in spot.others:
            text = tokenizer.decode(spots.passages[other].tolist()).replace("##", "")
            assert row["answers"][0] not in "".join(text.split())
    assert sum(bool(spot.others) for spot in spots.examples) > 150


def test_what_is_evaluated_on_or_like_it_is_kept_out_and_counted(
    tmp_path: Path, questions: Path, rows: list[dict[str, Any]]
) -> None:
    first = rows[0]
    dev = write(
        tmp_path / "dev.jsonl",
        [{**first, "context": f"Here {HELD} 12.", "answers": ["12"], "title": "Of_dev"}],
    )
    leaked = [
        {**first, "question": "copied?", "context": f"{first['context']} Copied: {HELD}"},
        {**first, "question": "of its article?", "title": "of dev"},
    ]
    wrong = [{**first, "question": "not there?", "answers": ["zeppelin"]}, rows[1]]
    path = write(tmp_path / "more.jsonl", [*rows, *leaked, *wrong])
    data = load_data([path], tiny_tokenizer(), not_like=[dev], held_articles=0, seed=1)
    assert data.report == {
        f"{tmp_path.name}/more.jsonl": {
            "questions": 200,
            "unanswerable": 0,
            "answer not in passages": 1,
            "repeated question": 1,
            "like what is held out": 2,
            "answer not found": 0,
        }
    }
    free = load_data([path], tiny_tokenizer(), held_articles=0, seed=1)
    assert len(free.sources[0].examples) == 202


def test_articles_are_held_out_of_the_first_file(questions: Path) -> None:
    data = load_data([questions], tiny_tokenizer(), held_articles=2, seed=3)
    titles = {row.title for row in data.validation}
    assert len(titles) == 2
    assert len(data.validation) == 50
    (report,) = data.report.values()
    assert report["questions"] + report["like what is held out"] == 200
    assert report["questions"] <= 150


def test_nothing_left_is_an_error(questions: Path) -> None:
    with pytest.raises(InputError, match="none is left"):
        load_data([questions], tiny_tokenizer(), not_like=[questions], seed=1)


def test_a_question_that_its_passage_does_not_answer_teaches_to_point_at_nothing(
    tmp_path: Path, rows: list[dict[str, Any]]
) -> None:
    unanswerable = [{**row, "question": f"not {row['question']}", "answers": []} for row in rows]
    path = write(tmp_path / "none.jsonl", unanswerable[:30])
    data = load_data([path], tiny_tokenizer(), held_articles=0, seed=1)
    (report,) = data.report.values()
    assert (report["questions"], report["unanswerable"]) == (30, 30)
    drawn = draw_rows(
        data.sources,
        [1],
        random.Random(3),
        tokens=400,
        sizes=(8, 16),
        question=12,
        others=0.5,
    )
    assert drawn
    assert {row.answer for row in drawn} == {None}
    batch = collate(drawn, FORM)
    assert not batch.start.any()  # [CLS]
    assert not batch.end.any()
