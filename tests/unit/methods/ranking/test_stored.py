from pathlib import Path

import pytest

from condensery.errors import InputError, StorageError
from condensery.methods.ranking.parts import StoredRows

ABOUT = {"set": "sha256:1", "depth": 50}


def test_rows_are_there_when_it_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rows.jsonl"
    first = StoredRows(path, ABOUT)
    assert first.found == {}
    first.add("q1", score=0.1 + 0.2)
    first.add("q2", score=-1.5)
    assert StoredRows(path, ABOUT).found == first.found
    assert StoredRows(path, ABOUT).found["q1"]["score"] == 0.1 + 0.2


@pytest.mark.parametrize("cut", range(1, 30))
def test_a_line_cut_short_by_a_kill_is_done_again(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "rows.jsonl"
    rows = StoredRows(path, ABOUT)
    rows.add("q1", score=1.0)
    rows.add("q2", score=2.0)
    path.write_bytes(path.read_bytes()[:-cut])
    again = StoredRows(path, ABOUT)
    assert list(again.found) == ["q1"]
    again.add("q2", score=2.0)
    assert list(StoredRows(path, ABOUT).found) == ["q1", "q2"]


def test_a_first_line_cut_short_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"set": "sh')
    StoredRows(path, ABOUT).add("q1", score=1.0)
    assert list(StoredRows(path, ABOUT).found) == ["q1"]


def test_rows_of_something_else_are_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    StoredRows(path, ABOUT).add("q1", score=1.0)
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"rows\.jsonl: is of another depth, model;"):
        StoredRows(path, {"set": "sha256:1", "depth": 20, "model": "x"})
    assert path.read_bytes() == before


@pytest.mark.parametrize("line", ["nonsense", "[1]", '{"score": 1}'])
def test_a_damaged_file_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "rows.jsonl"
    StoredRows(path, ABOUT)
    path.write_text(f"{path.read_text()}{line}\n")
    with pytest.raises(InputError, match=r"rows\.jsonl: is damaged"):
        StoredRows(path, ABOUT)


def test_a_disk_that_refuses_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"rows\.jsonl"):
        StoredRows(tmp_path / "file" / "rows.jsonl", ABOUT)
