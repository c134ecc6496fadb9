"""What requests were measured to cost on a machine, and what others between them cost.

``condensery bench rates`` writes these, a JSON file. A point is one kind of request that one caller
sent alone, or several at once; what lies between points is a line between them: in the number of
texts, and in their length.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any, Literal

from condensery import wire
from condensery.atomic_files import write_atomically
from condensery.errors import InputError, ModelNotFound, shorten

FORMAT = 2
MEASURE = "`condensery bench rates` measures them"
# How many times as large as measured an index may be planned for: a flat search is a line in it.
FURTHEST = 20

Measured = Literal["door", "embed", "rerank", "compress", "answer", "query", "write"]


@dataclass(frozen=True, slots=True)
class Point:
    """One kind of request as it was measured.

    Attributes:
        count: Texts of a request: embedded, ranked, compressed, answered from or written.
        tokens: Of each.
        passages: Of the index that was searched.
        output: Tokens of an answer, the mean.
        callers: How many sent at once, each waiting for its reply.
        requests: How many were measured.
        seconds: From sending to the last byte, the mean; ``p95_seconds``, and ``scv`` (squared
            coefficient of variation), are of the same.
        throughput: Requests a second, all callers together.
        core_seconds: CPU time of the server a request, all its threads; ``loop_seconds``: of its
            event loop's.
    """

    task: Measured
    model: str = ""
    count: int = 1
    tokens: int = 0
    passages: int = 0
    output: float = 0.0
    callers: int = 0
    requests: int = 0
    seconds: float = 0.0
    p95_seconds: float = 0.0
    scv: float = 0.0
    throughput: float = 0.0
    core_seconds: float = 0.0
    loop_seconds: float = 0.0

    @property
    def label(self) -> str:
        """What was sent, in words."""
        size = f"{self.passages}" if self.task == "query" else f"{self.count} x {self.tokens}"
        return f"{self.task} {size} {self.model}".strip()


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """A model that was measured; ``bytes`` are its weights', ``scores`` says that it ranks."""

    name: str
    kind: str
    version: str
    fingerprint: str
    dtype: str
    device: str
    max_tokens: int
    dims: int = 0
    scores: bool = False
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Memory:
    """The server's resident memory, bytes.

    Attributes:
        start: When it was ready, all models loaded and warm.
        peak: The most, in all that was measured; indexes that were filled for it left out.
        stream: What an answer more at once took.
        passage: What a passage more in an index took.
    """

    start: int
    peak: int
    stream: int
    passage: int


@dataclass(frozen=True, slots=True)
class Together:
    """All kinds of requests sent at once, as in a mix, where each was measured among its like.

    Attributes:
        requests: How many.
        work: Core-seconds that they took, over what the same ones take each among its like.
        delay: Seconds that the shortest took beyond their time alone, the mean: batches ran all
            the time.
    """

    requests: int
    work: float
    delay: float


@dataclass(frozen=True, slots=True)
class Cost:
    """What a request takes, or a part of one.

    Attributes:
        alone: Nobody else there, seconds of one server of the queue: a core, or the accelerator.
        concurrent: The same among concurrent ones.
        loop: Of that, or beside it, seconds of the event loop.
        seconds: By the clock, nobody else there.
    """

    alone: float = 0.0
    concurrent: float = 0.0
    loop: float = 0.0
    seconds: float = 0.0

    def plus(self, other: "Cost", times: float = 1.0) -> "Cost":
        """Return the sum of this and so many times the other, none of it under zero."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Cost(*(max(0.0, one + times * more) for one, more in pairs))


Pair = tuple[Point, Point]  # the same requests, alone and concurrent


@dataclass(frozen=True, slots=True)
class Rates:
    """What a machine was measured at.

    Attributes:
        machine: As ``describe_machine`` tells it, and ``memory_bytes``.
        foreign_cores: What other processes used meanwhile, in the mean.
        device: ``cpu``, or the accelerator's name.
        servers: Of the queue: cores, or 1 for an accelerator.
        concurrency: Callers of the concurrent points.
    """

    date: str
    command: str
    machine: dict[str, Any]
    versions: dict[str, str]
    foreign_cores: float
    device: str
    servers: int
    concurrency: int
    models: tuple[MeasuredModel, ...]
    points: tuple[Point, ...]
    memory: Memory
    together: Together
    format: int = FORMAT

    def model_for(self, task: Measured, name: str | None) -> str:
        """Return the model of a task: the one named, or the first that was measured at it.

        Raises:
            ModelNotFound: There is no such model; the message lists those measured.
            InputError: No model, or not this one, was measured at it.
        """
        names = [model.name for model in self.models]
        if name is not None and name not in names:
            wrong = f"model {shorten(name)} was not measured; these were: {', '.join(names)}"
            raise ModelNotFound(f"{wrong}. {MEASURE}", field="model", value=name)
        measured = {point.model for point in self.points if point.task == task}
        for model in names if name is None else [name]:
            if model in measured:
                return model
        whose = "any model" if name is None else shorten(name)
        raise InputError.at("task", f"no rate of {task} was measured for {whose}; {MEASURE}", task)

    def pairs(self, task: Measured, model: str) -> list[Pair]:
        """Return what was measured of a model at a task.

        Raises:
            InputError: Nothing was.
        """
        rows: tuple[list[Point], list[Point]] = ([], [])
        for point in self.points:
            if (point.task, point.model) == (task, model):
                rows[point.callers > 1].append(point)
        if not rows[0] or len(rows[0]) != len(rows[1]):
            raise InputError.at("task", f"no rate of {task} was measured; {MEASURE}", task)
        return list(zip(*rows, strict=True))

    def texts(self, task: Measured, model: str, tokens: int) -> tuple[Cost, Cost]:
        """Return what a request with one text of so many tokens takes, and each more text of it.

        Raises:
            InputError: Texts so long, or this task of this model, were not measured.
        """
        pairs = self.pairs(task, model)
        longest = max(one.tokens for one, _ in pairs)
        if tokens > longest:
            wrong = (
                f"{task} of {tokens} tokens a text: {model} was measured up to {longest}, and reads"
                " no more in one piece; plan for texts as it cuts them"
            )
            raise InputError.at("tokens", wrong, tokens)
        counts = sorted({one.count for one, _ in pairs})
        one, many = (
            self._between(
                [pair for pair in pairs if pair[0].count == count], tokens, lambda p: p.tokens
            )
            for count in (counts[0], counts[-1])
        )
        span = counts[-1] - counts[0]
        more = Cost(*(part / span for part in astuple(many.plus(one, -1)))) if span else one
        return one, more

    def query(self, model: str, passages: int) -> Cost:
        """Return what a search takes in an index of so many passages, its question embedded.

        Raises:
            InputError: So large an index is too far from those measured.
        """
        pairs = self.pairs("query", model)
        largest = max(one.passages for one, _ in pairs)
        if passages > FURTHEST * largest:
            wrong = (
                f"{passages}: indexes of up to {largest} passages were measured, and a plan goes to"
                f" {FURTHEST} times that; `condensery bench rates --index-passages N` measures more"
            )
            raise InputError.at("passages", wrong, passages)
        return self._between(pairs, passages, lambda point: point.passages)

    def door(self) -> Cost:
        """Return what a request takes that no model works on."""
        return self.cost_of(self.pairs("door", "")[0])

    def cost_of(self, pair: Pair) -> Cost:
        """Return what a measured request took."""
        one, several = pair
        if self.device == "cpu":
            work = one.core_seconds, several.core_seconds
        else:  # CPU time says nothing of an accelerator: it is what its callers kept busy
            work = 1 / one.throughput, 1 / several.throughput
        return Cost(*work, several.loop_seconds, one.seconds)

    def _between(self, pairs: Sequence[Pair], at: int, place: Callable[[Point], int]) -> Cost:
        """Return a cost on the line between the two measured beside a place.

        Before the first it is the first's; after the last the line goes on.
        """
        rows = sorted(pairs, key=lambda pair: place(pair[0]))
        places = [place(one) for one, _ in rows]
        if at <= places[0] or len(rows) == 1:
            return self.cost_of(rows[0])
        right = next((n for n, there in enumerate(places) if there >= at), len(rows) - 1)
        low, high = self.cost_of(rows[right - 1]), self.cost_of(rows[right])
        share = (at - places[right - 1]) / (places[right] - places[right - 1])
        pairs_of = zip(astuple(low), astuple(high), strict=True)
        return Cost(*(max(0.0, first + share * (last - first)) for first, last in pairs_of))


def read_rates(path: Path) -> Rates:
    """Read a file of rates.

    Raises:
        InputError: It cannot be read, or is none; the message says how to make one.
    """
    name = str(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"{name}: there are no rates; {MEASURE}") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{name}: {error}") from error
    found = content.get("format") if isinstance(content, dict) else None
    if found != FORMAT:
        got = str(found)[:40]
        raise InputError(f"{name}: format {got}, but this version reads {FORMAT}; {MEASURE}")
    try:
        rates: Rates = wire.read(Rates, content)
        _check(rates)
    except (TypeError, ValueError, KeyError) as error:
        raise InputError(f"{name}: these are no rates ({error}); {MEASURE}") from error
    return rates


def _check(rates: Rates) -> None:
    """Refuse figures that no measurement gives: a plan of them would be wrong, and look right."""
    if not rates.points or not rates.models:
        raise ValueError("it has no points or no models")
    if rates.servers < 1 or rates.concurrency < 2:
        raise ValueError(f"servers={rates.servers}, concurrency={rates.concurrency}")
    if not rates.together.work > 0 or rates.together.delay < 0:
        raise ValueError(f"together={rates.together}")
    for number, point in enumerate(rates.points):
        for name in ("seconds", "throughput", "core_seconds", "count", "callers"):
            if not getattr(point, name) > 0:
                raise ValueError(f"points[{number}].{name} is {getattr(point, name)}")


def write_rates(path: Path, rates: Rates) -> None:
    """Write a file of rates, whole or not at all."""
    write_atomically(path, json.dumps(asdict(rates), indent=1) + "\n")
