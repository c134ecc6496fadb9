"""A clean exit: SIGTERM under load, by callers that stop coming once the server says so.

Both doors are loaded with what callers mix (`mix.py`), by clients that behave as a load balancer
does: they look at /readyz and at gRPC health four times a second, and send no more to a door that
is not ready. In the middle the server gets SIGTERM. Not one request may be refused or fail, and the
server must end with 0. Then the same with a second SIGTERM soon after the first, which ends the
server sooner: then requests may be refused, and the table says what became of them.

With ``--newcomers`` so many requests more meet a SIGTERM, of clients that look at nothing: they
send one request after another until they can't connect, some over a connection for each, some over
one that they keep. Each must be answered, or refused by an answer, or not be let in: a connection
that was made and then is reset, or ends without a word, is a request lost.

    python loadtests/drain.py [--rounds 5] [--rate 15] [--again 5] [--newcomers 10000] [--out FILE]

Exits with 1 if a promise is broken (docs/reliability.md).
"""

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import grpc
from callers import Callers
from doors import Door, GrpcDoor, RestDoor
from mix import RightReplies
from servers import Server, begin, keep, serving, take_out, workplace
from wire import CHANNEL, EMBED, Connection, Rest

from condensery.stubs import condensery_v1_pb2 as pb

LOOK_SECONDS = 0.25
SECOND_AFTER = 0.5  # seconds from the first SIGTERM to the second
UNREADY_SECONDS = 1.0  # unless said otherwise; a look is 0.25 s apart from the next
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
    callers: Callers, door: Door, terminated: "asyncio.Future[float]", round_of: Round
) -> None:
    """Take a door out once it is not ready, as a load balancer would."""
    while True:
        if not await door.ready():
            callers.doors.remove(door)
            round_of.unready[door.name] = time.monotonic() - await terminated
            return
        await asyncio.sleep(LOOK_SECONDS)


async def leave(server: Server, args: argparse.Namespace, seed: int, *, twice: bool) -> Round:
    """Load a server, tell it to end, and see what becomes of every request."""
    doors: tuple[RestDoor, GrpcDoor] = (RestDoor(server.url), GrpcDoor(server.grpc))
    known = RightReplies()
    await known.learn(doors[0])
    callers = Callers(doors, known, args.rate, random.Random(seed), hurried=0)
    round_of = Round()
    terminated: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    balancing = [
        asyncio.create_task(balance(callers, door, terminated, round_of)) for door in doors
    ]
    sending = asyncio.create_task(callers.run("load", LONGEST))
    await asyncio.sleep(args.seconds)
    before = callers.sent
    round_of.waiting = callers.waiting
    server.terminate()
    began = time.monotonic()
    terminated.set_result(began)
    if twice:
        await asyncio.sleep(SECOND_AFTER)
        server.terminate()
    round_of.status = await asyncio.to_thread(server.wait)
    round_of.seconds = time.monotonic() - began
    await sending
    await callers.settle()
    for task in balancing:
        task.cancel()
    round_of.sent_after = callers.sent - before
    round_of.outcomes = callers.records.count()
    round_of.bad = callers.records.broken()
    for door in doors:
        await door.close()
    return round_of


class Newcomers:
    """Clients that send one request after another until they can't connect.

    Attributes:
        ends: What became of their requests, by kind of client: answered, refused, not let in, lost.
        lost: How, of those.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.rest = Rest(server.port)
        self.ends: dict[str, Counter[str]] = {}
        self.lost: Counter[str] = Counter()
        self._kept: dict[int, Connection] = {}

    async def come(self, clients: int) -> None:
        """Come with so many of each kind, until the last is not let in."""
        kinds = {
            "REST, new connections": self._ask_rest,
            "gRPC, new connections": self._ask_grpc,
            "REST, kept connections": self._ask_rest_again,
        }
        asked = [
            self._go_on(name, ask, number)
            for name, ask in kinds.items()
            for number in range(clients)
        ]
        async with grpc.aio.insecure_channel(self.server.grpc, options=CHANNEL) as channel:
            kept = [self._go_on("gRPC, one kept", self._over(channel), n) for n in range(clients)]
            await asyncio.gather(*asked, *kept)

    async def _go_on(
        self, name: str, ask: Callable[[int], Coroutine[Any, Any, str]], number: int
    ) -> None:
        ends = self.ends.setdefault(name, Counter())
        until = time.monotonic() + LONGEST
        while time.monotonic() < until:
            try:
                end = await ask(number)
            except OSError as error:
                end = "lost"
                self.lost[f"{name}: {type(error).__name__}: {error}"] += 1
            except grpc.aio.AioRpcError as error:
                keys = {key for key, _ in error.trailing_metadata() or ()}
                details = error.details() or ""
                if "x-error" in keys:
                    end = "refused"
                elif "failed to connect" in details or "Failed to connect" in details:
                    end = "not let in"
                else:
                    end = "lost"
                    self.lost[f"{name}: {error.code().name}: {details[:150]}"] += 1
            ends[end] += 1
            if end == "not let in":
                return

    async def _ask_rest(self, number: int) -> str:
        connection = await self._connect()
        if connection is None:
            return "not let in"
        try:
            return _rest_end(await connection.ask(self.rest.embed([f"text {number}"])))
        finally:
            connection.transport.close()

    async def _ask_rest_again(self, number: int) -> str:
        connection = self._kept.pop(number, None)
        if connection is None or connection.lost:
            connection = await self._connect()
        if connection is None:
            return "not let in"
        reply = await connection.ask(self.rest.embed([f"text {number}"]))
        if b"connection: close" in reply.partition(b"\r\n\r\n")[0].lower():
            connection.transport.close()
        else:
            self._kept[number] = connection
        return _rest_end(reply)

    async def _connect(self) -> Connection | None:
        loop = asyncio.get_running_loop()
        try:
            _, made = await loop.create_connection(Connection, "127.0.0.1", self.server.port)
        except ConnectionRefusedError:
            return None
        return made

    async def _ask_grpc(self, number: int) -> str:
        own = (*CHANNEL, ("grpc.use_local_subchannel_pool", 1))  # else channels share connections
        async with grpc.aio.insecure_channel(self.server.grpc, options=own) as channel:
            return await self._over(channel)(number)

    def _over(self, channel: grpc.aio.Channel) -> Callable[[int], Coroutine[Any, Any, str]]:
        method = channel.unary_unary(EMBED)

        async def ask(number: int) -> str:
            request = pb.EmbedBatchRequest(texts=[f"text {number}"])
            await method(request.SerializeToString(), timeout=LONGEST)
            return "answered"

        return ask


def _rest_end(reply: bytes) -> str:
    status = reply[9:12].decode()
    return {"200": "answered", "503": "refused", "429": "refused"}.get(status, status)


async def meet(server: Server, clients: int, seconds: float) -> tuple[Newcomers, int | None]:
    """Tell a server to end amid newcomers; returns them, and its status."""
    newcomers = Newcomers(server)
    coming = asyncio.create_task(newcomers.come(clients))
    await asyncio.sleep(seconds)
    server.terminate()
    await coming
    return newcomers, await asyncio.to_thread(server.wait)


def show_newcomers(ends: dict[str, Counter[str]], rounds: int) -> None:
    heads = ("answered", "refused", "not let in", "lost")
    print(f"\nNewcomers, {rounds} SIGTERMs\n\n| | {' | '.join(heads)} |\n|{'---|' * 5}")
    for name, counts in ends.items():
        print(f"| {name} | {' | '.join(str(counts[head]) for head in heads)} |")


def show(name: str, rounds: list[Round]) -> None:
    heads = ("in flight", "sent after", "right", "refused", "failed", "lost", "unready s", "exit s")
    print(f"\n{name}\n\n| round | {' | '.join(heads)} | status |\n|{'---|' * 10}")
    for number, round_of in enumerate(rounds):
        counts = " | ".join(
            str(round_of.outcomes[what]) for what in ("right", "refused", "failed", "lost")
        )
        unready = "/".join(f"{seconds:.1f}" for _, seconds in sorted(round_of.unready.items()))
        print(
            f"| {number + 1} | {round_of.waiting} | {round_of.sent_after} | {counts} | {unready}"
            f" | {round_of.seconds:.1f} | {round_of.status} |"
        )


def broken(once: list[Round], twice: list[Round], unready_seconds: float) -> list[str]:
    """Return the promises that did not hold."""
    promises = []
    for number, round_of in enumerate(once):
        refused = (
            [f"{round_of.outcomes['refused']} refused"] if round_of.outcomes["refused"] else []
        )
        promises += [f"SIGTERM, round {number + 1}: {bad}" for bad in (*refused, *round_of.bad)]
    for number, round_of in enumerate((*once, *twice)):
        for door, seconds in round_of.unready.items():
            if seconds > unready_seconds:
                promises.append(f"round {number + 1}: {door} said ready for {seconds:.1f} s more")
        if round_of.status != 0:
            promises.append(f"round {number + 1}: the server ended with {round_of.status}")
    if once and twice and min(o.seconds for o in once) <= max(t.seconds for t in twice):
        promises.append("a second SIGTERM did not hasten the end")
    return promises


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--again", type=int, default=5, help="rounds with a second SIGTERM")
    parser.add_argument("--rate", type=float, default=15.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=4.0, help="of load before SIGTERM")
    parser.add_argument("--newcomers", type=int, default=0, help="so many requests, about")
    parser.add_argument("--clients", type=int, default=6, help="newcomers of each of four kinds")
    parser.add_argument("--unready-seconds", type=float, default=UNREADY_SECONDS, help="allowed")
    take_out(parser)
    parser.add_argument("--flags", default="", help="for condensery serve, in one string")
    args = parser.parse_args()
    recording = begin("drain.py")
    rounds: dict[bool, list[Round]] = {False: [], True: []}
    ends: dict[str, Counter[str]] = {}
    promises: list[str] = []
    met = 0
    with workplace() as folder:
        for number in range(args.rounds + args.again):
            twice = number >= args.rounds
            with serving(folder, args.flags.split()) as server:
                rounds[twice].append(asyncio.run(leave(server, args, number, twice=twice)))
        while sum(counts.total() for counts in ends.values()) < args.newcomers:
            # Settling longer shows nothing more: who looks at nothing goes on.
            with serving(folder, ("--settle-seconds", "1", *args.flags.split())) as server:
                newcomers, status = asyncio.run(meet(server, args.clients, seconds=2.0))
            met += 1
            for name, counts in newcomers.ends.items():
                ends.setdefault(name, Counter()).update(counts)
            promises += [f"newcomers: {n} x {how}" for how, n in newcomers.lost.items()]
            if status != 0:
                promises.append(f"newcomers: the server ended with {status}")
    if args.rounds or args.again:
        show("SIGTERM", rounds[False])
        show("SIGTERM twice", rounds[True])
    if ends:
        show_newcomers(ends, met)
    figures: dict[str, Any] = {
        "newcomers": ends,
        "once": [vars(round_of) for round_of in rounds[False]],
        "twice": [vars(round_of) for round_of in rounds[True]],
    }
    keep(figures, recording, args.out)
    for number, round_of in enumerate(rounds[True]):
        for bad in round_of.bad:
            print(f"SIGTERM twice, round {number + 1}: {bad}")
    promises += broken(rounds[False], rounds[True], args.unready_seconds)
    for promise in promises:
        print(f"BROKEN: {promise}")
    return 1 if promises else 0


if __name__ == "__main__":
    sys.exit(main())
