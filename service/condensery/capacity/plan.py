"""How many machines a traffic needs, what each is busy with, and why.

Arithmetic over measured rates; no model runs. For each kind of request: what one takes of the
machine alone, and what one takes among concurrent ones, with which it shares forward passes. A
machine with so much of the whole traffic is a queue M/G/c (``queueing``), short requests first as
the service itself has it.

Between alone and concurrent the work of a request falls with the load: at utilisation ``r`` it is
``(1 - r) * alone + r * concurrent``. So utilisation is the ``r`` that solves
``r = (1 - r) * A + r * C``, where ``A`` and ``C`` are the loads (rate times work over servers) that
the two would make: ``r = A / (1 + A - C)``. It is 1 where ``C`` is: that rate is the capacity.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from condensery.capacity.queueing import (
    Service,
    Wait,
    mixed,
    mixed_quantile,
    short_first,
    utilisation,
)
from condensery.capacity.rates import Cost, Measured, Point, Rates
from condensery.capacity.traffic import RequestKind, Traffic, total_rate
from condensery.errors import InputError

HOURS_A_MONTH = 730.0  # 365 * 24 / 12
MOST_MACHINES = 100_000
# Of a request, as the service itself tells short from long (runtime/queue.py, SHORT_TOKENS).
SHORT_TOKENS = 512
SHARE = 0.95
MEMORY_SHARE = 0.8  # of a machine's memory, for the server


@dataclass(frozen=True, slots=True)
class CostPart:
    """A part of a request's cost: so many times what was measured."""

    label: str
    times: float
    cost: Cost


@dataclass(frozen=True, slots=True)
class KindCost:
    """What a kind of request takes.

    Attributes:
        cost: The sum of ``parts``.
        bare_p95: What 95 in 100 did not exceed, alone, seconds.
        scv: Squared coefficient of variation of one kind's own times.
        ahead: Of the work, what goes before batches: the event loop, and what is outside the
            server, which run at a higher priority on the same cores, seconds of one.
    """

    kind: RequestKind
    model: str
    cost: Cost
    bare_p95: float
    scv: float
    ahead: float
    parts: tuple[CostPart, ...]

    @property
    def short(self) -> bool:
        """Whether it goes first."""
        return is_short(self.kind)

    @property
    def turns(self) -> int:
        """How often it waits behind others' batches: an answer is compressed, then generated."""
        return 2 if self.kind.task == "answer" else 1

    def work(self, load: float) -> float:
        """Return the seconds of a server that one takes at a utilisation."""
        return (1 - load) * self.cost.alone + load * self.cost.concurrent

    def seconds(self, load: float) -> float:
        """Return how long one takes at a utilisation, its waiting left out.

        Alone a list is spread over all cores; the busier they are, the fewer it finds.
        """
        alone = self.cost.seconds
        return alone + load * max(0.0, self.work(load) - alone)


@dataclass(frozen=True, slots=True)
class Target:
    """What is wanted.

    Attributes:
        p95_ms: No kind of request's p95 may be over it.
        most_load: Nor a machine's utilisation, 0 to 1, whatever the latencies.
        spare: Machines that may be lost.
        cost_an_hour: Of one machine; 0 is not asked for.
        elsewhere: Seconds of a core that each request takes on the same machine outside the server.
    """

    p95_ms: float = math.inf
    most_load: float = 0.8
    spare: int = 1
    cost_an_hour: float = 0.0
    elsewhere: float = 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """A number of machines, and how each would do.

    Attributes:
        utilisation: Of its servers, 0 to 1; ``loop``: of its event loop.
        p95: Of each kind of request, seconds; empty where it cannot keep up.
        own: Of that, each kind's own time at this load, and waits in the mean after the first.
        waits: Of each kind, before its first turn.
        stretch: How many times as long batches take, for what goes first.
        all_p95: Of all requests together.
        streams: Answers at once, in the mean.
    """

    machines: int
    utilisation: float
    loop: float
    p95: tuple[float, ...] = ()
    own: tuple[float, ...] = ()
    waits: tuple[Wait, ...] = ()
    stretch: float = 1.0
    all_p95: float = math.inf
    streams: float = math.inf


@dataclass(frozen=True, slots=True)
class Plan:
    """What a traffic needs.

    Attributes:
        capacity: Requests a second of this mix that one machine can do.
        bound: What is full then: ``servers`` or ``event loop``.
        rows: From the fewest machines that keep up to those that keep the target.
        needed: Machines that keep the target; those that may be lost left out.
        memory_bytes: That the server of one machine takes.
    """

    kinds: tuple[KindCost, ...]
    traffic: tuple[Traffic, ...]
    capacity: float
    bound: str
    rows: tuple[Row, ...]
    needed: int
    spare: int
    memory_bytes: int
    machine_bytes: int
    cost_a_month: float

    @property
    def machines(self) -> int:
        """All of them, spare ones too."""
        return self.needed + self.spare

    @property
    def row(self) -> Row:
        """How the needed ones do, the spare ones lost."""
        return self.rows[-1]


def is_short(kind: RequestKind | Point) -> bool:
    """Return whether a kind of request goes before batches."""
    few = kind.count * kind.tokens <= SHORT_TOKENS
    return kind.task in ("query", "door") or (kind.task != "answer" and few)


def cost_of_kind(rates: Rates, kind: RequestKind, target: Target) -> KindCost:
    """Return what a kind of request takes, put together of measured parts.

    Raises:
        InputError, ModelNotFound: A rate that it needs was not measured.
    """
    model = rates.model_for(kind.task, kind.model)
    door = rates.door()
    parts = [CostPart("the door", 1, door), *_parts_of(rates, kind, model, door)]
    if target.elsewhere:
        outside = Cost(target.elsewhere, target.elsewhere)
        parts.append(CostPart("outside the server", 1, outside))
    parts = [part for part in parts if part.times]
    cost = Cost()
    for part in parts:
        cost = cost.plus(part.cost, part.times)
    more = rates.together.work - 1
    if more and rates.device == "cpu":  # of an accelerator only the CPU's part was measured
        beside = Cost(cost.alone * more, cost.concurrent * more)
        parts.append(CostPart("beside other kinds, as measured together", 1, beside))
        # no ``plus``: a mix may fare better than its kinds
        alone, concurrent = cost.alone + beside.alone, cost.concurrent + beside.concurrent
        cost = replace(cost, alone=alone, concurrent=concurrent)
    # The nearest measured point says how far its times vary.
    size = math.log(kind.count * kind.tokens)
    points = [one for one, _ in rates.pairs(kind.task, model)]
    near = min(points, key=lambda one: abs(math.log(one.count * max(1, one.tokens)) - size))
    ahead = cost.loop + target.elsewhere if rates.device == "cpu" else 0.0
    bare = cost.seconds * near.p95_seconds / near.seconds
    return KindCost(kind, model, cost, bare, near.scv, ahead, tuple(parts))


def _parts_of(rates: Rates, kind: RequestKind, model: str, door: Cost) -> Iterator[CostPart]:
    """Yield what a request takes beside the door."""
    more, text = kind.count - 1, f"of {kind.tokens} tokens"
    if kind.passages is not None:
        finder = model if kind.task == "query" else rates.model_for("query", None)
        found = rates.query(finder, kind.passages)
        label = f"its question embedded, {kind.passages:,} passages searched"
        yield CostPart(label, 1, found.plus(door, -1))
    if kind.task == "query":
        return
    tasks: dict[str, tuple[Measured, str]] = {
        "embed": ("embed", f"a text {text}"),
        "write": ("embed", f"a document {text} embedded"),
        "rerank": ("rerank", f"a passage {text}"),
        "answer": ("compress", f"a passage {text} compressed"),
    }
    task, label = tasks[kind.task]
    one, each = rates.texts(task, model, kind.tokens)
    yield CostPart(label, 1, one.plus(door, -1))
    yield CostPart("another one in the same request", more, each)
    if kind.task == "write":
        length = rates.pairs("write", model)[0][0].tokens
        pairs = zip(
            rates.texts("write", model, length), rates.texts("embed", model, length), strict=True
        )
        one, each = (written.plus(embedded, -1) for written, embedded in pairs)
        yield CostPart("and written", 1, one)
        yield CostPart("another one written", more, each)
    elif kind.task == "answer":
        yield from _generation(rates, kind, model)


def _generation(rates: Rates, kind: RequestKind, model: str) -> Iterator[CostPart]:
    """Yield what an answer takes once its passages are compressed.

    Answers of one token were measured, and of as many as they liked: the difference is tokens.
    """
    short, long = sorted(rates.pairs("answer", model), key=lambda pair: pair[0].output)
    one, each = rates.texts("compress", model, short[0].tokens)
    first = rates.cost_of(short).plus(one, -1).plus(each, 1.0 - short[0].count)
    yield CostPart("prompt read, first token written", 1, first)
    alone, concurrent = (
        max(many.output - few.output, 0.0) for few, many in zip(short, long, strict=True)
    )
    rest = rates.cost_of(long).plus(rates.cost_of(short), -1)
    if alone and concurrent:
        token = Cost(
            rest.alone / alone,
            rest.concurrent / concurrent,
            rest.loop / concurrent,
            rest.seconds / alone,
        )
        yield CostPart("another token written", (kind.output or long[0].output) - 1, token)


def load_of(kinds: Sequence[KindCost], rates: Sequence[float], servers: int) -> float:
    """Return a machine's utilisation at so many requests a second of each kind; 1: it is full."""
    pairs = list(zip(rates, kinds, strict=True))
    alone = sum(rate * kind.cost.alone for rate, kind in pairs) / servers
    concurrent = sum(rate * kind.cost.concurrent for rate, kind in pairs) / servers
    # Concurrent ones may cost a little more; then that holds.
    return alone / (1 + alone - concurrent) if alone > concurrent < 1 else concurrent


def row_of(
    kinds: Sequence[KindCost], traffic: Sequence[Traffic], rates: Rates, machines: int
) -> Row:
    """Return how so many machines do, the traffic spread evenly and at random."""
    servers = rates.servers
    each = [line.rate / machines for line in traffic]
    load = load_of(kinds, each, servers)
    loop = sum(rate * kind.cost.loop for rate, kind in zip(each, kinds, strict=True))
    if load >= 1 or loop >= 1:
        return Row(machines, load, loop)
    first: list[Service] = []
    batches: list[Service] = []
    for rate, kind in zip(each, kinds, strict=True):
        work = kind.work(load)
        ahead = work if kind.short else min(work, kind.ahead)
        first.append(Service(rate, ahead, kind.scv if kind.short else 0.0))
        batches += [] if kind.short else [Service(rate, work - ahead, kind.scv)]
    short, long, stretch = short_first(servers, first, batches)
    # They go before batches that wait, but one that runs is not stopped for them.
    busy = utilisation(servers, mixed(batches))
    short = short.plus(Wait(busy, busy * rates.together.delay))
    waits = [short if kind.short else long for kind in kinds]
    own = [
        kind.seconds(load) * (1 if kind.short else stretch) + (kind.turns - 1) * wait.mean
        for kind, wait in zip(kinds, waits, strict=True)
    ]
    p95 = tuple(
        max(kind.bare_p95, seconds + wait.quantile(SHARE))
        for kind, seconds, wait in zip(kinds, own, waits, strict=True)
    )
    together = mixed_quantile(list(zip(each, own, waits, strict=True)), SHARE)
    streams = sum(
        rate * (seconds + wait.mean)
        for rate, seconds, wait, kind in zip(each, own, waits, kinds, strict=True)
        if kind.kind.task == "answer"
    )
    return Row(machines, load, loop, p95, tuple(own), tuple(waits), stretch, together, streams)


def capacity_of(
    kinds: Sequence[KindCost], traffic: Sequence[Traffic], servers: int
) -> tuple[float, str]:
    """Return the requests a second at which a machine is full, and what of it is."""
    whole = total_rate(traffic)
    work = sum(k.cost.concurrent * t.rate / whole for k, t in zip(kinds, traffic, strict=True))
    loop = sum(k.cost.loop * t.rate / whole for k, t in zip(kinds, traffic, strict=True))
    by_servers, by_loop = servers / work, (1 / loop if loop else math.inf)
    return min((by_servers, "servers"), (by_loop, "event loop"))


def make_plan(rates: Rates, traffic: Sequence[Traffic], target: Target) -> Plan:
    """Return how many machines a traffic needs, and how they do.

    Raises:
        InputError, ModelNotFound: A rate was not measured; the target is below what one request
            takes alone; it would take more than ``MOST_MACHINES``.
    """
    kinds = tuple(cost_of_kind(rates, line.kind, target) for line in traffic)
    for kind in kinds:
        if kind.bare_p95 * 1000 > target.p95_ms:
            raise InputError.at(
                "--p95-ms",
                f"p95 of {target.p95_ms:g} ms cannot be met: one request `{kind.kind.name}` alone "
                f"takes {kind.bare_p95 * 1000:.1f} ms here, on any number of such machines",
                target.p95_ms,
            )
    capacity, bound = capacity_of(kinds, traffic, rates.servers)
    machines = max(1, math.ceil(total_rate(traffic) / capacity))
    rows: list[Row] = []
    while True:
        row = row_of(kinds, traffic, rates, machines)
        rows.append(row)
        slow = any(p95 * 1000 > target.p95_ms for p95 in row.p95)
        if row.p95 and not slow and max(row.utilisation, row.loop) <= target.most_load:
            break
        # By a fiftieth a time where there are many: what a plan rests on is no closer.
        machines += max(1, machines // 50)
        if machines > MOST_MACHINES:
            raise InputError.at("rate", f"more than {MOST_MACHINES} machines", total_rate(traffic))
    passages = max((kind.kind.passages or 0 for kind in kinds), default=0)
    extra = max(0.0, math.ceil(row.streams) - rates.concurrency)
    memory = rates.memory.peak + int(extra) * rates.memory.stream + passages * rates.memory.passage
    return Plan(
        kinds=kinds,
        traffic=tuple(traffic),
        capacity=capacity,
        bound=bound,
        rows=tuple(rows),
        needed=machines,
        spare=target.spare,
        memory_bytes=memory,
        machine_bytes=math.ceil(memory / MEMORY_SHARE),
        cost_a_month=(machines + target.spare) * target.cost_an_hour * HOURS_A_MONTH,
    )
