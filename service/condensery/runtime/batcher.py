"""Batches that form by themselves: whatever waits when a worker falls free."""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from condensery.errors import CondenseryError, ModelFault, Overloaded, Unavailable
from condensery.runtime.device import Job, Workers

if TYPE_CHECKING:
    from condensery.metrics import Metrics

Item = TypeVar("Item")
Result = TypeVar("Result")

RATE_MEMORY = 0.8  # weight of the past in the drain rate, per batch
LEAST_SHARE = 64  # tokens below which a batch is not worth splitting between idle workers


@dataclass(frozen=True, slots=True)
class Limits:
    """What a batch and the queue may hold.

    Attributes:
        batch_tokens: Tokens of one forward pass; a longer single item runs alone.
        batch_items: Items of one forward pass. Many short queries make small batches, so that
            every worker is fed and replies trickle instead of coming in floods.
        queue_tokens: Tokens that may wait; a request over it is refused (one that finds the
            queue empty never is, so that no size is refused for ever).
    """

    batch_tokens: int = 2048
    batch_items: int = 32
    queue_tokens: int = 1_000_000


@dataclass(slots=True, eq=False)
class Request(Generic[Result]):
    """One ``submit``: its results as they come, and who waits for them."""

    reply: asyncio.Future[list[Result]]
    results: list[Any]
    missing: int
    queued: int  # items
    queued_tokens: int
    arrived: float = field(default_factory=time.perf_counter)


@dataclass(frozen=True, slots=True)
class Ticket(Generic[Item, Result]):
    """One item's place in the queue."""

    request: Request[Result]
    index: int
    item: Item
    tokens: int


class Batcher(Generic[Item, Result]):
    """Runs ``forward`` over items from many callers, a batch at a time on each free worker.

    There is no timer: an idle service adds no delay, and a busy one fills its batches by itself.
    First come, first served; a long request is spread over several batches.

    Args:
        forward: Called in a worker's thread with a batch; returns a result for each item, in
            order. A ``CondenseryError`` in a result's place fails that item alone.
        workers: Where batches run; shared with other batchers.
        limits: Of a batch and of the queue.
        model: Name in metrics and messages.
        metrics: Where to count; None counts nowhere.
    """

    def __init__(
        self,
        forward: Callable[[list[Item]], Sequence[Result | CondenseryError]],
        workers: Workers,
        *,
        limits: Limits | None = None,
        model: str = "",
        metrics: "Metrics | None" = None,
    ) -> None:
        self._forward = forward
        self._workers = workers
        self._limits = limits or Limits()
        self._model = model
        self._gauges = _Gauges(metrics, model) if metrics is not None else None
        self._waiting: deque[Ticket[Item, Result]] = deque()
        self._queued = 0
        self._queued_tokens = 0
        self._rate = 0.0  # tokens a second and worker
        self._closed = False
        workers.add(self)

    @property
    def queued_tokens(self) -> int:
        """Tokens that wait for a worker."""
        return self._queued_tokens

    async def submit(self, items: Sequence[Item], tokens: Sequence[int]) -> list[Result]:
        """Run every item; ``tokens[i]`` is what item ``i`` costs. Order is kept.

        Items are queued all or none. If the caller is cancelled, those not yet begun never run.

        Raises:
            Overloaded: The queue is full.
            ModelFault: An item failed; its fellows' results are dropped.
            Unavailable: Closed before the items ran.
        """
        if not items:
            return []
        reply: asyncio.Future[list[Result]] = asyncio.get_running_loop().create_future()
        cost = sum(tokens)
        request = Request(reply, [None] * len(items), len(items), len(items), cost)
        with self._workers.changed:
            self._admit(cost)
            self._waiting.extend(
                Ticket(request, index, item, size)
                for index, (item, size) in enumerate(zip(items, tokens, strict=True))
            )
            self._count(len(items), cost)
            self._workers.changed.notify(len(items))
        try:
            return await reply
        finally:
            # Cancelled, or failed: what is still queued of it will be skipped.
            if request.queued:
                with self._workers.changed:
                    self._forget(request)

    def close(self) -> None:
        """Refuse new items and whoever waits; batches that run are finished and delivered."""
        with self._workers.changed:
            if self._closed:
                return
            self._closed = True
            left = {id(ticket.request): ticket.request for ticket in self._waiting}.values()
            self._waiting.clear()
            for request in left:
                self._forget(request)
        self._workers.remove(self)
        error = Unavailable(f"{self._model}: shutting down")
        for request in left:
            with suppress(RuntimeError):  # as in _run
                request.reply.get_loop().call_soon_threadsafe(_fail, request.reply, error)

    def _admit(self, cost: int) -> None:
        if self._closed:
            raise Unavailable(f"{self._model}: shutting down")
        over = self._queued_tokens + cost - self._limits.queue_tokens
        if over > 0 and self._queued_tokens:
            rate = self._rate * self._workers.count
            # Before the first batch there is no rate to go by.
            seconds = min(over, self._queued_tokens) / rate if rate else 1.0
            raise Overloaded(
                f"{self._model}: {self._queued_tokens} tokens wait and {cost} more are over "
                f"the limit of {self._limits.queue_tokens}",
                retry_after_seconds=float(min(60, max(1, math.ceil(seconds)))),
            )

    def _count(self, items: int, tokens: int) -> None:
        self._queued += items
        self._queued_tokens += tokens
        if self._gauges is not None:
            self._gauges.queue_requests.set(self._queued)
            self._gauges.queue_tokens.set(self._queued_tokens)

    def _forget(self, request: Request[Result]) -> None:
        """Let go of what waits of a request; its tickets are skipped when they come up."""
        self._count(-request.queued, -request.queued_tokens)
        request.queued = request.queued_tokens = 0

    def take(self, idle: int) -> Job | None:
        """Make a batch of what waits; called by a free worker (``Source``)."""
        # A request that finds several workers idle is shared between them.
        share = max(LEAST_SHARE, -(-self._queued_tokens // idle))
        budget = min(self._limits.batch_tokens, share)
        batch: list[Ticket[Item, Result]] = []
        tokens = 0
        while self._waiting and len(batch) < self._limits.batch_items:
            ticket = self._waiting[0]
            request = ticket.request
            if not request.queued or request.reply.done():  # else its caller has gone
                self._waiting.popleft()
                continue
            if batch and tokens + ticket.tokens > budget:
                break
            self._waiting.popleft()
            request.queued -= 1
            request.queued_tokens -= ticket.tokens
            tokens += ticket.tokens
            batch.append(ticket)
        if not batch:
            return None
        self._count(-len(batch), -tokens)
        return lambda: self._run(batch, tokens)

    def _run(self, batch: list[Ticket[Item, Result]], tokens: int) -> None:
        """Run a batch in a worker's thread and send the results home."""
        started = time.perf_counter()
        outcomes = self._outcomes(batch)
        seconds = time.perf_counter() - started
        rate = tokens / max(seconds, 1e-9)
        self._rate = RATE_MEMORY * self._rate + (1 - RATE_MEMORY) * rate if self._rate else rate
        if self._gauges is not None:
            self._gauges.ran(batch, tokens, started, seconds)
        # One wake-up for each loop, not one an item (only tests have more than one loop).
        homes: dict[asyncio.AbstractEventLoop, list[int]] = {}
        for place, ticket in enumerate(batch):
            homes.setdefault(ticket.request.reply.get_loop(), []).append(place)
        for loop, places in homes.items():
            mine = [(batch[place], outcomes[place]) for place in places]
            with suppress(RuntimeError):  # the loop has closed: nobody waits there any more
                loop.call_soon_threadsafe(_deliver, mine)

    def _outcomes(self, batch: list[Ticket[Item, Result]]) -> list[Result | CondenseryError]:
        """Run ``forward``; if it fails, halve the batch until the items at fault stand alone."""
        try:
            if self._gauges is not None:
                self._gauges.forwards.inc()
            results = list(self._forward([ticket.item for ticket in batch]))
            if len(results) == len(batch):
                return results
            cause: Exception | None = None
            reason = f"{len(results)} results for {len(batch)} items"
        except Exception as error:  # whatever a forward raises must not kill the worker
            cause = error
            reason = type(error).__name__
        if len(batch) > 1:
            middle = len(batch) // 2
            return self._outcomes(batch[:middle]) + self._outcomes(batch[middle:])
        if isinstance(cause, CondenseryError):
            return [cause]
        # Neither the item nor the fault's own text: they may hold what a user wrote.
        fault = ModelFault(f"{self._model}: failed on item {batch[0].index} ({reason})")
        fault.__cause__ = cause
        return [fault]


class _Gauges:
    """The metrics of one model, looked up once: a look-up costs as much as the update."""

    def __init__(self, metrics: "Metrics", model: str) -> None:
        self.queue_requests = metrics.queue_requests.labels(model)
        self.queue_tokens = metrics.queue_tokens.labels(model)
        self.queue_seconds = metrics.stage_seconds.labels(model, "queue")
        self.forward_seconds = metrics.stage_seconds.labels(model, "forward")
        self.batch_tokens = metrics.batch_tokens.labels(model)
        self.batch_items = metrics.batch_items.labels(model)
        self.forwards = metrics.forwards.labels(model)

    def ran(
        self,
        batch: Sequence[Ticket[Item, Result]],
        tokens: int,
        started: float,
        seconds: float,
    ) -> None:
        """Count a batch that began at ``started`` and took ``seconds``."""
        for request in {id(ticket.request): ticket.request for ticket in batch}.values():
            self.queue_seconds.observe(started - request.arrived)
        self.forward_seconds.observe(seconds)
        self.batch_tokens.observe(tokens)
        self.batch_items.observe(len(batch))


def _deliver(
    outcomes: Sequence[tuple[Ticket[Item, Result], Result | CondenseryError]],
) -> None:
    """Hand each caller its results, in the callers' loop."""
    for ticket, outcome in outcomes:
        request = ticket.request
        if request.reply.done():
            continue
        if isinstance(outcome, CondenseryError):
            request.reply.set_exception(outcome)
            continue
        request.results[ticket.index] = outcome
        request.missing -= 1
        if not request.missing:
            request.reply.set_result(request.results)


def _fail(reply: asyncio.Future[list[Result]], error: CondenseryError) -> None:
    if not reply.done():
        reply.set_exception(error)
