"""Batches that form by themselves: whatever waits when a worker falls free."""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Generic, TypeAlias, cast

from condensery.callers import Call, current
from condensery.errors import CondenseryError, ModelFault, Unavailable
from condensery.runtime.batch_gauges import BatchGauges, requests_of
from condensery.runtime.delivering import send_error, send_results
from condensery.runtime.faults import run_in_halves
from condensery.runtime.lanes import MISSING, Item, Lane, Request, Result, Ticket
from condensery.runtime.limits import SHORT_TOKENS, Limits, default_limits
from condensery.runtime.refusing import Queue, refuse
from condensery.runtime.workers import Job, Workers

if TYPE_CHECKING:
    from condensery.metrics import Metrics, Stage

RATE_MEMORY = 0.8  # weight of the past in the drain rate, per batch
LEAST_SHARE = 64  # tokens below which a batch is not worth splitting between idle workers

# Items, and what each costs.
Part: TypeAlias = tuple[Sequence[Item], Sequence[int]]


class Batcher(Generic[Item, Result]):
    """Runs ``forward`` over items from many callers, a batch at a time on each free worker.

    There is no timer: an idle service adds no delay, and a busy one fills its batches by itself.
    Callers take turns, and of each goes first what is due first (``Lane``); short requests and
    long ones get half of the tokens each while both wait.

    Args:
        forward: Called in a worker's thread with a batch; returns a result for each item, in
            order. A ``CondenseryError`` in a result's place fails that item alone.
        workers: Where batches run; shared with other batchers.
        limits: Of a batch and of the queue; by default what suits the device.
        model: Name in metrics and messages.
        stage: What its forward passes count as.
        metrics: Where to count; None counts nowhere.
    """

    def __init__(
        self,
        forward: Callable[[list[Item]], Sequence[Result | CondenseryError]],
        workers: Workers,
        *,
        limits: Limits | None = None,
        model: str = "",
        stage: "Stage" = "forward",
        metrics: "Metrics | None" = None,
    ) -> None:
        self._forward = forward
        self._workers = workers
        self._limits = limits or default_limits(workers.device)
        self._model = model
        self._metrics = metrics
        self._gauges = BatchGauges(metrics, model, stage)
        self._short: Lane[Item, Result] = Lane()
        self._long: Lane[Item, Result] = Lane()
        self._rate = 0.0  # tokens a second and worker
        self._closed = False
        workers.add(self)

    @property
    def queued_tokens(self) -> int:
        """Tokens that wait for a worker."""
        return self._short.tokens + self._long.tokens

    @property
    def rate(self) -> float:
        """Tokens a second, all workers together, lately; 0 before the first batch."""
        return self._rate * self._workers.count

    async def submit_each(
        self, items: Sequence[Item], tokens: Sequence[int]
    ) -> list[Result | CondenseryError]:
        """Run every item; one that fails has its error in its place. Order is kept.

        Items are queued all or none. If the caller is cancelled or its time runs out, those not
        yet begun never run.

        Args:
            items: What to run.
            tokens: What each costs, at least 1.

        Raises:
            Overloaded: Too much waits before it.
            DeadlineExceeded: The caller's time ran out.
            Unavailable: Closed before the items ran.
        """
        parts = _whole(items, tokens)
        return cast(
            list[Result | CondenseryError],
            await self._submit(parts, len(items), sum(tokens), each=True),
        )

    async def submit_parts(
        self,
        parts: AsyncGenerator[Part[Item], None],
        count: int,
        cost: int,
    ) -> list[Result]:
        """Run items that come part by part; the first run while the last are being made.

        If the caller is cancelled or its time runs out, those not yet begun never run.

        Args:
            parts: Items, and what each costs, in order. An error in them is the request's.
            count: How many items there will be.
            cost: About what all of them will cost.

        Raises:
            Overloaded: Too much waits before it.
            DeadlineExceeded: The caller's time ran out.
            ModelFault: An item failed; its fellows' results are dropped.
            Unavailable: Closed before the items ran.
        """
        return await self._submit(parts, count, cost)

    async def _submit(
        self,
        parts: AsyncGenerator[Part[Item], None],
        count: int,
        cost: int,
        *,
        each: bool = False,
    ) -> list[Result]:
        if not count:
            return []
        call = current()
        if call.seconds_left <= 0:
            self._gauges.dropped(begun=False, cause="deadline")
            raise call.expired()
        loop = asyncio.get_running_loop()
        request: Request[Item, Result] = Request(
            *(loop.create_future(), call, [MISSING] * count, count), each=each
        )
        lane = self._short if cost <= SHORT_TOKENS else self._long
        self._admit(lane, call.caller, cost)
        try:
            async with asyncio.timeout_at(_loop_time(loop, call)), aclosing(parts):
                queued = 0
                async for items, tokens in parts:
                    queued += self._put(lane, request, queued, items, tokens)
                    if request.reply.done():  # failed already: the rest is not worth making
                        break
                return await request.reply
        except TimeoutError:
            self._gauges.dropped(begun=request.begun, cause="deadline")
            raise call.expired() from None
        except asyncio.CancelledError:
            # A door's own timeout for the same deadline may come first.
            cause = "deadline" if call.seconds_left <= 0 else "client"
            self._gauges.dropped(begun=request.begun, cause=cause)
            raise
        finally:
            # Cancelled, or failed: what is still queued of it never runs.
            if request.waiting:
                with self._workers.changed:
                    lane.forget(request)
                    self._tell_queue()

    def _put(
        self,
        lane: Lane[Item, Result],
        request: Request[Item, Result],
        first: int,
        items: Sequence[Item],
        tokens: Sequence[int],
    ) -> int:
        """Queue a part of a request; returns how many items it has."""
        tickets = [
            Ticket(request, index, item, size)
            for index, (item, size) in enumerate(zip(items, tokens, strict=True), first)
        ]
        with self._workers.changed:
            if self._closed:
                raise self._shutting_down()
            lane.put(request, tickets)
            self._tell_queue()
            self._workers.wake(len(tickets), short=lane is self._short)
        return len(tickets)

    def close(self) -> None:
        """Refuse new items and whoever waits; batches that run are finished and delivered."""
        with self._workers.changed:
            if self._closed:
                return
            self._closed = True
            left = [*self._short.clear(), *self._long.clear()]
            self._tell_queue()
        self._workers.remove(self)
        for request in left:
            send_error(request, self._shutting_down())

    def _shutting_down(self) -> Unavailable:
        return Unavailable(f"{self._model}: shutting down")

    def _admit(self, lane: Lane[Item, Result], caller: str, cost: int) -> None:
        """Refuse what would not fit, or would wait too long for its turns."""
        waiting = self.queued_tokens
        # While the other lane has work, this one gets every second token.
        ahead = lane.ahead(caller, cost) * (1 if waiting == lane.tokens else 2)
        queue = Queue(waiting, min(waiting, ahead), self.rate)
        refuse(queue, cost, self._limits, model=self._model, metrics=self._metrics)

    def _tell_queue(self) -> None:
        self._gauges.tell(self._short.items + self._long.items, self.queued_tokens)

    def take(self, idle: int, *, express: bool) -> Job | None:
        """Make a batch of what waits; called by a free worker (``Source``)."""
        if not self.queued_tokens:
            return None
        contested = bool(self._short.items and self._long.items)
        lane = self._short if express or not self._long.items else self._long
        if contested and not express:  # the one that has been served less while both had work
            lane = min(self._short, self._long, key=lambda one: one.served)
        # A request that finds several workers idle is shared between them.
        share = max(LEAST_SHARE, -(-lane.tokens // max(1, idle)))
        batch = lane.take(min(self._limits.batch_tokens, share), self._limits.batch_items)
        self._tell_queue()
        if not batch:  # express and nothing short; or all have gone
            return None
        tokens = sum(ticket.tokens for ticket in batch)
        if contested:
            lane.served += tokens
        else:
            self._short.served = self._long.served = 0
        return Job(
            run=lambda: self._run(batch, tokens),
            fail=lambda reason: self._abandon(batch, reason),
            long=lane is self._long,
            seconds=tokens / self._rate if self._rate else 0.0,
        )

    def _run(self, batch: list[Ticket[Item, Result]], tokens: int) -> None:
        """Run a batch in a worker's thread and send the results home."""
        started = time.perf_counter()
        outcomes = run_in_halves(
            *(self._forward_tickets, batch),
            model=self._model,
            metrics=self._metrics,
            said=lambda ticket: f"failed on item {ticket.index}",
        )
        seconds = time.perf_counter() - started
        rate = tokens / max(seconds, 1e-9)
        self._rate = RATE_MEMORY * self._rate + (1 - RATE_MEMORY) * rate if self._rate else rate
        self._gauges.ran(batch, tokens, started, seconds)
        for request in requests_of(batch):
            device = self._workers.device.type
            request.call.spent.ran(device, request.arrived, started, started + seconds)
        send_results(batch, outcomes)

    def _forward_tickets(
        self, batch: list[Ticket[Item, Result]]
    ) -> Sequence[Result | CondenseryError]:
        self._gauges.runs()
        return self._forward([ticket.item for ticket in batch])

    def _abandon(self, batch: list[Ticket[Item, Result]], reason: str) -> None:
        """Fail a batch whose worker is lost."""
        send_results(batch, [ModelFault(f"{self._model}: {reason}") for _ in batch])


async def _whole(items: Sequence[Item], tokens: Sequence[int]) -> AsyncGenerator[Part[Item], None]:
    yield items, tokens


def _loop_time(loop: asyncio.AbstractEventLoop, call: Call) -> float | None:
    """Return the call's deadline in the loop's own time; None if it has none."""
    return None if math.isinf(call.deadline) else loop.time() + call.seconds_left
