import os
from pathlib import Path

import pytest

from condensery.documents.files import FileName, Reading
from condensery.documents.folders import (
    Found,
    Problem,
    check_roots,
    find_file,
    find_files,
    make_glob,
    name_root,
)
from condensery.errors import InputError


def write(folder: Path, *paths: str, content: str = "x") -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)


def find(folder: Path, *patterns: str) -> tuple[list[str], Found]:
    found = Found()
    find_files(found, folder, name_root(folder), Reading(), make_glob(patterns))
    return [file.name.path for file in found.files], found


def test_a_folder_is_read_with_all_below_but_hidden_and_ignored_files(tmp_path: Path) -> None:
    write(tmp_path, "b.md", "a.txt", "sub/c.md", "sub/deep/d.md", ".git/e.md", ".hidden.md")
    write(tmp_path, "out/f.md", "sub/keep.log.md", "sub/no.log.md", "sub/out/g.md")
    write(tmp_path, ".gitignore", content="/out/\n*.log.md\n")
    write(tmp_path / "sub", ".ignore", content="!keep.log.md\ndeep\n")
    paths, found = find(tmp_path)
    assert paths == ["a.txt", "b.md", "sub/c.md", "sub/keep.log.md", "sub/out/g.md"]
    assert not found.problems
    assert {file.name.whole.split("/")[0] for file in found.files} == {tmp_path.name}


def test_a_glob_chooses_files_and_the_last_that_matches_counts(tmp_path: Path) -> None:
    write(tmp_path, "a.md", "b.txt", "sub/c.md", "sub/draft.md")
    assert find(tmp_path, "*.md")[0] == ["a.md", "sub/c.md", "sub/draft.md"]
    assert find(tmp_path, "sub/**", "!draft*")[0] == ["sub/c.md"]
    paths, found = find(tmp_path, "!*.md")
    assert paths == ["b.txt"]
    assert found.may_hold(f"{tmp_path.name}/a.md"), "what a glob leaves out is not gone"


def test_other_kinds_are_counted_and_never_opened(tmp_path: Path) -> None:
    write(tmp_path, "a.md", "b.zip", "c.PNG", "d.png", "Makefile")
    os.mkfifo(tmp_path / "pipe.md")
    paths, found = find(tmp_path)
    assert paths == ["a.md"]
    assert found.others == {".zip": 1, ".png": 2, "(none)": 1, ".md": 1}
    assert not found.problems


def test_links_to_files_are_followed_and_circles_have_an_end(tmp_path: Path) -> None:
    write(tmp_path, "a.md", "sub/b.md")
    (tmp_path / "link.md").symlink_to("a.md")
    (tmp_path / "sub/up").symlink_to("..")
    (tmp_path / "round.md").symlink_to("round.md")
    (tmp_path / "gone.md").symlink_to("nowhere.md")
    paths, found = find(tmp_path)
    assert paths == ["a.md", "link.md", "sub/b.md"]
    assert found.links == 1
    assert [Path(problem.source).name for problem in found.problems] == ["gone.md", "round.md"]
    assert all(found.may_hold(f"{tmp_path.name}/{name}") for name in ("gone.md", "sub/up/a.md"))


def test_what_is_below_an_unreadable_folder_may_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "a.md", "shut/b.md", "shut/in/c.md")
    scan = os.scandir

    def refuse(path: Path) -> object:
        if Path(path).name == "shut":
            raise PermissionError(13, "Permission denied")
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    paths, found = find(tmp_path)
    assert paths == ["a.md"]
    assert found.problems == [Problem(f"{tmp_path}/shut", "Permission denied")]
    assert found.may_hold(f"{tmp_path.name}/shut/in/c.md")
    assert not found.may_hold(f"{tmp_path.name}/shutter.md")


def test_a_named_file_of_an_unknown_kind_is_a_problem(tmp_path: Path) -> None:
    write(tmp_path, "a.zip")
    found = Found()
    find_file(found, tmp_path / "a.zip", FileName("n", "a.zip"), Reading())
    assert not found.files
    assert found.problems[0].source == f"{tmp_path}/a.zip"


def test_folders_of_one_name_are_refused_together(tmp_path: Path) -> None:
    write(tmp_path, "a/docs/index.md", "b/docs/index.md")
    first, second = (name_root(tmp_path / name / "docs") for name in "ab")
    check_roots([first, first])
    with pytest.raises(InputError, match="--prefix"):
        check_roots([first, second])
    assert first.source != second.source
    assert name_root(tmp_path / "a/docs/../docs") == first
    assert name_root(tmp_path / "a", "mine/").folder == "mine"
    with pytest.raises(InputError, match="no name"):
        name_root(Path("/"))
