from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from condensery.errors import InputError, ModelFault
from condensery.methods.distil.corpus import build_corpus
from condensery.methods.distil.distillation import RowBuilder, RowPlan, fingerprint
from condensery.methods.distil.journal import Journal
from condensery.methods.distil.summary import SILENT, UNFINISHED, UNREAD, Summary
from condensery.methods.distil.teacher import TeacherAnswer, TeacherInput
from condensery.methods.trainer.questions import TrainingQuestion

TEXTS = [f"Passage {n} of the old mill." for n in range(6)]


class Found:
    """Finds what it is told to."""

    def __init__(self, *places: int) -> None:
        self.places = places

    def search(self, queries: Sequence[str], k: int, mode: str) -> list[list[tuple[str, float]]]:
        del mode
        return [[(str(place), 1.0) for place in self.places[:k]] for _ in queries]


class Said:
    """Gives answers in turn."""

    def __init__(self, *answers: TeacherAnswer) -> None:
        self.answers = list(answers)
        self.asked: list[TeacherInput] = []

    def answer(self, asked: Sequence[TeacherInput]) -> list[TeacherAnswer]:
        self.asked += asked
        return [self.answers.pop(0) for _ in asked]


class Lengths:
    """Scores a passage by its question's length and its own number."""

    def scores(self, query: str, passages: Sequence[str]) -> list[float]:
        return [len(query) + float(text.split()[1]) / 3 for text in passages]


def question(number: int, *answers: str, label: str = "", gold: int | None = 0) -> TrainingQuestion:
    passages = () if gold is None else (TEXTS[gold],)
    where = f"a.jsonl, line {number}"
    return TrainingQuestion(f"Who {number}?", passages, answers, label, "Mills", where)


def write(
    tmp_path: Path,
    questions: Sequence[TrainingQuestion],
    *,
    most_unlabelled: float = 1.0,
    **parts: Any,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return all lines, and the figures."""
    corpus = build_corpus([question(0, gold=n) for n in range(6)])
    corpus.gold = [tuple(TEXTS.index(text) for text in question.passages) for question in questions]
    lines: list[dict[str, Any]] = []
    summary = Summary(len(questions), most_unlabelled)

    def see(line: dict[str, Any]) -> None:
        lines.append(line)
        summary.see(line)

    parts = {"retriever": Found(3, 1, 2), "plan": RowPlan(top=3), **parts}
    with Journal(tmp_path / "rows.jsonl", {}, see) as journal:
        RowBuilder(corpus, **parts).write(questions, journal, summary, block=3)
    return lines, summary.figures()


def test_a_row_has_what_was_found_with_gold_among_it_and_its_own_label(tmp_path: Path) -> None:
    asked = [
        question(1, "passage 4", label="number 4", gold=4),
        question(2, "Passage 2", label="2", gold=2),
        question(3, "the passage 3", label="", gold=None),
        question(4, "mill", label="mill", gold=None),
    ]
    lines, figures = write(tmp_path, asked)
    assert lines[0] == {
        "question": "Who 1?",
        "passages": [TEXTS[3], TEXTS[1], TEXTS[4]],
        "answers": ["passage 4"],
        "label": "number 4",
        "title": "Mills",
        "gold": [2],
        "found": False,
    }
    assert lines[1]["passages"] == lines[2]["passages"] == [TEXTS[n] for n in (3, 1, 2)]
    assert (lines[1]["gold"], lines[1]["found"]) == ([2], True)
    assert not {"gold", "found", "scores"} & set(lines[3])
    assert figures == {
        "questions": 4, "rows": 4, "left_out": {}, "examples_left_out": {}, "gold_found": 0.5,
    }  # fmt: skip


def test_gold_may_be_left_as_it_was_found(tmp_path: Path) -> None:
    asked = [question(1, "mill", gold=4), question(2, "mill", gold=1)]
    lines, figures = write(tmp_path, asked, plan=RowPlan(top=2, gold="as-found"))
    assert [line["passages"] for line in lines] == [[TEXTS[3], TEXTS[1]]] * 2
    assert [line["gold"] for line in lines] == [[], [1]]
    assert figures["gold_found"] == 0.5


def test_a_given_answer_that_stands_in_no_passage_leaves_the_row_out(tmp_path: Path) -> None:
    asked = [
        question(1, "a smith", gold=4),
        question(2, "ill", gold=None),  # a part of a word counts in gold only
        question(3, "ill", gold=4),
        question(4, "smith", label="the old mill", gold=None),
    ]
    lines, figures = write(tmp_path, asked)
    assert lines[0] == {
        "left_out": "no passage holds the answer",
        "where": "a.jsonl, line 1",
        "said": "('a smith',)",
    }
    assert ["left_out" in line for line in lines] == [True, True, False, False]
    assert figures["left_out"] == {"no passage holds the answer": 2}
    assert figures["examples_left_out"] == {
        "no passage holds the answer": [
            "a.jsonl, line 1: ('a smith',)",
            "a.jsonl, line 2: ('ill',)",
        ]
    }
    kept, _ = write(tmp_path / "kept", asked, plan=RowPlan(top=3, unsupported="keep"))
    assert not any("left_out" in line for line in kept)


def test_a_question_that_nothing_was_found_for_is_left_out(tmp_path: Path) -> None:
    lines, _ = write(tmp_path, [question(1, "mill", gold=None)], retriever=Found())
    assert lines[0]["left_out"] == "no passage was found"


def test_a_teachers_answers_are_labels_or_leave_the_row_out(tmp_path: Path) -> None:
    teacher = Said(
        TeacherAnswer("the miller", 3),
        TeacherAnswer("", 0),
        TeacherAnswer("and so on and", 4, finished=False),
        TeacherAnswer("", 0, fits=False),
        TeacherAnswer("nobody", 1),
    )
    asked = [question(n, "a smith", label="a smith", gold=n) for n in range(5)]
    lines, figures = write(tmp_path, asked, labeller=teacher, scorer=Lengths())
    assert [line.get("label") for line in lines] == ["the miller", None, None, None, "nobody"]
    assert [line.get("left_out") for line in lines[1:4]] == [
        SILENT,
        UNFINISHED,
        UNREAD,
    ]
    assert "and so on" in lines[2]["said"]
    assert teacher.asked[0] == ("Who 0?", [TEXTS[3], TEXTS[1], TEXTS[0]])
    assert (figures["questions"], figures["rows"]) == (5, 2)
    assert lines[0]["scores"] == pytest.approx([6 + 1, 6 + 1 / 3, 6 + 0], abs=1e-6)
    # gold is passage 0 (6 against 6 2/3 for the others), then passage 4 (7 1/3 against 6 2/3)
    assert figures["score_gap"] == pytest.approx((-2 / 3 + 2 / 3) / 2, abs=1e-3)
    assert figures["gold_scored_first"] == 0.5


def test_a_teacher_that_is_of_no_use_too_often_stops_the_work(tmp_path: Path) -> None:
    silent, speaks = TeacherAnswer("", 0), TeacherAnswer("the miller", 2)
    asked = [question(n, gold=0) for n in range(10)]
    teacher = Said(silent, *[speaks] * 4, silent, *[speaks] * 4)
    _, figures = write(tmp_path / "a", asked, labeller=teacher, most_unlabelled=0.2)
    assert figures["left_out"] == {SILENT: 2}
    endless, deaf = TeacherAnswer("and", 4, finished=False), TeacherAnswer("", 0, fits=False)
    teacher = Said(silent, *[speaks] * 4, endless, deaf, *[speaks] * 3)
    with pytest.raises(InputError, match=r"no label of 3 of the first 9 .* is 20% of 10"):
        write(tmp_path / "b", asked, labeller=teacher, most_unlabelled=0.2)
    assert len(teacher.answers) == 1  # it stopped at once
    with pytest.raises(InputError, match=r"nothing .1.: .*line 0: .*long .1.: .*line 5: 'and'"):
        write(tmp_path / "b", asked, labeller=Said(), most_unlabelled=0.2)  # and stops again
    _, figures = write(tmp_path / "b", asked, labeller=teacher, most_unlabelled=0.5)
    assert figures["left_out"] == {SILENT: 1, UNFINISHED: 1, UNREAD: 1}


def test_scores_that_are_too_few_are_a_fault(tmp_path: Path) -> None:
    class Few:
        def scores(self, query: str, passages: Sequence[str]) -> list[float]:
            return [0.0]

    with pytest.raises(ModelFault, match="1 scores of 3 passages"):
        write(tmp_path, [question(1, "mill")], scorer=Few())


def test_a_fingerprint_is_of_all_that_rows_are_made_of() -> None:
    example = question(1, "mill")
    fingerprints = {
        fingerprint(some)
        for some in (
            [example],
            [example, example],
            [question(1, "mill", label="mill")],
            [question(1, "mill", "mill")],
            [question(1, "mill", gold=1)],
            [],
        )
    }
    assert len(fingerprints) == 6
