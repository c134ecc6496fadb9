"""What a hop to replicas on a Ray cluster costs: one process beside one and two replicas.

Three servers with the same model stand side by side, each for itself: `condensery serve`, and
`condensery ray deploy` with one replica and with two, on a Ray that each starts for itself on this
machine. So two replicas share the same cores: what they show is the price, not a gain. Each round
loads all at each concurrency, in an order that turns; figures are medians over the rounds.

Then the hops alone, on a Ray of their own, with nothing behind them: a call of a deployment's
handle, and a request through Serve's HTTP proxy, which our doors leave out.

    python benchmarks/ray_serve.py [--rounds 3] [--seconds 4] [--concurrency 1 8] [--passages 1 4]

Writes docs/benchmarks/ray_serve.json and ray_serve.md. Needs the extra `ray`.
"""

import argparse
import asyncio
import contextlib
import http.client
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from recording import Recording, raw, tell_machine, tell_others, tell_versions
from service import MODEL, OURS, RESULTS, find_port, measure, serve, workloads

ONE, TWO = "Ray, 1 replica", "Ray, 2 replicas"
CALLS = 300
CONFIG = """
local_cpus: 8
local_object_store_mib: 150
groups:
  - {{models: [{model}], replicas: {replicas}, cpus: 1}}
"""


def commands(scratch: Path, ports: dict[str, int]) -> dict[str, list[str]]:
    """Return how each server is started; forward passes have one thread in each process."""
    condensery = str(Path(sys.executable).with_name("condensery"))
    started = {}
    for name, port in ports.items():
        folder = scratch / name.replace(" ", "-")
        folder.mkdir()
        words = ["serve"]
        if name != OURS:
            config = folder / "ray.yaml"
            replicas = 1 if name == ONE else 2
            config.write_text(CONFIG.format(model=MODEL, replicas=replicas))
            words = ["ray", "deploy", str(config)]
        flags = ["--port", str(port), "--grpc-port", "0", "--data-dir", str(folder / "data")]
        flags += ["--no-samples", "--log-level", "warning", "--workers", "1"]
        started[name] = [condensery, *words, *flags, "--settle-seconds", "0"]
    return started


def measure_hops() -> dict[str, float]:
    """Return milliseconds, p50, of a call by handle, both ways, and through Serve's proxy."""
    import ray
    from ray import serve as ray_serve

    class Nothing:
        async def __call__(self, request: Any) -> str:
            return "nothing"

    ray.init(
        address="local",
        num_cpus=8,
        object_store_memory=150 * 2**20,
        include_dashboard=False,
        log_to_driver=False,
    )
    port = find_port()
    ray_serve.start(http_options={"host": "127.0.0.1", "port": port})
    nothing = ray_serve.deployment(max_ongoing_requests=100)(Nothing)
    handle = ray_serve.run(nothing.bind(), name="nothing", route_prefix="/")

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    async def by_handle(direct: bool) -> list[float]:
        to = handle.options(_by_reference=not direct)
        return [await _timed(to.remote("a")) for _ in range(2 * CALLS)][CALLS:]

    async def _timed(call: Any) -> float:
        began = time.perf_counter()
        await call
        return 1000 * (time.perf_counter() - began)

    def by_proxy() -> float:
        began = time.perf_counter()
        connection.request("GET", "/")
        connection.getresponse().read()
        return 1000 * (time.perf_counter() - began)

    try:
        handles = [asyncio.run(by_handle(direct)) for direct in (True, False)]
        proxies = [by_proxy() for _ in range(2 * CALLS)][CALLS:]
    finally:
        ray_serve.shutdown()
        ray.shutdown()
    return {
        "handle": statistics.median(handles[0]),
        "object_store": statistics.median(handles[1]),
        "proxy": statistics.median(proxies),
    }


def render(report: dict[str, Any]) -> str:
    """Return the page of a report."""
    lines = [
        "# What a hop to replicas on a Ray cluster costs",
        "",
        f"`{report['command']}`, {report['date']}. {tell_machine(report)}",
        f"{tell_others(report)} {tell_versions(report)}",
        "",
        "All on one machine, one thread for forward passes in each process: two replicas share the",
        "cores with one another, with the doors and with the load generator.",
        "",
        "| workload | connections | server | requests/s | p50 ms | p95 ms | p50 over one process |",
        "|---|---:|---|---:|---:|---:|---:|",
    ]
    for workload in report["results"]:
        for row in workload["results"]:
            for name in (OURS, ONE, TWO):
                cell = row[name]
                more = cell["p50_ms"] - row[OURS]["p50_ms"]
                lines.append(
                    f"| {workload['title']} | {row['concurrency']}"
                    f" | {'one process' if name == OURS else name}"
                    f" | {cell['requests_per_second']:.1f} | {cell['p50_ms']:.1f}"
                    f" | {cell['p95_ms']:.1f} | {f'{more:+.1f} ms' if name != OURS else ''} |"
                )
    hops = report["hops_ms"]
    lines += [
        "",
        f"With nothing behind it, one caller: a call by handle {hops['handle']:.1f} ms (p50;",
        f"through Ray's object store, its default, {hops['object_store']:.1f} ms), a request",
        f"through Serve's HTTP proxy {hops['proxy']:.1f} ms. A door behind that proxy",
        "would cost both.",
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of a round at a concurrency")
    parser.add_argument("--warm-seconds", type=float, default=3.0)
    parser.add_argument("--concurrency", type=int, nargs="*", default=[1, 8], help="queries'")
    parser.add_argument("--passages", type=int, nargs="*", default=[1, 4], help="as --concurrency")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    args = parser.parse_args()
    recording = Recording("benchmarks/ray_serve.py", "torch", "transformers", "ray", "uvicorn")
    hops = measure_hops()
    print(f"hops, ms: {hops}", flush=True)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        scratch = Path(folder)
        ports = {name: find_port() for name in (OURS, ONE, TWO)}
        servers = [
            stack.enter_context(serve(name, command, ports[name], scratch / f"{port}.log"))
            for port, (name, command) in enumerate(commands(scratch, ports).items())
        ]
        results = [measure(args, servers, workload) for workload in workloads(args, scratch)]
    report = {**recording.about(), "hops_ms": hops, "results": results}
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "ray_serve.json").write_text(raw(report))
    (args.out / "ray_serve.md").write_text(render(report))
    print(f"wrote {args.out / 'ray_serve.md'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
