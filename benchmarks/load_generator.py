"""A closed-loop HTTP load generator that costs little: raw asyncio, HTTP/1.1, keep-alive.

Run as a process of its own, so that it shares no interpreter lock with what it measures:

    python benchmarks/load_generator.py PORT PATH BODIES --connections 64 --seconds 5

BODIES is a file with one JSON body a line; they are sent in turn, to 127.0.0.1. Prints one JSON
object: requests, failures, seconds, latencies (milliseconds, sorted), CPU seconds, what the
replies' `server-timing` says (milliseconds in the mean, by name), and the first reply to each of
the first `--keep` bodies. `--self-test` measures the generator itself, against a
server in a second process that answers at once.
"""

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HEAD_END = b"\r\n\r\n"
LENGTH = b"content-length:"
TIMING = b"server-timing:"
GIVE_UP_SECONDS = 120.0  # after the end, for replies still on their way


@dataclass
class Tally:
    """What all connections of one run add to."""

    requests: Sequence[bytes]
    keep: int
    ends: float
    sent: int = 0
    failures: list[str] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    timings: dict[str, float] = field(default_factory=dict)  # summed
    replies: dict[int, str] = field(default_factory=dict)


class Connection(asyncio.Protocol):
    """Sends a request, waits for its reply, sends the next, until the run's end."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.buffer = b""
        self.expected = -1  # bytes of the whole reply, once its head is here
        self.which = 0
        self.started = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.send()

    def send(self) -> None:
        self.which = self.tally.sent % len(self.tally.requests)
        self.tally.sent += 1
        self.started = time.perf_counter()
        self.transport.write(self.tally.requests[self.which])

    def data_received(self, data: bytes) -> None:
        self.buffer = self.buffer + data if self.buffer else data
        if self.expected < 0:
            end = self.buffer.find(HEAD_END)
            if end < 0:
                return
            head = self.buffer[:end].lower()
            at = head.find(LENGTH)
            if at < 0:
                self.fail("a reply without content-length")
                return
            length = int(head[at + len(LENGTH) :].split(b"\r\n", 1)[0])
            self.expected = end + len(HEAD_END) + length
        if len(self.buffer) >= self.expected:
            self.receive()

    def receive(self) -> None:
        now = time.perf_counter()
        head, body = self.buffer.split(HEAD_END, 1)
        self.buffer, self.expected = b"", -1
        if head[9:12] != b"200":
            self.fail(f"{head[9:12].decode()}: {body[:200].decode(errors='replace')}")
            return
        self.tally.latencies.append((now - self.started) * 1000)
        add_timings(head.lower(), self.tally.timings)
        if self.which < self.tally.keep and self.which not in self.tally.replies:
            self.tally.replies[self.which] = body.decode()
        if now < self.tally.ends:
            self.send()
        else:
            self.finish()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.fail(f"connection lost: {exc or 'closed by the server'}")

    def fail(self, reason: str) -> None:
        self.tally.failures.append(reason)
        self.finish()

    def finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)
        self.transport.close()


def add_timings(head: bytes, sums: dict[str, float]) -> None:
    """Add what a reply's `server-timing` says; other servers send none."""
    at = head.find(TIMING)
    if at < 0:
        return
    for entry in head[at + len(TIMING) :].split(b"\r\n", 1)[0].split(b","):
        name, _, value = entry.strip().decode().partition(";dur=")
        sums[name] = sums.get(name, 0.0) + float(value or 0)


async def run(
    port: int, requests: Sequence[bytes], connections: int, seconds: float, keep: int
) -> dict[str, Any]:
    """Load 127.0.0.1:port for so many seconds and report."""
    loop = asyncio.get_running_loop()
    started = time.perf_counter()
    tally = Tally(requests, keep, started + seconds)
    opened = await asyncio.gather(
        *(
            loop.create_connection(lambda: Connection(tally), "127.0.0.1", port)
            for _ in range(connections)
        )
    )
    waiting = [protocol.done for _, protocol in opened]
    _, late = await asyncio.wait(waiting, timeout=seconds + GIVE_UP_SECONDS)
    tally.failures += ["no reply within 120 s of the end"] * len(late)
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "requests": len(tally.latencies),
        "failures": tally.failures[:10],
        "seconds": time.perf_counter() - started,
        "latencies_ms": sorted(tally.latencies),
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "timings_ms": {name: value / len(tally.latencies) for name, value in tally.timings.items()},
        "replies": [tally.replies.get(i) for i in range(min(keep, len(requests)))],
    }


def encode(port: int, path: str, body: str) -> bytes:
    data = body.encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


class InstantServer(asyncio.Protocol):
    """Answers 8 KB, the size of one vector as JSON, to anything that comes in one packet."""

    REPLY = b"HTTP/1.1 200 OK\r\ncontent-length: 8192\r\n\r\n" + b"0" * 8192

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        del data
        self.transport.write(self.REPLY)


async def serve_instantly() -> None:
    server = await asyncio.get_running_loop().create_server(InstantServer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def test_self(seconds: float) -> dict[str, Any]:
    """Measure what this generator can do when the server costs nearly nothing."""
    command = [sys.executable, __file__, "0", "/", "-", "--instant-server"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout
            port = int(server.stdout.readline())
            request = encode(port, "/", '{"inputs": "what is the capital of France?"}')
            report = asyncio.run(run(port, [request], 64, seconds, 0))
        finally:
            server.terminate()
    rate = report["requests"] / report["seconds"]
    return {
        "requests_per_second": round(rate),
        "cpu_microseconds_per_request": round(report["cpu_seconds"] / report["requests"] * 1e6, 1),
        "failures": report["failures"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("port", type=int, nargs="?", default=0)
    parser.add_argument("path", nargs="?", default="/")
    parser.add_argument("bodies", nargs="?", default="-", help="file, one JSON body a line")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--keep", type=int, default=0, help="report the first replies to N bodies")
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("--instant-server", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.instant_server:
        asyncio.run(serve_instantly())
        return 0
    if args.self_test:
        print(json.dumps(test_self(args.seconds)))
        return 0
    bodies = Path(args.bodies).read_text(encoding="utf-8").splitlines()
    requests = [encode(args.port, args.path, body) for body in bodies]
    report = asyncio.run(run(args.port, requests, args.connections, args.seconds, args.keep))
    print(json.dumps(report))
    return 1 if report["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
