"""What requests were measured to cost on a machine, and what others between them cost.

``condensery bench rates`` writes these, a JSON file. A point is one kind of request that one caller
sent alone, or several at once; what lies between points is a line between them: in the number of
texts, and in their length.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from condensery import wire
from condensery.atomic_files import write_atomically
from condensery.errors import InputError, ModelNotFound, shorten

FORMAT = 1
MEASURE = "`condensery bench rates` measures them"
# How many times as large as measured an index may be planned for: a flat search is a line in it.
FURTHEST = 20

Measured = Literal["door", "embed", "rerank", "compress", "answer", "query", "write"]


@dataclass(frozen=True, slots=True)
class Point:
    """One kind of request as it was measured.

    Attributes:
        callers: How many sent at once, each waiting for its reply.
        count: Texts of a request: embedded, ranked, compressed, answered from or written.
        tokens: Of each.
        output: Tokens of an answer, the mean.
        passages: Of the index that was searched.
        requests: How many were measured.
        seconds: From sending to the last byte, the mean.
        p95_seconds: Of the same, what 95 in 100 did not exceed.
        scv: Squared coefficient of variation of the same.
        throughput: Requests a second, all callers together.
        core_seconds: CPU time of the server a request, all its threads.
        loop_seconds: That of its event loop's thread.
    """

    task: Measured
    model: str
    callers: int
    count: int
    tokens: int
    requests: int
    seconds: float
    p95_seconds: float
    scv: float
    throughput: float
    core_seconds: float
    loop_seconds: float
    door: Literal["rest", "grpc"] = "rest"
    output: float = 0.0
    passages: int = 0

    @property
    def label(self) -> str:
        """What was sent, in a table's words."""
        if self.task == "door":
            return f"door {self.door}"
        if self.task == "query":
            return f"query {self.passages}"
        output = f", {self.output:.1f} out" if self.task == "answer" else ""
        return f"{self.task} {self.count} x {self.tokens}{output}"


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """A model that was measured.

    Attributes:
        dims: Numbers of an encoder's vector; 0 for others.
        scores: Whether it ranks passages.
        bytes: Of its weights.
    """

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
class Cost:
    """What a request takes.

    Attributes:
        work: Seconds of one server of the queue: of a core, or of the accelerator.
        loop: Of them, or beside them, seconds of the event loop.
        seconds: From sending to the last byte, nobody else there.
    """

    work: float = 0.0
    loop: float = 0.0
    seconds: float = 0.0

    def plus(self, other: "Cost", times: float = 1.0) -> "Cost":
        """Return the sum of this and so many times the other, none of it under zero."""
        return Cost(
            *(
                max(0.0, own + times * others)
                for own, others in zip(_parts(self), _parts(other), strict=True)
            )
        )


@dataclass(frozen=True, slots=True)
class Rates:
    """What a machine was measured at.

    Attributes:
        machine: ``cpu``, ``kind``, ``flags``, ``cores``, ``python``.
        versions: Of packages, by name.
        foreign_cores: What other processes used meanwhile, in the mean.
        device: ``cpu``, or the accelerator's name.
        servers: How many requests are worked on at once: cores, or 1 for an accelerator.
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
    format: int = field(default=FORMAT)

    def model(self, name: str) -> MeasuredModel:
        """Return a measured model.

        Raises:
            ModelNotFound: It is none of them; the message lists them.
        """
        for model in self.models:
            if model.name == name:
                return model
        names = ", ".join(model.name for model in self.models)
        wrong = f"model {shorten(name)} was not measured; these were: {names}. {MEASURE}"
        raise ModelNotFound(wrong, field="model", value=name)

    def model_for(self, task: Measured, name: str | None) -> str:
        """Return the model of a task: the one named, or the first that was measured at it.

        Raises:
            ModelNotFound: There is no such model.
            InputError: No model, or not this one, was measured at it.
        """
        if name is not None:
            self.model(name)
        for model in self.models:
            if name in (None, model.name) and any(
                point.task == task and point.model == model.name for point in self.points
            ):
                return model.name
        whose = "any model" if name is None else shorten(name)
        raise InputError.at("task", f"no rate of {task} was measured for {whose}; {MEASURE}", task)

    def cost(
        self, task: Measured, model: str, count: int, tokens: int, *, concurrent: bool
    ) -> tuple[Cost, Cost]:
        """Return what one text takes, and what each more takes, at a length.

        Args:
            count: For which the message speaks; any is on the line through those measured.
            tokens: Of each text.

        Raises:
            InputError: Texts so long, or this task of this model, were not measured.
        """
        points = self._points(task, model, concurrent=concurrent)
        longest = max(point.tokens for point in points)
        if tokens > longest:
            wrong = (
                f"{task} {count} x {tokens}: {model} was measured up to {longest} tokens a text,"
                " and reads no more in one piece; plan for texts as it cuts them"
            )
            raise InputError.at("tokens", wrong, tokens)
        counts = sorted({point.count for point in points})

        def at(number: int) -> Cost:
            rows = [point for point in points if point.count == number]
            return between(rows, tokens, lambda point: point.tokens, self.cost_of)

        one = at(counts[0])
        if len(counts) == 1:
            return one, one
        many = at(counts[-1])
        each = many.plus(one, -1.0)
        span = counts[-1] - counts[0]
        return one, Cost(*(part / span for part in _parts(each)))

    def query(self, model: str, passages: int, *, concurrent: bool) -> Cost:
        """Return what a search takes in an index of so many passages, its question embedded.

        Raises:
            InputError: So large an index is too far from those measured.
        """
        points = self._points("query", model, concurrent=concurrent)
        largest = max(point.passages for point in points)
        if passages > FURTHEST * largest:
            wrong = (
                f"{passages}: indexes of up to {largest} passages were measured, and a plan goes to"
                f" {FURTHEST} times that; `condensery bench rates --index-passages N` measures more"
            )
            raise InputError.at("passages", wrong, passages)
        return between(points, passages, lambda point: point.passages, self.cost_of)

    def answers(self, model: str, *, concurrent: bool) -> tuple[Point, Point]:
        """Return the points of answers of one token, and of as many as they liked."""
        points = self._points("answer", model, concurrent=concurrent)
        return min(points, key=lambda point: point.output), max(points, key=lambda p: p.output)

    def door(self, *, concurrent: bool) -> Cost:
        """Return what a request takes that no model works on.

        Nothing where that was not measured, as without an encoder: it is in the first text then.
        """
        if not any(point.task == "door" for point in self.points):
            return Cost()
        return self.cost_of(self._points("door", "", concurrent=concurrent)[0])

    def grpc_more(self, *, concurrent: bool) -> Cost | None:
        """Return what gRPC takes beyond REST for the same request; None if it was not measured."""
        doors = {
            point.door: point
            for point in self.points
            if point.task == "door" and (point.callers > 1) == concurrent
        }
        if "grpc" not in doors:
            return None
        grpc, rest = (_parts(self.cost_of(doors[door])) for door in ("grpc", "rest"))
        return Cost(*(one - other for one, other in zip(grpc, rest, strict=True)))

    def cost_of(self, point: Point) -> Cost:
        """Return what a measured request took of the queue's servers."""
        if self.device == "cpu":
            return Cost(point.core_seconds, point.loop_seconds, point.seconds)
        # CPU time says nothing of an accelerator: it is what its callers kept busy.
        return Cost(1 / point.throughput, point.loop_seconds, point.seconds)

    def _points(self, task: Measured, model: str, *, concurrent: bool) -> list[Point]:
        callers = self.concurrency if concurrent else 1
        points = [
            point
            for point in self.points
            if (point.task, point.model, point.callers, point.door)
            == (task, model, callers, "rest")
        ]
        if not points:
            wrong = f"no rate of {task} was measured for {model or 'the door'}; {MEASURE}"
            raise InputError.at("task", wrong, task)
        return points


def _parts(cost: Cost) -> tuple[float, float, float]:
    return cost.work, cost.loop, cost.seconds


def between(
    points: Sequence[Point],
    at: float,
    place: Callable[[Point], float],
    cost_of: Callable[[Point], Cost],
) -> Cost:
    """Return a cost on the line between the two points beside a place.

    Before the first point it is the first's; after the last the line goes on.
    """
    rows = sorted(points, key=place)
    if at <= place(rows[0]) or len(rows) == 1:
        return cost_of(rows[0])
    right = next((n for n, row in enumerate(rows) if place(row) >= at), len(rows) - 1)
    low, high = rows[right - 1], rows[right]
    share = (at - place(low)) / (place(high) - place(low))
    return Cost(
        *(
            max(0.0, first + share * (second - first))
            for first, second in zip(_parts(cost_of(low)), _parts(cost_of(high)), strict=True)
        )
    )


def read_rates(path: Path) -> Rates:
    """Read a file of rates.

    Raises:
        InputError: It cannot be read, or is none; the message says how to make one.
    """
    name = shorten(str(path))
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"{name}: there are no rates; {MEASURE}, --out {path.name}") from error
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise InputError(f"{name}: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        found = content.get("format") if isinstance(content, dict) else None
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
        raise ValueError(f"servers={rates.servers}, concurrent={rates.concurrency}")
    for number, point in enumerate(rates.points):
        for name in ("seconds", "throughput", "core_seconds", "count", "callers"):
            if not getattr(point, name) > 0:
                raise ValueError(f"points[{number}].{name} is {getattr(point, name)}")


def write_rates(path: Path, rates: Rates) -> None:
    """Write a file of rates, whole or not at all."""
    write_atomically(path, json.dumps(asdict(rates), indent=1) + "\n")
