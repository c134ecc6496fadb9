import json
from pathlib import Path
from typing import Any

import pytest

from condensery.errors import EmptyInput, InputError
from condensery.methods.oscar.evaluating.corpus import read_corpus

Row = dict[str, Any]


def write(path: Path, rows: list[Row]) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path


def test_passages_are_found_by_their_words_and_titles(tmp_path: Path) -> None:
    given = [
        {"_id": "a", "title": "Rhine", "text": "A river that is long."},
        {"id": "b", "title": "", "text": "Bread is sold in the stone market."},
        {"id": "c", "text": "The mill stands by the water."},
    ]
    corpus = read_corpus(write(tmp_path / "corpus.jsonl", given))
    assert [one.id for one in corpus.passages] == ["a", "b", "c"]
    found = corpus.search(["stone bread", "how long is the Rhine?"], 3, "bm25")
    assert found[0] == [given[1]["text"]]  # the only one that shares a word
    assert found[1][0] == given[0]["text"]  # the text alone is read, not its title
    other = [{**given[0], "text": "A river that is short."}, *given[1:]]
    assert read_corpus(write(tmp_path / "other.jsonl", other)).fingerprint != corpus.fingerprint


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"text": "x"}, "line 2: id: None"),
        ({"id": 3, "text": "x"}, "line 2: id: 3"),
        ({"id": "a", "text": "x"}, "line 2: id: 'a' stands in .*line 1"),
        ({"id": "b", "text": " "}, "line 2: text: ' '"),
        ({"id": "b"}, "line 2: text: None"),
        ({"id": "b", "text": "x", "title": 4}, "title: 4"),
    ],
)
def test_a_row_that_is_no_passage_is_named(tmp_path: Path, row: Row, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read_corpus(write(tmp_path / "corpus.jsonl", [{"id": "a", "text": "y"}, row]))


def test_no_passages_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(EmptyInput, match="holds no passage"):
        read_corpus(write(tmp_path / "corpus.jsonl", []))
