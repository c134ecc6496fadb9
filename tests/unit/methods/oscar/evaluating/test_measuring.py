import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from condensery.agreement import exact_match
from condensery.errors import InputError, ModelFault
from condensery.methods.oscar.evaluating import measuring
from condensery.methods.oscar.evaluating.asking import Outcome
from condensery.methods.oscar.evaluating.measuring import (
    QuestionRunner,
    choose_passages,
    measure,
    swapped,
)
from condensery.methods.oscar.evaluating.placing import other_passages, place_among_others, replaced
from condensery.methods.oscar.evaluating.saving import Answers
from condensery.methods.oscar.evaluating.settings import FIXED, Setting
from condensery.runtime.oscar import OscarModel

Row = dict[str, Any]
SETTINGS = {setting.key: setting for setting in FIXED}


def test_passages_are_drawn_as_ever_whatever_is_asked_for(rows: list[Row]) -> None:
    rng = random.Random(17)
    placed, others = place_among_others(rows, 5, rng), other_passages(rows, 5, rng)
    for keys in (list(SETTINGS), ["others_passages"], ["gold_among_five"]):
        chosen = choose_passages(rows, [SETTINGS[key] for key in keys], 17, {})
        assert chosen.passages["five"] == [texts for texts, _ in placed]
        assert chosen.gold_at == [at for _, at in placed]
        assert chosen.passages["others"] == others
    right = [
        Outcome(row["answers"][0], 1, 1, 0, None, -1, 0, 1, 1, place) if place % 3 else
        Outcome("no", 1, 1, 0, None, -1, 0, 1, 1, place)
        for place, row in enumerate(rows)
    ]  # fmt: skip
    wanted = replaced([row for place, row in enumerate(rows) if place % 3], rng)
    assert swapped(rows, right, chosen) == wanted == swapped(rows, right, chosen)
    assert wanted


def test_too_few_passages_matter_only_where_they_are_asked_for(rows: list[Row]) -> None:
    chosen = choose_passages(rows[:2], [SETTINGS["gold"]], 0, {})
    assert chosen.passages["gold"] == [[row["context"]] for row in rows[:2]]
    with pytest.raises(InputError, match="questions: 2 passages can't make 5"):
        choose_passages(rows[:2], [SETTINGS["gold_among_five"]], 0, {})
    with pytest.raises(InputError, match="only 3 passages hold no answer"):
        choose_passages(rows[:6], [SETTINGS["others_passages"]], 0, {})
    assert "gold" not in choose_passages(rows, [SETTINGS["no_passage"]], 0, {}).passages


async def test_a_stopped_evaluation_asks_only_what_is_missing(
    reader: OscarModel, rows: list[Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int]] = []
    ask, stop = measuring.ask, 11

    async def counted(reader: OscarModel, question: str, texts: Any, **options: Any) -> Outcome:
        if len(asked) == stop:
            raise ModelFault("stopped")
        asked.append((question, len(texts)))
        return await ask(reader, question, texts, **options)

    monkeypatch.setattr(measuring, "ask", counted)
    settings = [SETTINGS[key] for key in ("no_passage", "gold", "gold_among_five")]
    chosen = choose_passages(rows[:9], settings, 3, {})
    asking = QuestionRunner(reader, Answers(tmp_path / "a", {}), at_once=1, max_tokens=5)
    with pytest.raises(ModelFault):
        await measure(asking, rows[:9], settings, chosen)
    assert len(asked) == 11
    stop = 10_000
    outcomes = await measure(asking, rows[:9], settings, chosen)
    swaps = len(swapped(rows[:9], outcomes["gold"], chosen))
    assert len(asked) == 3 * 9 + swaps
    whole = QuestionRunner(reader, Answers(tmp_path / "b", {}), at_once=4, max_tokens=5)
    wanted = await measure(whole, rows[:9], settings, chosen)
    for key in wanted:
        assert [outcome.answer for outcome in outcomes[key]] == [
            outcome.answer for outcome in wanted[key]
        ]
        assert [outcome.place for outcome in outcomes[key]] == list(range(len(outcomes[key])))
    # Time goes on where it was, and only ever grows.
    elapsed = sorted(outcome.elapsed for outcome in outcomes["gold"])
    assert all(a < b for a, b in pairwise(elapsed))
    asked.clear()
    assert await measure(asking, rows[:9], settings, chosen) == outcomes
    assert asked == []


async def test_settings_that_ask_the_same_are_asked_once(
    reader: OscarModel, rows: list[Row], tmp_path: Path
) -> None:
    first = Setting("plain_2", "bm25", 2, plain=True)
    second = Setting("bm25_3", "bm25", 3, read=2, plain=True)
    texts = [[rows[0]["context"], row["context"], rows[1]["context"]] for row in rows[:4]]
    chosen = choose_passages(rows[:4], [first, second], 0, {"bm25": texts})
    outcomes = await measure(
        QuestionRunner(reader, Answers(tmp_path, {})), rows[:4], [first, second], chosen
    )
    assert outcomes["plain_2"] == outcomes["bm25_3"]
    assert first.asks == second.asks


async def test_answers_that_follow_the_passage_are_told_from_those_that_do_not(
    reader: OscarModel, rows: list[Row], tmp_path: Path
) -> None:
    """Answers taken from the saved folder, where they are what a perfect reader would say."""
    answers = Answers(tmp_path, {})
    gold = SETTINGS["gold"]
    with answers.adding(gold.asks) as add:
        for place, row in enumerate(rows):
            add(Outcome(row["answers"][0], 1, 1, 0, None, 0, 3, 9, 1, place, 0.1))
    chosen = choose_passages(rows, [gold], 0, {})
    outcomes = await measure(QuestionRunner(reader, answers), rows, [gold], chosen)
    assert all(
        exact_match(outcome.answer, row["answers"])
        for outcome, row in zip(outcomes["gold"], rows, strict=True)
    )
    assert len(outcomes["replaced"]) == len(swapped(rows, outcomes["gold"], chosen)) > 0
