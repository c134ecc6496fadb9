"""docs/reliability.md promises nothing that no test shows."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")


def test_every_test_that_the_page_names_is_there() -> None:
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)
    assert len(named) > 50
    missing = [
        f"{path}::{test}"
        for path, test in named
        if not (ROOT / "tests" / path).exists()
        or f"def {test}(" not in (ROOT / "tests" / path).read_text(encoding="utf-8")
    ]
    assert missing == []


def test_every_promise_names_a_test() -> None:
    # A promise's row has three cells; the figures' tables have others.
    rows = re.findall(r"^\| (?!promise |---)([^|\n]+)\|([^|\n]+)\|([^|\n]+)\|$", PAGE, re.MULTILINE)
    assert len(rows) > 30
    assert [promise for promise, _, tests in rows if "::test_" not in tests] == []
