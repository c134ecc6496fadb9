import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_pair import tiny_tokenizer

from condensery.errors import InputError
from condensery.methods.lm.text import IGNORED, Stream, Windows, pack, read_documents, tokenise
from condensery.methods.trainer.method import Draw


def stream(*lengths: int) -> Stream:
    """Documents whose tokens number all of the stream."""
    begins = np.cumsum([0, *lengths[:-1]], dtype=np.int64)
    return Stream(np.arange(sum(lengths), dtype=np.int32), begins, sum(lengths), "")


def test_an_empty_line_ends_a_document_and_rows_are_one_each(tmp_path: Path) -> None:
    text, rows = tmp_path / "a.txt", tmp_path / "b.jsonl"
    text.write_text("= One =\nfirst\n\n \nsecond\nline\n")
    rows.write_text("".join(json.dumps({"text": t}) + "\n" for t in ("third\n\nstill", " ")))
    assert list(read_documents([text, rows])) == [
        ("= One =\nfirst\n", ""),
        ("second\nline\n", ""),
        ("third\n\nstill", ""),
    ]
    rows.write_text('{"text": "a"}\n{"words": "b"}\n')
    with pytest.raises(InputError, match=r"b\.jsonl, line 2: text: None is no text"):
        list(read_documents([rows]))


def test_rows_with_a_value_are_passed_over(tmp_path: Path) -> None:
    rows = tmp_path / "a.jsonl"
    values = [{"text": "a", "title": "A", "source": "x"}, {"text": "b", "source": "y"}]
    rows.write_text("".join(json.dumps(value) + "\n" for value in values))
    assert list(read_documents([rows])) == [("a", "A"), ("b", "")]
    assert list(read_documents([rows], [("source", "z"), ("source", "y")])) == [("a", "A")]


def test_documents_stand_between_their_marks_in_one_stream() -> None:
    tokenizer = tiny_tokenizer()
    stream = tokenise(["the mill", "it stands"], tokenizer, start=1, end=2)
    ids = [tokenizer.encode(t, add_special_tokens=False).ids for t in ("the mill", "it stands")]
    assert stream.ids.tolist() == [1, *ids[0], 2, 1, *ids[1], 2]
    assert stream.begins.tolist() == [0, len(ids[0]) + 2]
    assert stream.size == 17
    with pytest.raises(InputError, match="no document"):
        tokenise([], tokenizer, 1, 2)


def test_positions_begin_again_with_each_document_and_none_is_told_the_nexts_first_token() -> None:
    packed = pack(stream(5, 3, 10), [0, 9], length=9)
    assert packed.ids.tolist() == [list(range(9)), list(range(9, 18))]
    assert packed.positions.tolist() == [[0, 1, 2, 3, 4, 0, 1, 2, 0], list(range(9))]
    no = IGNORED
    assert packed.labels.tolist() == [
        [1, 2, 3, 4, no, 6, 7, no, no],
        [10, 11, 12, 13, 14, 15, 16, 17, no],
    ]


@given(
    lengths=st.lists(st.integers(2, 30), min_size=5, max_size=12),
    length=st.integers(2, 9),
    rows=st.integers(1, 4),
    parts=st.integers(1, 3),
)
def test_an_epoch_has_each_window_once_in_a_new_order(
    lengths: list[int], length: int, rows: int, parts: int
) -> None:
    text = stream(*lengths)
    if text.windows(length) < 2:
        with pytest.raises(InputError, match="do not fill two windows"):
            Windows(text, rows, length)
        return
    count = text.windows(length) - 1
    windows = Windows(text, rows, length)
    firsts: list[int] = []
    step = 0
    while len(firsts) < 2 * count:
        for part in range(parts):
            firsts += windows(Draw(7, step, part, parts)).firsts
        step += 1
    for epoch in (firsts[:count], firsts[count : 2 * count]):
        assert max(Counter(epoch).values()) == 1
        assert len({first % length for first in epoch}) == 1
        assert max(epoch) + length <= len(text.ids)
    # The same when asked again, by itself, and however the batches are split.
    assert list(windows(Draw(7, 0, 0, parts)).firsts) == firsts[:rows]
    again = Windows(text, rows * parts, length)
    assert list(again(Draw(7, 0, 0, 1)).firsts) == firsts[: rows * parts]


def test_text_that_does_not_fill_two_windows_is_refused() -> None:
    with pytest.raises(InputError, match="text: 9 tokens do not fill two windows of 5"):
        Windows(stream(9), 1, 5)
