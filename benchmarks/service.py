"""Single short queries over REST: this service against a plain FastAPI + sentence-transformers one.

Both run as processes of their own, with the same model, and answer the same bodies at the same
route (`POST /embed`). One run interleaves them: each round loads both at each concurrency, in an
order that alternates, so that what else the machine does falls on both. Figures are medians over
the rounds. Vectors are compared in the same run: a gain from returning something else is none.

    python benchmarks/service.py [--rounds 5] [--seconds 5] [--concurrency 1 8 64]

Writes docs/benchmarks/service.json and service.md.
"""

import argparse
import contextlib
import json
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from recording import Recording, busy_seconds, cpu_seconds
from service_report import render

ROOT = Path(__file__).resolve().parents[1]
QUESTIONS = ROOT / "service" / "condensery" / "samples" / "questions.jsonl"
RESULTS = ROOT / "docs" / "benchmarks"
COMPARED = 64  # texts whose vectors are compared
COSINE = 0.999  # bf16 beside fp32
START_SECONDS = 180
PACKAGES = ("torch", "transformers", "sentence-transformers", "fastapi", "uvicorn")


@dataclass(frozen=True)
class Server:
    name: str
    process: "subprocess.Popen[bytes]"
    port: int


def find_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


@contextlib.contextmanager
def serve(name: str, command: Sequence[str], port: int, log: Path) -> Iterator[Server]:
    """Start a server, wait until it is ready, and stop it at the end."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not is_ready(port):
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"{name} did not start:\n{log.read_text()[-3000:]}")
            time.sleep(0.5)
        yield Server(name, process, port)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def load(
    server: Server, bodies: Path, connections: int, seconds: float, path: str = "/embed"
) -> dict[str, Any]:
    """Load one server once; adds the server's cores and everybody else's to the report."""
    generator = str(ROOT / "benchmarks" / "load_generator.py")
    command = [sys.executable, generator, str(server.port), path, str(bodies)]
    command += ["--connections", str(connections), "--seconds", str(seconds)]
    command += ["--keep", str(COMPARED)]
    busy, own, started = busy_seconds(), cpu_seconds(server.process.pid), time.monotonic()
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    took = time.monotonic() - started
    own = cpu_seconds(server.process.pid) - own
    if not done.stdout:
        sys.exit(f"the load generator failed:\n{done.stderr}")
    report: dict[str, Any] = json.loads(done.stdout)
    if report["failures"] or not report["requests"]:
        sys.exit(f"{server.name}, {connections} connections: failed: {report['failures'][:3]}")
    latencies = np.asarray(report.pop("latencies_ms"))
    foreign = busy_seconds() - busy - own - report["cpu_seconds"]
    return {
        "requests_per_second": report["requests"] / report["seconds"],
        "p50_ms": float(np.percentile(latencies, 50)),
        "p95_ms": float(np.percentile(latencies, 95)),
        "requests": report["requests"],
        "server_cores": own / took,
        "foreign_cores": max(0.0, foreign / took),
        "replies": report["replies"],
    }


def compare(ours: list[str | None], theirs: list[str | None]) -> tuple[float, int]:
    """Return the least cosine between the two servers' vectors of one text, and of how many."""
    cosines = []
    for ours_of, other in zip(ours, theirs, strict=True):
        if ours_of is None or other is None:  # a short round did not come that far
            continue
        first, second = (np.asarray(json.loads(reply)[0], np.float64) for reply in (ours_of, other))
        cosines.append(first @ second / np.linalg.norm(first) / np.linalg.norm(second))
    return (min(cosines), len(cosines)) if cosines else (float("nan"), 0)


def measure(args: argparse.Namespace, servers: Sequence[Server], bodies: Path) -> dict[str, Any]:
    """Interleave the servers, round by round."""
    cells: dict[int, dict[str, list[dict[str, Any]]]] = {
        c: {server.name: [] for server in servers} for c in args.concurrency
    }
    worst, compared = 1.0, 0
    for server in servers:  # warm: every length once
        load(server, bodies, 8, args.warm_seconds)
    for number in range(args.rounds):
        for place, connections in enumerate(args.concurrency):
            order = servers if (number + place) % 2 == 0 else servers[::-1]
            replies: dict[str, list[str | None]] = {}
            for server in order:
                cell = load(server, bodies, connections, args.seconds)
                replies[server.name] = cell.pop("replies")
                cells[connections][server.name].append(cell)
                print(
                    f"round {number + 1}/{args.rounds}  c={connections:<3} {server.name:<10}"
                    f" {cell['requests_per_second']:8.1f}/s  p50 {cell['p50_ms']:7.1f} ms"
                    f"  p95 {cell['p95_ms']:7.1f} ms  foreign {cell['foreign_cores']:.2f} cores",
                    flush=True,
                )
            least, texts = compare(*(replies[server.name] for server in servers))
            if texts:
                worst, compared = min(worst, least), max(compared, texts)
    if not compared or worst < COSINE:
        sys.exit(f"the servers' vectors differ: cosine {worst} over {compared} texts")
    return {
        "least_cosine": worst,
        "texts_compared": compared,
        "results": [summarise(c, by_server) for c, by_server in cells.items()],
    }


def summarise(connections: int, cells: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return medians over the rounds, their range, and the ratios: of the medians, of rounds."""
    row: dict[str, Any] = {"concurrency": connections}
    for name, rounds in cells.items():
        rates = [cell["requests_per_second"] for cell in rounds]
        row[name] = {
            key: statistics.median(cell[key] for cell in rounds)
            for key in ("requests_per_second", "p50_ms", "p95_ms", "server_cores", "foreign_cores")
        } | {"lowest": min(rates), "highest": max(rates), "rounds": rounds}
    row["ratio"] = row["condensery"]["requests_per_second"] / row["naive"]["requests_per_second"]
    # Round by round, in which the two took turns: a median hides that a peer has two speeds.
    ratios = [
        ours["requests_per_second"] / theirs["requests_per_second"]
        for ours, theirs in zip(cells["condensery"], cells["naive"], strict=True)
    ]
    row |= {"ratio_lowest": min(ratios), "ratio_highest": max(ratios)}
    return row


def test_generator() -> dict[str, Any]:
    """Measure the load generator, so that it is seen not to be the bottleneck."""
    command = [sys.executable, str(ROOT / "benchmarks" / "load_generator.py"), "--self-test"]
    command += ["--seconds", "3"]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="of one round at one concurrency"
    )
    parser.add_argument("--warm-seconds", type=float, default=5.0)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    args = parser.parse_args()

    recording = Recording("benchmarks/service.py", *PACKAGES)
    generator = test_generator()
    print(f"load generator: {generator['requests_per_second']:,} req/s", flush=True)
    questions = [json.loads(line)["question"] for line in QUESTIONS.read_text().splitlines()]
    ports = find_port(), find_port(), find_port()
    condensery = str(Path(sys.executable).with_name("condensery"))
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        scratch = Path(folder)
        bodies = scratch / "bodies.jsonl"
        bodies.write_text("".join(json.dumps({"inputs": text}) + "\n" for text in questions))
        ours = [condensery, "serve", "--port", str(ports[0]), "--grpc-port", str(ports[1])]
        ours += ["--data-dir", str(scratch / "data"), "--log-level", "warning"]
        naive = [sys.executable, str(ROOT / "benchmarks" / "naive_server.py")]
        naive += ["--port", str(ports[2])]
        servers = [
            stack.enter_context(serve("condensery", ours, ports[0], scratch / "ours.log")),
            stack.enter_context(serve("naive", naive, ports[2], scratch / "naive.log")),
        ]
        measured = measure(args, servers, bodies)
        report = {
            **recording.about(),
            "rounds": args.rounds,
            "seconds": args.seconds,
            "queries": len(questions),
            "generator": generator,
            **measured,
        }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "service.json").write_text(json.dumps(report, indent=1) + "\n")
    (args.out / "service.md").write_text(render(report))
    print(render(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
