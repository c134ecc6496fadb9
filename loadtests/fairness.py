"""Fairness: what a caller with a long list costs a caller with single queries.

Queries come at a steady rate (open loop: none waits for another's reply), first alone, then while
a list of 2,000 passages is embedded: over REST, over gRPC, and two lists in a row, one over each.
Each round does all of these, in an order that turns; figures are medians over the rounds.

    python loadtests/fairness.py [--rounds 3] [--rate 20] [--texts 2000] [--out FILE.json]

Prints the ratio of the p95s (the target is under 2) and what the queries cost the lists. Queries
and lists come from one address, so that they are one caller's to the server; with --apart the
queries come from another.
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from servers import Neighbours, Server, begin, keep, serving, take_out, workplace
from texts import QUESTIONS, long_passages
from wire import Grpc, Reply, Rest, percentile

from condensery.stubs import condensery_v1_pb2 as pb

SITUATIONS = {
    "a REST list": ("REST",),
    "a gRPC list": ("gRPC",),
    "two in a row": ("REST", "gRPC"),
}
TARGET = 2.0
HEAD_START = 0.3  # seconds for a list to be parsed and queued, before queries are counted


@dataclass
class Cell:
    """One situation: a figure a round, milliseconds for queries, seconds for lists."""

    p50: list[float] = field(default_factory=list)
    p95: list[float] = field(default_factory=list)
    worst: list[float] = field(default_factory=list)
    alone_p95: list[float] = field(default_factory=list)
    queries: int = 0
    list_alone: list[float] = field(default_factory=list)
    list_beside: list[float] = field(default_factory=list)
    foreign_cores: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        return statistics.median(self.p95) / statistics.median(self.alone_p95)


class Bench:
    """The doors of one server, and what is sent through them."""

    def __init__(self, server: Server, args: argparse.Namespace) -> None:
        self.server = server
        self.rate: float = args.rate
        self.rest = Rest(server.port)
        self.grpc = Grpc(server.grpc)
        self.asking: Rest | Grpc = self.rest
        if args.queries == "grpc":
            self.asking = self.grpc
        elif args.apart:
            self.asking = Rest(server.port, source="127.0.0.2")
        self.texts = long_passages(args.texts)
        self.rest_list = self.rest.embed(self.texts)
        self.grpc_list = self.grpc.embed(self.texts)
        self.queries = [self.asking.embed([question]) for question in QUESTIONS]

    async def tokens(self) -> float:
        """Return the mean tokens of a passage; the first list, so it warms up too."""
        body = good(await self.grpc.send(self.grpc_list)).body
        return pb.EmbedBatchResponse.FromString(body).tokens / len(self.texts)

    async def ask(self, over: Callable[[], bool]) -> list[float]:
        """Send queries at the rate until told; returns their milliseconds."""
        sent: list[asyncio.Task[Reply]] = []
        began = time.perf_counter()
        while not over():
            query = self.queries[len(sent) % len(self.queries)]
            sent.append(asyncio.create_task(self.asking.send(query)))
            await asyncio.sleep(max(0.0, began + len(sent) / self.rate - time.perf_counter()))
        return [good(await request).seconds * 1000 for request in sent]

    async def ask_for(self, seconds: float) -> list[float]:
        ends = time.perf_counter() + seconds
        return await self.ask(lambda: time.perf_counter() >= ends)

    async def work(self, situation: str) -> float:
        """Send the lists, one after the other; returns the seconds that they took."""
        started = time.perf_counter()
        for door in SITUATIONS[situation]:
            if door == "REST":
                good(await self.rest.send(self.rest_list))
            else:
                good(await self.grpc.send(self.grpc_list))
        return time.perf_counter() - started

    async def round(self, situation: str, cell: Cell, seconds: float) -> None:
        neighbours = Neighbours(self.server)
        alone = await self.ask_for(seconds)
        cell.alone_p95.append(percentile(alone, 0.95))
        cell.list_alone.append(await self.work(situation))
        working = asyncio.create_task(self.work(situation))
        await asyncio.sleep(HEAD_START)
        beside = await self.ask(working.done)
        cell.list_beside.append(await working)
        cell.queries += len(beside)
        cell.p50.append(percentile(beside, 0.50))
        cell.p95.append(percentile(beside, 0.95))
        cell.worst.append(max(beside, default=float("nan")))
        cell.foreign_cores.append(neighbours.cores())


def good(reply: Reply) -> Reply:
    if not reply.accepted:
        sys.exit(f"{reply.status}: {reply.body[:300].decode(errors='replace')}")
    return reply


async def measure(server: Server, args: argparse.Namespace) -> dict[str, Cell]:
    bench = Bench(server, args)
    tokens = await bench.tokens()
    await bench.ask_for(2)
    print(
        f"{args.texts} passages of {tokens:.0f} tokens a list, {args.rate:g} queries/s", flush=True
    )
    cells = {situation: Cell() for situation in SITUATIONS}
    for number in range(args.rounds):
        order = deque(cells.items())
        order.rotate(-number)
        for situation, cell in order:
            await bench.round(situation, cell, args.seconds)
            print(
                f"round {number + 1}  {situation:<12} p95 {cell.alone_p95[-1]:6.1f} alone,"
                f" {cell.p95[-1]:6.1f} ms beside; list {cell.list_alone[-1]:5.1f} s alone,"
                f" {cell.list_beside[-1]:5.1f} s beside; others {cell.foreign_cores[-1]:.2f} cores",
                flush=True,
            )
    return cells


def show(cells: dict[str, Cell]) -> None:
    median = statistics.median
    heads = ("beside", "queries", "p95 alone ms", "p50 ms", "p95 ms", "worst ms", "ratio")
    print(f"\n| {' | '.join((*heads, 'list s', 'list alone s', 'others'))} |\n|{'---|' * 10}")
    for name, cell in cells.items():
        print(
            f"| {name} | {cell.queries} | {median(cell.alone_p95):.1f} | {median(cell.p50):.1f}"
            f" | {median(cell.p95):.1f} | {max(cell.worst):.1f} | {cell.ratio:.2f}"
            f" | {median(cell.list_beside):.1f} | {median(cell.list_alone):.1f}"
            f" | {median(cell.foreign_cores):.2f} cores |"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=20.0, help="queries a second")
    parser.add_argument("--seconds", type=float, default=10.0, help="of queries alone, each time")
    parser.add_argument("--texts", type=int, default=2000, help="passages in a list")
    parser.add_argument("--queries", choices=("rest", "grpc"), default="rest")
    parser.add_argument("--apart", action="store_true", help="REST queries from another address")
    take_out(parser)
    parser.add_argument("--flags", default="", help="for condensery serve, in one string")
    args = parser.parse_args()
    recording = begin("fairness.py")
    with workplace() as folder, serving(folder, args.flags.split()) as server:
        cells = asyncio.run(measure(server, args))
    show(cells)
    figures = {name: {"ratio": cell.ratio, **asdict(cell)} for name, cell in cells.items()}
    keep(figures, recording, args.out)
    missed = [name for name, cell in cells.items() if not cell.ratio < TARGET]
    if missed:
        print(f"over the target of {TARGET:g}: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
