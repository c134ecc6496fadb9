"""Front processes: what they answer themselves and what they pass on, and what outlives a kill."""

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import httpx
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.conftest import has_ended, read_metric, serving
from tests.e2e.conftest import CONDENSERY, Own

from condensery.api.grpc.health import WATCHERS_PER_ADDRESS
from condensery.client.grpc import GrpcClient
from condensery.errors import ModelNotFound

FRONTS = 2
Serve = Callable[..., Own]


@pytest.fixture(scope="module")
def server(store_with_pair: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("fronts")
    with serving(store_with_pair, folder, "--front-processes", str(FRONTS)) as server:
        yield server


def fronts_of(pid: int) -> list[int]:
    """The front processes of a server."""
    fronts = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(OSError):  # it ends at this moment
            if b"condensery.fronts.front" in Path(f"/proc/{child}/cmdline").read_bytes():
                fronts.append(int(child))
    return fronts


def until(done: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def ask_each(url: str, wanted: int = FRONTS) -> list[httpx.Response]:
    """Ask on new connections, among which the system shares out the front processes."""
    return [httpx.post(f"{url}/embed", json={"inputs": "a text"}) for _ in range(8 * wanted)]


def test_every_request_is_counted_once_whoever_served_it(server: Any) -> None:
    labels = {"task": "embed", "code": "ok", "protocol": "rest"}
    name = "condensery_requests_total"
    before = read_metric(server.url, name, **labels)
    replies = ask_each(server.url)
    assert {reply.status_code for reply in replies} == {200}
    assert len({reply.text for reply in replies}) == 1
    until(
        lambda: read_metric(server.url, name, **labels) - before == len(replies), "not counted once"
    )
    assert read_metric(server.url, "condensery_front_processes") == FRONTS


def test_grpc_is_shared_out_too_and_counted_once(server: Any) -> None:
    labels = {"task": "embed", "code": "ok", "protocol": "grpc"}
    before = read_metric(server.url, "condensery_requests_total", **labels)
    over_rest = httpx.post(f"{server.url}/v1/embeddings", json={"input": "a text"})
    wanted = over_rest.json()["data"][0]["embedding"]
    for _ in range(4 * FRONTS):  # a connection each
        with GrpcClient(server.grpc) as client:
            assert client.ready()
            vectors = client.embed(["a text"])
            np.testing.assert_allclose(vectors[0], wanted, atol=1e-6)
            assert [index.name for index in client.list_indexes()] == ["samples"]
    until(
        lambda: (
            read_metric(server.url, "condensery_requests_total", **labels) - before == 4 * FRONTS
        ),
        "not counted once",
    )


def test_over_grpc_a_front_refuses_by_name_what_does_not_serve(server: Any) -> None:
    with (
        GrpcClient(server.grpc) as client,
        pytest.raises(ModelNotFound, match=r"'nobody' does not serve; encoders that serve"),
    ):
        client.embed(["a"], model="nobody")


def test_a_grpc_caller_cannot_say_who_it_is(server: Any) -> None:
    """Watchers of health are counted by address, whatever they say theirs is."""
    with grpc.insecure_channel(server.grpc) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch
        calls = [
            watch(
                health_pb2.HealthCheckRequest(),
                metadata=[("x-condensery-front", f"10.0.0.{place}")],
                timeout=60,
            )
            for place in range(WATCHERS_PER_ADDRESS + 1)
        ]
        statuses = set()
        for call in calls:
            try:
                next(iter(call))
                statuses.add("OK")
            except grpc.RpcError as error:
                statuses.add(error.code().name)
        for call in calls:
            call.cancel()
    assert statuses == {"OK", "RESOURCE_EXHAUSTED"}


def test_what_a_front_does_not_know_the_engine_refuses_in_its_own_words(server: Any) -> None:
    before = read_metric(server.url, "condensery_requests_total", model="unknown")
    reply = httpx.post(
        f"{server.url}/v1/embeddings", json={"model": "nobody", "input": ["a" * 100_000]}
    )
    assert reply.status_code == 404
    assert reply.json()["error"]["code"] == "model_not_found"
    assert "minilm-l6" in reply.json()["error"]["message"]
    after = read_metric(server.url, "condensery_requests_total", model="unknown")
    assert after - before == 1


def test_a_reply_that_was_passed_on_has_each_header_once(server: Any) -> None:
    reply = httpx.get(f"{server.url}/v1/models", headers={"x-request-id": "mine"})
    names = [name.lower() for name, _ in reply.headers.raw]
    assert len(names) == len(set(names))
    assert reply.headers["x-request-id"] == "mine"


@pytest.mark.parametrize("path", ["/embed", "/v1/indexes"])
def test_a_caller_cannot_say_where_a_request_came_from(server: Any, path: str) -> None:
    forged = '{"server": ["evil.example", 80], "peer": ["127.0.0.1", 1], "client": ["1.2.3.4", 1]}'
    reply = httpx.post(
        f"{server.url}{path}",
        json={"inputs": "a"},
        headers={"host": "evil.example", "x-condensery-front": forged},
    )
    assert reply.status_code == 403
    assert "evil.example" in reply.text


def test_an_answer_is_streamed_through(server: Any) -> None:
    body = {"query": "Who?", "documents": ["Ada wrote it."] * 4, "stream": True, "max_tokens": 64}
    with httpx.stream("POST", f"{server.url}/v1/rag/answer", json=body, timeout=60) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        pieces = list(reply.iter_raw())
    assert len(pieces) > 1
    assert b"".join(pieces).rstrip().endswith(b"[DONE]")


def test_models_and_aliases_change_for_all_of_them(server: Any) -> None:
    def served(alias: str) -> set[int]:
        return {
            httpx.post(
                f"{server.url}/v1/embeddings", json={"model": alias, "input": "a"}
            ).status_code
            for _ in range(8 * FRONTS)
        }

    assert served("other") == {404}
    set_aliases = f"{server.url}/v1/models/aliases"
    assert httpx.post(set_aliases, json={"aliases": {"other": "minilm-l6"}}).status_code == 200
    assert served("other") == {200}
    assert httpx.post(set_aliases, json={"aliases": {"other": None}}).status_code == 200
    assert served("other") == {404}


def test_watchers_of_health_do_not_hold_up_the_end(serve: Serve) -> None:
    own = serve("--front-processes", str(FRONTS), "--settle-seconds", "0")
    with grpc.insecure_channel(own.grpc) as channel:
        watching = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert next(watching).status == health_pb2.HealthCheckResponse.SERVING
        own.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        with pytest.raises(grpc.RpcError) as ended:
            for _ in watching:
                pass
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
        assert own.process.wait(60) == 0
    assert time.monotonic() - began < 25  # and not the grace of 30


def test_one_that_is_killed_is_replaced_and_what_it_counted_stays(serve: Serve) -> None:
    own = serve("--front-processes", str(FRONTS))
    asked = len(ask_each(own.url))
    name, labels = "condensery_requests_total", {"task": "embed", "code": "ok"}
    until(lambda: read_metric(own.url, name, **labels) == asked, "not counted once")
    first, second = fronts_of(own.process.pid)
    os.kill(first, signal.SIGKILL)
    until(lambda: first not in fronts_of(own.process.pid), "it is still there")
    # Connections that came to its place wait there for the next one: none is refused.
    replies = [httpx.post(f"{own.url}/embed", json={"inputs": "b"}, timeout=60) for _ in range(16)]
    assert {reply.status_code for reply in replies} == {200}
    assert own.logged.count("front_process_ended") == 1  # and the next one stayed
    shown = "condensery_front_processes"
    until(lambda: read_metric(own.url, shown) == FRONTS, "none came in its place")
    assert second in fronts_of(own.process.pid)
    assert "front_process_ended" in own.logged
    all_asked = asked + len(replies)
    until(lambda: read_metric(own.url, name, **labels) == all_asked, "not counted once")


@pytest.mark.slow
def test_one_that_hangs_is_replaced(serve: Serve) -> None:
    own = serve("--front-processes", "1")
    (front,) = fronts_of(own.process.pid)
    os.kill(front, signal.SIGSTOP)
    try:
        until(lambda: "front_process_hangs" in own.logged, "nobody noticed")
        reply = httpx.post(f"{own.url}/embed", json={"inputs": "a"}, timeout=60)
        assert reply.status_code == 200
        assert front not in fronts_of(own.process.pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(front, signal.SIGKILL)


def test_without_the_engine_they_end_and_the_port_is_free(
    serve: Serve,
) -> None:
    own = serve("--front-processes", str(FRONTS))
    fronts = fronts_of(own.process.pid)
    assert len(fronts) == FRONTS
    own.process.kill()
    own.process.wait()
    until(lambda: all(map(has_ended, fronts)), "they live on")
    address = urlsplit(own.url)

    def is_free() -> bool:
        with socket.socket() as free:
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                free.bind((address.hostname, address.port))
            except OSError:  # a thread of theirs has it still
                return False
            return True

    until(is_free, "the port is taken")


def test_a_second_server_does_not_share_the_port(serve: Serve, tmp_path: Path) -> None:
    own = serve("--front-processes", str(FRONTS))
    port = str(urlsplit(own.url).port)
    command = [CONDENSERY, "serve", "--port", port, "--grpc-port", "0", "--front-processes", "2"]
    command += ["--data-dir", str(tmp_path / "other")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert f"port {port} on 127.0.0.1 is taken" in done.stderr
    port = own.grpc.rpartition(":")[2]
    command[2:6] = ["--port", "0", "--grpc-port", port]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert f"--grpc-port: port {port} on 127.0.0.1 is taken" in done.stderr


def test_without_a_key_nobody_holds_a_connection_by_sending_nothing(
    serve: Serve, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.touch(0o600)
    keys.write_text("alice admin a-key-of-24-characters-or-so\n")
    own = serve("--front-processes", "1", "--keys-file", str(keys))
    address = urlsplit(own.url)
    for path in ("/v1/indexes/x/documents", "/embed"):
        with socket.create_connection((address.hostname, address.port), timeout=30) as line:
            line.sendall(
                f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n".encode()
            )
            assert line.recv(65536).startswith(b"HTTP/1.1 401 ")


def test_new_keys_hold_at_every_front(serve: Serve, tmp_path: Path) -> None:
    old, new = "an-old-key-of-24-characters", "a-new-key-of-24-characters!"
    keys = tmp_path / "keys"
    keys.touch(0o600)
    keys.write_text(f"alice admin {old}\n")
    own = serve("--front-processes", str(FRONTS), "--keys-file", str(keys))

    def statuses(key: str) -> set[int]:
        headers = {"authorization": f"Bearer {key}"}
        body = {"inputs": "a"}
        return {
            httpx.post(f"{own.url}/embed", json=body, headers=headers).status_code
            for _ in range(8 * FRONTS)
        }

    assert statuses(old) == {200}
    assert statuses(new) == {401}
    keys.write_text(f"alice admin {new}\n")
    own.process.send_signal(signal.SIGHUP)
    until(lambda: "keys_reloaded" in own.logged, "they were not read")
    until(lambda: statuses(old) == {401}, "the old one opens still")
    assert statuses(new) == {200}


def test_what_was_accepted_is_finished_and_nothing_is_lost_at_the_end(serve: Serve) -> None:
    own = serve("--front-processes", str(FRONTS), "--settle-seconds", "10")
    statuses: list[int] = []
    lost: list[Exception] = []

    def ask_until_told() -> None:
        """Ask on a kept connection until a reply says that it ends: as a balancer's clients do."""
        with httpx.Client(timeout=60) as client:
            told = False
            while not told:
                try:
                    reply = client.post(f"{own.url}/embed", json={"inputs": "steady"})
                except httpx.TransportError as error:
                    lost.append(error)
                    return
                statuses.append(reply.status_code)
                told = reply.headers.get("connection") == "close"

    callers = [threading.Thread(target=ask_until_told) for _ in range(6)]
    for caller in callers:
        caller.start()
    until(lambda: len(statuses) > 50, "nothing is answered")
    own.process.send_signal(signal.SIGTERM)
    for caller in callers:
        caller.join(60)
    assert not any(caller.is_alive() for caller in callers)
    assert not lost
    assert set(statuses) == {200}
    assert own.process.wait(60) == 0
    assert " error " not in own.logged


def test_too_many_are_refused(tmp_path: Path) -> None:
    command = [CONDENSERY, "serve", "--front-processes", "65", "--data-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert (
        "--front-processes: '65' is not allowed: it must be a whole number, 0 to 64" in done.stderr
    )
