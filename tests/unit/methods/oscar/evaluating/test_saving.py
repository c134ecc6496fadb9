from pathlib import Path

import pytest

from condensery.errors import InputError
from condensery.methods.oscar.evaluating.asking import Outcome
from condensery.methods.oscar.evaluating.saving import Answers, lock_folder


def outcome(place: int) -> Outcome:
    return Outcome(f"answer {place} é\n", 5, 1, 0, 0.25, 2, 8, 20, 10**13, place, 0.5 * place)


def test_answers_come_back_as_they_were(tmp_path: Path) -> None:
    answers = Answers(tmp_path / "some.answers", {"seed": 1})
    assert answers.outcomes("gold") == {}
    with answers.adding("gold") as add:
        for place in (3, 0):
            add(outcome(place))
            again = Answers(tmp_path / "some.answers", {"seed": 1})
            assert place in again.outcomes("gold")  # at once, not when the file is closed
    assert again.outcomes("gold") == {3: outcome(3), 0: outcome(0)}
    assert again.outcomes("five") == {}


def test_a_line_that_a_kill_cut_short_is_left_out_and_written_anew(tmp_path: Path) -> None:
    answers = Answers(tmp_path, {})
    with answers.adding("gold") as add:
        add(outcome(0))
        add(outcome(1))
    path = tmp_path / "gold.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    assert answers.outcomes("gold") == {0: outcome(0)}
    with answers.adding("gold") as add:
        add(outcome(2))
    assert answers.outcomes("gold") == {0: outcome(0), 2: outcome(2)}


def test_another_evaluations_folder_is_refused_and_says_what_differs(tmp_path: Path) -> None:
    Answers(tmp_path, {"seed": 1, "model": "a"})
    with pytest.raises(InputError, match="seed: 1, not 2"):
        Answers(tmp_path, {"seed": 2, "model": "a"})
    Answers(tmp_path, {"seed": 1, "corpus": "c"})  # adds to what is known
    with pytest.raises(InputError, match="corpus: 'c', not 'd'"):
        Answers(tmp_path, {"seed": 1, "corpus": "d"})
    Answers(tmp_path, {"model": "a"})


def test_damaged_files_are_named(tmp_path: Path) -> None:
    answers = Answers(tmp_path, {})
    (tmp_path / "gold.jsonl").write_text("{\n")
    with pytest.raises(InputError, match=r"gold\.jsonl is damaged"):
        answers.outcomes("gold")
    (tmp_path / "gold.jsonl").write_text('{"place": 1}\n')
    with pytest.raises(InputError, match=r"gold\.jsonl is of another version"):
        answers.outcomes("gold")
    (tmp_path / "about.json").write_text("{")
    with pytest.raises(InputError, match=r"about\.json is damaged"):
        Answers(tmp_path, {})


def test_judgements_come_back_by_question_and_answer(tmp_path: Path) -> None:
    answers = Answers(tmp_path, {})
    with answers.judging() as add:
        add(3, "a bridge", 0.5)
        add(3, "a mill", 1.0)
    assert Answers(tmp_path, {}).judgements() == {(3, "a bridge"): 0.5, (3, "a mill"): 1.0}


def test_two_evaluations_do_not_write_to_one_folder(tmp_path: Path) -> None:
    writing = pytest.raises(InputError, match="another evaluation is writing")
    with lock_folder(tmp_path / "a"), writing, lock_folder(tmp_path / "a"):
        pytest.fail("two hold it")
    with lock_folder(tmp_path / "a"):  # let go of by then
        pass
