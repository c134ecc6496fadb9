"""Batches that form by themselves: whatever waits when a worker falls free."""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeAlias

import torch

from condensery.callers import Call, current
from condensery.errors import CondenseryError, ModelFault, Overloaded, Unavailable
from condensery.runtime.lanes import Item, Lane, Request, Result, Ticket
from condensery.runtime.workers import Job, Workers

if TYPE_CHECKING:
    from condensery.metrics import Metrics, Stage

RATE_MEMORY = 0.8  # weight of the past in the drain rate, per batch
LEAST_SHARE = 64  # tokens below which a batch is not worth splitting between idle workers
# A request of no more tokens is short: a query, or a passage or two. Short ones never share a
# batch with long ones, and the express worker takes them while all others run long batches.
SHORT_TOKENS = 512


# Items, and what each costs.
Part: TypeAlias = tuple[Sequence[Item], Sequence[int]]


@dataclass(frozen=True, slots=True)
class Limits:
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


def default_limits(device: torch.device) -> Limits:
    """Return what suits a device."""
    if device.type == "cuda":  # a small forward costs what a large one does, and memory is ample
        return Limits(batch_tokens=65_536, batch_items=1024, queue_tokens=16_000_000)
    return Limits()


class Batcher(Generic[Item, Result]):
    """Runs ``forward`` over items from many callers, a batch at a time on each free worker.

    There is no timer: an idle service adds no delay, and a busy one fills its batches by itself.
    Callers, and the requests of each, take turns (``Lane``); short requests and long ones get
    half of the tokens each while both wait.

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
        self._stage: Stage = stage
        self._metrics = metrics
        self._gauges = _Gauges(metrics, model) if metrics is not None else None
        self._short: Lane[Item, Result] = Lane()
        self._long: Lane[Item, Result] = Lane()
        self._rate = 0.0  # tokens a second and worker
        self._closed = False
        workers.add(self)

    @property
    def queued_tokens(self) -> int:
        """Tokens that wait for a worker."""
        return self._short.tokens + self._long.tokens

    async def submit(
        self, items: Sequence[Item], tokens: Sequence[int], *, admitted: bool = False
    ) -> list[Result]:
        """Run every item; ``tokens[i]``, at least 1, is what item ``i`` costs. Order is kept.

        Items are queued all or none. If the caller is cancelled or its time runs out, those not
        yet begun never run.

        Args:
            items: What to run.
            tokens: What each costs.
            admitted: Part of something that was begun already, and is refused no more.

        Raises:
            Overloaded: Too much waits before it.
            DeadlineExceeded: The caller's time ran out.
            ModelFault: An item failed; its fellows' results are dropped.
            Unavailable: Closed before the items ran.
        """

        async def whole() -> AsyncGenerator[Part[Item], None]:
            yield items, tokens

        return await self.submit_parts(whole(), len(items), sum(tokens), admitted=admitted)

    async def submit_parts(
        self,
        parts: AsyncGenerator[Part[Item], None],
        count: int,
        cost: int,
        *,
        admitted: bool = False,
    ) -> list[Result]:
        """Run items that come part by part; the first run while the last are being made.

        Args:
            parts: Items, and what each costs, in order. An error in them is the request's.
            count: How many items there will be.
            cost: About what all of them will cost.
            admitted: As in ``submit``.

        Raises:
            As ``submit``.
        """
        if not count:
            return []
        call = current()
        call.check()
        loop = asyncio.get_running_loop()
        request: Request[Item, Result] = Request(loop.create_future(), call, [None] * count, count)
        lane = self._short if cost <= SHORT_TOKENS else self._long
        if not admitted:
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
            self._dropped(request, "deadline")
            raise call.expired() from None
        except asyncio.CancelledError:
            # A door's own timeout for the same deadline may come first.
            self._dropped(request, "deadline" if call.seconds_left <= 0 else "client")
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
            send(request.reply.get_loop(), _fail, request.reply, self._shutting_down())

    def _shutting_down(self) -> Unavailable:
        return Unavailable(f"{self._model}: shutting down")

    def _admit(self, lane: Lane[Item, Result], caller: str, cost: int) -> None:
        """Refuse what would not fit, or would wait too long for its turns."""
        waiting = self.queued_tokens
        if not waiting:
            return
        rate = self._rate * self._workers.count
        over = waiting + cost - self._limits.queue_tokens
        if over > 0:
            # Before the first batch there is no rate to go by.
            seconds = min(over, waiting) / rate if rate else 1.0
            raise self._refusal(
                "queue_tokens",
                seconds,
                f"{waiting} tokens wait and {cost} more are over the limit of "
                f"{self._limits.queue_tokens}",
            )
        if not rate:
            return
        # While the other lane has work, this one gets every second token.
        before = min(waiting, lane.ahead(caller, cost) * (1 if waiting == lane.tokens else 2))
        seconds = before / rate
        if seconds > self._limits.queue_seconds:
            raise self._refusal(
                "queue_seconds",
                seconds - self._limits.queue_seconds,
                f"it would wait {seconds:.0f} s for its turn, over the limit of "
                f"{self._limits.queue_seconds:g} s",
            )

    def _refusal(self, reason: str, seconds: float, message: str) -> Overloaded:
        if self._metrics is not None:
            self._metrics.rejected.labels(reason).inc()
        return Overloaded(
            f"{self._model}: {message}",
            retry_after_seconds=float(min(60, max(1, math.ceil(seconds)))),
        )

    def _dropped(self, request: Request[Item, Result], cause: str) -> None:
        if self._metrics is not None:
            stage = self._stage if request.begun else "queue"
            self._metrics.cancelled.labels(self._model, stage, cause).inc()

    def _tell_queue(self) -> None:
        if self._gauges is not None:
            self._gauges.queue_requests.set(self._short.items + self._long.items)
            self._gauges.queue_tokens.set(self.queued_tokens)

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
        outcomes = self._outcomes(batch)
        seconds = time.perf_counter() - started
        rate = tokens / max(seconds, 1e-9)
        self._rate = RATE_MEMORY * self._rate + (1 - RATE_MEMORY) * rate if self._rate else rate
        if self._gauges is not None:
            self._gauges.ran(batch, tokens, started, seconds)
        self._send_home(batch, outcomes)

    def _send_home(
        self,
        batch: list[Ticket[Item, Result]],
        outcomes: Sequence[Result | CondenseryError],
    ) -> None:
        # One wake-up for each loop, not one an item (only tests have more than one loop).
        homes: dict[asyncio.AbstractEventLoop, list[int]] = {}
        for place, ticket in enumerate(batch):
            homes.setdefault(ticket.request.reply.get_loop(), []).append(place)
        for loop, places in homes.items():
            send(loop, _deliver, [(batch[place], outcomes[place]) for place in places])

    def _abandon(self, batch: list[Ticket[Item, Result]], reason: str) -> None:
        """Fail a batch whose worker is lost."""
        self._send_home(batch, [ModelFault(f"{self._model}: {reason}") for _ in batch])

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
        if cause is not None and is_out_of_memory(cause):
            make_room(self._metrics, self._model, split=len(batch) > 1)
        if len(batch) > 1:
            middle = len(batch) // 2
            return self._outcomes(batch[:middle]) + self._outcomes(batch[middle:])
        if isinstance(cause, CondenseryError):
            return [cause]
        # Neither the item nor the fault's own text: they may hold what a user wrote.
        fault = ModelFault(f"{self._model}: failed on item {batch[0].index} ({reason})")
        fault.__cause__ = cause
        return [fault]


def is_out_of_memory(error: Exception) -> bool:
    """Tell whether memory ran out."""
    # On a CPU torch raises a plain RuntimeError.
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
    )


def make_room(metrics: "Metrics | None", model: str, *, split: bool) -> None:
    """Give back what torch keeps for later; halves of the batch, if any, are tried next."""
    if metrics is not None:
        metrics.oom.labels(model, "split" if split else "failed").inc()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


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


def _loop_time(loop: asyncio.AbstractEventLoop, call: Call) -> float | None:
    """Return the call's deadline in the loop's own time; None if it has none."""
    return None if math.isinf(call.deadline) else loop.time() + call.seconds_left


def send(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: object) -> None:
    """Call ``function`` in ``loop``, from any thread."""
    with suppress(RuntimeError):  # the loop has closed: nobody waits there any more
        loop.call_soon_threadsafe(function, *args)


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
