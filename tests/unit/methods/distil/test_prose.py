import io
import json
import random
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from condensery.errors import InputError
from condensery.methods.distil import documentation
from condensery.methods.distil.asking import Asked, ask, ask_heading, is_good, sentences
from condensery.methods.distil.prose import make, passages, read_prose, sections
from condensery.methods.distil.wording import base_form, reword, third_person

README = """\
# Clocks

Clocks runs jobs when they are due, on one machine or on many that share a queue of their work.

## Running jobs

To run all jobs of a folder once, use the `--drain` flag. The `--drain` flag needs no queue.
The scheduler raises `QueueFull` when more jobs wait than the queue has space for.

## Configuring the log

Log files are written to `var/clocks.log`, one line for each job that was started or has ended.
The time limit of a job defaults to `90s`. Whole runs are cut short by `--budget`.
"""
OPTIONS = """\
Options of the command
======================

.. option:: --budget SECONDS

   Limit the duration of a whole run, however many jobs are left.
   The default is ``3600``.

.. envvar:: CLOCKS_QUEUE

   The address of the queue that all of the machines share.

.. toctree::

   hidden

See :ref:`jobs <running>` for what :class:`~clocks.jobs.Job` holds.
"""


def packed(folder: Path, files: Mapping[str, str]) -> Path:
    path = folder / "clocks-1.2.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(f"clocks-1.2/{name}")
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return path


@pytest.fixture
def package(tmp_path: Path) -> Path:
    about = f"Metadata-Version: 2.1\nName: clocks\nVersion: 1.2\n\n{README * 2}"
    files = {"PKG-INFO": about, "README.md": README, "docs/options.rst": OPTIONS}
    files["docs/horloges.md"] = "# Horloges\n\n`--drain` vide la file et lance les travaux. " * 9
    files |= {"docs/changes.rst": OPTIONS, "tests/data/a.md": README, "clocks/jobs.py": "x = 1"}
    return packed(tmp_path, files)


def rows_of(
    package: Path, out: Path, *, of_passage: int = 9, most: int = 99, seed: int = 1
) -> list[dict[str, Any]]:
    make([package], out, of_passage=of_passage, most=most, seed=seed)
    return [json.loads(line) for line in out.read_text().splitlines()]


def asked_of(text: str, *headings: str) -> dict[str, set[str]]:
    """All that is asked of a text under many seeds, by answer."""
    found: dict[str, set[str]] = {}
    for seed in range(60):
        for each in ask(("clocks", *headings), text, random.Random(seed)):
            found.setdefault(each.answer, set()).add(each.question)
    return found


@pytest.mark.parametrize(
    ("text", "question", "answer"),
    [
        (
            "`--quiet` disables the progress bar.",
            "Which flag disables the progress bar?",
            "--quiet",
        ),
        (
            "To list your installed clocks, run `clocks list`.",
            "How do I list my installed clocks?",
            "clocks list",
        ),
        (
            "Use the `Retry` class to repeat jobs that failed.",
            "Which class do I use to repeat jobs that failed?",
            "Retry",
        ),
        (
            "If a job hangs, pass `--kill` to the runner.",
            "What do I pass if a job hangs?",
            "--kill",
        ),
        (
            "Finished jobs are stored in `done/`, one file each.",
            "Where are finished jobs stored?",
            "done/",
        ),
        (
            "The chunk size defaults to `4096` on most systems.",
            "What is the default chunk size?",
            "4096",
        ),
        ("The default deadline is 200 milliseconds.", "What is the default deadline?", "200 ms"),
        (
            "`load()` raises `ClockError` if the file has no jobs in it.",
            "Which exception is raised if the file has no jobs in it?",
            "ClockError",
        ),
        (
            "The timer can be disabled with the `--no-timer` flag.",
            "Which flag disables the timer?",
            "--no-timer",
        ),
        (
            "Workers wait for a signal called `job_ready` before they start.",
            "",
            "job_ready",
        ),
        (
            "- `--jobs`: Set the number of workers (default: `4`)",
            "Which flag sets the number of workers?",
            "--jobs",
        ),
        ("- `--jobs`: Set the number of workers (default: `4`)", "What is --jobs by default?", "4"),
    ],
)
def test_a_sentence_is_turned_round_about_its_literal(
    text: str, question: str, answer: str
) -> None:
    answer = answer.replace(" ms", " milliseconds")
    assert question in asked_of(text)[answer] if question else answer in asked_of(text)


def test_one_of_several_in_a_row_is_not_asked_for_and_code_is_not_read() -> None:
    assert not asked_of("`first` and `second` disable the progress bar of the runner.")
    assert not asked_of("```python\nx = `a` disables the progress bar\n```\n\n    $ run `b`")
    assert not asked_of("This is `x`. It stops. `more`")


def test_a_question_has_to_stand_by_itself_with_one_short_answer_in_its_passage() -> None:
    passage = "clocks > Running\n\n`--drain` runs all jobs once. `--drain` needs no queue."
    asked = Asked("Which flag runs all waiting jobs once?", "--drain", "subject")
    assert is_good(asked, passage)
    assert not is_good(asked, passage + " `--drain`" * 2), "too often to be the only answer"
    assert not is_good(Asked(asked.question, "--other", ""), passage)
    for question in (
        "Which flag does this to all jobs?",
        "Which flag runs?",
        "What runs all waiting jobs once with --drain?",
        "Which flag runs all waiting (jobs once?",
    ):
        assert not is_good(Asked(question, "--drain", ""), passage), question


def test_a_heading_that_names_a_deed_is_a_question() -> None:
    rng = random.Random(1)
    questions = {ask_heading("Configuring the Log", "clocks", "the log", rng) for _ in range(40)}
    assert "How do I configure the log in clocks?" in questions
    assert ask_heading("Why are jobs lost?", "clocks", "", rng) == "Why are jobs lost?"
    for heading in ("Reference of options", "Release notes policy", "Log files"):
        assert not ask_heading(heading, "clocks", "", rng), heading


def test_other_words_keep_the_form_of_a_verb() -> None:
    assert base_form("stopped") == "stop"
    assert base_form("copies") == "copy"
    assert base_form("written") == "write"
    assert not base_form("binary")
    assert third_person("switch off") == "switches off"
    questions = {
        reword("Which flag disables the timeout of a job?", random.Random(seed), share=1)
        for seed in range(20)
    }
    assert "Which flag switches off the time limit of a job?" in questions


def test_literals_with_markup_round_them_are_found() -> None:
    (found,) = sentences("Pass **`--all`** with [the runner](runner.md) for *every* job.")
    assert found.written(found.text) == "Pass --all with the runner for every job"


def test_readmes_and_pages_are_read_and_nothing_else(package: Path) -> None:
    name, files = read_prose(package)
    assert name == "clocks"
    assert [where for where, _ in files] == ["README", "docs/options.rst"]


def test_a_passage_stands_under_its_headings_with_its_markup() -> None:
    found = [*sections("clocks", "docs/options.rst", OPTIONS)]
    assert found[-1].headings == ("clocks", "Options of the command")
    (passage,) = passages(found[-1])
    assert passage.startswith("clocks > Options of the command\n\n.. option:: --budget SECONDS")
    assert "See jobs for what ``clocks.jobs.Job`` holds." in passage
    assert "hidden" not in passage
    long = "\n\n".join(["One two three four five six seven eight nine ten."] * 30)
    counts = [
        len(each.split("\n\n", 1)[1].split())
        for section in sections("clocks", "a.md", f"# Long\n\n{long}")
        for each in passages(section)
    ]
    assert sum(counts) == 300
    assert max(counts) <= 130


def test_questions_are_answered_by_words_that_stand_in_their_passage(
    package: Path, tmp_path: Path
) -> None:
    rows = rows_of(package, tmp_path / "rows.jsonl")
    assert {"--budget", "CLOCKS_QUEUE", "3600", "--drain"} <= {row["answers"][0] for row in rows}
    for row in rows:
        assert row["answers"][0] in row["context"]
        assert row["title"] in ("clocks/README", "clocks/docs/options.rst")
    assert len(rows) == len({row["question"] for row in rows})


def test_the_same_packages_make_the_same_rows_and_no_more_than_asked_for(
    package: Path, tmp_path: Path
) -> None:
    rows = rows_of(package, tmp_path / "a.jsonl")
    assert rows == rows_of(package, tmp_path / "b.jsonl")
    assert len(rows_of(package, tmp_path / "c.jsonl", most=3)) == 3 < len(rows)


def test_the_command_writes_rows_of_headings_whose_right_passage_is_named(tmp_path: Path) -> None:
    lines = "Something is said of it here in so many words that they are enough to be read."
    titles = ("Alarms", "Bells", "Dials", "Hands", "Springs", "Configuring the log")
    page = "\n\n".join(f"## {title}\n\n{title}. {lines}" for title in titles)
    package = packed(tmp_path, {"docs/page.md": f"# Parts\n\n{page}"})
    out, headings = tmp_path / "new" / "rows.jsonl", tmp_path / "other" / "headings.jsonl"
    documentation.main(
        ["--prose", "--packages", str(package), "--out", str(out), "--headings", str(headings)]
    )
    (row,) = [json.loads(line) for line in headings.read_text().splitlines()]
    assert "configure the log" in row["question"]
    assert "Configuring the log. Something" in row["passages"][row["gold"][0]]
    assert len(row["passages"]) == 5
    assert row["answers"] == []


def test_headings_without_prose_and_what_is_no_package_are_refused(tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "rows.jsonl")]
    with pytest.raises(InputError, match=r"headings: .* is written with --prose alone"):
        documentation.main(["--packages", "a.whl", "--headings", "b.jsonl", *out])
    path = tmp_path / "notes.tar.gz"
    path.write_text("no archive")
    with pytest.raises(InputError, match=r"packages: .*notes.tar.gz is neither a source archive"):
        documentation.main(["--prose", "--packages", str(path), *out])
