from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.methods.distil.conftest import jsonl

from condensery.errors import InputError
from condensery.methods.distil.corpus import build_corpus, choose, judged_questions
from condensery.methods.ranking.retrieval import CorpusPassage
from condensery.methods.ranking.sets import RankingSet
from condensery.methods.trainer.questions import TrainingQuestion


def question(*passages: str, answers: tuple[str, ...] = (), title: str = "") -> TrainingQuestion:
    return TrainingQuestion("Who?", passages, answers, "", title, "a.jsonl, line 1")


def test_each_text_is_one_passage_whoever_brings_it(tmp_path: Path) -> None:
    more = jsonl(
        tmp_path / "more.jsonl",
        [{"text": "The  mill.", "title": "Other"}, {"text": "A weir.", "title": "Weirs"}],
    )
    asked = [question("The mill.", title="Mills"), question("The river."), question("The mill. ")]
    corpus = build_corpus(asked, [more])
    assert [passage.text for passage in corpus.passages] == ["The mill.", "The river.", "A weir."]
    assert [passage.title for passage in corpus.passages] == ["Mills", "", "Weirs"]
    assert [passage.id for passage in corpus.passages] == ["0", "1", "2"]
    assert corpus.gold == [(0,), (1,), (0,)]


def test_of_several_passages_those_with_an_answer_are_gold() -> None:
    texts = ("Old bread.", "The miller, of Brenn.", "A smith.", "One miller.")
    asked = [
        question(*texts, answers=("the Miller", "nobody")),
        question(*texts, answers=("mill",)),
        question(*texts),
        question("", " "),
    ]
    assert build_corpus(asked).gold == [(1, 3), (0,), (0,), ()]


@pytest.mark.parametrize("row", [{"text": " "}, {"text": None}, {"title": "only"}])
def test_a_row_without_text_is_refused_with_its_place(tmp_path: Path, row: dict[str, Any]) -> None:
    path = jsonl(tmp_path / "more.jsonl", [{"text": "A weir."}, row])
    with pytest.raises(InputError, match=r"more\.jsonl, line 2: text: .* is no text"):
        build_corpus([], [path])


@pytest.mark.parametrize(
    ("hits", "gold", "top", "chosen"),
    [
        ([5, 3, 9], (3,), 3, [5, 3, 9]),
        ([5, 3, 9], (4,), 3, [5, 3, 4]),
        ([5, 3, 9], (9, 4), 3, [5, 9, 4]),
        ([5, 3, 9, 4], (4,), 3, [5, 3, 4]),
        ([5], (4,), 3, [5, 4]),
        ([], (4,), 3, [4]),
        ([5, 3, 9], (), 3, [5, 3, 9]),
        ([5, 3, 9], (1, 2, 3, 4), 3, [3, 1, 2]),
        ([5], (1, 2), 1, [1]),
        ([], (), 3, []),
    ],
)
def test_gold_takes_the_place_of_the_last_that_is_not(
    hits: list[int], gold: tuple[int, ...], top: int, chosen: list[int]
) -> None:
    assert choose(hits, gold, top) == chosen


def test_gold_is_what_a_question_names() -> None:
    asked = [replace(question("a mill", "a weir", "bread", answers=("mill",)), gold=(1, 2))]
    assert build_corpus(asked).gold == [(1, 2)]


def test_a_retrieval_sets_queries_come_with_what_is_judged_to_answer() -> None:
    passages = [CorpusPassage("x", "a mill", "Mills"), CorpusPassage("y", "a weir")]
    ranking_set = RankingSet("tiny", passages, "", {"q": "what grinds?"}, {"q": {"y": 1, "x": 2}})
    (asked,) = judged_questions(ranking_set)
    assert (asked.question, asked.passages) == ("what grinds?", ("a weir", "Mills\na mill"))
    assert (asked.gold, asked.answers, asked.label) == ((0, 1), (), "")
    assert asked.where == "tiny, query q"
