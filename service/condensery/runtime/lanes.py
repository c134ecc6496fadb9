"""What waits for a device, in turns: between callers, and between the requests of each."""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from condensery.callers import Call

Item = TypeVar("Item")
Result = TypeVar("Result")

# Tokens that a request gives to a batch before the next one's turn: a long text's.
TURN_TOKENS = 512
# In the place of a result that is not there yet; None may be one.
MISSING = object()


@dataclass(slots=True, eq=False)
class Request(Generic[Item, Result]):
    """One ``submit``: what waits of it, its results as they come, and who waits for them.

    Attributes:
        reply: Set once all results are there, or one has failed (see ``each``).
        call: Whose it is, and until when.
        results: By the item's place.
        missing: How many are.
        waiting: Tickets not yet begun.
        tokens: Of those.
        begun: Whether an item of it has gone to the device.
        arrived: Seconds of ``time.perf_counter``.
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
    """What waits of one caller."""

    requests: deque[Request[Item, Result]] = field(default_factory=deque)
    waiting: int = 0  # requests, those let go of not counted
    tokens: int = 0


class Lane(Generic[Item, Result]):
    """A queue in which nobody waits for the whole of anybody else's work.

    Callers take turns, and a caller's requests take turns among themselves: each gives up to
    ``TURN_TOKENS`` to the batch that forms, then goes to the back (deficit round robin, Shreedhar
    and Varghese 1996, with texts short enough that deficits need not be carried over).

    Attributes:
        items: That wait.
        tokens: Of those.
        served: For whoever chooses between lanes: tokens handed out lately.
    """

    def __init__(self) -> None:
        self.items = 0
        self.tokens = 0
        self.served = 0
        self._callers: dict[str, _Caller[Item, Result]] = {}
        self._turns: deque[str] = deque()

    def put(self, request: Request[Item, Result], tickets: Sequence[Ticket[Item, Result]]) -> None:
        """Queue a request's tickets: all of them, or those that have come so far."""
        name = request.call.caller
        caller = self._callers.get(name)
        if caller is None:
            caller = self._callers[name] = _Caller()
            self._turns.append(name)
        if not request.waiting:
            caller.requests.append(request)
            caller.waiting += 1
        tokens = sum(ticket.tokens for ticket in tickets)
        request.waiting.extend(tickets)
        request.tokens += tokens
        caller.tokens += tokens
        self.items += len(tickets)
        self.tokens += tokens

    def forget(self, request: Request[Item, Result]) -> None:
        """Let go of what waits of a request; its empty place is dropped when its turn comes."""
        if request.waiting:
            caller = self._callers[request.call.caller]
            caller.waiting -= 1
            caller.tokens -= request.tokens
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

        In its turns every other request of its caller gives as much as it does, at least a
        turn's worth; and every other caller as much as all of those.
        """
        turn = max(cost, TURN_TOKENS)
        mine = self._callers.get(name)
        before = min(mine.tokens, mine.waiting * turn) if mine is not None else 0
        others = len(self._callers) - (mine is not None)
        return min(self.tokens, before + others * (before + turn))

    def take(self, budget: int, most: int, *, strict: bool = False) -> list[Ticket[Item, Result]]:
        """Make a batch of up to ``most`` items and ``budget`` tokens.

        A longer item goes alone; if ``strict`` it waits, and all others behind it.
        """
        batch: list[Ticket[Item, Result]] = []
        left = budget
        while self._turns and len(batch) < most:
            name = self._turns[0]
            caller = self._callers[name]
            self._drop_unwanted(caller)
            if not caller.requests:
                self._turns.popleft()
                del self._callers[name]
                continue
            request = caller.requests[0]
            taken = self._turn(request, batch, left, most, strict)
            if not taken:  # it does not fit, and is first next time
                break
            left -= taken
            caller.tokens -= taken
            if request.waiting:
                caller.requests.rotate(-1)
            else:
                caller.requests.popleft()
                caller.waiting -= 1
            self._turns.rotate(-1)
        return batch

    def _turn(
        self,
        request: Request[Item, Result],
        batch: list[Ticket[Item, Result]],
        left: int,
        most: int,
        strict: bool,
    ) -> int:
        """Move one turn's tickets into the batch; returns their tokens."""
        taken = 0
        while request.waiting and len(batch) < most and taken < TURN_TOKENS:
            ticket = request.waiting[0]
            if (batch or strict) and taken + ticket.tokens > left:
                break
            batch.append(request.waiting.popleft())
            taken += ticket.tokens
            self.items -= 1
        request.tokens -= taken
        self.tokens -= taken
        if taken:
            request.begun = request.call.began = True
        return taken

    def _drop_unwanted(self, caller: _Caller[Item, Result]) -> None:
        while caller.requests and not (caller.requests[0].waiting and caller.requests[0].wanted):
            self.forget(caller.requests.popleft())
