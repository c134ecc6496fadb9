"""Who asks, and how long they wait: set by the endpoint, read wherever work is queued.

A context variable, not an argument: every layer between endpoint and queue would only pass it on.
Where nothing is set (the command line, offline methods) there is no deadline.
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from condensery.errors import DeadlineExceeded, ExpiredInQueue

# W3C's Trace Context: what a request brings, and (of its level 2, a draft) what a reply tells.
TRACE_HEADERS = ("traceparent", "tracestate")
TRACE_REPLY_HEADER = "traceresponse"
# A queue ends what is late in it itself, and counts it as that; this margin lets it be first.
LATE_MARGIN_SECONDS = 0.01
MODEL_FIELD = "gen_ai.request.model"
# Of a span: names and numbers, by OpenTelemetry's names where it has some; never a user's text.
Fields: TypeAlias = Mapping[str, str | int | float | bool | Sequence[str]]
# When (``time.perf_counter``), what, and its numbers.
SpanEvent: TypeAlias = tuple[float, str, Fields]


class OutgoingSpan(Protocol):
    """A call to another server, as a span; its ``headers`` carry the trace on."""

    headers: dict[str, str]

    def end(self, fields: Fields, *, error: str | None = None) -> None:
        """End the call; ``error`` says what kind of failure it ended with, if it did."""


class RequestTrace(Protocol):
    """One request's spans, where requests are traced (``condensery.tracing``).

    Attributes:
        trace_id: 32 hexadecimal digits.
        headers: What carries the trace on, to whatever is part of this request.
    """

    trace_id: str
    headers: dict[str, str]

    def add(
        self,
        name: str,
        began: float,
        ended: float,
        fields: Fields | None = None,
        events: Sequence[SpanEvent] = (),
    ) -> None:
        """Note a stage, from any thread; times are ``time.perf_counter``'s."""

    def describe(self, fields: Fields) -> None:
        """Put facts on the request's own span."""

    def start_call(self, name: str, fields: Fields) -> OutgoingSpan:
        """Begin a span of a call to another server."""

    def end(self, name: str, fields: Fields, *, error: str | None = None) -> None:
        """End the request; ``error`` is the kind of the server's failure, if it was one."""


class Tracer(Protocol):
    """Begins requests' traces."""

    def begin(self, headers: Mapping[str, str]) -> RequestTrace:
        """Begin one, as a part of what ``traceparent`` names among the headers, if it is there."""


@dataclass(slots=True)
class RequestStats:
    """Where a request's time went, and on what; written by workers' threads, read once it is done.

    Attributes:
        device: That its forward passes ran on; "" if there was none.
        inputs: Texts, pairs or passages that were read.
        passages: Those of them that were read for a question.
        characters: That were tokenised.
        tokens: That this gave.
        generated: Tokens of answers.
        tokenizing: Seconds that making tokens took.
        queued: Seconds in queues for a device, or for a place in a generator's cache.
        stages: Seconds by the metrics' name of a stage, as far as each is this request's alone.
        wait_seconds: Until its first forward pass.
        began: When that was, seconds of ``time.perf_counter``; 0 if there was none.
        ended: When its last one was done.
    """

    device: str = ""
    inputs: int = 0
    passages: int = 0
    characters: int = 0
    tokens: int = 0
    generated: int = 0
    tokenizing: float = 0.0
    queued: float = 0.0
    stages: dict[str, float] = field(default_factory=dict)
    wait_seconds: float = 0.0
    began: float = 0.0
    ended: float = 0.0

    def count_forward_pass(self, device: str, arrived: float, began: float, ended: float) -> None:
        """Count a forward pass for something that was queued at ``arrived``."""
        self.device = device
        if not self.began or began < self.began:
            self.wait_seconds, self.began = began - arrived, began
        self.ended = max(self.ended, ended)

    @property
    def forward_seconds(self) -> float:
        """Seconds from its first forward pass to the end of the last."""
        return self.ended - self.began


@dataclass(slots=True)
class RequestContext:
    """One request of one caller.

    Attributes:
        request_id: Echoed to the caller, and in every log line about the request.
        caller: Who shares the queue fairly with others: a key's name, or an address.
        deadline: When the caller's time is over, seconds of ``time.monotonic``.
        work_begun: Whether a forward pass has begun for it.
        started: When it came, seconds of ``time.monotonic``.
        stats: Where its time goes.
        trace: Its spans; None where requests are not traced.
        leases: The models that it uses to its end, by name, though they are replaced meanwhile.
        endings: Called once it is over.
        over: Whether it is.
        background: Nobody waits for it: it gives way to whatever somebody waits for, and is in no
            measurement of what callers get.
    """

    request_id: str = "-"
    caller: str = "local"
    deadline: float = math.inf
    work_begun: bool = False
    started: float = field(default_factory=time.monotonic)
    stats: RequestStats = field(default_factory=RequestStats)
    trace: RequestTrace | None = None
    leases: dict[str, Any] = field(default_factory=dict)
    endings: list[Callable[[], None]] = field(default_factory=list)
    over: bool = False
    background: bool = False

    @property
    def log_fields(self) -> dict[str, str]:
        """What names it in a line of the log."""
        if self.trace is None:
            return {"request_id": self.request_id}
        return {"request_id": self.request_id, "trace_id": self.trace.trace_id}

    def note_queued(self, arrived: float, queued: float) -> None:
        """Note that something of it waits no longer.

        Args:
            arrived: When it came, and its first tokens were yet to be made.
            queued: When it began to wait with those.
        """
        now = time.perf_counter()
        self.stats.queued += now - arrived
        if self.trace is not None:
            self.trace.add("queue", queued, now)

    @property
    def seconds_left(self) -> float:
        """Time until the deadline; 0 once it has passed."""
        return max(0.0, self.deadline - time.monotonic())

    def expired(self) -> DeadlineExceeded:
        """Return the error for a caller whose time is over."""
        if self.work_begun:
            return DeadlineExceeded("The request's time ran out while it was being served.")
        return ExpiredInQueue("The request's time ran out before work on it had begun.")

    def check(self) -> None:
        """Raise DeadlineExceeded if the time is over."""
        if time.monotonic() >= self.deadline:
            raise self.expired()

    def end(self) -> None:
        """Give back what it leased, and call ``endings``."""
        self.over = True
        self.leases.clear()
        while self.endings:
            self.endings.pop()()


_request: ContextVar[RequestContext | None] = ContextVar("request", default=None)


def current_request() -> RequestContext:
    """Return the request being served here, or a new one without a deadline."""
    return _request.get() or RequestContext()


def served_request() -> RequestContext | None:
    """Return the request being served here until it is over; None where nobody waits."""
    request = _request.get()
    return None if request is None or request.over else request


def loop_deadline(call: RequestContext) -> float | None:
    """Return a call's deadline in the running loop's own time; None if it has none."""
    if math.isinf(call.deadline):
        return None
    return asyncio.get_running_loop().time() + call.seconds_left


@contextmanager
def serving_request(request: RequestContext) -> Iterator[RequestContext]:
    """Serve ``request`` in this block, and in the tasks and threads that the block starts."""
    token = _request.set(request)
    try:
        yield request
    finally:
        _request.reset(token)
        request.end()
