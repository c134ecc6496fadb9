"""The clients that people have, each family in an environment of its own, of a real server.

Their libraries don't share one environment, and most of them are not in ours. What a family's page
in docs/clients/ shows is run as it stands there; then ``check.py`` beside its requirements compares
what the client gets with what it should.
"""

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FAMILIES = sorted(path.parent.name for path in HERE.glob("*/requirements.txt"))
OURS = ("langchain_retriever", "llama_index_retriever")
SERVICE = ROOT / "service"
PROTO = ROOT / "proto" / "condensery" / "stubs"
PIP = ("-m", "pip", "--disable-pip-version-check")
PYTEST = ("-m", "pytest", "-q", "-c", os.devnull, "--noconftest", "-p", "no:cacheprovider")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def python(family: str) -> Path:
    """The Python of the family's environment; made anew when its requirements change."""
    wanted = HERE / family / "requirements.txt"
    digest = hashlib.sha256(wanted.read_bytes()).hexdigest()[:12]
    folder = ROOT / ".venv" / "clients" / f"{family}-{digest}"
    made = folder / "bin" / "python"
    if not (folder / "whole").is_file():
        # Our own pip installs, and nothing is compiled that is never imported: half the work.
        venv = [sys.executable, "-m", "venv", "--clear", "--without-pip", folder]
        subprocess.run(venv, check=True)
        install = ("install", "--quiet", "--no-compile", "-r", wanted)
        subprocess.run([sys.executable, *PIP, "--python", made, *install], check=True)
        (folder / "whole").touch()
    return made


def test_what_the_pages_show_runs_and_the_client_gets_what_it_should(
    family: str, python: Path, live_server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    listing = [*PIP, "--python", str(python), "list", "--format", "freeze"]
    versions = run(Path(sys.executable), listing, live_server)
    with capsys.disabled():
        print(f"\n{family}: {', '.join(versions.split())}")
    for page, snippet in snippets(family):
        # the addresses of a server as it starts by itself
        own = snippet.replace("http://127.0.0.1:8080", live_server.url)
        own = own.replace("127.0.0.1:8080", live_server.url.removeprefix("http://"))
        own = own.replace("127.0.0.1:8081", live_server.grpc)
        assert run(python, ["-c", own], live_server, family).strip(), f"{page} shows nothing"
    run(python, [*PYTEST, f"{family}/check.py"], live_server, family)


def run(python: Path, arguments: Sequence[str], server: Any, family: str = "") -> str:
    """Run a program that learns of the server from its environment; return what it prints."""
    own = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    # No package of ours: of all that we have, a client in another language has the contracts.
    # But for the families that are classes of ours.
    paths = [PROTO, SERVICE] if family in OURS else [PROTO]
    own |= {"SERVER": server.url, "SERVER_GRPC": server.grpc}
    own["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    done = subprocess.run(
        [python, *arguments],
        env=own,
        cwd=HERE,
        capture_output=True,
        check=False,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def snippets(family: str) -> list[tuple[str, str]]:
    """Return pages and their Python blocks, a program each, that name the family above them."""
    mark = re.compile(rf"<!-- runs: {family} -->\n```python\n(.*?)```", re.DOTALL)
    pages = sorted((ROOT / "docs" / "clients").glob("*.md"))
    blocks = [(page.name, block) for page in pages for block in mark.findall(page.read_text())]
    assert blocks, f"no page in docs/clients shows {family}"
    return blocks
