"""A real server by each door, and servers that a test may end or break."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.conftest import serve_words, wait_for

CONDENSERY = str(Path(sys.executable).with_name("condensery"))
SLOW = ["a few words that take their time " * 8] * 400


def run_whole(command: Sequence[str], seconds: float) -> "subprocess.CompletedProcess[str]":
    """Run a program; one that is not done in time, or is left, goes with all that it started.

    A server that outlived its load would take the machine from every test that comes after.
    """
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=seconds)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


@pytest.fixture(params=["rest", "grpc"])
def door(request: pytest.FixtureRequest, live_server: Any) -> tuple[str, str]:
    """The arguments that choose the server, by each door."""
    if request.param == "rest":
        return "--url", live_server.url
    return "--grpc", live_server.grpc


@dataclass(frozen=True)
class Own:
    """A running server of one test's own."""

    process: "subprocess.Popen[bytes]"
    log: Path
    url: str
    grpc: str

    @property
    def logged(self) -> str:
        return self.log.read_text()

    def ready(self) -> bool:
        return httpx.get(f"{self.url}/readyz", trust_env=False).status_code == 200

    def until_unready(self, seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while self.ready():
            assert time.monotonic() < deadline, "still ready"
            time.sleep(0.02)


@pytest.fixture
def serve(store_with_pair: Path, tmp_path: Path) -> Iterator[Callable[..., Own]]:
    """Return a function that starts a server with these flags; it is killed at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*flags: str) -> Own:
        log = tmp_path / f"log{len(started)}"
        command = [CONDENSERY, *serve_words(tmp_path, None), "--port", "0", "--grpc-port", "0"]
        command += ["--no-samples"]
        command += ["--data-dir", str(tmp_path / "data"), "--store", str(store_with_pair), *flags]
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        started.append(process)
        text = wait_for(log, "condensery: ready in", process)
        rest, grpc = re.search(r"REST on (http\S+)", text), re.search(r"gRPC on (\S+)", text)
        assert rest
        assert grpc
        return Own(process, log, rest[1], grpc[1])

    yield start
    for process in started:
        process.kill()
        process.wait()
