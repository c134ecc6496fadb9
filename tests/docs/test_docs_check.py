"""``docs_check.py`` finds what a text may have wrong, and nothing in one that has nothing wrong."""

import subprocess
from pathlib import Path

import pytest
from tests.docs_check import check

MAKEFILE = "VENV := .venv\n\nserve: install ## Serve\n\t@exec condensery serve\n\ninstall:\n"
SCRIPT = "import helper\nfrom helper import add\n\nadd()\nparser.add_argument('--rounds')\n"
HELPER = "def add():\n    parser.add_argument('--width', action=BooleanOptionalAction)\n"
TEST = "def test_it_holds():\n    pass\n"
GOOD = """\
# A page of *its* own, with `code`

A heading, again
----------------

## A heading, again

[here](#a-page-of-its-own-with-code), [again](#a-heading-again-1), [there](docs/other.md#in-html),
[a folder](docs/), [a line](Makefile#L3), [elsewhere](https://example.org/nowhere#nothing),
![one](docs/one%20picture.png)

`condensery index get | scroll | count --filter`, `condensery train METHOD`, `CONDENSERY_MAX_ITEMS`,
`--no-tei-metrics`, `make serve install`, `docker stop --time 40`, `CONDENSERY_*`, `ls --color`

| a table | of commands |
|---|---|
| `python benchmarks/speed.py --no-width` | `pytest tests/test_it.py::test_it_holds -m slow` |

    make serve        # and nothing
    condensery ask "What is --so called?" --index notes | jq --raw-output .
    CONDENSERY_PORT=1 condensery serve --port=80 \\
        [--max-items 5]
    python -m condensery.methods.trainer.progress --run RUN
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    files = {
        "Makefile": MAKEFILE,
        "README.md": GOOD,
        "docs/other.md": '<a id="in-html"></a>\n\n[back](../README.md)\n',
        "docs/one picture.png": "<<<<<<< HEAD\n\0",
        "benchmarks/speed.py": SCRIPT,
        "benchmarks/helper.py": HELPER,
        "service/condensery/methods/trainer/progress.py": "",
        "tests/test_it.py": TEST,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    track(tmp_path)
    return tmp_path


def track(root: Path) -> None:
    for arguments in (["init", "--quiet"], ["add", "--all"]):
        subprocess.run(["git", *arguments], cwd=root, check=True)


def test_a_tree_without_a_fault_has_none(tree: Path) -> None:
    assert check(tree) == []


def test_marks_of_a_merge_are_found_in_any_tracked_text(tree: Path) -> None:
    marks = ["<" * 7 + " HEAD", "=" * 7, ">" * 7 + " main", "|" * 7 + " base"]
    for name in ("Makefile", "notes.txt"):
        with (tree / name).open("a", encoding="utf-8") as file:
            file.write("\r\n".join(["", *marks, "", "=" * 8, "a " + marks[0], ""]))
    (tree / "left.txt").write_text(marks[0] + "\n", encoding="utf-8")
    assert [fault.split(":")[0] for fault in check(tree)] == ["Makefile"] * 4
    track(tree)
    faults = [fault.split(": ")[0] for fault in check(tree)]
    assert faults[-4:] == [f"notes.txt:{line}" for line in (2, 3, 4, 5)]
    assert len(faults) == 9  # left.txt's too


# What a page says, and what must be found of it.
WRONG = {
    "[x](gone.md)": "gone.md leads to no file",
    "![x](gone.png)": "gone.png leads to no file",
    '<img src="gone.png">': "gone.png leads to no file",
    "[x](../other.md)": "../other.md leads to no file",
    "[x](untracked.md)": "untracked.md leads to no file",
    "[x](#nowhere)": "#nowhere leads to no heading",
    "[x][one]\n\n[one]: docs/other.md#nowhere": "docs/other.md#nowhere leads to no heading",
    "[x](README.md#A-Heading-again)": "README.md#A-Heading-again leads to no heading",
    "[x](Makefile#serve)": "Makefile#serve names a place in a file that has none",
    "| a |\n|---|\n| [x](gone.md) |": "gone.md leads to no file",
    "`condensery frobnicate`": "there is no command `condensery frobnicate`",
    "`condensery keys renew alice`": "there is no command `condensery keys renew`",
    "`condensery index get | scrawl`": "there is no command `condensery index scrawl`",
    "`condensery ask --wuery x`": "`condensery ask` has no flag --wuery",
    "    exec .venv/bin/condensery serve \\\n        --prot 80": (
        "`condensery serve` has no flag --prot"
    ),
    "```sh\nx=1 condensery train plot --rum RUN && make sreve\n```": (
        "`condensery train plot` has no flag --rum",
        "there is no chore `make sreve`",
    ),
    "`--no-such-flag`": "no command of ours has the flag --no-such-flag",
    "`make serve tset`": "there is no chore `make tset`",
    "`python benchmarks/gone.py`": "there is no script benchmarks/gone.py",
    "`python -m tests.e2e.gone`": "there is no script tests/e2e/gone/__main__.py",
    "`python benchmarks/speed.py --round 2`": "benchmarks/speed.py has no flag --round",
    "`pytest tests/gone.py -m slow`": "there is no file of tests tests/gone.py",
    "`python -m pytest tests/test_it.py::test_gone`": (
        "there is no test tests/test_it.py::test_gone"
    ),
    "`pytest -k nothing_like_it`": "no test is named like nothing_like_it",
    "`CONDENSERY_MAX_ITEM`": "there is no variable CONDENSERY_MAX_ITEM",
    "    export CONDENSERY_KEY=x": "there is no variable CONDENSERY_KEY",
}


def test_what_a_page_names_that_is_not_there_is_found(tree: Path) -> None:
    pages = []
    for number, text in enumerate(WRONG):
        page = f"page_{number}.md"
        (tree / page).write_text(f"Some words.\n\n{text}\n", encoding="utf-8")
        pages.append(page)
    track(tree)
    (tree / "untracked.md").write_text("", encoding="utf-8")
    faults = check(tree)
    for page, (text, expected) in zip(pages, WRONG.items(), strict=True):
        on_page = sorted(fault for fault in faults if fault.startswith(f"{page}:"))
        sought = [expected] if isinstance(expected, str) else list(expected)
        assert len(on_page) == len(sought), (text, on_page)
        assert all(fault.endswith(part) for fault, part in zip(on_page, sought, strict=True)), (
            on_page
        )
    assert len(faults) == sum(
        1 if isinstance(parts, str) else len(parts) for parts in WRONG.values()
    )
