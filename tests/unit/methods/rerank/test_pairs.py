from pathlib import Path

import pytest
import torch
from tiny_pair import VOCABULARY, text_of

from condensery.methods.rerank.model import PairTokenizer, open_base

START, END = VOCABULARY.index("[CLS]"), VOCABULARY.index("[SEP]")


@pytest.fixture(scope="module")
def reader(base: Path) -> PairTokenizer:
    return open_base(base, 24, seed=1)[1]


def test_a_pair_is_the_query_then_the_passage_each_ended_by_a_mark(reader: PairTokenizer) -> None:
    [pair] = reader.read(["old mill"], ["the river is long"])
    the, river, is_, long, old, mill = (
        VOCABULARY.index(w) for w in ["the", "river", "is", "long", "old", "mill"]
    )
    assert pair.ids == [START, old, mill, END, the, river, is_, long, END]
    assert pair.types == [0, 0, 0, 0, 1, 1, 1, 1, 1]


def test_the_passage_is_cut_and_the_query_only_beyond_half_of_a_pair(reader: PairTokenizer) -> None:
    long = text_of(60)
    short, whole = reader.read(["old mill", long], [long, long])
    assert len(short.ids) == len(whole.ids) == 24
    assert short.types.count(0) == 4
    assert whole.types.count(0) == 12 + 2  # half of 24, and the marks
    pieces = reader.tokenizer(long, add_special_tokens=False)["input_ids"]
    assert short.ids[4:-1] == pieces[:19]
    assert whole.ids[1:13] == pieces[:12]


def test_padding_is_at_the_end_and_not_attended_to(reader: PairTokenizer) -> None:
    pairs = reader.read(["old", "old"], ["mill", "mill river town"])
    inputs = reader.collate(pairs, torch.device("cpu"))
    assert inputs["attention_mask"].tolist() == [[1, 1, 1, 1, 1, 0, 0], [1] * 7]
    assert inputs["input_ids"][0].tolist() == [*pairs[0].ids, 0, 0]
    assert inputs["token_type_ids"][0].tolist() == [0, 0, 0, 1, 1, 0, 0]


def test_no_pairs_are_no_pairs(reader: PairTokenizer) -> None:
    assert reader.read([], []) == []
