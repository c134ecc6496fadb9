import random
from typing import Any

import numpy as np
import pytest

from condensery.agreement import exact_match, f1_score
from condensery.methods.oscar.evaluating.asking import Outcome
from condensery.methods.oscar.evaluating.figures import Figures, match
from condensery.methods.oscar.evaluating.judging import Judged
from condensery.methods.oscar.evaluating.measuring import ChosenPassages, swapped
from condensery.methods.oscar.evaluating.settings import FIXED, Setting, retrieved
from condensery.methods.trainer.reports import paired_bootstrap

Row = dict[str, Any]
FIVE = {setting.key: setting for setting in FIXED}
SETTINGS: list[Setting] = [
    *(FIVE[key] for key in ("no_passage", "others_passages", "gold", "gold_among_five")),
    *(FIVE[key] for key in ("gold_among_five_best_one", "gold_among_five_plain")),
    *(retrieved(family, 2, 1, by_words=True) for family in ("plain", "reranked", "bm25")),
]


def made_up(rows: list[Row]) -> dict[str, list[Outcome]]:
    """Answers as a pair might give, at random: right, nearly, with words round it, or wrong."""
    rng = random.Random(5)

    def answer(row: Row) -> str:
        right = row["answers"][0]
        return rng.choice([right, f"{right} mills", f"so {right} it is", "none", ""])

    def outcome(place: int, row: Row) -> Outcome:
        score, text = rng.random(), answer(row)
        return Outcome(text, 5, 2, 1, score, rng.randrange(5), 16, 31, 10**9 * place, place, place)

    return {
        setting.key: [outcome(place, row) for place, row in enumerate(rows)] for setting in SETTINGS
    }


@pytest.fixture
def chosen(rows: list[Row]) -> ChosenPassages:
    five = [[row["context"], *["x"] * 4] for row in rows]
    retrieved_texts = [
        [other["context"], row["context"]] if place % 3 else [other["context"]]
        for place, (row, other) in enumerate(zip(rows, [*rows[1:], rows[0]], strict=True))
    ]
    passages = {
        "none": [[] for _ in rows],
        "others": five,
        "gold": [[row["context"]] for row in rows],
        "five": five,
        "bm25": retrieved_texts,
    }
    return ChosenPassages(passages, [place % 5 for place in range(len(rows))], random.Random(1))


def test_settings_have_the_means_of_each_question_with_intervals(
    rows: list[Row], chosen: ChosenPassages
) -> None:
    outcomes = made_up(rows)
    report = Figures(rows, SETTINGS, chosen, outcomes).settings()
    assert list(report) == [setting.key for setting in SETTINGS]
    rng = np.random.default_rng(0)
    picks = rng.integers(len(rows), size=(10_000, len(rows)))
    for key, metric in (
        ("gold", exact_match),
        ("gold_among_five", f1_score),
        ("reranked_2", match),
    ):
        values = np.array(
            [metric(o.answer, r["answers"]) for o, r in zip(outcomes[key], rows, strict=True)]
        )
        name = {exact_match: "em", f1_score: "f1", match: "match"}[metric]
        low, high = np.percentile(values[picks].mean(axis=1), [2.5, 97.5])
        assert report[key][name]["mean"] == pytest.approx(100 * values.mean(), abs=0.006)
        assert report[key][name]["low"] == pytest.approx(100 * low, abs=0.006)
        assert report[key][name]["high"] == pytest.approx(100 * high, abs=0.006)
    gold = report["gold"]
    assert (gold["passages"], gold["read"], gold["left_out"]) == (1, 2, 1)
    assert (gold["vectors"], gold["tokens"]) == (16, 31)
    # The last answer was there after 17 seconds, and each question took its place in GFLOPs.
    assert gold["seconds"] == pytest.approx(17 / 18, abs=1e-4)
    assert gold["tflops"] == pytest.approx(8.5e-3)
    assert "gold_found" not in gold


def test_retrieved_settings_tell_what_holds_where_the_gold_passage_was_found(
    rows: list[Row], chosen: ChosenPassages
) -> None:
    outcomes = made_up(rows)
    report = Figures(rows, SETTINGS, chosen, outcomes).settings()["plain_2"]
    assert report["passages"] == pytest.approx(5 / 3, abs=0.005)  # BM25 found but one for a third
    with_gold = [place for place in range(len(rows)) if place % 3]
    scores = [
        f1_score(outcomes["plain_2"][place].answer, rows[place]["answers"]) for place in with_gold
    ]
    assert report["gold_found"]["share"] == pytest.approx(100 * 2 / 3, abs=0.01)
    assert report["gold_found"]["f1"] == pytest.approx(100 * np.mean(scores), abs=0.01)


def test_differences_are_paired(rows: list[Row], chosen: ChosenPassages) -> None:
    outcomes = made_up(rows)
    differences = Figures(rows, SETTINGS, chosen, outcomes).differences()
    assert set(differences) == {
        "gold_among_five_minus_no_passage",
        "gold_among_five_minus_others_passages",
        "gold_among_five_best_one_minus_gold_among_five",
        "gold_among_five_plain_minus_gold_among_five",
        "gold_among_five_plain_minus_gold_among_five_best_one",
        "plain_2_minus_reranked_2",
        "reranked_2_minus_bm25_2",
    }
    scores = {
        key: [f1_score(o.answer, r["answers"]) for o, r in zip(outcomes[key], rows, strict=True)]
        for key in ("plain_2", "reranked_2")
    }
    mean, low, high = paired_bootstrap(scores["plain_2"], scores["reranked_2"])
    difference = differences["plain_2_minus_reranked_2"]
    figures = (difference["f1"], difference["low_95"], difference["high_95"])
    assert figures == pytest.approx((100 * mean, 100 * low, 100 * high), abs=0.006)
    ems = [
        np.mean(
            [exact_match(o.answer, r["answers"]) for o, r in zip(outcomes[key], rows, strict=True)]
        )
        for key in ("plain_2", "reranked_2")
    ]
    assert difference["em"]["mean"] == pytest.approx(100 * (ems[0] - ems[1]), abs=0.006)
    assert Figures(rows, SETTINGS[:1], chosen, outcomes).differences() == {}


def test_abstention_is_of_the_better_way_to_read_five(
    rows: list[Row], chosen: ChosenPassages
) -> None:
    outcomes = made_up(rows)
    right = [Outcome(row["answers"][0], 5, 1, 0, 0.9, 0, 8, 9, 1, n) for n, row in enumerate(rows)]
    better = {**outcomes, "gold_among_five_best_one": right}
    abstention = Figures(rows, SETTINGS, chosen, better).abstention()["abstention"]
    assert abstention["setting"] == "gold_among_five_best_one"
    assert abstention["curve"][0]["f1_answered"] == 100
    unscored = [Outcome("", 5, 1, 0, None, -1, 8, 9, 1, n) for n in range(len(rows))]
    without = {**outcomes, "others_passages": unscored}
    assert Figures(rows, SETTINGS, chosen, without).abstention() == {}


def test_the_gold_one_of_five_is_first_as_often_as_it_is(
    rows: list[Row], chosen: ChosenPassages
) -> None:
    outcomes = made_up(rows)
    wanted = np.mean([o.first == p % 5 for p, o in enumerate(outcomes["gold_among_five"])])
    share = Figures(rows, SETTINGS, chosen, outcomes).ranked_first()
    assert share["gold_ranked_first_among_five"] == pytest.approx(100 * wanted, abs=0.01)


def test_judgements_are_averaged_over_those_judged_and_the_others_are_counted(
    rows: list[Row], chosen: ChosenPassages
) -> None:
    outcomes = made_up(rows)
    scores = {(outcome.place, outcome.answer): 0.5 for outcome in outcomes["gold"][:6]}
    scores |= {(outcome.place, outcome.answer): 1.0 for outcome in outcomes["gold"][6:9]}
    report = Figures(rows, SETTINGS, chosen, outcomes, Judged(scores, [])).settings()
    judge = report["gold"]["judge"]
    assert judge["mean"] == pytest.approx(100 * 6 / 9, abs=0.01)
    assert judge["low"] < judge["mean"] < judge["high"]
    assert (judge["questions"], judge["failed"]) == (9, 9)
    none = Figures(rows, SETTINGS, chosen, outcomes, Judged({}, [])).settings()
    assert "judge" not in none["gold"]


def test_what_was_rewritten_is_counted_by_what_the_answers_follow(
    rows: list[Row], chosen: ChosenPassages
) -> None:
    outcomes = made_up(rows)
    right = [Outcome(row["answers"][0], 1, 1, 0, 0.9, 0, 8, 9, 1, n) for n, row in enumerate(rows)]
    changed = swapped(rows, right, chosen)
    rewritten = [
        Outcome(row["answers" if place % 2 else "old"][0], 1, 1, 0, 0.9, 0, 8, 9, 1, place)
        for place, row in enumerate(changed)
    ]
    figures = Figures(rows, SETTINGS, chosen, {**outcomes, "gold": right, "replaced": rewritten})
    followed = figures.replaced()["replaced"]
    follows = 100 * len(rewritten[1::2]) / len(rewritten)
    assert followed["questions"] == len(changed) > 4
    assert followed["follows_em"] == pytest.approx(follows, abs=0.01)
    assert followed["keeps_old_answer"] == pytest.approx(100 - follows, abs=0.01)
    assert Figures(rows, SETTINGS, chosen, outcomes).replaced() == {}


def test_examples_are_of_the_most_telling_setting(rows: list[Row], chosen: ChosenPassages) -> None:
    outcomes = made_up(rows)
    examples = Figures(rows, SETTINGS, chosen, outcomes).examples(2)
    assert examples[1] == {
        "question": rows[1]["question"],
        "answer": outcomes["gold_among_five"][1].answer,
        "gold": rows[1]["answers"],
    }
    alone = Figures(rows, SETTINGS[:1], chosen, {"no_passage": outcomes["no_passage"]})
    assert len(alone.examples()) == 12


@pytest.mark.parametrize(
    ("answer", "golds", "verdict"),
    [
        ("it was built in 1912, they say", ["1912"], 1.0),
        ("The Denver Broncos won", ["denver broncos!"], 1.0),
        ("broncos", ["Denver Broncos"], 0.0),  # the answer in the gold one is no match
        ("the river Rhine", ["Danube", "Rhine"], 1.0),
        ("cathedral", ["the cat"], 1.0),  # a substring, as in the paper, not words
        ("", ["1912"], 0.0),
        ("anything", ["the"], 0.0),  # nothing is left of the gold one
        ("the", ["a"], 1.0),
    ],
)
def test_a_gold_answer_is_found_in_the_answer_once_both_are_normalised(
    answer: str, golds: list[str], verdict: float
) -> None:
    assert match(answer, golds) == verdict
