"""One environment a family of clients: theirs don't agree with each other, nor with the server's.

Each is made once, in ``clients/`` of the tests' own environment (or where ``CLIENT_ENVIRONMENTS``
says), from a package index.
"""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("CLIENT_ENVIRONMENTS", Path(sys.prefix) / "clients"))


def python_with(family: str, *packages: str) -> str:
    """Return an interpreter that has ``packages``; the test is skipped where they can't be had."""
    folder = FOLDER / family
    python, done = folder / "bin" / "python", folder / ".installed"
    if not done.exists():
        venv.create(folder, with_pip=True, clear=True)
        command = [str(python), "-m", "pip", "install", "--quiet", *packages]
        made = subprocess.run(command, capture_output=True, check=False, text=True, timeout=600)
        if made.returncode:
            pytest.skip(f"{', '.join(packages)}: {made.stderr.strip().splitlines()[-1:]}")
        done.touch()
    return str(python)


def run(python: str, code: str, *arguments: str) -> str:
    """Run a program in an environment; returns what it printed, which says the versions first."""
    # Only their own packages: ours are not there.
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python, "-c", code, *arguments],
        capture_output=True,
        check=False,
        text=True,
        timeout=110,
        env=own,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout.split("\n", 1)[0])  # the versions
    return done.stdout
