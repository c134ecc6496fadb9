"""Many callers of both doors at once, open loop, and a record of what became of each request."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from doors import Ask, GrpcDoor, Reply, RestDoor
from mix import RightReplies, a_kind, make, percent, spoil

Outcome = Literal[
    "right",  # the reply that it should be
    "refused",  # too much load, or not ready; says when to come back
    "own fault",  # failed because of a fault in its own text
    # Failed because the worker that ran it was lost; or answered otherwise, and said so, because
    # the worker that compressed a passage was.
    "worker",
    "expired",  # its deadline, too short, had passed
    "left",  # the caller went before the reply
    "failed",  # anything else, a wrong reply among them: must be 0
    "lost",  # no reply: must be 0
]
OUTCOMES: tuple[Outcome, ...] = (
    *("right", "refused", "own fault", "worker", "expired", "left", "failed", "lost"),
)
LEAVES_WITHIN = 0.15  # seconds
SHORT_DEADLINE = 0.005, 0.1
LATE_SECONDS = 1.0  # a deadline is told no later than that, on a machine with no core to spare


@dataclass(frozen=True)
class Record:
    kind: str
    door: str
    phase: str
    outcome: Outcome
    seconds: float
    note: str = ""


@dataclass
class Records:
    """What became of all requests."""

    all: list[Record] = field(default_factory=list)

    def count(self, **where: str) -> Counter[str]:
        """Count outcomes of the records whose fields are as said."""
        return Counter(record.outcome for record in self.find(**where))

    def find(self, **where: str) -> list[Record]:
        return [
            record
            for record in self.all
            if all(getattr(record, name) == value for name, value in where.items())
        ]

    def latencies(self, phase: str) -> tuple[float, float]:
        """Return p50 and p95 of single queries answered in a phase, milliseconds."""
        records = self.find(phase=phase, kind="embed one", outcome="right")
        seconds = [record.seconds for record in records]
        return percent(seconds, 50), percent(seconds, 95)

    def broken(self) -> list[str]:
        """Return what may never be."""
        bad = [record for record in self.all if record.outcome in ("failed", "lost")]
        counts = Counter(
            f"{record.door} {record.kind} {record.outcome}: {record.note}" for record in bad
        )
        return [f"{count} x {what}" for what, count in counts.most_common()]


class Callers:
    """Sends the mix to both doors, and judges each reply.

    Args:
        doors: Taken in turn, at random; one that is taken out of ``doors`` is sent no more.
        known: What is right.
        rate: Requests a second, both doors together.
        chance: Decides everything.
        hurried: Share of the callers that leave before their reply; and of those whose deadline
            is too short.
    """

    def __init__(
        self,
        doors: Sequence[RestDoor | GrpcDoor],
        known: RightReplies,
        rate: float,
        chance: random.Random,
        hurried: float = 0.1,
    ) -> None:
        self.doors = list(doors)
        self.hurried = hurried
        self.known = known
        self.rate = rate
        self.chance = chance
        self.records = Records()
        self.sent = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(
        self,
        phase: str,
        seconds: float,
        *,
        words: Sequence[str] = (),
        share: float = 0.15,
    ) -> None:
        """Send requests for so many seconds; their replies may come later (``settle``).

        With ``words``, a share of those that embed have one of them in a text, which makes it fail.
        """
        due = time.perf_counter()
        ends = due + seconds
        while due < ends:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            if not self.doors:
                return
            kind = a_kind(self.chance)
            ask = make(kind, self.chance)
            spoiled = bool(words) and ask.job == "embed" and self.chance.random() < share
            if spoiled:
                ask = spoil(ask, self.chance.choice(words), self.chance)
            self._start(kind, ask, phase, spoiled)
            due += self.chance.expovariate(self.rate)

    @property
    def waiting(self) -> int:
        """How many requests have no reply yet."""
        return len(self._tasks)

    async def settle(self) -> None:
        """Wait until every request has its reply."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def give_up(self, phase: str, ask: Ask, seconds: float) -> None:
        """On each door, let one caller leave and another's deadline pass after so long."""
        for door in self.doors:
            self._send("answer", door, ask, phase, leaves=seconds)
            self._send("answer", door, replace(ask, seconds=seconds), phase)

    def _start(self, kind: str, ask: Ask, phase: str, spoiled: bool) -> None:
        door = self.chance.choice(self.doors)
        fate, leaves = self.chance.random(), None
        if fate < self.hurried:
            leaves = self.chance.uniform(0, LEAVES_WITHIN)
        elif fate < 2 * self.hurried:
            ask = replace(ask, seconds=self.chance.uniform(*SHORT_DEADLINE))
        self._send(kind, door, ask, phase, spoiled, leaves)

    def _send(
        self,
        kind: str,
        door: RestDoor | GrpcDoor,
        ask: Ask,
        phase: str,
        spoiled: bool = False,
        leaves: float | None = None,
    ) -> None:
        task = asyncio.create_task(self._run_call(kind, door, ask, phase, spoiled, leaves))
        self.sent += 1
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_call(
        self,
        kind: str,
        door: RestDoor | GrpcDoor,
        ask: Ask,
        phase: str,
        spoiled: bool,
        leaves: float | None,
    ) -> None:
        started = time.perf_counter()
        try:
            async with asyncio.timeout(leaves):
                reply = await door.ask(ask)
        except TimeoutError:
            outcome, note = "left", ""
        else:
            outcome, note = self._judge(ask, reply, spoiled, time.perf_counter() - started)
        seconds = time.perf_counter() - started
        self.records.all.append(Record(kind, door.name, phase, outcome, seconds, note))

    def _judge(self, ask: Ask, reply: Reply, spoiled: bool, seconds: float) -> tuple[Outcome, str]:
        status = f"{reply.code} {reply.message[:120]}"
        if ask.seconds is not None and seconds > ask.seconds + LATE_SECONDS:
            return "failed", f"{seconds - ask.seconds:.1f} s after its deadline: {status}"
        if reply.verdict == "ok":
            if spoiled:
                return "failed", "a spoiled text got a vector"
            fault = self.known.fault(ask, reply)
            if fault and reply.uncompressed:
                return "worker", reply.uncompressed
            return ("failed", fault) if fault else ("right", "")
        if reply.verdict == "expired" and ask.seconds is not None:
            return "expired", ""
        if reply.verdict == "fault":
            if spoiled:
                return "own fault", ""
            if "device worker" in reply.message:
                return "worker", ""
        if reply.verdict in ("refused", "lost"):
            return reply.verdict, status
        return "failed", status
