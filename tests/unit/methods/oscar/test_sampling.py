import math
import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from tiny_pair import tiny_shape

from condensery.errors import InputError
from condensery.methods.oscar.batches import Item, Row
from condensery.methods.oscar.data import Example, Ids, QaData, RetrievedPassage
from condensery.methods.oscar.sampling import Mix, Sampler, contains, likeliest_window

SHAPE = tiny_shape()
MIX = Mix(smallest=6, spelled=0)


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


def test_what_is_read_as_text_may_be_longer_than_a_window() -> None:
    longest = 0
    mix = replace(MIX, plain=1, none=0, plain_tokens=2 * SHAPE.passage_tokens)
    for item in draw(200, mix=mix):
        assert item.plain
        longest = max(longest, *(len(row.passage) for row in item.rows))
    assert SHAPE.passage_tokens < longest <= 2 * SHAPE.passage_tokens


def test_shares_are_those_of_the_mix() -> None:
    mix = replace(MIX, several=0.5, others=3, plain=0.2, none=0.1)
    kinds = Counter(
        "plain" if item.plain else min(2, len(item.rows)) for item in draw(3000, mix=mix)
    )
    share = {kind: count / kinds.total() for kind, count in kinds.items()}
    assert share["plain"] == pytest.approx(0.2, abs=0.03)
    assert share[0] == pytest.approx(0.1, abs=0.03)
    # Beside them, half of the rest have others (a few find none).
    assert share[2] == pytest.approx(0.35, abs=0.05)


ENDS = (10, 11)


def test_an_answer_that_is_cut_out_goes_with_its_sentence_and_leaves_nothing_to_say() -> None:
    data = some_data(0)
    source = Sampler(
        [(data, 1.0)], SHAPE, replace(MIX, cut=0.5, plain=0, none=0), random.Random(0), ENDS
    )
    items = [item for _ in range(60) for item in source.batch(500)]
    cut = [item for item in items if not item.answer.size]
    assert len(cut) > 0.15 * len(items)  # some answers stand elsewhere too, or are all there is
    asked = {tuple(example.question[: SHAPE.query_tokens]): example for example in data.examples}
    for item in cut:
        example = asked[tuple(item.question)]
        passage = data.passages[example.passage].tolist()
        span = passage[example.start : example.end]
        for row in item.rows:
            assert (row.relevant, row.answer) == (False, None)
            assert not within(span, row.passage)
        first, last = example.start, example.end
        while first and passage[first - 1] not in ENDS:
            first -= 1
        while last < len(passage) and passage[last - 1] not in ENDS:
            last += 1
        assert within(item.rows[0].passage, passage[:first] + passage[last:])
    for item in items:
        if item.answer.size:
            assert any(row.relevant for row in item.rows)


def test_an_unanswerable_question_has_no_passage_that_answers_and_nothing_to_say() -> None:
    data = some_data(0)
    nothing = np.zeros(0, np.int32)
    examples = [
        Example(x.question, x.passage, 0, 0, nothing, answerable=False) for x in data.examples
    ]
    source = Sampler([(replace(data, examples=examples), 1.0)], SHAPE, MIX, random.Random(0))
    items = [item for _ in range(20) for item in source.batch(500)]
    assert {len(item.rows) for item in items} >= {1, 2, 3}
    for item in items:
        assert not item.answer.size
        assert not item.plain
        assert all(row.relevant is False and row.answer is None for row in item.rows)


def test_the_gold_row_stands_anywhere() -> None:
    places = Counter(
        next(i for i, row in enumerate(item.rows) if row.answer is not None)
        for item in draw(3000, mix=replace(MIX, first=0))
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


def retrieved(*scores: float, label: Ids | None = None) -> QaData:
    """One question: passage 0 answers it, 1 says the words too, 2 and 3 don't, 4 is of another."""
    texts = [np.arange(10, 30), np.arange(14, 40), np.arange(40, 60), np.arange(60, 80)]
    passages = [text.astype(np.int32) for text in [*texts, np.arange(80, 90)]]
    beside = (
        RetrievedPassage(1, 2, 4, scores[1]),
        RetrievedPassage(2, score=scores[2]),
        RetrievedPassage(3, score=scores[3]),
    )
    example = Example(np.array([5, 6], np.int32), 0, 6, 8, label, scores[0], beside)
    return QaData([example], passages, [[i] for i in range(5)])


def rows_of(data: QaData, mix: Mix) -> list[Row]:
    source = Sampler([(data, 1.0)], SHAPE, mix, random.Random(0))
    return [row for _ in range(60) for item in source.batch(100) for row in item.rows]


def test_what_was_retrieved_stands_beside_with_its_scores() -> None:
    mix = replace(MIX, several=1, others=4, retrieved=1, plain=0, none=0)
    by_score = {}
    for row in rows_of(retrieved(2.0, 1.0, -1.0, 3.0), mix):
        (where,) = {int(token) // 10 for token in row.passage[-1:]}
        by_score[row.score] = (row.answer is not None, row.relevant)
        assert where <= 7  # nothing but what was retrieved
        if row.answer is not None:
            start, end = row.answer
            assert row.passage[start:end].tolist() == [16, 17]
    assert by_score == {
        2.0: (True, True),
        1.0: (True, True),  # it says the words, and the teacher says that it answers
        -1.0: (False, False),
        3.0: (False, None),  # the teacher says that it answers, in other words
    }


def test_the_words_of_an_answer_are_pointed_at_only_where_the_score_says_so() -> None:
    mix = replace(MIX, several=1, others=4, retrieved=1, plain=0, none=0)
    relevance = {row.score: row.relevant for row in rows_of(retrieved(-2.0, -1.0, -1.5, -3.0), mix)}
    assert relevance == {-2.0: True, -1.0: None, -1.5: False, -3.0: False}


def test_some_of_the_others_are_of_other_questions() -> None:
    mix = replace(MIX, several=1, others=4, retrieved=0.5, plain=0, none=0)
    rows = rows_of(retrieved(2.0, 1.0, -1.0, -2.0), mix)
    unscored = [row for row in rows if math.isnan(row.score)]
    assert 0.05 < len(unscored) / len(rows) < 0.6
    assert all(row.answer is None and row.relevant is False for row in unscored)
    for row in unscored:
        assert not within(np.array([16, 17], np.int32), row.passage)


def test_no_passage_stands_twice_in_an_item() -> None:
    for item in draw(400, mix=replace(MIX, several=1, others=4, same_article=1)):
        golds = [row for row in item.rows if row.answer is not None]
        if len(item.rows) > 1 and golds:
            firsts = [tuple(row.passage.tolist()) for row in item.rows]
            assert len(set(firsts)) == len(firsts)


def test_a_label_of_its_own_is_what_is_said() -> None:
    label = np.array([91, 92], np.int32)
    source = Sampler(
        [(retrieved(1.0, 1.0, 1.0, 1.0, label=label), 1.0)], SHAPE, MIX, random.Random(0)
    )
    for item in source.batch(200):
        assert item.answer.tolist() == [91, 92]


def test_plain_items_have_several_passages_too() -> None:
    counts = Counter(
        len(item.rows) for item in draw(2000, mix=replace(MIX, plain=0.5)) if item.plain
    )
    assert {1, 2, 3, 4} <= set(counts)


def test_slips_are_as_many_as_asked_for_and_repeat_or_stray() -> None:
    mix = replace(MIX, slips=0.2, none=0)
    items = draw(2000, mix=mix)
    slipped = again = tokens = 0
    for item in items:
        tokens += len(item.answer)
        if item.said is None:
            continue
        assert len(item.said) == len(item.answer)
        for i, (fed, meant) in enumerate(zip(item.said, item.answer, strict=True)):
            slipped += fed != meant
            again += i > 0 and fed == item.said[i - 1] and fed != meant
    assert 0.14 < slipped / tokens < 0.21  # some slips hit the right word
    assert again > 0.1 * slipped
    assert all(item.said is None for item in draw(300, mix=replace(MIX, slips=0)))


@pytest.mark.parametrize("wrong", [{"plain": 1.2}, {"several": -0.1}, {"others": 0}])
def test_a_mix_that_is_none_is_refused_by_name(wrong: dict[str, float]) -> None:
    (name,) = wrong
    with pytest.raises(InputError, match=f"{name}="):
        Mix(**wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"none=0\.5"):
        Mix(plain=0.6, none=0.5)


def test_the_passage_that_answers_stands_first_as_often_as_asked() -> None:
    data = retrieved(*[math.nan] * 4)
    for share in (0.0, 0.6, 1.0):
        mix = replace(MIX, several=1, others=3, retrieved=1, first=share, plain=0, none=0)
        source = Sampler([(data, 1.0)], SHAPE, mix, random.Random(0))
        items = [item for _ in range(150) for item in source.batch(100)]
        expected = np.mean([share + (1 - share) / len(item.rows) for item in items])
        first_share = np.mean([item.rows[0].relevant is True for item in items])
        assert first_share == pytest.approx(expected, abs=0.06)


def test_a_question_that_is_only_ranked_has_gold_and_others_and_says_nothing() -> None:
    data = retrieved(*[math.nan] * 4, label=np.zeros(0, np.int32))
    example = replace(
        data.examples[0], start=0, end=0, beside=(RetrievedPassage(2), RetrievedPassage(3))
    )
    mix = replace(MIX, several=0, others=2, retrieved=1, plain=1, none=0)
    source = Sampler([(replace(data, examples=[example]), 1.0)], SHAPE, mix, random.Random(0))
    for item in [item for _ in range(30) for item in source.batch(100)]:
        assert not item.answer.size
        assert not item.plain
        assert [row.relevant for row in item.rows] == [True, *[False] * (len(item.rows) - 1)]
        assert len(item.rows) > 1
        assert all(row.answer is None for row in item.rows)


def test_of_long_passages_that_are_only_ranked_the_likeliest_window_is_read() -> None:
    rng = np.random.default_rng(0)
    words = rng.integers(100, 1000, (2, 12 * SHAPE.passage_tokens)).astype(np.int32)
    question = np.array([10, 11, 12], np.int32)
    for passage, at in zip(words, (3, 9), strict=True):
        first = at * SHAPE.passage_tokens
        passage[first : first + 3] = question
        passage[:20] = 10  # one of its words, many times: says little
    example = Example(question, 0, 0, 0, np.zeros(0, np.int32), beside=(RetrievedPassage(1),))
    data = QaData([example], list(words), [[0], [1]])
    mix = replace(MIX, others=1, retrieved=1, smallest=1)
    source = Sampler([(data, 1.0)], SHAPE, mix, random.Random(0))
    for item in [item for _ in range(10) for item in source.batch(100)]:
        assert all(within(question, row.passage) for row in item.rows)
        assert [len(row.passage) for row in item.rows] == [SHAPE.passage_tokens] * 2
    assert likeliest_window(question, question, 8) == (0, 3)


def test_where_answers_are_spelled_nothing_is_compressed() -> None:
    items = draw(300, mix=replace(MIX, spelled=1, several=0.5, others=3, first=0.5, slips=0.1))
    spelled = [item.spelled for item in items if item.spelled is not None]
    assert len(spelled) == len(items)
    assert not any(item.rows for item in items)
    assert all(0 < len(item.answer) <= SHAPE.memory_tokens for item in items)
    counts = Counter(passages for passages, _ in spelled)
    assert set(counts) == {1, 2, 3, 4}
    assert 0.4 < counts[1] / len(items) < 0.6
    assert all(0 <= place < passages for passages, place in spelled)
    assert {place for _, place in spelled} == {0, 1, 2, 3}
    assert any(item.said is not None for item in items)
    shares = [
        bool(item.spelled)
        for _ in range(400)
        for item in sampler(_, replace(MIX, spelled=0.3)).batch(60)[:1]
    ]
    assert 0.2 < np.mean(shares) < 0.4
