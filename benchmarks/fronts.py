"""How much one engine's process can be fed: REST in it, and in front processes beside it.

Three servers with the same models stand side by side: `condensery serve` alone, and with one and
with two front processes. Single queries from 64 connections, each round all servers in an order
that turns; figures are medians over the rounds. A request's core time is told by where it is spent:
the event loop of the engine's process, its other threads (forward passes, for most), and the front
processes. What the engine's loop takes of a request bounds what any device behind it is given: its
reciprocal is the most that one process could feed, however fast the device.

Two encoders: the default one, and one of a single narrow layer, whose forward passes cost so little
that the doors are what is measured, as on a GPU or on many cores.

    python benchmarks/fronts.py [--rounds 3] [--seconds 4] [--connections 64] [--fronts 0 1 2]

Writes docs/benchmarks/fronts.json and fronts.md.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recording import Recording, raw, tell_machine, tell_others, tell_versions
from service import OURS, RESULTS, ROUTE, SAMPLES, Server, compare, find_port, load, serve

from condensery.store.importing import MINILM, import_minilm
from condensery.store.manifest import Manifest
from condensery.store.store import ModelStore

NARROW = "one-layer"
TICKS = os.sysconf("SC_CLK_TCK")
COSINE = 0.9999  # two servers' vectors of one text


def make_narrow(store: ModelStore) -> None:
    """Store an encoder of one layer of 64 features, random, with MiniLM's words."""
    import torch
    from transformers import BertConfig, BertModel

    words = store.open(MINILM).path / "tokenizer.json"
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
    )
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder)
        BertModel(config, add_pooling_layer=False).save_pretrained(files)
        (files / "tokenizer.json").write_bytes(words.read_bytes())
        manifest = Manifest(
            name=NARROW, kind="encoder", pooling="mean", normalize=True, max_tokens=256
        )
        store.publish(files, manifest)


def core_seconds(pid: int) -> dict[str, float]:
    """Return the core time of a server by where it was spent: loop, threads, fronts."""
    used = {"loop": 0.0, "threads": 0.0, "fronts": 0.0}
    for task in Path(f"/proc/{pid}/task").iterdir():
        used["loop" if task.name == str(pid) else "threads"] += _seconds(task)
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended while we looked
            if int(_fields(process)[1]) == pid:
                used["fronts"] += _seconds(process)
    return used


def _fields(folder: Path) -> list[str]:
    return (folder / "stat").read_text().rsplit(")", 1)[1].split()


def _seconds(folder: Path) -> float:
    return sum(map(int, _fields(folder)[11:13])) / TICKS


def name_of(fronts: int) -> str:
    """Return what a server is called."""
    if not fronts:
        return OURS
    return f"{fronts} front process{'es' if fronts > 1 else ''}"


def measure(
    args: argparse.Namespace, servers: Sequence[Server], bodies: Path
) -> dict[str, dict[str, Any]]:
    """Load the servers in turn, round by round; return each one's medians."""
    cells: dict[str, list[dict[str, float]]] = {server.name: [] for server in servers}
    least = 1.0
    for server in servers:
        load(server, bodies, 8, args.warm_seconds)
    for number in range(args.rounds):
        replies: dict[str, list[str | None]] = {}
        turn = number % len(servers)
        for server in [*servers[turn:], *servers[:turn]]:
            before = core_seconds(server.process.pid)
            cell = load(server, bodies, args.connections, args.seconds)
            used = core_seconds(server.process.pid)
            replies[server.name] = cell["replies"]
            cells[server.name].append(
                {key: cell[key] for key in ("requests_per_second", "p50_ms", "p95_ms")}
                | {f"{key}_us": 1e6 * (used[key] - before[key]) / cell["requests"] for key in used}
            )
            rate = cell["requests_per_second"]
            print(f"{number + 1}/{args.rounds} {server.name:<18} {rate:8.1f}/s", flush=True)
        for server in servers[1:]:
            cosine, _ = compare(replies[servers[0].name], replies[server.name])
            least = min(least, cosine)
    if not least >= COSINE:
        sys.exit(f"the servers' vectors differ: cosine {least}")
    return {
        name: {key: statistics.median(cell[key] for cell in rounds) for key in rounds[0]}
        | {"rounds": rounds}
        for name, rounds in cells.items()
    }


def render(report: dict[str, Any]) -> str:
    """Return the page of a report."""
    heads = (
        *("encoder", "REST in", "requests/s", "p50 / p95 ms"),
        *("core us a request: the engine's loop", "its other threads", "front processes"),
        "most that one engine could be fed, /s",
    )
    lines = [
        "# How much one engine's process can be fed",
        "",
        f"`{report['command']}`, {report['date']}. {tell_machine(report)};",
        f"{tell_others(report)}; {tell_versions(report)}.",
        "",
        f"Single queries over REST, {report['connections']} connections, one thread for forward",
        "passes. All processes and the load generator share these cores, so that front processes",
        "bring little here: what they are for is the core time of the engine's loop, whose",
        "reciprocal is the last column. `one-layer` is an encoder whose forward passes cost next",
        "to nothing, as on a GPU.",
        "",
        f"| {' | '.join(heads)} |",
        f"|---|---|{'---:|' * (len(heads) - 2)}",
    ]
    for model, servers in report["results"].items():
        for name, row in servers.items():
            where = "the engine's process" if name == OURS else name
            lines.append(
                f"| {model} | {where} | {row['requests_per_second']:.0f}"
                f" | {row['p50_ms']:.1f} / {row['p95_ms']:.1f} | {row['loop_us']:.0f}"
                f" | {row['threads_us']:.0f} | {row['fronts_us']:.0f}"
                f" | {1e6 / row['loop_us']:,.0f} |"
            )
    return "\n".join([*lines, ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of a round")
    parser.add_argument("--warm-seconds", type=float, default=2.0)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--fronts", type=int, nargs="+", default=[0, 1, 2], help="beside it")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    args = parser.parse_args()
    recording = Recording("benchmarks/fronts.py", "torch", "transformers", "uvicorn")
    condensery = str(Path(sys.executable).with_name("condensery"))
    lines = (SAMPLES / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        scratch = Path(folder)
        store = ModelStore(None, scratch / "models")
        import_minilm(store)
        make_narrow(store)
        servers = []
        for fronts in args.fronts:
            port = find_port()
            command = [condensery, "serve", "--port", str(port), "--grpc-port", "0"]
            command += ["--data-dir", str(scratch / f"data{fronts}"), "--no-samples"]
            command += ["--store", str(scratch / "models"), "--models", f"{MINILM},{NARROW}"]
            command += ["--log-level", "warning", "--workers", "1", "--settle-seconds", "0"]
            if fronts:
                command += ["--front-processes", str(fronts)]
            log = scratch / f"{fronts}.log"
            servers.append(stack.enter_context(serve(name_of(fronts), command, port, log)))
        results = {}
        for model in (MINILM, NARROW):
            bodies = scratch / f"{model}.jsonl"
            inputs = [{"model": model, "input": json.loads(line)["question"]} for line in lines]
            bodies.write_text("".join(json.dumps(body) + "\n" for body in inputs))
            results[model] = measure(args, servers, bodies)
    report = {
        **recording.about(),
        "route": ROUTE,
        "connections": args.connections,
        "results": results,
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "fronts.json").write_text(raw(report))
    (args.out / "fronts.md").write_text(render(report))
    print(render(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
