"""What a service is asked for, and how often: kinds of requests, mixes of them, profiles of a load.

A line of traffic is written as people say it, ``40/s embed``, ``2/s rerank 32 tokens=120``,
``3/s answer 5 tokens=120 output=20``; ``parse_request`` has the grammar. The load tests'
mixes and profiles are here too, so that a load which is run can be planned for by the same name.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from condensery.errors import InputError, shorten

Task = Literal["embed", "rerank", "query", "answer", "write"]
Job = Literal["embed 1", "embed 16", "rerank 8", "query", "answer", "answer streamed", "write 4"]

TASKS: tuple[Task, ...] = get_args(Task)
MOST_COUNT, MOST_TOKENS, MOST_PASSAGES = 100_000, 1_000_000, 10**10
MOST_RATE = 1e7  # requests a second
# Of the index `samples`, by the default encoder's tokenizer: what the load tests send. And what
# they get: the mean answer of `oscar-mini` to every sixth of the questions (2.8 tokens).
QUESTION_TOKENS, PASSAGE_TOKENS, SAMPLE_PASSAGES, SAMPLE_ANSWER = 13, 85, 244, 3


@dataclass(frozen=True, slots=True)
class RequestKind:
    """One kind of request.

    Attributes:
        task: What is asked for.
        count: Texts to embed, passages to rank or to answer from, documents to write.
        tokens: Of each of those texts.
        output: Tokens of an answer; 0 is as many as the measured ones had in the mean.
        passages: In the index that is searched; None is no index (passages come with an answer).
        model: Who does it; None is the default model of the task.
    """

    task: Task
    count: int = 1
    tokens: int = QUESTION_TOKENS
    output: int = 0
    passages: int | None = None
    model: str | None = None

    @property
    def name(self) -> str:
        """The kind in the grammar's words, its model left out."""
        words: list[str] = [self.task]
        if self.task != "query":
            words.append(str(self.count))
            words.append(f"tokens={self.tokens}")
        if self.output:
            words.append(f"output={self.output}")
        if self.passages is not None:
            words.append(f"passages={self.passages}")
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class Traffic:
    """A kind of request and its rate, requests a second."""

    kind: RequestKind
    rate: float


@dataclass(frozen=True, slots=True)
class Mix:
    """What a file of traffic says.

    Attributes:
        p95_ms: Target; None where the file has none.
        cost_an_hour: Of one machine; None where the file has none.
    """

    traffic: tuple[Traffic, ...]
    p95_ms: float | None = None
    cost_an_hour: float | None = None


# Twenty passages are found and compressed, as by default.
_SAMPLE_QUESTION = RequestKind("answer", 20, PASSAGE_TOKENS, SAMPLE_ANSWER, SAMPLE_PASSAGES)
# What a load test's job asks for (loadtests/rest_and_grpc.py).
JOBS: dict[Job, RequestKind] = {
    "embed 1": RequestKind("embed"),
    "embed 16": RequestKind("embed", 16, PASSAGE_TOKENS),
    "rerank 8": RequestKind("rerank", 8, PASSAGE_TOKENS),
    "query": RequestKind("query", passages=SAMPLE_PASSAGES),
    "answer": _SAMPLE_QUESTION,
    "answer streamed": _SAMPLE_QUESTION,
    "write 4": RequestKind("write", 4, PASSAGE_TOKENS),
}

MIXES: dict[str, dict[Job, int]] = {
    "mix": {
        "embed 1": 10,
        "embed 16": 2,
        "rerank 8": 3,
        "query": 5,
        "answer": 1,
        "answer streamed": 2,
        "write 4": 1,
    },
    "embed": {"embed 1": 5, "embed 16": 1},
    "rerank": {"rerank 8": 1},
    "answer": {"answer": 1, "answer streamed": 2},
    "write": {"write 4": 3, "query": 1},
}


@dataclass(frozen=True)
class Profile:
    """How a load's rate goes over time, and the bounds it must keep.

    Attributes:
        points: Seconds and the rate then, requests a second; between two it changes evenly.
        p95_ms: Bound of 95 in 100 replies of each kind; 0: none, the curves are what is wanted.
        refuses: Whether refusals that say when to come back are right replies.
        growth_mib: Bound of the server's memory, the last third of the run over the first.
    """

    points: tuple[tuple[float, float], ...]
    p95_ms: float = 0.0
    refuses: bool = False
    growth_mib: float = 0.0

    @property
    def seconds(self) -> float:
        """How long it is, seconds."""
        return self.points[-1][0]

    @property
    def peak(self) -> float:
        """The highest rate, requests a second."""
        return max(rate for _, rate in self.points)

    def changed(self, rate: float, seconds: float, p95_ms: float) -> "Profile":
        """Return it with another highest rate, length or bound; 0 changes nothing."""
        faster = rate / self.peak if rate else 1.0
        longer = seconds / self.seconds if seconds else 1.0
        points = tuple((at * longer, value * faster) for at, value in self.points)
        return replace(self, points=points, p95_ms=p95_ms or self.p95_ms)


PROFILES = {
    "smoke": Profile(((0, 4), (30, 4)), p95_ms=5000),
    "ramp": Profile(((0, 1), (300, 50)), refuses=True),
    "spike": Profile(((0, 4), (60, 4), (61, 40), (90, 40), (91, 4), (180, 4)), refuses=True),
    "soak": Profile(((0, 8), (3600, 8)), p95_ms=5000, growth_mib=64),
    "overload": Profile(((0, 100), (120, 100)), refuses=True, growth_mib=128),
}


def traffic_of(jobs: Mapping[Job, int], rate: float) -> tuple[Traffic, ...]:
    """Return a mix of the load tests' jobs at a rate, kinds that are the same put together.

    Args:
        jobs: Shares, a row of ``MIXES``.
        rate: Requests a second, all jobs together.
    """
    shares: dict[RequestKind, int] = {}
    for job, share in jobs.items():
        shares[JOBS[job]] = shares.get(JOBS[job], 0) + share
    whole = sum(shares.values())
    return tuple(Traffic(kind, rate * share / whole) for kind, share in shares.items())


def parse_request(text: str, field: str = "--request") -> Traffic:
    """Read a line of traffic.

    ``RATE[/s] TASK [COUNT] [tokens=N] [output=N] [passages=N] [model=NAME]``, words apart by
    blanks. ``streamed`` may stand behind ``answer``, as the load tests say it; it costs the same.

    Args:
        text: The line.
        field: What messages call it.

    Raises:
        InputError: Names the field, the word and what is allowed.
    """
    words = text.split()
    if len(words) < 2:
        raise InputError.at(field, f"{shorten(text)} is not RATE/s TASK [COUNT] [NAME=VALUE]", text)
    rate = _number(words[0].removesuffix("/s"), field, "a rate in requests a second", MOST_RATE)
    task = words[1]
    if task not in TASKS:
        raise InputError.at(field, f"{shorten(task)} is not one of {', '.join(TASKS)}", task)
    values: dict[str, Any] = {"count": _default_count(task), "tokens": _default_tokens(task)}
    if task == "query":
        values["passages"] = SAMPLE_PASSAGES
    for place, word in enumerate(words[2:]):
        name, equals, value = word.partition("=")
        if not equals:
            if word == "streamed" and task == "answer" and place == 0:
                continue
            values["count"] = _whole(word, field, "COUNT", MOST_COUNT)
        elif name == "model" and value:
            values["model"] = value
        elif name in ("tokens", "output", "passages"):
            most = MOST_PASSAGES if name == "passages" else MOST_TOKENS
            values[name] = _whole(value, field, name, most)
        else:
            raise InputError.at(
                field, f"{shorten(word)} is not COUNT, tokens=, output=, passages= or model=", word
            )
    _refuse_meaningless(task, values, field)
    return Traffic(RequestKind(task=task, **values), rate)


def read_mix(path: Path) -> Mix:
    """Read a JSON file of traffic: ``requests`` (lines), and perhaps ``p95_ms``, ``cost_an_hour``.

    Raises:
        InputError: It cannot be read, or a field of it is wrong; the message names it.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise InputError(f"{shorten(str(path))}: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{shorten(str(path))}: an object is needed, with `requests`")
    if unknown := sorted(content.keys() - {"requests", "p95_ms", "cost_an_hour"}):
        raise InputError.at(unknown[0], "is not one of requests, p95_ms, cost_an_hour", None)
    lines = content.get("requests")
    if not isinstance(lines, list) or not lines:
        raise InputError.at("requests", f"needs a list of lines, got {shorten(str(lines))}", lines)
    for number, line in enumerate(lines):
        if not isinstance(line, str):
            got = shorten(str(line))
            raise InputError.at(f"requests[{number}]", f"a line is needed, got {got}", line)
    traffic = tuple(parse_request(line, f"requests[{n}]") for n, line in enumerate(lines))
    limits = {name: content.get(name) for name in ("p95_ms", "cost_an_hour")}
    for name, value in limits.items():
        if value is not None and not _is_positive(value):
            raise InputError.at(name, f"{shorten(str(value))} is not a number above 0", value)
    return Mix(traffic, **limits)


def _default_count(task: str) -> int:
    return {"rerank": 10, "answer": 5}.get(task, 1)


def _default_tokens(task: str) -> int:
    return QUESTION_TOKENS if task in ("embed", "query") else PASSAGE_TOKENS


def _refuse_meaningless(task: str, values: Mapping[str, Any], field: str) -> None:
    """Refuse what says nothing of the task, rather than leave it out of the plan."""
    alone = {"output": ("answer",), "passages": ("answer", "query")}
    for name, tasks in alone.items():
        if name in values and task not in tasks:
            wrong = f"{name}={values[name]} means nothing for {task}"
            raise InputError.at(field, wrong, values[name])
    if task == "query" and (values["count"], values["tokens"]) != (1, QUESTION_TOKENS):
        wrong = "a query has one question of the measured length; neither COUNT nor tokens="
        raise InputError.at(field, wrong, values["count"])


def _whole(text: str, field: str, name: str, most: int) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= most:
        wrong = f"{name} is a whole number from 1 to {most}, got {shorten(text)}"
        raise InputError.at(field, wrong, text)
    return int(text)


def _number(text: str, field: str, what: str, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= most:  # false for nan too
        raise InputError.at(
            field, f"{shorten(text)} is not {what}, above 0 and at most {most:g}", text
        )
    return value


def _is_positive(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value > 0  # type: ignore[arg-type, operator]


def total_rate(traffic: Sequence[Traffic]) -> float:
    """Return the requests a second of all kinds together."""
    return sum(line.rate for line in traffic)
