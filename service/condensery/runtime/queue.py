"""What waits for the device: who goes first, what is refused, how results get back.

Callers take turns (deficit round robin), and of each caller the request goes first that is due
first. A request that would not fit, or would wait too long, is refused at once with the time after
which it is worth coming back. Results go from a worker's thread to the event loops in which their
callers wait, one wake-up for each loop.
"""

import asyncio
import math
import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

from condensery.errors import CondenseryError, Overloaded
from condensery.request_context import RequestContext

if TYPE_CHECKING:
    from condensery.metrics import Metrics

# A request of no more tokens is short: a query, or a passage or two. Short ones never share a
# batch with long ones, and the express worker takes them while all others run long batches.
SHORT_TOKENS = 512
# Tokens that a caller gives to a batch before the next one's turn: a long text's.
TURN_TOKENS = 512
# A request is due once so many times its own tokens have been handed out since it came. Smaller
# ones go before it that come until shortly before then, so that four fifths of the device are
# theirs while a list waits; and after that none, so that it comes to its end.
DUE_FACTOR = 4
# In the place of a result that is not there yet; None may be one.
MISSING = object()
MAX_RETRY_SECONDS = 60  # the longest Retry-After


class _NoMetrics:
    """Counts nowhere: stands in for ``Metrics`` and all that it has, where nobody scrapes it."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *_: object, **__: object) -> Any:
        return self

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        pass


NO_METRICS: Any = _NoMetrics()

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What a batch and the queue may hold.

    Attributes:
        batch_tokens: Tokens of one forward pass; a longer single item runs alone.
        batch_items: Items of one forward pass. Many short queries make small batches, so that
            every worker is fed and replies trickle instead of coming in floods.
        queue_tokens: Tokens that may wait; a request over it is refused (one that finds the
            queue empty never is, so that no size is refused for ever).
        queue_seconds: How long a request may have to wait for those before it in turn, at the
            rate at which the queue drains; one that would wait longer is refused.
    """

    batch_tokens: int = 2048
    batch_items: int = 32
    queue_tokens: int = 1_000_000
    queue_seconds: float = 10.0


def default_limits(device: torch.device) -> BatchLimits:
    """Return what suits a device."""
    if device.type == "cuda":  # a small forward costs what a large one does, and memory is ample
        return BatchLimits(batch_tokens=65_536, batch_items=1024, queue_tokens=16_000_000)
    return BatchLimits()


@dataclass(slots=True, eq=False)
class QueuedRequest(Generic[Item, Result]):
    """What was submitted at once: what waits of it, its results so far, and who waits for them.

    Attributes:
        reply: Set once all results are there, or one has failed (see ``each``).
        call: Whose it is, and until when.
        results: By the item's place.
        missing: How many are.
        waiting: Items not yet begun.
        tokens: Of those.
        begun: Whether an item of it has gone to the device.
        arrived: Seconds of ``time.perf_counter``; its first tokens are made after that.
        queued: When it began to wait with those; 0 until then.
        due: Its place among its caller's requests (see ``FairQueue``); 0 until it is queued.
        each: Whether an item that fails has its error among the results, and fails no other.
    """

    reply: asyncio.Future[list[Result]]
    call: RequestContext
    results: list[Any]
    missing: int
    waiting: "deque[QueueItem[Item, Result]]" = field(default_factory=deque)
    tokens: int = 0
    begun: bool = False
    arrived: float = field(default_factory=time.perf_counter)
    queued: float = 0.0
    due: float = 0.0
    each: bool = False

    @property
    def wanted(self) -> bool:
        """Whether somebody still waits, and has the time."""
        return not self.reply.done() and time.monotonic() < self.call.deadline


@dataclass(frozen=True, slots=True)
class QueueItem(Generic[Item, Result]):
    """One item's place in the queue."""

    request: QueuedRequest[Item, Result]
    index: int
    item: Item
    tokens: int


@dataclass(slots=True)
class _CallerQueue(Generic[Item, Result]):
    """What waits of one caller, those that are due first in front."""

    requests: list[QueuedRequest[Item, Result]] = field(default_factory=list)
    tokens: int = 0


def _due_order(request: QueuedRequest[Any, Any]) -> tuple[float, float]:
    return request.due, request.arrived


class FairQueue(Generic[Item, Result]):
    """A queue in which nobody waits for the whole of anybody else's work.

    Callers take turns: each gives up to ``TURN_TOKENS`` to the batch that forms, then goes to the
    back (deficit round robin, Shreedhar and Varghese 1996, with texts short enough that deficits
    need not be carried over).

    A caller's own requests go one after the other, the one first that is due first. A request is
    due when the queue has handed out ``DUE_FACTOR`` times its tokens since it came: of equal ones
    the first, a small one before a large one that has not waited long. Taking turns, equal
    requests would all be done late: each would wait for all that came since.

    Attributes:
        items: That wait.
        tokens: Of those.
        served: For whoever chooses between queues: tokens handed out lately.
    """

    def __init__(self) -> None:
        self.items = 0
        self.tokens = 0
        self.served = 0
        self._handed = 0  # tokens, ever
        self._callers: dict[str, _CallerQueue[Item, Result]] = {}
        self._turns: deque[str] = deque()

    def put(
        self, request: QueuedRequest[Item, Result], entries: Sequence[QueueItem[Item, Result]]
    ) -> None:
        """Queue a request's entries: all of them, or those that have come so far."""
        if not entries:
            return
        name = request.call.caller
        caller = self._callers.get(name)
        if caller is None:
            caller = self._callers[name] = _CallerQueue()
            self._turns.append(name)
        tokens = sum(entry.tokens for entry in entries)
        if not request.queued:
            request.queued = time.perf_counter()
        if not request.due:  # the rest will be as long as these
            cost = tokens * len(request.results) / len(entries)
            request.due = self._handed + DUE_FACTOR * cost
        if not request.waiting:
            insort(caller.requests, request, key=_due_order)
        request.waiting.extend(entries)
        request.tokens += tokens
        caller.tokens += tokens
        self.items += len(entries)
        self.tokens += tokens

    def drop(self, request: QueuedRequest[Item, Result]) -> None:
        """Drop what waits of a request; its empty place goes when its turn comes."""
        if request.waiting:
            if not request.begun:  # all its time was waiting
                request.call.note_queued(request.arrived, request.queued)
            self._callers[request.call.caller].tokens -= request.tokens
            self.items -= len(request.waiting)
            self.tokens -= request.tokens
            request.waiting.clear()
            request.tokens = 0

    def clear(self) -> list[QueuedRequest[Item, Result]]:
        """Drop everything; returns the requests that waited."""
        queued = [request for caller in self._callers.values() for request in caller.requests]
        left = [request for request in queued if request.waiting]
        for request in left:
            self.drop(request)
        return left

    def tokens_ahead(self, name: str, cost: int) -> int:
        """Return about how many tokens go before a new request of ``cost`` tokens is done.

        All of its caller's that are due before it; and every other caller gives as much in its
        turns as all of those and it. Who comes later goes before it only if smaller, and due
        before it: until ``DUE_FACTOR`` times its cost have been handed out.
        """
        turn = max(cost, TURN_TOKENS)
        mine = self._callers.get(name)
        before = 0
        if mine is not None:
            before = mine.tokens
            due = self._handed + DUE_FACTOR * cost
            for request in reversed(mine.requests):
                if request.due <= due:
                    break
                before -= request.tokens
        others = len(self._callers) - (mine is not None)
        return min(self.tokens, before + others * (before + turn))

    def take(
        self, budget: int, most: int, *, strict: bool = False
    ) -> list[QueueItem[Item, Result]]:
        """Make a batch of up to ``most`` items and ``budget`` tokens.

        A longer item goes alone; if ``strict`` it waits, and all others behind it.
        """
        batch: list[QueueItem[Item, Result]] = []
        left = budget
        while self._turns and len(batch) < most:
            caller = self._callers[self._turns[0]]
            taken = self._turn(caller, batch, left, most, strict)
            left -= taken
            if not caller.requests:
                del self._callers[self._turns.popleft()]
            elif taken:
                self._turns.rotate(-1)
            else:  # its next item does not fit, and is first next time
                break
        return batch

    def _turn(
        self,
        caller: _CallerQueue[Item, Result],
        batch: list[QueueItem[Item, Result]],
        left: int,
        most: int,
        strict: bool,
    ) -> int:
        """Move one turn's entries into the batch; returns their tokens."""
        taken = 0
        while caller.requests and len(batch) < most and taken < TURN_TOKENS:
            request = caller.requests[0]
            if not request.wanted:
                self.drop(request)
            if not request.waiting:
                del caller.requests[0]
                continue
            entry = request.waiting[0]
            if (batch or strict) and taken + entry.tokens > left:
                break
            batch.append(request.waiting.popleft())
            if not request.begun:
                request.call.note_queued(request.arrived, request.queued)
            request.begun = request.call.work_begun = True
            taken += entry.tokens
            request.tokens -= entry.tokens
            caller.tokens -= entry.tokens
            self.items -= 1
            self.tokens -= entry.tokens
            self._handed += entry.tokens
            if not request.waiting:
                del caller.requests[0]
        return taken


def call_in_loop(
    loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: object
) -> None:
    """Call ``function`` in ``loop``, from any thread."""
    with suppress(RuntimeError):  # the loop has closed: nobody waits there any more
        loop.call_soon_threadsafe(function, *args)


def send_results(
    batch: Sequence[QueueItem[Item, Result]], outcomes: Sequence[Result | CondenseryError]
) -> None:
    """Hand each caller its results, from any thread."""
    # One wake-up for each loop, not one an item (only tests have more than one loop).
    by_loop: dict[asyncio.AbstractEventLoop, list[int]] = {}
    for place, entry in enumerate(batch):
        by_loop.setdefault(entry.request.reply.get_loop(), []).append(place)
    for loop, places in by_loop.items():
        call_in_loop(loop, _set_results, [(batch[place], outcomes[place]) for place in places])


def send_error(request: QueuedRequest[Item, Result], error: CondenseryError) -> None:
    """Fail a whole request, from any thread."""
    call_in_loop(request.reply.get_loop(), _set_error, request.reply, error)


def _set_results(
    outcomes: Sequence[tuple[QueueItem[Item, Result], Result | CondenseryError]],
) -> None:
    for entry, outcome in outcomes:
        request = entry.request
        if request.reply.done() or request.results[entry.index] is not MISSING:
            continue  # the second: a worker that was given up has finished its batch after all
        if isinstance(outcome, CondenseryError) and not request.each:
            request.reply.set_exception(outcome)
            continue
        request.results[entry.index] = outcome
        request.missing -= 1
        if not request.missing:
            request.reply.set_result(request.results)


def _set_error(reply: asyncio.Future[list[Result]], error: CondenseryError) -> None:
    if not reply.done():
        reply.set_exception(error)


@dataclass(frozen=True, slots=True)
class QueueState:
    """What waits when a new request comes.

    Attributes:
        waiting: Tokens in the queue.
        ahead: Those of them that go before the request in turn, about.
        drain: Tokens a second at which it empties; 0 if not known yet.
        waits: What tokens do there, for the message.
        until: What the request would wait for.
    """

    waiting: int
    ahead: int
    drain: float
    waits: str = "tokens wait"
    until: str = "its turn"


def refuse_if_overloaded(
    state: QueueState, cost: int, limits: BatchLimits, *, model: str, metrics: "Metrics | None"
) -> None:
    """Raise if a request can't be queued; one that finds the queue empty always can.

    Args:
        state: What waits when it comes.
        cost: Tokens it will take.
        limits: ``queue_tokens`` and ``queue_seconds`` count.

    Raises:
        Overloaded: With the time after which it is worth coming back.
    """
    if not state.waiting:
        return
    over = state.waiting + cost - limits.queue_tokens
    wait = state.ahead / state.drain if state.drain else 0.0
    if over > 0:
        reason = "queue_tokens"
        # Before anything has run there is no rate to go by.
        seconds = min(over, state.waiting) / state.drain if state.drain else 1.0
        message = (
            f"{state.waiting} {state.waits} and {cost} more are over the limit of "
            f"{limits.queue_tokens}"
        )
    elif wait > limits.queue_seconds:
        reason, seconds = "queue_seconds", wait - limits.queue_seconds
        message = (
            f"it would wait {wait:.0f} s for {state.until}, over the limit of "
            f"{limits.queue_seconds:g} s"
        )
    else:
        return
    (metrics or NO_METRICS).rejected.labels(reason).inc()
    raise Overloaded(
        f"{model}: {message}",
        retry_after_seconds=float(min(MAX_RETRY_SECONDS, max(1, math.ceil(seconds)))),
    )
