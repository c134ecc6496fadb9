"""How a server ends: told by a signal, and asked while it is busy."""

import contextlib
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.e2e.conftest import CONDENSERY, SLOW, Own

Serve = Callable[..., Own]


def test_sigterm_is_unready_at_once_serves_on_while_it_settles_then_ends(serve: Serve) -> None:
    own = serve("--settle-seconds", "15")
    with grpc.insecure_channel(own.grpc) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        signalled = time.monotonic()
        own.process.send_signal(signal.SIGTERM)
        own.until_unready()
        assert time.monotonic() - signalled < 10
        reason = httpx.get(f"{own.url}/readyz").json()["error"]["message"]
        assert "draining" in reason
        serving = health_pb2.HealthCheckResponse.SERVING
        assert health.Check(health_pb2.HealthCheckRequest()).status != serving
        assert httpx.get(f"{own.url}/livez").status_code == 200
        reply = httpx.post(f"{own.url}/embed", json={"inputs": "still served"})
        assert reply.status_code == 200
    assert own.process.wait(60) == 0
    assert time.monotonic() - signalled >= 15
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{own.url}/livez")


def test_what_was_accepted_is_finished(serve: Serve) -> None:
    own = serve("--settle-seconds", "0")
    replies: list[httpx.Response] = []
    ask = threading.Thread(
        target=lambda: replies.append(
            httpx.post(f"{own.url}/embed", json={"inputs": SLOW}, timeout=60)
        )
    )
    ask.start()
    until_busy(own)
    own.process.send_signal(signal.SIGTERM)
    ask.join(60)
    assert replies[0].status_code == 200
    assert len(replies[0].json()) == len(SLOW)
    assert own.process.wait(30) == 0


@pytest.mark.parametrize("where", ["settling", "finishing"])
def test_a_second_signal_hurries(serve: Serve, where: str) -> None:
    settle = "60" if where == "settling" else "0"
    own = serve("--settle-seconds", settle, "--grace-seconds", "60")
    if where == "finishing":
        threading.Thread(target=ask_and_be_cut_off, args=(own.url,), daemon=True).start()
        until_busy(own)
    own.process.send_signal(signal.SIGTERM)
    while "condensery: stopping" not in own.logged:
        time.sleep(0.02)
    own.process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    assert own.process.wait(60) == 0
    assert time.monotonic() - began < 30


def test_a_start_that_takes_too_long_is_given_up(store_with_pair: Path, tmp_path: Path) -> None:
    command = [CONDENSERY, "serve", "--port", "0", "--grpc-port", "0", "--no-samples"]
    command += ["--data-dir", str(tmp_path), "--store", str(store_with_pair)]
    done = subprocess.run(
        [*command, "--start-timeout-seconds", "1"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert "Not ready within 1 s (start_timeout_seconds)" in done.stderr


def test_sighup_reads_the_keys_again_and_an_interrupt_ends_it_without_settling(
    serve: Serve, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("first infer first-key-0123456789abcdef\n")
    keys.chmod(0o600)
    own = serve("--keys-file", str(keys), "--settle-seconds", "60")

    def status(key: str) -> int:
        headers = {"authorization": f"Bearer {key}"}
        return httpx.get(f"{own.url}/v1/models", headers=headers).status_code

    def reload(event: str) -> None:
        before = own.logged.count(event)
        own.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 60
        while own.logged.count(event) == before:
            assert time.monotonic() < deadline, own.logged
            time.sleep(0.02)

    assert (status("first-key-0123456789abcdef"), status("second-key-0123456789abcdef")) == (
        200,
        401,
    )
    keys.write_text("second infer second-key-0123456789abcdef\n")
    reload("keys_reloaded")
    assert (status("first-key-0123456789abcdef"), status("second-key-0123456789abcdef")) == (
        401,
        200,
    )
    keys.write_text("third infer,fly third-key-0123456789abcdef\n")
    reload("keys_not_reloaded")
    assert (status("third-key-0123456789abcdef"), status("second-key-0123456789abcdef")) == (
        401,
        200,
    )
    assert "third-key-0123456789abcdef" not in own.logged
    own.process.send_signal(signal.SIGINT)  # who is at the terminal need not wait
    assert own.process.wait(40) == 0


def ask_and_be_cut_off(url: str) -> None:
    with contextlib.suppress(httpx.TransportError):
        httpx.post(f"{url}/embed", json={"inputs": SLOW * 4}, timeout=60)


def until_busy(own: Own) -> None:
    """Wait until texts wait for a worker: then the request is surely in flight."""
    deadline = time.monotonic() + 60
    while True:
        lines = httpx.get(f"{own.url}/metrics").text.splitlines()
        waiting = [line for line in lines if line.startswith("condensery_queue_tokens{")]
        if any(float(line.split()[-1]) > 0 for line in waiting):
            return
        assert time.monotonic() < deadline, "nothing ever waited"
        time.sleep(0.005)
