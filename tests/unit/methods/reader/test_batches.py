import random
from pathlib import Path

import numpy as np
import pytest
from tiny_pair import tiny_tokenizer

from condensery.methods.reader.batches import (
    PairForm,
    Row,
    SpanQuestions,
    collate,
    crop,
    draw_rows,
)
from condensery.methods.reader.data import find_spans
from condensery.methods.trainer.questions import Rules, read_questions

FORM = PairForm(start=2, end=3)


@pytest.fixture
def spots(questions: Path) -> SpanQuestions:
    return find_spans(read_questions([questions], Rules())[0], tiny_tokenizer())


def test_a_crop_holds_the_answer_and_has_the_size() -> None:
    rng = random.Random(0)
    firsts = set()
    for _ in range(500):
        length = rng.randint(1, 60)
        start = rng.randrange(length)
        end = rng.randint(start + 1, length)
        size = rng.randint(1, 70)
        first, last = crop(length, start, end, size, rng)
        assert 0 <= first <= start < end <= last <= length
        assert last - first == min(length, max(size, end - start))
        firsts.add(first)
    assert len(firsts) > 20


def test_rows_are_the_chances_own_and_keep_their_answers(spots: SpanQuestions) -> None:
    def draw(seed: int) -> list[Row]:
        return draw_rows(
            [spots], [1.0], random.Random(seed), tokens=600, sizes=(6, 20), question=8, others=0.5
        )

    rows = draw(1)
    assert [row.answer for row in rows] == [row.answer for row in draw(1)]
    assert [row.answer for row in rows] != [row.answer for row in draw(2)]
    tokenizer = tiny_tokenizer()
    for row in rows:
        assert len(row.question) <= 8
        assert len(row.passage) <= 20
        if row.answer is not None:
            start, end = row.answer
            assert tokenizer.decode(row.passage[start - 1 : start].tolist()) in ("long", "")
            assert end - start == 2  # two digits, a piece each
    share = sum(row.answer is None for row in rows) / sum(row.answer is not None for row in rows)
    assert 0.2 < share < 0.8


def test_a_batch_lays_rows_out_as_bert_reads_them() -> None:
    rows = [
        Row(np.array([10, 11]), np.array([20, 21, 22]), (1, 3)),
        Row(np.array([12]), np.array([23])),
    ]
    batch = collate(rows, FORM)
    ids = batch.inputs["input_ids"]
    assert ids.shape == (2, 32)
    assert ids[0, :9].tolist() == [2, 10, 11, 3, 20, 21, 22, 3, 0]
    assert ids[1, :6].tolist() == [2, 12, 3, 23, 3, 0]
    assert batch.inputs["token_type_ids"][0].nonzero().flatten().tolist() == [4, 5, 6, 7]
    assert batch.inputs["attention_mask"].sum(1).tolist() == [8, 5]
    assert batch.spans[0].nonzero().flatten().tolist() == [0, 4, 5, 6]
    assert batch.spans[1].nonzero().flatten().tolist() == [0, 3]
    assert (batch.start.tolist(), batch.end.tolist()) == ([5, 0], [6, 0])
    assert batch.first == [4, 3]
