import json
from pathlib import Path

import pytest

from condensery.errors import InputError
from condensery.methods.retriever.batches import read_examples


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_both_ways_of_writing_a_row_are_read(tmp_path: Path) -> None:
    path = write(
        tmp_path / "rows.jsonl",
        {"query": "q", "positive": "p", "negatives": ["a", "b"], "scores": [3, 1, -1.5]},
        {"query": "r", "pos": ["p", "o"], "neg": ["a"], "pos_scores": [1, 2], "neg_scores": [0]},
        {"query": "s", "positive": ["p"]},
    )
    first, second, third = read_examples([path])
    assert (first.positives, first.negatives, first.scores) == (
        *(("p",), ("a", "b"), (3.0, 1.0, -1.5)),
    )
    assert (second.positives, second.negatives, second.scores) == (
        *(("p", "o"), ("a",), (1.0, 2.0, 0.0)),
    )
    assert (third.negatives, third.scores) == ((), None)
    assert third.where.endswith("rows.jsonl, line 3")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"positive": "p"}, "line 2: query: None is no text"),
        ({"query": " ", "positive": "p"}, "query: ' ' is no text"),
        ({"query": "q"}, "positive: None names no passage"),
        ({"query": "q", "positive": []}, r"positive: \[\] names no passage"),
        ({"query": "q", "positive": "p", "negatives": ["a", 3]}, r"negatives\[1\]: 3 is no text"),
        ({"query": "q", "pos": "p", "neg": {"a": 1}}, "neg: .* is no list of texts"),
        (
            {"query": "q", "positive": "p", "negatives": ["a"], "scores": [1]},
            "scores: .* is no list of 2 scores",
        ),
        (
            {"query": "q", "positive": "p", "negatives": [], "scores": [float("nan")]},
            r"scores\[0\]: nan is not finite",
        ),
        ({"query": "q", "positive": "p", "scores": ["x"]}, r"scores\[0\]: 'x' is no number"),
        ({"query": "q", "pos": "p", "neg": ["a"], "pos_scores": [1]}, "neg_scores: None is no"),
    ],
)
def test_a_wrong_row_is_named_by_file_line_and_field(
    row: dict[str, object], message: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "rows.jsonl", {"query": "q", "positive": "p"}, row)
    with pytest.raises(InputError, match=message):
        read_examples([path])


def test_no_row_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no row"):
        read_examples([write(tmp_path / "rows.jsonl")])
