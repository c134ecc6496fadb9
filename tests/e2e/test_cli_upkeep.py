"""``condensery index``'s maintenance, against a real server."""

from pathlib import Path

import pytest
from tests.command_line import run


@pytest.fixture
def notes(door: tuple[str, str], tmp_path: Path) -> str:
    """An index of three notes."""
    name = f"keep-{door[0].strip('-')}"
    text = "Helium is a gas.\n\nBread rises.\n\nThe Rhine flows.\n"
    run("index", "add", name, "-", *door, stdin=text)
    return name


def test_aliases_are_set_moved_renamed_listed_and_deleted(
    door: tuple[str, str], notes: str
) -> None:
    live, other = f"{notes}-live", f"{notes}-other"
    done = run("index", "alias", "set", f"{live}={notes}", f"{other}=samples", *door)
    assert done.stdout.splitlines() == [f"{live}: set to {notes}", f"{other}: set to samples"]
    assert run("index", "count", live, *door).stdout.strip() == "3 documents, 3 passages"
    added = run("index", "add", live, "-", *door, stdin='{"id": "x", "text": "more"}\n')
    assert "1 documents written" in added.stdout
    assert run("index", "count", notes, *door).stdout.startswith("4 documents")
    wrong = run("index", "alias", "set", f"{live}=samples", "x=nowhere", *door, status=1)
    assert "'nowhere', which is no index" in wrong.stderr
    rows = [line.split() for line in run("index", "alias", "list", *door).stdout.splitlines()]
    assert rows[0] == ["ALIAS", "POINTS", "AT", "INDEX"]
    assert [live, notes, notes] in rows
    refused = run("index", "drop", notes, *door, status=1)
    assert live in refused.stderr
    run("index", "alias", "rename", live, f"{live}-2", *door)
    run("index", "alias", "delete", f"{live}-2", other, *door)
    assert run("index", "drop", notes, *door).stdout.strip() == f"{notes}: dropped"


def test_what_is_no_pair_is_refused(door: tuple[str, str]) -> None:
    done = run("index", "alias", "set", "nonsense", *door, status=1)
    assert done.stderr == "condensery: 'nonsense' is not ALIAS=INDEX\n"


def test_snapshots_are_made_listed_restored_and_deleted(door: tuple[str, str], notes: str) -> None:
    none = run("index", "restore", notes, *door, status=1)
    assert "has no snapshot that can be used" in none.stderr
    printed = run("index", "snapshot", "make", notes, *door).stdout
    snapshot = printed.split()[2].rstrip(",")
    assert printed.startswith(f"{notes}: snapshot {snapshot}, 3 documents, 0.1 MiB")
    rows = run("index", "snapshot", "list", notes, *door).stdout.splitlines()
    assert rows[0].split() == ["SNAPSHOT", "MADE", "DOCUMENTS", "SIZE", "ENCODER"]
    assert rows[1].startswith(snapshot)
    run("index", "delete", notes, f"{notes}-1", *door)
    done = run("index", "restore", notes, *door)
    assert done.stdout.strip() == f"{notes}: restored from {snapshot}, 3 documents"
    run("index", "restore", notes, snapshot, "--into", f"{notes}-copy", *door)
    assert run("index", "count", f"{notes}-copy", *door).stdout.startswith("3 documents")
    run("index", "snapshot", "delete", notes, snapshot, *door)
    gone = run("index", "restore", notes, snapshot, *door, status=1)
    assert snapshot in gone.stderr
    for name in (notes, f"{notes}-copy"):
        run("index", "drop", name, *door)


def test_a_rebuild_prints_what_became_of_it(door: tuple[str, str], notes: str) -> None:
    done = run("index", "rebuild", notes, "--kind", "hnsw", *door)
    assert done.stdout.strip() == f"{notes}: rebuilt for minilm-l6, hnsw, ip; finds 100% as before"
    result = run("index", "rebuild", notes, "--status", *door)
    assert result.stdout == done.stdout
    nothing = run("index", "rebuild", notes, "--cancel", *door, status=1)
    assert "is not being rebuilt" in nothing.stderr
    unknown = run("index", "rebuild", notes, "--encoder", "nobody", *door, status=1)
    assert "nobody" in unknown.stderr
    run("index", "drop", notes, *door)
