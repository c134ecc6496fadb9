"""Callers of the real REST door who leave, dawdle, or have no time; and heads without measure."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest

TEXTS = ["the river passes through a town with an old stone mill " * 10] * 16
TOKENS = 16 * 112
TIMEOUT = "x-request-timeout-ms"
QUESTION = {"query": "Which lake?", "index": {"name": "samples"}, "max_tokens": 512}


@pytest.fixture
def door(live_server: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=live_server.url, timeout=60) as client:
        yield client
        assert client.get("/readyz").status_code == 200, "the service did not go on"


@pytest.fixture
def metric(door: httpx.Client) -> Callable[..., float]:
    """Read a metric of the server: the sum of all its samples that have these labels."""

    def read(name: str, **labels: str) -> float:
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        return sum(
            float(line.rpartition(" ")[2])
            for line in door.get("/metrics").text.splitlines()
            if line.partition("{")[0] == name and all(item in line for item in wanted)
        )

    return read


@pytest.fixture
def dial(live_server: Any) -> Callable[[], Any]:
    """Return what opens a raw connection."""
    address = urlsplit(live_server.url)

    @contextmanager
    def opened() -> Iterator[socket.socket]:
        with socket.create_connection((address.hostname, address.port), timeout=30) as line:
            yield line

    return opened


def written(path: str, body: Any, head: str = "") -> bytes:
    content = json.dumps(body).encode()
    first = (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\n{head}content-length: {len(content)}\r\n\r\n"
    )
    return first.encode() + content


def read_all(line: socket.socket) -> bytes:
    """Read until the server ends the connection."""
    content = b""
    with suppress(ConnectionError):
        while data := line.recv(65536):
            content += data
    return content


def until(happened: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def test_who_hangs_up_is_never_computed_for_and_harms_nobody(
    door: httpx.Client, metric: Callable[..., float], dial: Any, live_server: Any
) -> None:
    wanted = np.array(door.post("/embed", json={"inputs": TEXTS[:1]}).json()[0])
    left = {"stage": "queue", "cause": "client", "model": "minilm-l6"}

    def some_leave() -> tuple[float, float]:
        """Return how many were dropped from the queue, and how many tokens were computed."""
        before = metric("condensery_cancelled_total", **left)
        ran = metric("condensery_batch_tokens_sum", model="minilm-l6")
        with ThreadPoolExecutor(1) as registry:
            with dial() as first:  # one that keeps the workers busy
                first.sendall(written("/embed", {"inputs": TEXTS * 4}))
                staying = registry.submit(door.post, "/embed", json={"inputs": TEXTS})
                with ExitStack() as leaving:
                    for line in [leaving.enter_context(dial()) for _ in range(20)]:
                        line.sendall(written("/embed", {"inputs": TEXTS}))
                    until(
                        lambda: metric("condensery_queue_tokens", model="minilm-l6") > 10 * TOKENS
                    )
            vectors = np.array(staying.result().json())
        assert (vectors @ wanted).min() > 0.9995, "a batch-mate was harmed"
        until(lambda: metric("condensery_queue_tokens", model="minilm-l6") == 0)
        return (
            metric("condensery_cancelled_total", **left) - before,
            metric("condensery_batch_tokens_sum", model="minilm-l6") - ran,
        )

    # On a busy machine most may have been computed before the server hears that they left.
    deadline = time.monotonic() + 60
    while True:
        gone, computed = some_leave()
        if gone >= 10 and computed < 14 * TOKENS:
            break
        assert time.monotonic() < deadline, f"{gone} dropped, {computed} tokens computed"
    until(lambda: "status=499" in live_server.log.read_text())


def test_who_hangs_up_after_a_long_body_is_noticed_too(
    metric: Callable[..., float], dial: Any
) -> None:
    left = {"cause": "client", "model": "minilm-l6"}
    before = metric("condensery_cancelled_total", **left)
    body = {"inputs": ["some words that take their time " * 30] * 400}
    deadline = time.monotonic() + 60
    while metric("condensery_cancelled_total", **left) == before:
        assert time.monotonic() < deadline, "nobody noticed"
        with dial() as line:
            line.sendall(written("/embed", body))
            until(lambda: metric("condensery_queue_tokens", model="minilm-l6") > 0)
        until(lambda: metric("condensery_queue_tokens", model="minilm-l6") == 0)


@pytest.mark.parametrize("stream", [True, False])
def test_who_hangs_up_amid_an_answer_ends_its_generation(
    metric: Callable[..., float], dial: Any, stream: bool
) -> None:
    left = {"stage": "generate", "cause": "client"}
    before = metric("condensery_cancelled_total", **left)
    deadline = time.monotonic() + 60
    while metric("condensery_cancelled_total", **left) == before:
        assert time.monotonic() < deadline, "no generation was ended"
        with ExitStack() as stack:
            # So many that they are far from their end when one has begun, also on a busy machine.
            for line in [stack.enter_context(dial()) for _ in range(40)]:
                line.sendall(written("/v1/rag/answer", {**QUESTION, "stream": stream}))
            until(lambda: metric("condensery_sequences", state="running"))
        until(lambda: not metric("condensery_sequences"))


def test_a_request_without_time_to_wait_is_refused_and_never_computed(
    door: httpx.Client, metric: Callable[..., float]
) -> None:
    late = {"stage": "queue", "cause": "deadline", "model": "minilm-l6"}
    before = metric("condensery_cancelled_total", **late)
    refused = 0
    deadline = time.monotonic() + 60
    # On a busy machine some are told so before they come to the queue, where it is counted.
    while metric("condensery_cancelled_total", **late) - before < 4:
        assert time.monotonic() < deadline, "too few were dropped from the queue"
        with ThreadPoolExecutor(16) as registry:
            patient = [
                registry.submit(door.post, "/embed", json={"inputs": TEXTS}) for _ in range(8)
            ]
            until(lambda: metric("condensery_queue_tokens", model="minilm-l6") > 0)
            hurried = [
                registry.submit(door.post, path, json={field: TEXTS}, headers={TIMEOUT: "30"})
                for path, field in (("/embed", "inputs"), ("/v1/embeddings", "input"))
                for _ in range(4)
            ]
            statuses = [item.result().status_code for item in hurried]
            assert {entry.result().status_code for entry in patient} == {200}
        assert set(statuses) <= {200, 408, 504}
        refused += statuses.count(408)
    assert refused


def test_an_answer_whose_time_runs_out_ends_with_an_error_and_done(door: httpx.Client) -> None:
    milliseconds = 100.0
    for _ in range(40):  # until it is enough to begin, and not to end
        body = {**QUESTION, "stream": True}
        reply = door.post("/v1/rag/answer", json=body, headers={TIMEOUT: str(round(milliseconds))})
        begun = reply.status_code == 200 and "event: message" in reply.text
        if begun and "event: final_answer" not in reply.text:
            break
        milliseconds *= 0.6 if begun else 1.5
    assert '"code":"deadline_exceeded"' in reply.text
    assert reply.text.endswith("event: done\ndata: [DONE]\n\n")


@pytest.mark.parametrize("path", ["/embed", "/v1/rag/answer"])
def test_a_body_that_dribbles_ends_with_its_time(dial: Any, path: str) -> None:
    started = time.monotonic()
    with dial() as line:
        line.sendall(written(path, {"inputs": TEXTS}, f"{TIMEOUT}: 300\r\n")[:150])
        head = line.recv(65536)
    assert head.startswith(b"HTTP/1.1 408 ")
    assert time.monotonic() - started > 0.25


@pytest.mark.parametrize("path", ["/embed", "/v1/rag/answer"])
def test_what_a_head_alone_tells_to_refuse_is_refused_before_its_body(dial: Any, path: str) -> None:
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 999999999\r\n"
    with dial() as line:
        line.sendall(f"{head}expect: 100-continue\r\n\r\n".encode())
        reply = line.recv(65536)
    assert reply.startswith(b"HTTP/1.1 413 ")
    with dial() as line:
        line.sendall(f"{head}{TIMEOUT}: no number\r\n\r\n".encode() + b"{")
        reply = line.recv(65536)
    assert reply.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 422 "))


@pytest.mark.parametrize("path", ["/livez", "/v1/models"])
def test_heads_of_old_and_of_careless_clients(dial: Any, path: str) -> None:
    for head, status in (
        (f"GET {path} HTTP/1.0\r\n", b"200 "),
        (f"GET {path}?a=b%20c HTTP/1.1\r\nhost: localhost\r\nx-odd: blank \t\r\n", b"200 "),
        (f"GET {path} HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\n", b"403 "),
        (f"HEAD {path} HTTP/1.1\r\nhost: localhost\r\n", b"200 "),
    ):
        with dial() as line:
            line.sendall(f"{head}connection: close\r\n\r\n".encode())
            reply = read_all(line)
        assert reply.partition(b" ")[2].startswith(status), (head, reply)
        assert (reply.partition(b"\r\n\r\n")[2] == b"") == head.startswith("HEAD")


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/embed", {"inputs": "a text"}),
        ("/v1/rag/answer", {"query": "who?", "documents": ["the old mill"], "max_tokens": 2}),
    ],
)
def test_bodies_in_chunks_are_read_whole(dial: Any, path: str, asked: Any) -> None:
    body = json.dumps(asked).encode()
    body = body[:-1] + b" " * 50_000 + body[-1:]
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n"
    with dial() as line:
        line.sendall(f"{head}connection: close\r\n\r\n".encode())
        for first in range(0, len(body), 7001):
            piece = body[first : first + 7001]
            line.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
        line.sendall(b"0\r\n\r\n")
        reply = read_all(line)
    assert reply.startswith(b"HTTP/1.1 200 "), reply[:400]


@pytest.mark.parametrize("size", [20_000, 5_000_000])
def test_headers_over_the_limit_are_refused_in_our_body(dial: Any, size: int) -> None:
    with dial() as line:
        line.sendall(written("/embed", {}, f"x-request-id: mine-7\r\nx-long: {'a' * size}\r\n"))
        head, _, body = read_all(line).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431 ")
    assert b"x-request-id: mine-7" in head
    assert json.loads(body)["error_type"] == "Validation"


def test_what_is_not_http_is_refused_in_our_body(dial: Any) -> None:
    with dial() as line:
        line.sendall(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
        head, _, body = read_all(line).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error"]["code"] == "malformed_request"


@pytest.mark.slow
def test_heads_that_come_byte_by_byte_and_lines_that_say_nothing_end(
    dial: Any, door: httpx.Client
) -> None:
    started = time.monotonic()
    with ExitStack() as stack:
        lines = [stack.enter_context(dial()) for _ in range(50)]
        left = set(lines)
        while left:
            assert time.monotonic() - started < 60, f"{len(left)} connections are still open"
            for place, line in enumerate(lines):
                if line in left and has_ended(line, (b"", b"G", b"", b"\r\n")[place % 4]):
                    left.discard(line)
            assert door.get("/livez").status_code == 200
            time.sleep(0.2)
    assert time.monotonic() - started > 9


def has_ended(line: socket.socket, more: bytes) -> bool:
    """Send a little more; return whether the server has ended the connection."""
    line.setblocking(False)
    try:
        line.sendall(more)
        return line.recv(1000) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
