"""A clean exit: SIGTERM under load, by callers that stop coming once the server says so.

Both doors are loaded with what callers mix (`mix.py`), by clients that behave as a load balancer
does: they look at /readyz and at gRPC health four times a second, and send no more to a door that
is not ready. In the middle the server gets SIGTERM. Not one request may be refused or fail, and the
server must end with 0. Then the same with a second SIGTERM soon after the first, which ends the
server sooner: then requests may be refused, and the table says what became of them.

    python loadtests/drain.py [--rounds 5] [--rate 15] [--again 5] [--out FILE.json]

Exits with 1 if a promise is broken (docs/reliability.md).
"""

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from callers import Callers
from doors import Door, GrpcDoor, RestDoor
from mix import Known
from servers import Server, begin, keep, serving, take_out, workplace

LOOK_SECONDS = 0.25
SECOND_AFTER = 0.5  # seconds from the first SIGTERM to the second
UNREADY_SECONDS = 1.0  # a look is 0.25 s apart from the next
LONGEST = 60.0  # seconds that a client goes on sending: a server that never says so is broken


@dataclass
class Round:
    """One exit."""

    outcomes: Counter[str] = field(default_factory=Counter)
    waiting: int = 0  # requests without a reply at the first SIGTERM
    sent_after: int = 0  # requests sent after it
    unready: dict[str, float] = field(default_factory=dict)  # seconds, by door
    seconds: float = 0.0
    status: int | None = None
    bad: list[str] = field(default_factory=list)


async def balance(
    callers: Callers, door: Door, terminated: "asyncio.Future[float]", one: Round
) -> None:
    """Take a door out once it is not ready, as a load balancer would."""
    while True:
        if not await door.ready():
            callers.doors.remove(door)
            one.unready[door.name] = time.monotonic() - await terminated
            return
        await asyncio.sleep(LOOK_SECONDS)


async def leave(server: Server, args: argparse.Namespace, seed: int, *, twice: bool) -> Round:
    """Load a server, tell it to end, and see what becomes of every request."""
    doors: tuple[RestDoor, GrpcDoor] = (RestDoor(server.url), GrpcDoor(server.grpc))
    known = Known()
    await known.learn(doors[0])
    callers = Callers(doors, known, args.rate, random.Random(seed), hurried=0)
    one = Round()
    terminated: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    balancing = [asyncio.create_task(balance(callers, door, terminated, one)) for door in doors]
    sending = asyncio.create_task(callers.run("load", LONGEST))
    await asyncio.sleep(args.seconds)
    before = callers.sent
    one.waiting = callers.waiting
    server.terminate()
    began = time.monotonic()
    terminated.set_result(began)
    if twice:
        await asyncio.sleep(SECOND_AFTER)
        server.terminate()
    one.status = await asyncio.to_thread(server.wait)
    one.seconds = time.monotonic() - began
    await sending
    await callers.settle()
    for task in balancing:
        task.cancel()
    one.sent_after = callers.sent - before
    one.outcomes = callers.records.count()
    one.bad = callers.records.broken()
    for door in doors:
        await door.close()
    return one


def show(name: str, rounds: list[Round]) -> None:
    heads = ("in flight", "sent after", "right", "refused", "failed", "lost", "unready s", "exit s")
    print(f"\n{name}\n\n| round | {' | '.join(heads)} | status |\n|{'---|' * 10}")
    for number, one in enumerate(rounds):
        counts = " | ".join(
            str(one.outcomes[what]) for what in ("right", "refused", "failed", "lost")
        )
        unready = "/".join(f"{seconds:.1f}" for _, seconds in sorted(one.unready.items()))
        print(
            f"| {number + 1} | {one.waiting} | {one.sent_after} | {counts} | {unready}"
            f" | {one.seconds:.1f} | {one.status} |"
        )


def broken(once: list[Round], twice: list[Round]) -> list[str]:
    """Return the promises that did not hold."""
    promises = []
    for number, one in enumerate(once):
        refused = [f"{one.outcomes['refused']} refused"] if one.outcomes["refused"] else []
        promises += [f"SIGTERM, round {number + 1}: {bad}" for bad in (*refused, *one.bad)]
    for number, one in enumerate((*once, *twice)):
        for door, seconds in one.unready.items():
            if seconds > UNREADY_SECONDS:
                promises.append(f"round {number + 1}: {door} said ready for {seconds:.1f} s more")
        if one.status != 0:
            promises.append(f"round {number + 1}: the server ended with {one.status}")
    if once and twice and min(o.seconds for o in once) <= max(t.seconds for t in twice):
        promises.append("a second SIGTERM did not hasten the end")
    return promises


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--again", type=int, default=5, help="rounds with a second SIGTERM")
    parser.add_argument("--rate", type=float, default=15.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=4.0, help="of load before SIGTERM")
    take_out(parser)
    parser.add_argument("--flags", default="", help="for condensery serve, in one string")
    args = parser.parse_args()
    recording = begin("drain.py")
    rounds: dict[bool, list[Round]] = {False: [], True: []}
    with workplace() as folder:
        for number in range(args.rounds + args.again):
            twice = number >= args.rounds
            with serving(folder, args.flags.split()) as server:
                rounds[twice].append(asyncio.run(leave(server, args, number, twice=twice)))
    show("SIGTERM", rounds[False])
    show("SIGTERM twice", rounds[True])
    found: dict[str, Any] = {
        "once": [vars(one) for one in rounds[False]],
        "twice": [vars(one) for one in rounds[True]],
    }
    keep(found, recording, args.out)
    for number, one in enumerate(rounds[True]):
        for bad in one.bad:
            print(f"SIGTERM twice, round {number + 1}: {bad}")
    promises = broken(rounds[False], rounds[True])
    for promise in promises:
        print(f"BROKEN: {promise}")
    return 1 if promises else 0


if __name__ == "__main__":
    sys.exit(main())
