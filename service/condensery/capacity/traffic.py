"""What a service is asked for, and how often: kinds of requests, mixes of them, profiles of a load.

A line of traffic is written as people say it, ``40/s embed``, ``2/s rerank 32 tokens=120``,
``3/s answer 5 tokens=120 output=20``; ``parse_request`` has the grammar. The load tests'
mixes and profiles are here too, so that a load which is run can be planned for by the same name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from condensery.errors import InputError, shorten

Task = Literal["embed", "rerank", "query", "answer", "write"]
Job = Literal["embed 1", "embed 16", "rerank 8", "query", "answer", "answer streamed", "write 4"]

TASKS: tuple[Task, ...] = get_args(Task)
MOST_NUMBER = 10**10
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


# Of a task's requests: count and tokens by default, and what may be said of them.
DEFAULTS: dict[str, tuple[int, int, tuple[str, ...]]] = {
    "embed": (1, QUESTION_TOKENS, ("count", "tokens", "model")),
    "rerank": (10, PASSAGE_TOKENS, ("count", "tokens", "model")),
    "query": (1, QUESTION_TOKENS, ("passages", "model")),
    "answer": (5, PASSAGE_TOKENS, ("count", "tokens", "output", "passages", "model")),
    "write": (1, PASSAGE_TOKENS, ("count", "tokens", "model")),
}

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
    """Return jobs by their shares at a rate of all together, those of the same kind as one."""
    shares: dict[RequestKind, int] = {}
    for job, share in jobs.items():
        shares[JOBS[job]] = shares.get(JOBS[job], 0) + share
    whole = sum(shares.values())
    return tuple(Traffic(kind, rate * share / whole) for kind, share in shares.items())


def parse_request(text: str) -> Traffic:
    """Read a line of traffic.

    ``RATE[/s] TASK [COUNT] [tokens=N] [output=N] [passages=N] [model=NAME]``, words apart by
    blanks. ``streamed`` may stand behind ``answer``, as the load tests say it; it costs the same.

    Raises:
        InputError: Names the word and what is allowed.
    """
    words = text.split()
    if len(words) < 2:
        raise _wrong(f"{shorten(text)} is not RATE/s TASK [COUNT] [NAME=VALUE]")
    try:
        rate = float(words[0].removesuffix("/s"))
    except ValueError:
        rate = 0.0
    if not 0 < rate <= MOST_RATE:  # false for nan too
        raise _wrong(
            f"{shorten(words[0])} is not a rate above 0 and at most {MOST_RATE:g} a second"
        )
    task = words[1]
    if task not in TASKS:
        raise _wrong(f"{shorten(task)} is not one of {', '.join(TASKS)}")
    count, tokens, own = DEFAULTS[task]
    values: dict[str, Any] = {"count": count, "tokens": tokens}
    if task == "query":
        values["passages"] = SAMPLE_PASSAGES
    for place, word in enumerate(words[2:]):
        if word == "streamed" and task == "answer" and not place:
            continue
        name, equals, value = word.partition("=")
        if not equals:
            name, value = "count", word
        if name not in own:
            raise _wrong(f"{shorten(word)} means nothing for {task}, which has {', '.join(own)}")
        if name == "model" and value:
            values["model"] = value
        elif value.isdecimal() and 1 <= int(value) <= MOST_NUMBER:
            values[name] = int(value)
        else:
            raise _wrong(f"{name} is from 1 to {MOST_NUMBER}, got {shorten(value)}")
    return Traffic(RequestKind(task=task, **values), rate)


def _wrong(what: str) -> InputError:
    return InputError.at("--request", what)


def total_rate(traffic: Sequence[Traffic]) -> float:
    """Return the requests a second of all kinds together."""
    return sum(line.rate for line in traffic)
