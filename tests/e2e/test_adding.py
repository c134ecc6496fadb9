"""``condensery index add`` goes on where it was, whatever was killed in the middle."""

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import run
from tests.e2e.conftest import CONDENSERY, Own

from condensery.client.rest import Client

COUNT = 700  # six batches


def write_file(path: Path, version: int = 0) -> Path:
    lines = [
        {"id": f"n{i}", "text": f"note {i} is about {i}", "at": [i, i / 7, version, None]}
        for i in range(COUNT)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def begin(file: Path, url: str) -> "subprocess.Popen[bytes]":
    """Start to add a file, and come back once some of it is there."""
    process = subprocess.Popen(
        [CONDENSERY, "index", "add", "notes", str(file), "--url", url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with Client(url) as client:
        deadline = time.monotonic() + 100
        while all(info.name != "notes" or not info.documents for info in client.list_indexes()):
            assert time.monotonic() < deadline
            time.sleep(0.002)
    return process


def go_on(file: Path, url: str) -> None:
    """Repeat it: what was there stays, the rest comes, each once."""
    with Client(url) as client:
        there, _ = client.count("notes")
        assert 0 < there < COUNT, "it was not killed in the middle"
        printed = run("index", "add", "notes", str(file), "--url", url).stdout.strip()
        assert printed == (
            f"notes: {COUNT - there} documents written, {COUNT - there} passages; "
            f"{there} were there already"
        )
        assert client.count("notes") == (COUNT, COUNT)
        ids = [f"n{i}" for i in range(COUNT)]
        assert [document.id for document in client.get("notes", ids)] == ids
        assert client.get("notes", ["n7"])[0].metadata == {"at": [7, 1.0, 0, None]}


@pytest.mark.slow
def test_a_client_that_is_killed_goes_on(serve: Callable[..., Own], tmp_path: Path) -> None:
    server, file = serve(), write_file(tmp_path / "notes.jsonl")
    process = begin(file, server.url)
    process.kill()
    process.communicate()
    settled = -1
    with Client(server.url) as client:  # the server may be at its last batch
        while settled != (settled := client.count("notes")[0]):
            time.sleep(1)
    go_on(file, server.url)
    changed = write_file(tmp_path / "notes.jsonl", version=1)
    printed = run("index", "add", "notes", str(changed), "--grpc", server.grpc).stdout
    assert printed.startswith(f"notes: {COUNT} documents written")


@pytest.mark.slow
def test_a_server_that_is_killed_goes_on(serve: Callable[..., Own], tmp_path: Path) -> None:
    server, file = serve(), write_file(tmp_path / "notes.jsonl")
    process: Any = begin(file, server.url)
    server.process.kill()
    _, err = process.communicate()
    assert process.returncode == 1
    assert b"documents were written before this stopped" in err
    server.process.wait()
    go_on(file, serve().url)
