import json
import resource
from pathlib import Path
from typing import Any

import pytest

from condensery.errors import InputError
from condensery.methods.distil.journal import Journal
from condensery.methods.trainer.checkpoints import TrainingStopped

ABOUT = {"questions": "sha256:1", "plan": {"top": 5, "mode": "bm25"}}


def opened(out: Path, about: dict[str, Any] = ABOUT) -> tuple[Journal, list[dict[str, Any]]]:
    seen: list[dict[str, Any]] = []
    return Journal(out, about, seen.append), seen


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_lines_stand_aside_until_all_are_there(tmp_path: Path) -> None:
    out = tmp_path / "new" / "rows.jsonl"
    journal, seen = opened(out)
    with journal:
        journal.append([{"n": 1}, {"n": 2}])
        journal.append([{"n": 3, "text": "Łódź\n"}])
        assert (journal.count, not journal.done) == (3, True)
        assert not out.exists()
        journal.finish(lambda line: [line] if line["n"] != 2 else [], {"figures": {"rows": 2}})
    assert rows(out) == [{"n": 1}, {"n": 3, "text": "Łódź\n"}] == [seen[0], seen[2]]
    about = json.loads((out.parent / "rows.jsonl.about.json").read_text())
    assert about == {"format": 1, "made_of": ABOUT, "figures": {"rows": 2}}
    assert sorted(path.name for path in out.parent.iterdir()) == [
        "rows.jsonl",
        "rows.jsonl.about.json",
    ]


@pytest.mark.parametrize(
    "torn", [b"", b'{"n": 3', b'{"n": 3}', b"\0\0\0\n", b"[3]\n", b'{"n"\n{"n": 4}\n']
)
def test_what_was_torn_is_cut_off_and_the_rest_is_kept(tmp_path: Path, torn: bytes) -> None:
    out = tmp_path / "rows.jsonl"
    journal, _ = opened(out)
    with journal:
        journal.append([{"n": 1}, {"n": 2}])
    with (tmp_path / "rows.jsonl.partial").open("ab") as file:
        file.write(torn)
    journal, seen = opened(out)
    with journal:
        assert seen == [{"n": 1}, {"n": 2}]
        assert journal.count == 2
        journal.append([{"n": 3}])
        journal.finish(lambda line: [line], {})
    assert rows(out) == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_a_finished_one_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    journal, _ = opened(out)
    with journal:
        journal.append([{"n": 1}])
        journal.finish(lambda line: [line], {"figures": 1})
    about = (tmp_path / "rows.jsonl.about.json").read_text()
    (tmp_path / "rows.jsonl.partial").write_text('{"n": 1}\n')  # killed after the rename
    journal, seen = opened(out)
    with journal:
        assert journal.done
        assert not seen
    assert not (tmp_path / "rows.jsonl.partial").exists()
    assert (tmp_path / "rows.jsonl.about.json").read_text() == about
    assert rows(out) == [{"n": 1}]


@pytest.mark.parametrize("finished", [True, False])
def test_other_data_or_settings_do_not_go_on_with_it(tmp_path: Path, finished: bool) -> None:
    out = tmp_path / "rows.jsonl"
    journal, _ = opened(out)
    with journal:
        journal.append([{"n": 1}])
        if finished:
            journal.finish(lambda line: [line], {})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    other = {"questions": "sha256:2", "plan": {"top": 3, "mode": "bm25"}}
    with pytest.raises(InputError, match=r"questions: 'sha256:1', not 'sha256:2'; plan\.top: 5, n"):
        opened(out, other)
    (tmp_path / "rows.jsonl.about.json").write_text("{}")
    with pytest.raises(InputError, match=r"about\.json is damaged"):
        opened(out)
    (tmp_path / "rows.jsonl.about.json").unlink()
    with pytest.raises(InputError, match="is there without"):
        opened(out)
    before.pop("rows.jsonl.about.json")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_what_has_no_line_yet_may_be_made_of_something_else(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    opened(out)[0].close()
    journal, _ = opened(out, {"questions": "sha256:2"})
    with journal:
        journal.append([{"n": 1}])
    with pytest.raises(InputError, match="made of other data"):
        opened(out)


def test_one_process_writes_at_a_time(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    with opened(out)[0] as journal:
        with pytest.raises(InputError, match=r"another process writes .*rows\.jsonl\.partial"):
            opened(out)
        journal.append([{"n": 1}])
    opened(out)[0].close()


def test_a_name_that_is_not_read_as_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"rows\.json does not end in \.jsonl"):
        opened(tmp_path / "rows.json")
    assert not list(tmp_path.iterdir())


def test_a_disk_that_refuses_leaves_the_lines_before(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    journal, _ = opened(out)
    with journal:
        journal.append([{"n": 1}])
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20, limits[1]))  # bytes a file may have
        try:
            with pytest.raises(TrainingStopped, match=r"File too large.*1 lines of it are whole"):
                journal.append([{"n": 2}, {"n": 3}, {"n": 4}])
            with pytest.raises(TrainingStopped, match="File too large"):
                journal.finish(lambda line: [line | {"long": "x" * 20}], {})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not out.exists()
    journal, seen = opened(out)
    with journal:
        assert seen[0] == {"n": 1}
        journal.append([{"n": n} for n in range(len(seen) + 1, 5)])
        journal.finish(lambda line: [line], {})
    assert rows(out) == [{"n": 1}, {"n": 2}, {"n": 3}, {"n": 4}]
