"""What waits for a device: callers take turns, and of each the request goes first that is due."""

import asyncio
import time
from bisect import insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from condensery.callers import Call

Item = TypeVar("Item")
Result = TypeVar("Result")

# Tokens that a caller gives to a batch before the next one's turn: a long text's.
TURN_TOKENS = 512
# A request is due once so many times its own tokens have been handed out since it came. Smaller
# ones go before it that come until shortly before then, so that four fifths of the device are
# theirs while a list waits; and after that none, so that it comes to its end.
PATIENCE = 4
# In the place of a result that is not there yet; None may be one.
MISSING = object()


@dataclass(slots=True, eq=False)
class Request(Generic[Item, Result]):
    """What was submitted at once: what waits of it, its results so far, and who waits for them.

    Attributes:
        reply: Set once all results are there, or one has failed (see ``each``).
        call: Whose it is, and until when.
        results: By the item's place.
        missing: How many are.
        waiting: Tickets not yet begun.
        tokens: Of those.
        begun: Whether an item of it has gone to the device.
        arrived: Seconds of ``time.perf_counter``.
        due: Its place among its caller's: see ``Lane``; 0 until it is queued.
        each: Whether an item that fails has its error among the results, and fails no other.
    """

    reply: asyncio.Future[list[Result]]
    call: Call
    results: list[Any]
    missing: int
    waiting: "deque[Ticket[Item, Result]]" = field(default_factory=deque)
    tokens: int = 0
    begun: bool = False
    arrived: float = field(default_factory=time.perf_counter)
    due: float = 0.0
    each: bool = False

    @property
    def wanted(self) -> bool:
        """Whether somebody still waits, and has the time."""
        return not self.reply.done() and time.monotonic() < self.call.deadline


@dataclass(frozen=True, slots=True)
class Ticket(Generic[Item, Result]):
    """One item's place in the queue."""

    request: Request[Item, Result]
    index: int
    item: Item
    tokens: int


@dataclass(slots=True)
class _Caller(Generic[Item, Result]):
    """What waits of one caller, those that are due first in front."""

    requests: list[Request[Item, Result]] = field(default_factory=list)
    tokens: int = 0


def _place(request: Request[Any, Any]) -> tuple[float, float]:
    return request.due, request.arrived


class Lane(Generic[Item, Result]):
    """A queue in which nobody waits for the whole of anybody else's work.

    Callers take turns: each gives up to ``TURN_TOKENS`` to the batch that forms, then goes to the
    back (deficit round robin, Shreedhar and Varghese 1996, with texts short enough that deficits
    need not be carried over).

    A caller's own requests go one after the other, the one first that is due first. A request is
    due when the lane has handed out ``PATIENCE`` times its tokens since it came: of equal ones the
    first, a small one before a large one that has not waited long. Taking turns, equal requests
    would all be done late: whoever is about to be done waits for all who came since.

    Attributes:
        items: That wait.
        tokens: Of those.
        served: For whoever chooses between lanes: tokens handed out lately.
    """

    def __init__(self) -> None:
        self.items = 0
        self.tokens = 0
        self.served = 0
        self._handed = 0  # tokens, ever
        self._callers: dict[str, _Caller[Item, Result]] = {}
        self._turns: deque[str] = deque()

    def put(self, request: Request[Item, Result], tickets: Sequence[Ticket[Item, Result]]) -> None:
        """Queue a request's tickets: all of them, or those that have come so far."""
        if not tickets:
            return
        name = request.call.caller
        caller = self._callers.get(name)
        if caller is None:
            caller = self._callers[name] = _Caller()
            self._turns.append(name)
        tokens = sum(ticket.tokens for ticket in tickets)
        if not request.due:  # the rest will be as long as these
            cost = tokens * len(request.results) / len(tickets)
            request.due = self._handed + PATIENCE * cost
        if not request.waiting:
            insort(caller.requests, request, key=_place)
        request.waiting.extend(tickets)
        request.tokens += tokens
        caller.tokens += tokens
        self.items += len(tickets)
        self.tokens += tokens

    def forget(self, request: Request[Item, Result]) -> None:
        """Let go of what waits of a request; its empty place is dropped when its turn comes."""
        if request.waiting:
            if not request.begun:  # all its time was waiting
                request.call.spent.queued += time.perf_counter() - request.arrived
            self._callers[request.call.caller].tokens -= request.tokens
            self.items -= len(request.waiting)
            self.tokens -= request.tokens
            request.waiting.clear()
            request.tokens = 0

    def clear(self) -> list[Request[Item, Result]]:
        """Let go of everything; returns the requests that waited."""
        left = [one for caller in self._callers.values() for one in caller.requests if one.waiting]
        for request in left:
            self.forget(request)
        return left

    def ahead(self, name: str, cost: int) -> int:
        """Return about how many tokens go before a new request of ``cost`` tokens is done.

        All of its caller's that are due before it; and every other caller gives as much in its
        turns as all of those and it. Who comes later goes before it only if smaller, and due
        before it: until ``PATIENCE`` times its cost have been handed out.
        """
        turn = max(cost, TURN_TOKENS)
        mine = self._callers.get(name)
        before = 0
        if mine is not None:
            before = mine.tokens
            due = self._handed + PATIENCE * cost
            for request in reversed(mine.requests):
                if request.due <= due:
                    break
                before -= request.tokens
        others = len(self._callers) - (mine is not None)
        return min(self.tokens, before + others * (before + turn))

    def take(self, budget: int, most: int, *, strict: bool = False) -> list[Ticket[Item, Result]]:
        """Make a batch of up to ``most`` items and ``budget`` tokens.

        A longer item goes alone; if ``strict`` it waits, and all others behind it.
        """
        batch: list[Ticket[Item, Result]] = []
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
        caller: _Caller[Item, Result],
        batch: list[Ticket[Item, Result]],
        left: int,
        most: int,
        strict: bool,
    ) -> int:
        """Move one turn's tickets into the batch; returns their tokens."""
        taken = 0
        while caller.requests and len(batch) < most and taken < TURN_TOKENS:
            request = caller.requests[0]
            if not request.wanted:
                self.forget(request)
            if not request.waiting:
                del caller.requests[0]
                continue
            ticket = request.waiting[0]
            if (batch or strict) and taken + ticket.tokens > left:
                break
            batch.append(request.waiting.popleft())
            if not request.begun:
                request.call.spent.queued += time.perf_counter() - request.arrived
            request.begun = request.call.began = True
            taken += ticket.tokens
            request.tokens -= ticket.tokens
            caller.tokens -= ticket.tokens
            self.items -= 1
            self.tokens -= ticket.tokens
            self._handed += ticket.tokens
            if not request.waiting:
                del caller.requests[0]
        return taken
