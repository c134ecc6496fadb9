"""``condensery serve`` as a process: how it starts, refuses to, goes on, and ends."""

import os
import re
import resource
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.conftest import wait_for

CONDENSERY = str(Path(sys.executable).with_name("condensery"))


def refused(*flags: str, **environment: str) -> str:
    """Start a server that must not start; returns what it says."""
    done = subprocess.run(
        [CONDENSERY, "serve", *flags],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, **environment},
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "ready in" not in done.stderr
    return done.stderr


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_taken_port_is_named_with_its_setting(taken: int, tmp_path: Path) -> None:
    printed = refused("--port", str(taken), "--grpc-port", "0", "--data-dir", str(tmp_path))
    assert f"--port: port {taken} on 127.0.0.1 is taken by another process" in printed
    assert "CONDENSERY_PORT" in printed
    printed = refused("--grpc-port", str(taken), "--port", "0", "--data-dir", str(tmp_path))
    assert f"--grpc-port: port {taken} on 127.0.0.1 is taken" in printed


def test_other_machines_are_not_let_in_without_a_key_unless_a_setting_allows_it(
    tmp_path: Path,
) -> None:
    printed = refused("--host", "0.0.0.0", "--port", "0", "--data-dir", str(tmp_path / "data"))
    assert "--host: other machines can reach '0.0.0.0', and no key is set" in printed
    assert "--allow-no-keys" in printed
    assert not (tmp_path / "data").exists()


def test_a_taken_data_directory_is_named_with_its_holder(live_server: Any) -> None:
    data_dir = str(live_server.data_dir)
    printed = refused("--port", "0", "--grpc-port", "0", "--data-dir", data_dir)
    assert data_dir in printed
    assert f"held by process {live_server.pid}" in printed
    assert httpx.get(f"{live_server.url}/readyz").status_code == 200


def test_a_data_directory_that_can_not_be_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    printed = refused("--port", "0", "--grpc-port", "0", "--data-dir", str(file / "data"))
    assert str(file / "data") in printed


def test_a_setting_that_is_not_allowed_is_named() -> None:
    printed = refused(CONDENSERY_DTYPE="float16")
    assert "CONDENSERY_DTYPE: 'float16' is not allowed" in printed
    assert "'auto', 'float32' or 'bfloat16'" in printed


def test_a_corrupt_model_leaves_the_rest_serving_and_sigterm_waits_for_who_is_served(
    store_with_pair: Path, tmp_path: Path
) -> None:
    store, log = tmp_path / "models", tmp_path / "log"
    shutil.copytree(store_with_pair, store)
    (weights, *_) = (store / "oscar-mini").glob("*/*.safetensors")
    weights.write_bytes(weights.read_bytes()[:-100])
    command = [CONDENSERY, "serve", "--port", "0", "--grpc-port", "0", "--no-samples"]
    command += ["--data-dir", str(tmp_path / "data"), "--store", str(store)]
    command += ["--settle-seconds", "0", "--host", "0.0.0.0", "--allow-no-keys"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        text = wait_for(log, "condensery: ready in", process)
        assert re.search(r"oscar-mini: refused: .*safetensors", text)
        url = re.search(r"REST on (http://\S+)", text)[1]
        assert httpx.get(f"{url}/v1/indexes").json()["data"] == []
        reply = httpx.post(f"{url}/rerank", json={"query": "q", "texts": ["a"]})
        assert reply.status_code == 404
        assert "safetensors" in reply.json()["error"]
        assert "oscar-mini" in httpx.get(f"{url}/info").json()["refused"]

        replies = []
        texts = ["a few words that take their time " * 8] * 400
        body = {"inputs": texts}
        caller = threading.Thread(
            target=lambda: replies.append(httpx.post(f"{url}/embed", json=body, timeout=60))
        )
        caller.start()
        wait_for_queue(url)
        process.send_signal(signal.SIGTERM)
        caller.join(60)
        assert len(replies[0].json()) == 400
        assert process.wait(30) == 0
        printed = log.read_text()
        assert "condensery: stopped" in printed
        for warning in ("no key is set", "gRPC does not bound its connections"):
            assert f"condensery: warning: {warning}" in printed  # strangers reach this address
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/livez")
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("samples", [True, False], ids=["samples", "no samples"])
def test_what_a_server_suggests_is_answered(
    samples: bool, live_server: Any, serve: Callable[..., Any]
) -> None:
    printed = live_server.log.read_text() if samples else serve().logged
    (line,) = re.findall(r"condensery: try: (.+)", printed)
    curl, url, flag, body = shlex.split(line)
    assert (curl, flag) == ("curl", "-d")
    headers = {"content-type": "application/x-www-form-urlencoded"}  # as curl sends -d
    reply = httpx.post(url, content=body, headers=headers, timeout=60)
    assert reply.status_code == 200, reply.text
    assert ("samples" in body) == samples


def wait_for_queue(url: str) -> None:
    """Wait until texts wait for a worker: then the request is surely in flight."""
    for _ in range(1000):
        hits = re.search(
            r'condensery_queue_tokens{model="minilm-l6"} (\S+)', httpx.get(f"{url}/metrics").text
        )
        if hits and float(hits[1]) > 0:
            return
    raise AssertionError("nothing ever waited")


def test_a_full_disk_refuses_writes_and_the_service_goes_on(live_server: Any) -> None:
    documents = [{"id": str(place), "text": f"text number {place}"} for place in range(300)]
    with httpx.Client(base_url=live_server.url, timeout=60) as door:
        door.put("/v1/indexes/full").raise_for_status()
        before = resource.prlimit(live_server.pid, resource.RLIMIT_FSIZE)
        try:
            # Files can't grow over this: to who writes, the same as a disk that is full.
            resource.prlimit(live_server.pid, resource.RLIMIT_FSIZE, (100_000, before[1]))
            reply = door.post("/v1/indexes/full/documents", json={"documents": documents})
        finally:
            resource.prlimit(live_server.pid, resource.RLIMIT_FSIZE, before)
        assert reply.status_code == 507, reply.text
        assert reply.json()["error"]["code"] == "storage_full"
        assert reply.headers["x-should-retry"] == "false"
        counts = door.post("/v1/indexes/full/documents/count").json()
        assert counts == {"documents": 0, "passages": 0}
        door.post("/v1/indexes/full/documents", json={"documents": documents}).raise_for_status()
        assert door.post("/v1/indexes/full/documents/count").json()["documents"] == 300
        door.delete("/v1/indexes/full").raise_for_status()
