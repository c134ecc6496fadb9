"""The tour in CONTRIBUTING.md is a map: what it names exists, and what exists is named."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "service" / "condensery"


def read_tour() -> set[str]:
    """Paths from the root named in the tour, folders without their slash.

    The tour is the indented block after "## The tree": each line a path, then words; two spaces
    of indentation put a path into the folder above.
    """
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    block = re.search(r"^## The tree\n.*?^```\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert block, "CONTRIBUTING.md has no tour under '## The tree'"
    paths: set[str] = set()
    folders: list[str] = []
    for line in block[1].splitlines():
        depth, is_odd = divmod(len(line) - len(line.lstrip()), 2)
        assert not is_odd, f"indented by an odd number of spaces: {line!r}"
        name = line.split()[0]
        assert depth <= len(folders), f"indented under no folder: {line!r}"
        path = (folders[depth - 1] if depth else "") + name
        paths.add(path.rstrip("/"))
        folders[depth:] = [path] if name.endswith("/") else []
    return paths


def list_tracked(folder: str) -> set[str]:
    """Paths from the root of the files and folders straight under ``folder`` that git tracks."""
    listed = subprocess.run(
        ["git", "ls-files", f"./{folder}"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode or not listed.stdout:
        pytest.skip("not a git checkout")
    depth = len(Path(folder).parts) + 1
    return {"/".join(Path(line).parts[:depth]) for line in listed.stdout.splitlines()}


def test_everything_the_tour_names_exists() -> None:
    tour = read_tour()
    assert len(tour) > 30
    assert [path for path in sorted(tour) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("folder", ["", "service/condensery", "tests"])
def test_nothing_tracked_is_left_out_of_the_tour(folder: str) -> None:
    there = {path for path in list_tracked(folder) if not Path(path).name.startswith("__init__")}
    assert sorted(there - read_tour()) == []


def test_no_package_initialiser_holds_code() -> None:
    initialisers = sorted(PACKAGE.rglob("__init__.py"))
    assert [p for p in initialisers if p.parent != PACKAGE and p.stat().st_size] == []


def test_every_folder_of_the_package_with_code_is_a_package() -> None:
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert [folder for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []
