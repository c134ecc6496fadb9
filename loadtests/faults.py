"""A load with faults injected: who is hurt by a fault, who is not, and does anybody wait for ever?

Starts the real server with faults put in from outside (`faulty_server.py`), loads both doors with
what callers mix (open loop: single queries, lists, rankings, answers whole and streamed; one in ten
leaves before its reply, one in ten has a deadline that is too short), and checks every reply
against what the server said when all was well. Three parts, each before, during and after:

    items   poisoned texts, NaN, out of memory, slow forward passes
    hang    a device worker hangs for ever; later a second one, which must end the process
    death   a device worker's thread dies

    python loadtests/faults.py [--parts items hang death] [--seconds 40] [--out FILE.json]

Exits with 1 if a promise is broken (docs/reliability.md).
"""

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from callers import OUTCOMES, Callers, Records
from doors import Ask, GrpcDoor, RestDoor
from mix import CASES, RightReplies, a_case
from servers import Neighbours, Server, begin, keep, serving, take_out, workplace
from tokenizers import Tokenizer
from watching import HealthWatch

POISON, NAN = "quuxify", "frobnicate"  # words that no sample text has
PHASES = ("before", "during", "after")
COUNTERS = ("cancelled", "rejected", "oom", "worker_restarts")
FATAL_STATUS = 70
UNREADY_SECONDS = 2.0  # unless said otherwise
MENDED_SECONDS = 8.0  # after that
END_SECONDS = 30.0
SLOW_SECONDS = 0.7  # a forward pass; a watchdog calls twice as long a hang
COUNTED_SECONDS = 10.0
CAUSES = ("client", "deadline")  # of requests that were cancelled
WORKER_ITEMS = 32  # one batch's: so many requests may fail with their worker


@dataclass
class Part:
    """One server, its faults, and what came of it."""

    name: str
    server: Server
    callers: Callers
    watch: HealthWatch
    neighbours: Neighbours
    seconds: float
    unready_seconds: float
    counters: dict[str, float] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    @property
    def records(self) -> Records:
        return self.callers.records

    def expect(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.broken.append(otherwise)

    async def collect(self) -> None:
        """Wait for the last reply; then read the counters, and what faults were done."""
        await self.callers.settle()
        self.faults = self.server.inject()
        await self.be_given_up()
        self.notes.append(f"others on this machine used {self.neighbours.cores():.2f} cores")

    async def count_cancelled(self) -> dict[str, float]:
        """Read the counters; returns how many requests were cancelled, by cause."""
        metrics = await asyncio.to_thread(self.server.metrics)
        names = tuple(f"condensery_{counter}_total" for counter in COUNTERS)
        self.counters = {
            name: value for name, value in metrics.items() if name.startswith(names) and value
        }
        return {cause: self.counter("cancelled", f'cause="{cause}"') for cause in CAUSES}

    async def be_given_up(self) -> None:
        """Let callers go whose answers surely aren't ready, and see each of them counted.

        Of those that left before a reply may have been on its way, which the server did not cancel.
        """
        wanted = len(self.callers.doors)
        before = await self.count_cancelled()
        query, texts = a_case(CASES[0])
        self.server.inject(slow=SLOW_SECONDS)
        self.callers.give_up("after", Ask("answer", texts[:2], query), SLOW_SECONDS / 2)
        await self.callers.settle()
        self.server.inject(slow=0)
        ends = time.monotonic() + COUNTED_SECONDS
        while True:  # who has left is noticed by the server in its own time
            now = await self.count_cancelled()
            missed = [cause for cause in CAUSES if now[cause] - before[cause] < wanted]
            if not missed or time.monotonic() > ends:
                break
            await asyncio.sleep(0.1)
        self.expect(not missed, f"given up on each door, and not all counted: {missed}")

    def counter(self, name: str, label: str = "") -> float:
        """Return the sum of a counter's samples with this label."""
        start = f"condensery_{name}_total{{" if label else f"condensery_{name}_total"
        counters = self.counters.items()
        return sum(
            v
            for k, v in counters
            if k.startswith(start) and label in k and ("{" in k) == bool(label)
        )

    async def end(self, wanted: int = 0) -> None:
        """Tell the server to end, and see how it does."""
        self.server.terminate()
        status = await asyncio.to_thread(self.server.wait)
        self.expect(status == wanted, f"after SIGTERM the process ended with {status}")


async def items(part: Part) -> None:
    """Faults of items and of memory: each hurts no request but its own."""
    server, callers, seconds = part.server, part.callers, part.seconds
    server.inject(poison=token_ids(server, POISON), nan=token_ids(server, NAN))
    await callers.run("before", seconds / 4)
    during = asyncio.create_task(callers.run("during", seconds / 2, words=(POISON, NAN)))
    for number in range(4):
        server.inject(oom={"over": 4, "times": 3}, slow=0.1 if number == 2 else 0)
        await asyncio.sleep(seconds / 8)
    await during
    server.inject(slow=0, oom={"over": 0, "times": 0})
    await callers.run("after", seconds / 4)
    await part.collect()
    for fault in ("poison", "nan", "oom", "slow"):
        part.expect(part.faults.get(fault, 0) > 0, f"no {fault} was injected")
    part.expect(part.records.count()["own fault"] > 0, "no request failed by its own fault")
    part.expect(part.counter("oom", 'action="split"') > 0, "no batch was split for memory")
    part.expect(part.counter("worker_restarts") == 0, "a worker was restarted")
    await part.end()


async def hang(part: Part) -> None:
    """A worker hangs: noticed and replaced once. A second time the process ends."""
    server, callers, watch = part.server, part.callers, part.watch
    await callers.run("before", part.seconds / 4)
    at = time.monotonic()
    server.inject(hang=None)
    await callers.run("during", part.seconds / 2)
    await callers.run("after", part.seconds / 4)
    await part.collect()
    unready = watch.unready(at)
    again = watch.ready_again(unready.at) if unready else None
    dead = watch.dead(at)
    part.expect(unready is not None, "the doors went on saying ready while a worker hung")
    if unready is not None:
        part.notes.append(f"not ready {unready.at - at:.1f} s after a hang: {unready.reason}")
        took = unready.at - at
        part.expect(took <= part.unready_seconds, f"not ready after {took:.1f} s")
        part.expect(again is not None, "it never was ready again")
    if unready is not None and again is not None:
        part.notes.append(f"ready again {again.at - at:.1f} s after it")
        mending = again.at - unready.at
        part.expect(mending <= MENDED_SECONDS, f"ready again {mending:.1f} s after that")
    part.expect(dead is None, "/livez failed, though a restart cured it")
    part.expect(part.counter("worker_restarts") == 1, "the worker was not restarted once")
    await second_hang(part)


async def second_hang(part: Part) -> None:
    """What no restart inside mends: not live, then the end, and nobody waits for ever."""
    callers = part.callers
    first = part.callers.records
    callers.records = Records()
    part.server.inject(hang=None)
    at = time.monotonic()
    sending = asyncio.create_task(callers.run("second hang", 5))
    status = await asyncio.to_thread(part.server.wait, END_SECONDS)
    took = time.monotonic() - at
    sending.cancel()
    await callers.settle()
    dead = part.watch.dead(at)
    liveness = f"/livez failed after {dead.at - at:.1f} s" if dead else "/livez never failed"
    part.notes.append(
        f"second hang: {liveness}; the process ended with {status} after {took:.1f} s"
    )
    part.notes.append(f"second hang: {dict(callers.records.count())}")
    part.expect(status == FATAL_STATUS, f"a second hang ended the process with {status}")
    part.expect(dead is not None and dead.at - at <= 10, f"second hang: {liveness}")
    callers.records = first


async def death(part: Part) -> None:
    """A worker's thread dies: replaced, and the service goes on."""
    await part.callers.run("before", part.seconds / 4)
    part.server.inject(die=True)
    await part.callers.run("during", part.seconds / 4)
    await part.callers.run("after", part.seconds / 4)
    await part.collect()
    part.expect(part.faults.get("die") == 1, "no worker died")
    part.expect(part.counter("worker_restarts") == 1, "the worker was not restarted once")
    ready = [await door.ready() for door in part.callers.doors]
    part.expect(all(ready), "not ready after a worker was replaced")
    await part.end()


PARTS: dict[str, Callable[[Part], Awaitable[None]]] = {"items": items, "hang": hang, "death": death}


def token_ids(server: Server, word: str) -> list[int]:
    """Return the default encoder's ids of a word."""
    (file,) = server.store.glob("minilm-l6/*/tokenizer.json")
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.no_padding()
    ids: list[int] = tokenizer.encode(word, add_special_tokens=False).ids
    return ids


async def run(server: Server, name: str, args: argparse.Namespace) -> Part:
    doors = (RestDoor(server.url), GrpcDoor(server.grpc))
    known = RightReplies()
    await known.learn(doors[0])
    watch = HealthWatch(server.url, doors[1])
    watching = asyncio.create_task(watch.run())
    callers = Callers(doors, known, args.rate, random.Random(args.seed))
    part = Part(
        name, server, callers, watch, Neighbours(server), args.seconds, args.unready_seconds
    )
    try:
        await PARTS[name](part)
    except OSError as error:  # nobody is there any more to take a fault, or to tell the counters
        status = await asyncio.to_thread(server.wait)
        part.broken.append(f"the process ended by itself with {status} ({error})")
        await callers.settle()
    watching.cancel()
    part.broken += part.records.broken()
    lost_with_worker = part.records.count()["worker"]
    allowed = 0 if name == "items" else WORKER_ITEMS
    part.expect(lost_with_worker <= allowed, f"{lost_with_worker} requests fell with a worker")
    for phase in PHASES:
        part.expect(part.records.count(phase=phase)["right"] > 0, f"{phase}: nothing was right")
    for door in doors:
        await door.close()
    return part


def show(part: Part) -> None:
    records = part.records
    print(f"\n## {part.name}\n\n| | sent | {' | '.join(OUTCOMES)} | p50 ms | p95 ms |")
    print("|---|" + "---|" * (len(OUTCOMES) + 3))
    for phase in PHASES:
        p50, p95 = records.latencies(phase)
        print(f"{row(phase, records.count(phase=phase))} {p50:.1f} | {p95:.1f} |")
    for door in ("REST", "gRPC"):
        print(f"{row(door, records.count(door=door))} | |")
    print(f"\nfaults injected: {part.faults}")
    for name, value in sorted(part.counters.items()):
        print(f"{name} {value:g}")
    for note in part.notes:
        print(note)
    for broken in part.broken:
        print(f"BROKEN: {broken}")


def row(name: str, count: Counter[str]) -> str:
    cells = " | ".join(str(count[outcome]) for outcome in OUTCOMES)
    return f"| {name} | {count.total()} | {cells} |"


def summary(part: Part) -> dict[str, Any]:
    return {
        "phases": {
            phase: {
                **part.records.count(phase=phase),
                "p50_ms": part.records.latencies(phase)[0],
                "p95_ms": part.records.latencies(phase)[1],
            }
            for phase in PHASES
        },
        "outcomes": dict(part.records.count()),
        "faults": part.faults,
        "counters": part.counters,
        "notes": part.notes,
        "broken": part.broken,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seconds", type=float, default=40.0, help="of a part, about")
    parser.add_argument("--rate", type=float, default=15.0, help="requests a second")
    parser.add_argument("--unready-seconds", type=float, default=UNREADY_SECONDS, help="allowed")
    parser.add_argument("--seed", type=int, default=1)
    take_out(parser)
    parser.add_argument("--flags", default="", help="for condensery serve, in one string")
    args = parser.parse_args()
    recording = begin("faults.py")
    parts = []
    with workplace() as folder:
        for name in args.parts:
            with serving(folder, args.flags.split(), faulty=True) as server:
                parts.append(asyncio.run(run(server, name, args)))
            show(parts[-1])
    keep({part.name: summary(part) for part in parts}, recording, args.out)
    return 1 if any(part.broken for part in parts) else 0


if __name__ == "__main__":
    sys.exit(main())
