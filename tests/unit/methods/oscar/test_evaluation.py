import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tiny_pair import pair_files, tiny_pair

from condensery.agreement import exact, f1
from condensery.methods.oscar.evaluation import (
    answer,
    beside,
    of_others,
    replaced,
    says,
    score,
    sort_of,
    validate,
)
from condensery.methods.oscar.report import measure, sample
from condensery.runtime.pair import make_ready
from condensery.runtime.reader import Reader
from condensery.runtime.workers import Workers

Row = dict[str, Any]


def row(context: str, title: str, answers: list[str], question: str = "what?") -> Row:
    return {"question": question, "context": context, "title": title, "answers": answers}


ROWS = [
    row(f"In town {t}{i} the mill number {10 * t + i} stands.", f"title {t}", [f"{10 * t + i}"])
    for t in range(1, 4)
    for i in range(3)
]


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    pair = make_ready(tiny_pair())
    workers = Workers(2)
    with ThreadPoolExecutor(1) as threads:
        files = pair_files(tmp_path / "pair", pair)
        running = Reader.of(pair, files, workers, name="tiny", threads=threads)
        yield running
        running.close()
    workers.close()


def test_the_gold_passage_stands_among_others_of_its_article_first() -> None:
    places = set()
    for seed in range(20):
        for one, (passages, at) in zip(ROWS, beside(ROWS, 5, random.Random(seed)), strict=True):
            assert passages[at] == one["context"]
            assert len(passages) == len(set(passages)) == 5
            own = {r["context"] for r in ROWS if r["title"] == one["title"]}
            assert own <= set(passages)
            places.add(at)
    assert places == set(range(5))
    for passages, _ in beside(ROWS, 2, random.Random(0)):
        assert len({text.split()[2][0] for text in passages}) == 1  # both of one article


def test_too_few_passages_are_an_error_not_an_endless_search() -> None:
    with pytest.raises(ValueError, match="4 passages can't make 5"):
        beside(ROWS[:4], 5, random.Random(0))
    with pytest.raises(ValueError, match="only 0 passages"):
        of_others(ROWS[:3], 1, random.Random(0))  # one article


def test_passages_of_others_hold_no_answer_and_are_of_other_articles() -> None:
    rows = [*ROWS, row("The mill of Bo.", "title 4", ["Bo", "21"])]
    chosen = of_others(rows, 5, random.Random(0))
    for one, passages in zip(rows, chosen, strict=True):
        assert len(set(passages)) == 5
        own = {r["context"] for r in rows if r["title"] == one["title"]}
        assert not own & set(passages)
        for passage in passages:
            assert not set(one["answers"]) & set(passage.removesuffix(".").split())


def test_an_answer_that_is_a_letter_in_every_text_does_not_rule_all_out() -> None:
    rows = [*ROWS, row("The class P is large.", "title 4", ["P", "."])]
    with pytest.raises(ValueError, match="what"):
        of_others([*ROWS, row("The mill.", "title 4", ["mill"])], 5, random.Random(0))
    assert len(of_others(rows, 5, random.Random(0))[-1]) == 5


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
    assert says(text, words) == verdict


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
        assert sort_of(pick) == sort_of(old)
        (source,) = (r for r in rows if r["answers"] == new["old"])
        assert new["context"] == source["context"].replace(old, pick)
        assert new["question"] == source["question"]
    assert {r["answers"][0] for r in rows} == {"Anna", "Carla", "1912", "1950", "red", "Dora"}
    assert swapped[0]["context"].count(swapped[0]["answers"][0]) == 2


def test_an_answer_its_passage_spells_otherwise_can_not_be_replaced() -> None:
    rows = [row("ANNA left.", "t", ["Anna"]), row("Carla left.", "t", ["Carla"])]
    assert [new["old"] for new in replaced(rows, random.Random(0))] == [["Carla"]]


def test_sorts_tell_numbers_names_and_other_words() -> None:
    assert sort_of("12 mills") == (True, False, 2)
    assert sort_of("Old Mill") == (False, True, 2)
    assert sort_of("a very old mill indeed") == (False, False, 4)


async def test_scores_are_those_of_the_answers_given(reader: Reader) -> None:
    passages = [[one["context"], ROWS[0]["context"]] for one in ROWS]
    found = await score(reader, ROWS, passages)
    for one, texts, text, em, part, first in zip(
        ROWS, passages, found.answers, found.em, found.f1, found.first, strict=True
    ):
        assert (text, first) == await answer(reader, "what?", texts, keep=None, plain=False)
        assert em == exact(text, one["answers"])
        assert part == f1(text, one["answers"])
        relevance = [p.relevance for p in await reader.compress("what?", texts)]
        assert relevance[first] == max(relevance)
    means = found.means()
    assert means["f1"] == pytest.approx(100 * sum(found.f1) / len(ROWS))


async def test_an_answer_is_read_from_the_best_passages_only(reader: Reader) -> None:
    texts = [one["context"] for one in ROWS]
    text, first = await answer(reader, "what?", texts, keep=1, plain=False)
    alone, _ = await answer(reader, "what?", [texts[first]], keep=None, plain=False)
    assert text == alone
    assert (await answer(reader, "what?", [], keep=None, plain=False))[1] == -1
    assert (await answer(reader, "what?", texts[:1], keep=None, plain=True))[1] == -1


async def test_a_report_has_every_setting_and_is_the_same_again(reader: Reader) -> None:
    report, again = [await measure(reader, ROWS, seed=4) for _ in range(2)]
    assert report["questions"] == 9
    assert list(report["settings"]) == [
        *("gold", "gold_among_five", "gold_among_five_best_one"),
        *("no_passage", "others_passages", "gold_plain"),
    ]
    for one in (report, again):
        for figures in one["settings"].values():
            del figures["seconds"]
    assert report == again
    for worse in ("no_passage", "others_passages"):
        difference = report["differences"][f"gold_among_five_minus_{worse}"]
        wanted = report["settings"]["gold_among_five"]["f1"] - report["settings"][worse]["f1"]
        assert difference["f1"] == pytest.approx(wanted, abs=0.02)
        assert difference["low_95"] <= difference["f1"] <= difference["high_95"]
    assert json.loads(json.dumps(report)) == report


def test_questions_are_sampled_by_the_seed(tmp_path: Path) -> None:
    path = tmp_path / "dev.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in ROWS))
    assert sample(path, 4, 1) == sample(path, 4, 1) != sample(path, 4, 2)
    assert sorted(map(str, sample(path, 100, 1))) == sorted(map(str, ROWS))


def test_validation_leaves_the_pair_in_training_as_it_was(tmp_path: Path) -> None:
    pair = tiny_pair()
    files = pair_files(tmp_path, pair)
    pair.train()
    before = {name: value.clone() for name, value in pair.state_dict().items()}
    report = validate(pair, files, ROWS, limit=6)
    assert set(report) == {"gold", "plain", "among_five", "gold_first", "samples"}
    assert pair.training
    assert all(value.equal(before[name]) for name, value in pair.state_dict().items())
