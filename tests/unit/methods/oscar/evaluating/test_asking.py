import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from condensery.methods.oscar.evaluating.asking import Outcome, ask, count_fitting, sigmoid
from condensery.question import CompressedPassage
from condensery.runtime.oscar import OscarModel

Row = dict[str, Any]
QUESTION = "what number is the mill?"


async def compressed(reader: OscarModel, texts: list[str]) -> list[CompressedPassage]:
    compressed = await reader.compress(QUESTION, texts)
    assert all(isinstance(passage, CompressedPassage) for passage in compressed)
    return [passage for passage in compressed if isinstance(passage, CompressedPassage)]


async def generate(reader: OscarModel, context: list[Any], most: int = 24) -> tuple[str, int]:
    tokens = [token async for token in reader.generate(QUESTION, context, max_tokens=most)]
    return "".join(token.text for token in tokens), tokens[-1].count


@pytest.fixture
def texts(rows: list[Row]) -> list[str]:
    return [row["context"] for row in rows[::4]]


async def test_the_best_scored_passages_are_read_best_first(
    reader: OscarModel, texts: list[str]
) -> None:
    passages = await compressed(reader, texts)
    scores = [passage.relevance or 0.0 for passage in passages]
    order = np.argsort(scores)[::-1]
    outcome = await ask(reader, QUESTION, texts, keep=2)
    wanted, count = await generate(reader, [passages[place].memory for place in order[:2]])
    assert outcome.answer == wanted
    assert (outcome.given, outcome.read, outcome.left_out) == (len(texts), 2, 0)
    assert outcome.first == order[0]
    assert outcome.relevance == pytest.approx(1 / (1 + math.exp(-max(scores))))
    assert outcome.vectors == 6
    # All that was given was compressed, and what was kept was read.
    all_read = reader.count_cost(QUESTION, passages, [], [], completion_tokens=0).flops_used
    nothing = reader.count_cost(QUESTION, [], [], [], completion_tokens=0).flops_used
    kept = [passages[place].memory for place in order[:2]]
    answered = reader.count_cost(QUESTION, [], kept, [], completion_tokens=count).flops_used
    assert outcome.flops == all_read - nothing + answered


async def test_in_order_means_the_order_given(reader: OscarModel, texts: list[str]) -> None:
    passages = await compressed(reader, texts)
    outcome = await ask(reader, QUESTION, texts, scored=False)
    assert outcome.answer == (await generate(reader, [passage.memory for passage in passages]))[0]
    best = await ask(reader, QUESTION, texts)
    assert best.answer != outcome.answer  # or the order of these texts tells nothing
    assert outcome.relevance == pytest.approx(best.relevance, abs=1e-6)  # batches differ
    assert outcome.first == best.first != 0


async def test_text_is_read_without_compressing(reader: OscarModel, texts: list[str]) -> None:
    outcome = await ask(reader, QUESTION, texts, keep=1, plain=True)
    assert outcome.answer == (await generate(reader, [texts[0]]))[0]
    assert (outcome.vectors, outcome.relevance, outcome.first) == (0, None, -1)
    short = await ask(reader, QUESTION, texts, keep=1, plain=True, max_tokens=2)
    assert outcome.answer.startswith(short.answer)
    assert short.answer != outcome.answer
    assert short.flops < outcome.flops
    none = await ask(reader, QUESTION, [])
    assert none.answer == (await generate(reader, []))[0]
    assert (none.given, none.read, none.positions) < (1, 1, outcome.positions)


async def test_positions_are_vectors_text_and_what_stands_between(
    reader: OscarModel, texts: list[str]
) -> None:
    sizes = [(await ask(reader, QUESTION, texts[:count])).positions for count in range(4)]
    # Each passage adds its three vectors, and a separator of its own.
    assert [after - before for before, after in pairwise(sizes)] == [4, 4, 4]


async def test_passages_without_room_are_left_out_from_the_last(
    reader: OscarModel, rows: list[Row]
) -> None:
    many = [row["context"] for row in rows]
    outcome = await ask(reader, QUESTION, many, plain=True)
    assert 0 < outcome.read < len(many)
    assert outcome.left_out == len(many) - outcome.read
    assert outcome.answer == (await generate(reader, list(many[: outcome.read])))[0]
    assert reader.free_positions_for(QUESTION, many[: outcome.read], 24) >= 0
    assert reader.free_positions_for(QUESTION, many[: outcome.read + 1], 24) < 0


@pytest.mark.parametrize("fits", range(7))
def test_as_many_are_read_as_fit(reader: OscarModel, fits: int, monkeypatch: Any) -> None:
    free = lambda _, context, most: fits - len(context)  # noqa: E731
    monkeypatch.setattr(reader, "free_positions_for", free)
    for count in range(9):
        assert count_fitting(reader, QUESTION, ["x"] * count, 24) == min(fits, count)


async def test_a_pair_that_scores_nothing_reads_in_order(
    causal_reader: OscarModel, texts: list[str]
) -> None:
    outcome = await ask(causal_reader, QUESTION, texts[:3], max_tokens=6)
    compressed = await causal_reader.compress(QUESTION, texts[:3])
    memory = [passage.memory for passage in compressed if isinstance(passage, CompressedPassage)]
    assert outcome.answer == (await generate(causal_reader, memory, 6))[0]
    assert (outcome.relevance, outcome.first) == (None, -1)
    assert outcome.vectors == sum(map(len, memory))
    plain = await ask(causal_reader, QUESTION, texts[:1], plain=True, max_tokens=6)
    assert isinstance(plain, Outcome)
    assert plain.vectors == 0


def test_the_sigmoid_holds_for_any_score() -> None:
    for score in (-800.0, -3.0, 0.0, 3.0, 800.0):
        with np.errstate(over="ignore"):
            assert sigmoid(score) == pytest.approx(float(1 / (1 + np.exp(-np.float64(score)))))
