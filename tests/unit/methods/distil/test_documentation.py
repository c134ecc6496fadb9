import json
import zipfile
from pathlib import Path

import pytest

from condensery.errors import InputError
from condensery.methods.distil.documentation import make, stands_once

SOURCE = '''
def smooth(values, width=7, *, edge="nearest", _private=3):
    """Smooth a series with a moving window.

    Parameters
    ----------
    values : array_like
        The series that is to be smoothed by the window.
    width : int, default 7
        How many neighbouring values the window holds at once.
    repeats : int, default 12
        How often all of that is done again. By default, the window moves on.

    Returns
    -------
    smoothed : ndarray
        The series as it is once the window has passed.

    Raises
    ------
    WindowError
        If the window is wider than the whole series.
    """


class Reader:
    """Reads tables from a folder.

    The environment variable ``TABLE_FOLDER`` says where the tables are looked for.
    """

    def __init__(self, folder):
        """Open it.

        Args:
            folder (Path): Where all of the tables of the reader lie.
        """

    def _hidden(self, secret=12):
        """Never asked about, whatever it says of its own secret."""
'''


def packed(folder: Path) -> Path:
    wheel = folder / "tables-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tables/__init__.py", SOURCE)
        archive.writestr("tables/tests/test_it.py", SOURCE.replace("smooth", "tested"))
        archive.writestr("tables/broken.py", "def (")
        archive.writestr(
            "tables-1.0.dist-info/METADATA",
            "Name: tables\n\nSet the variable ``TABLE_CACHE`` to keep what was read before.\n",
        )
    return wheel


def rows_of(wheel: Path, out: Path, of_passage: int = 50) -> list[dict[str, object]]:
    make([wheel], out, of_passage=of_passage, most=600, seed=3)
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_questions_are_answered_by_words_that_stand_in_their_passage(tmp_path: Path) -> None:
    rows = rows_of(packed(tmp_path), tmp_path / "rows.jsonl")
    answers = {row["answers"][0] for row in rows}  # type: ignore[index]
    assert {"array_like", "WindowError", "TABLE_FOLDER", "TABLE_CACHE", "width"} <= answers
    for row in rows:
        assert row["answers"][0] in row["context"]  # type: ignore[index,operator]
    asked = " ".join(str(row["question"]) for row in rows)
    assert "secret" not in asked
    assert "tested" not in asked


def test_only_parameters_are_asked_for_as_parameters(tmp_path: Path) -> None:
    rows = rows_of(packed(tmp_path), tmp_path / "rows.jsonl")
    answers = {row["answers"][0]: str(row["question"]) for row in rows}  # type: ignore[index]
    assert "12" in answers, "a default as NumPy's docstrings say it"
    assert not {"smoothed", "the", "ndarray"} & answers.keys()
    raised = ("error", "raise", "exception")
    assert any(word in answers["WindowError"].lower() for word in raised)


def test_an_answer_that_stands_in_several_places_is_not_asked_for(tmp_path: Path) -> None:
    rows = rows_of(packed(tmp_path), tmp_path / "rows.jsonl")
    assert "7" not in {row["answers"][0] for row in rows}  # type: ignore[index]  # twice
    assert stands_once("0.5", "default 0.5, not 10.5")
    assert not stands_once("5", "5 of 5")


def test_the_same_packages_make_the_same_rows_and_few_of_each_where_asked(tmp_path: Path) -> None:
    wheel = packed(tmp_path)
    rows = rows_of(wheel, tmp_path / "a.jsonl")
    assert rows == rows_of(wheel, tmp_path / "b.jsonl")
    few = rows_of(wheel, tmp_path / "c.jsonl", of_passage=1)
    contexts = [row["context"] for row in few]
    assert len(contexts) == len(set(contexts)) < len(rows)


def test_what_is_no_package_is_named(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("no wheel")
    with pytest.raises(InputError, match=r"packages: .*notes.txt is neither a wheel nor a folder"):
        make([path], tmp_path / "rows.jsonl", of_passage=1, most=10, seed=3)
