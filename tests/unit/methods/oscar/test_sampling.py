import random
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from tiny_pair import tiny_shape

from condensery.methods.oscar.batches import Item
from condensery.methods.oscar.data import Example, Ids, QaData
from condensery.methods.oscar.sampling import Mix, Sampler, contains

SHAPE = tiny_shape()
MIX = Mix(smallest=6)


def some_data(seed: int, passages: int = 30, low: int = 10, high: int = 60) -> QaData:
    """Passages of ten articles over few tokens, so that answers do occur in other passages."""
    rng = np.random.default_rng(seed)
    texts = [rng.integers(low, high, rng.integers(5, 60)).astype(np.int32) for _ in range(passages)]
    examples = []
    for passage, text in enumerate(texts):
        for _ in range(3):
            start = int(rng.integers(0, len(text)))
            end = min(len(text), start + int(rng.integers(1, 4)))
            question = rng.integers(low, high, int(rng.integers(2, 20))).astype(np.int32)
            examples.append(Example(question, passage, start, end))
    articles = [list(range(i, min(i + 3, passages))) for i in range(0, passages, 3)]
    return QaData(examples, texts, [articles[i // 3] for i in range(passages)])


def sampler(seed: object = 0, mix: Mix = MIX, **sets: float) -> Sampler:
    shares = sets or {"one": 1.0}
    data = [(some_data(i), share) for i, share in enumerate(shares.values())]
    return Sampler(data, SHAPE, mix, random.Random(f"{seed}"))


def draw(count: int, seed: object = 0, mix: Mix = MIX) -> list[Item]:
    source = sampler(seed, mix)
    items: list[Item] = []
    while len(items) < count:
        items += source.batch(500)
    return items


def flat(items: list[Item]) -> list[object]:
    return [
        (
            item.question.tolist(),
            item.answer.tolist(),
            item.plain,
            [(row.passage.tolist(), row.answer) for row in item.rows],
        )
        for item in items
    ]


def within(ids: Ids, passage: Ids) -> bool:
    """Search by text: the other way to say that the ids stand in the passage."""
    return f" {' '.join(map(str, ids))} " in f" {' '.join(map(str, passage))} "


def test_the_gold_row_holds_the_answer_and_no_other_row_does() -> None:
    beside = 0
    for item in draw(600):
        golds = [row for row in item.rows if row.answer is not None]
        assert len(golds) == (1 if item.rows else 0)
        for row in golds:
            start, end = row.answer or (0, 0)
            assert row.passage[start:end].tolist() == item.answer.tolist()
        for row in item.rows:
            if row.answer is None:
                beside += 1
                assert not within(item.answer, row.passage)
            assert row.question.tolist() == item.question.tolist()
    assert beside > 100


def test_rows_fit_the_shape() -> None:
    lengths = set()
    for item in draw(600):
        assert len(item.question) <= SHAPE.query_tokens
        for row in item.rows:
            assert 1 <= len(row.passage) <= SHAPE.passage_tokens
            lengths.add(len(row.passage))
    assert max(lengths) == SHAPE.passage_tokens


def test_shares_are_those_of_the_mix() -> None:
    mix = Mix(several=0.5, plain=0.2, none=0.1, smallest=6)
    kinds = Counter(
        "plain" if item.plain else min(2, len(item.rows)) for item in draw(3000, mix=mix)
    )
    share = {kind: count / kinds.total() for kind, count in kinds.items()}
    assert share["plain"] == pytest.approx(0.2, abs=0.03)
    assert share[0] == pytest.approx(0.1, abs=0.03)
    # Beside them, half of the rest have others (a few find none).
    assert share[2] == pytest.approx(0.35, abs=0.05)


def test_the_gold_row_stands_anywhere() -> None:
    places = Counter(
        next(i for i, row in enumerate(item.rows) if row.answer is not None)
        for item in draw(2000)
        if len(item.rows) == 3
    )
    assert set(places) == {0, 1, 2}
    assert max(places.values()) < 2 * min(places.values())


def test_the_same_seed_draws_the_same_batches_and_another_does_not() -> None:
    first, again, other = (flat(draw(40, seed)) for seed in ("13 7", "13 7", "13 8"))
    assert first == again != other


def test_every_example_is_seen_once_before_any_is_seen_twice() -> None:
    data = some_data(0)
    seen = draw(len(data.examples) + 50)
    firsts = Counter(
        (tuple(item.question.tolist()), tuple(item.answer.tolist()))
        for item in seen[: len(data.examples)]
    )
    assert max(firsts.values()) == 1
    assert len(firsts) == len(data.examples)


def test_sets_are_drawn_by_their_shares_one_for_each_batch() -> None:
    source = Sampler(
        [(some_data(0, low=10, high=40), 3.0), (some_data(1, low=40, high=70), 1.0)],
        SHAPE,
        MIX,
        random.Random(1),
    )
    counts: Counter[bool] = Counter()
    for _ in range(400):
        second = {bool(item.question[0] >= 40) for item in source.batch(60)}
        assert len(second) == 1
        counts.update(second)
    assert counts[True] / 400 == pytest.approx(0.25, abs=0.06)


def test_batches_take_about_the_tokens_asked_for() -> None:
    source = sampler()
    for asked in (50, 500, 2000):
        sizes = [
            sum(len(row.question) + len(row.passage) + 12 for item in batch for row in item.rows)
            for batch in (source.batch(asked) for _ in range(20))
        ]
        assert np.mean(sizes) == pytest.approx(asked, abs=100)
    smaller = [len(source.batch(tokens)) for tokens in (1, 1000)]
    assert smaller[0] == 1 < smaller[1]


def test_contains_agrees_with_a_search() -> None:
    rng = np.random.default_rng(0)
    verdicts = []
    for _ in range(500):
        passage = rng.integers(0, 4, 12).astype(np.int32)
        answer = rng.integers(0, 4, int(rng.integers(1, 5))).astype(np.int32)
        assert contains(passage, answer) == within(answer, passage)
        verdicts.append(contains(passage, answer))
    assert any(verdicts)
    assert not all(verdicts)
    for a, b in pairwise([1, 2, 3]):
        assert contains(np.array([1, 2, 3], np.int32), np.array([a, b], np.int32))
