"""``saved_by_datasets/`` was written by datasets 5.2.0: ``save_to_disk`` of a set and of splits."""

import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from condensery.errors import InputError
from condensery.methods.trainer.rows import read_lines, read_rows

SAVED = Path(__file__).with_name("saved_by_datasets")


def expected(i: int) -> dict[str, Any]:
    return {
        "id": f"q{i}", "question": f"what is {i}?", "answers": [f"a{i}", "é ü"],
        "context": f"it is a{i} here", "title": None if i % 2 else "T", "score": i / 3, "n": i,
    }  # fmt: skip


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_a_folder_that_datasets_saved_is_read_shard_by_shard() -> None:
    rows = list(read_rows(SAVED / "one"))
    assert [row.value for row in rows] == [expected(i) for i in range(5)]
    first, last = rows[0].where, rows[-1].where
    assert first == f"{SAVED}/one/data-00000-of-00002.arrow, row 1"
    assert last == f"{SAVED}/one/data-00001-of-00002.arrow, row 2"


def test_a_split_of_several_is_chosen_by_name() -> None:
    numbers = [row.value["n"] for row in read_rows(SAVED / "dict", "validation")]
    assert numbers == [3, 1]
    assert len(list(read_rows(SAVED / "dict", "train"))) == 5
    for split in (None, "test"):
        with pytest.raises(InputError, match=f"split={split!r} is none of train, validation"):
            list(read_rows(SAVED / "dict", split))
    with pytest.raises(InputError, match="has no splits"):
        list(read_rows(SAVED / "one", "train"))


def test_a_shard_cut_short_is_an_error_that_names_it(tmp_path: Path) -> None:
    for file in (SAVED / "one").iterdir():
        data = file.read_bytes()
        (tmp_path / file.name).write_bytes(data[:-900] if "00001-of" in file.name else data)
    with pytest.raises(InputError, match=r"data-00001-of-00002\.arrow, after row"):
        list(read_rows(tmp_path))
    (tmp_path / "data-00001-of-00002.arrow").unlink()
    with pytest.raises(InputError, match=r"data-00001-of-00002\.arrow, after row 0"):
        list(read_rows(tmp_path))


@pytest.mark.parametrize("pack", [None, gzip, lzma])
def test_jsonl_is_read_plain_or_packed_with_its_line_numbers(tmp_path: Path, pack: Any) -> None:
    path = tmp_path / f"rows.jsonl{ {None: '', gzip: '.gz', lzma: '.xz'}[pack] }"
    with pack.open(path, "wt") if pack else path.open("w") as file:
        file.write('{"a": 1}\n{"a": "é"}\n')
    rows = list(read_rows(path))
    assert [row.value for row in rows] == [{"a": 1}, {"a": "é"}]
    assert [row.where for row in rows] == [f"{path}, line 1", f"{path}, line 2"]
    assert list(read_rows(tmp_path)) == rows  # a folder of such files


@pytest.mark.parametrize(
    ("line", "says"),
    [('{"a": ', "line 2: Expecting"), ("[1]", "line 2: not a JSON object"), ("", "line 2: Expect")],
)
def test_a_line_that_is_no_object_is_named(tmp_path: Path, line: str, says: str) -> None:
    path = write(tmp_path / "rows.jsonl", json.dumps({"a": 1}), line)
    with pytest.raises(InputError, match=rf"rows\.jsonl, {says}"):
        list(read_rows(path))


def test_a_file_that_is_missing_cut_short_or_no_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.jsonl, after line 0: No such file"):
        list(read_rows(tmp_path / "none.jsonl"))
    short = tmp_path / "short.jsonl.gz"
    short.write_bytes(gzip.compress(b'{"a": 1}\n' * 1000)[:-20])
    with pytest.raises(InputError, match=r"short\.jsonl\.gz, after line"):
        list(read_rows(short))
    (tmp_path / "latin.jsonl").write_bytes(b"\xe9\n")
    with pytest.raises(InputError, match=r"latin\.jsonl, after line 0: .*utf-8"):
        list(read_lines(tmp_path / "latin.jsonl"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="neither JSONL files nor a datasets folder"):
        list(read_rows(tmp_path / "empty"))
