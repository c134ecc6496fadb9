"""The snippets of docs/clients/ that need no more than this environment run against a server."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PAGES = Path(__file__).parents[2] / "docs" / "clients"
HERE = ("tei",)  # the others have tests with environments of their own


def snippets(page: str) -> list[str]:
    text = (PAGES / f"{page}.md").read_text()
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", HERE)
def test_what_a_page_shows_runs(live_server: Any, page: str) -> None:
    found = snippets(page)
    assert found
    for snippet in found:
        code = snippet.replace("http://127.0.0.1:8080", live_server.url)
        code = code.replace("127.0.0.1:8081", live_server.grpc)
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, check=False, text=True, timeout=110
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout
