"""The clients that people have, each family in an environment of its own, of a real server.

Their libraries don't share one environment, and none of them is in ours. What a family's page in
docs/clients/ shows is run as it stands there; then ``check.py`` beside its requirements compares
what the client got with what the server says to plain requests.
"""

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FAMILIES = sorted(path.parent.name for path in HERE.glob("*/requirements.txt"))
SHOWN = "http://127.0.0.1:8080"  # the server's address in the pages
SHOWN_GRPC = "127.0.0.1:8081"
QUIET = ("--disable-pip-version-check", "--quiet")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def environment(family: str) -> Path:
    """Return the Python of the family's environment; made anew when its requirements change."""
    wanted = HERE / family / "requirements.txt"
    digest = hashlib.sha256(wanted.read_bytes()).hexdigest()[:12]
    folder = ROOT / ".venv" / "clients" / f"{family}-{digest}"
    python = folder / "bin" / "python"
    if not (folder / "whole").is_file():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        install = [python, "-m", "pip", "install", *QUIET, "-r", wanted]
        subprocess.run(install, check=True)
        (folder / "whole").touch()
    return python


def run(python: Path, program: str, server: Any) -> str:
    """Run a program that knows the server by its environment; return what it prints."""
    hidden = ("PYTHONPATH", "HF_HUB_OFFLINE")
    own = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(
        [python, "-c", program],
        env=own | {"SERVER": server.url, "SERVER_GRPC": server.grpc, "PYTHONWARNINGS": "ignore"},
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{program}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("family", FAMILIES)
def test_family(family: str, live_server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    python = environment(family)
    wanted = [line.split("=")[0] for line in requirements(family)]
    versions = run(
        python,
        f"from importlib.metadata import version\n"
        f"print(*[f'{{one}} {{version(one)}}' for one in {wanted!r}], sep=', ')",
        live_server,
    )
    with capsys.disabled():
        print(f"\n{family}: {versions.strip()}")
    for page, snippet in snippets(family):
        own = snippet.replace(SHOWN, live_server.url).replace(SHOWN_GRPC, live_server.grpc)
        assert run(python, own, live_server).strip(), f"{page} shows nothing"
    assert run(python, (HERE / family / "check.py").read_text(), live_server).strip() == "ok"


def requirements(family: str) -> list[str]:
    lines = (HERE / family / "requirements.txt").read_text().splitlines()
    return [re.split(r"[ #>]", line)[0] for line in lines]


def snippets(family: str) -> list[tuple[str, str]]:
    """Return the Python blocks of the pages, a program each, that name the family above them."""
    mark = re.compile(rf"<!-- runs: {family} -->\n```python\n(.*?)```", re.DOTALL)
    pages = sorted((ROOT / "docs" / "clients").glob("*.md"))
    found = [(page.name, block) for page in pages for block in mark.findall(page.read_text())]
    assert found, f"no page in docs/clients shows {family}"
    return found
