"""Overload: ten times what the server can do, for a minute, over REST and gRPC at once.

First the server's capacity is found (closed loop, a few callers at once, each waiting for its
reply), and its latencies without load (one caller). Then requests come at ten times the capacity,
open loop: none waits for another's reply. Every reply must be a vector, or a refusal that says when
to come back (429 with Retry-After, RESOURCE_EXHAUSTED with a pushback), and memory must stay flat.

    python loadtests/overload.py [--seconds 60] [--factor 10] [--texts 8] [--out FILE.json]

A request embeds eight passages: of single queries, ten times the capacity would be more than a
generator on the same two cores can send. It costs little (`wire.py`), and the table says how much.
Exits with 1 if a reply was anything else, none came, or memory grew by more than --growth-mib.
"""

import argparse
import asyncio
import itertools
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from servers import Neighbours, Server, begin, keep, own_cpu_seconds, serving, take_out, workplace
from texts import long_passages
from wire import Grpc, Reply, Rest, percentile

REQUESTS = 64  # different ones, sent in turn
AT_ONCE = 8  # callers of each door while the capacity is found
LAST_REPLY_SECONDS = 120.0
MIB = 2**20


@dataclass
class Tally:
    """What one door answered."""

    sent: int = 0
    accepted: int = 0
    refused: int = 0
    others: Counter[str] = field(default_factory=Counter)
    milliseconds: list[float] = field(default_factory=list)
    refusal_milliseconds: list[float] = field(default_factory=list)

    def add(self, reply: Reply) -> None:
        if reply.accepted:
            self.accepted += 1
            self.milliseconds.append(reply.seconds * 1000)
        elif reply.refused:
            self.refused += 1
            self.refusal_milliseconds.append(reply.seconds * 1000)
        else:
            self.others[f"{reply.status} {reply.body[:100].decode(errors='replace')}"] += 1

    def summary(self) -> dict[str, Any]:
        summary = dict(vars(self))
        for name in ("milliseconds", "refusal_milliseconds"):
            values = summary.pop(name)
            summary[name] = {f"p{p}": percentile(values, p / 100) for p in (50, 95, 99)}
        return summary


class Load:
    """Requests to both doors of a server, taken in turn."""

    def __init__(self, server: Server, texts: int) -> None:
        self.server = server
        self.doors: tuple[Rest, Grpc] = (Rest(server.port), Grpc(server.grpc))
        passages = long_passages(REQUESTS * texts)
        lists = [passages[start : start + texts] for start in range(0, len(passages), texts)]
        self.requests = [[door.embed(texts) for texts in lists] for door in self.doors]
        self.turn = itertools.count()

    async def send(self, which: int) -> Reply:
        requests = self.requests[which]
        return await self.doors[which].send(requests[next(self.turn) % len(requests)])

    async def closed(self, callers: int, seconds: float) -> tuple[float, Tally]:
        """Let so many callers of each door send one after another; returns requests a second."""
        tally = Tally()
        began = time.perf_counter()

        async def call(which: int) -> None:
            while time.perf_counter() < began + seconds:
                tally.add(await self.send(which))

        await asyncio.gather(*(call(which) for which in (0, 1) for _ in range(callers)))
        if tally.others or tally.refused:
            sys.exit(f"refused or failed without load: {tally.refused}, {tally.others}")
        return tally.accepted / (time.perf_counter() - began), tally

    async def open(self, rate: float, seconds: float) -> tuple[list[Tally], float]:
        """Send at the rate, whatever comes back; returns the tallies and the worst delay."""
        tallies = [Tally(), Tally()]
        waiting: set[asyncio.Task[None]] = set()
        late = 0.0

        async def send_and_count(which: int) -> None:
            tallies[which].add(await self.send(which))

        began = time.perf_counter()
        for number in range(int(rate * seconds)):
            due = began + number / rate - time.perf_counter()
            if due > 0:
                await asyncio.sleep(due)
            late = max(late, -due)
            tallies[number % 2].sent += 1
            task = asyncio.create_task(send_and_count(number % 2))
            waiting.add(task)
            task.add_done_callback(waiting.discard)
        if waiting:
            _, lost = await asyncio.wait(set(waiting), timeout=LAST_REPLY_SECONDS)
            if lost:
                tallies[0].others[f"no reply {LAST_REPLY_SECONDS:g} s after the end"] = len(lost)
        return tallies, late

    async def watch_memory(self, samples: list[int]) -> None:
        while True:
            samples.append(self.server.memory())
            await asyncio.sleep(1)


async def measure(server: Server, args: argparse.Namespace) -> dict[str, Any]:
    load = Load(server, args.texts)
    await load.closed(1, 2)
    _, unloaded = await load.closed(1, args.find_seconds)
    capacity, _ = await load.closed(AT_ONCE, args.find_seconds)
    rate = args.factor * capacity
    print(
        f"capacity {capacity:.1f} requests/s of {args.texts} passages; now {rate:.0f}/s, both doors"
    )
    samples: list[int] = []
    watching = asyncio.create_task(load.watch_memory(samples))
    warm, _ = await load.open(rate, args.warm_seconds)
    warmed = len(samples)
    neighbours = Neighbours(server)
    cpu, own, began = server.cpu_seconds(), own_cpu_seconds(), time.perf_counter()
    doors, late = await load.open(rate, args.seconds)
    took = time.perf_counter() - began
    watching.cancel()
    # What malloc keeps goes up and down by some 30 MiB as the ends of its arenas come free: what
    # counts is whether the highest of the second half is above all before it.
    half = (warmed + len(samples)) // 2
    figures = {
        "capacity": capacity,
        "rate": rate,
        "seconds": took,
        "unloaded": unloaded.summary(),
        "warm_up": [tally.summary() for tally in warm],
        "REST": doors[0].summary(),
        "gRPC": doors[1].summary(),
        "goodput": sum(tally.accepted for tally in doors) / took,
        "late_ms": late * 1000,
        "server_cores": (server.cpu_seconds() - cpu) / took,
        "generator_cores": (own_cpu_seconds() - own) / took,
        "foreign_cores": neighbours.cores(),
        "memory_mib": [sample / MIB for sample in samples],
        "memory_samples_warming_up": warmed,
        "growth_mib": (max(samples[half:]) - max(samples[:half])) / MIB,
    }
    _, after = await load.closed(1, args.find_seconds)
    return {**figures, "after": after.summary()}


def show(figures: dict[str, Any]) -> None:
    heads = (
        "",
        "sent",
        "accepted",
        "refused",
        "other",
        "p50 ms",
        "p95 ms",
        "p99 ms",
        "refusal p95",
    )
    print(f"\n| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for name in ("unloaded", "REST", "gRPC", "after"):
        tally = figures[name]
        times, no = tally["milliseconds"], tally["refusal_milliseconds"]
        print(
            f"| {name} | {tally['sent'] or tally['accepted']} | {tally['accepted']}"
            f" | {tally['refused']} | {sum(tally['others'].values())}"
            f" | {times['p50']:.0f} | {times['p95']:.0f} | {times['p99']:.0f} | {no['p95']:.0f} |"
        )
    memory = figures["memory_mib"]
    print(
        f"\ngoodput {figures['goodput']:.1f}/s of a capacity of {figures['capacity']:.1f}/s"
        f" ({figures['goodput'] / figures['capacity']:.0%}), asked {figures['rate']:.0f}/s"
        f"\nmemory {memory[0]:.0f} to {memory[-1]:.0f} MiB, at most {max(memory):.0f};"
        f" its highest in the second half {figures['growth_mib']:+.1f} MiB over that before"
        f"\nserver {figures['server_cores']:.2f} cores, generator {figures['generator_cores']:.2f},"
        f" others {figures['foreign_cores']:.2f};"
        f" a request was sent at most {figures['late_ms']:.0f} ms late"
    )


def broken(figures: dict[str, Any], growth_mib: float) -> list[str]:
    """Return the promises that did not hold."""
    promises = [
        f"{door}: {count} x {what}"
        for door in ("REST", "gRPC")
        for what, count in figures[door]["others"].items()
    ]
    if not all(figures[door]["refused"] for door in ("REST", "gRPC")):
        promises.append("nothing was refused at a door: that was no overload")
    if figures["growth_mib"] > growth_mib:
        promises.append(f"memory grew by {figures['growth_mib']:.1f} MiB")
    return promises


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--factor", type=float, default=10.0, help="times the capacity")
    parser.add_argument("--texts", type=int, default=8, help="passages in a request")
    parser.add_argument("--find-seconds", type=float, default=8.0, help="to find the capacity")
    parser.add_argument(
        "--warm-seconds", type=float, default=15.0, help="whose memory alone counts"
    )
    parser.add_argument("--growth-mib", type=float, default=16.0, help="that memory may grow")
    take_out(parser)
    parser.add_argument("--flags", default="", help="for condensery serve, in one string")
    args = parser.parse_args()
    recording = begin("overload.py")
    with workplace() as folder, serving(folder, args.flags.split()) as server:
        figures = asyncio.run(measure(server, args))
        status = stop(server)
    show(figures)
    keep(figures, recording, args.out)
    promises = broken(figures, args.growth_mib)
    if status != 0:
        promises.append(f"the server ended with {status}")
    for promise in promises[:20]:
        print(f"broken: {promise}")
    return 1 if promises else 0


def stop(server: Server) -> int | None:
    server.terminate()
    return server.wait()


if __name__ == "__main__":
    sys.exit(main())
