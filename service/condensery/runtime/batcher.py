"""Batches that form by themselves: whatever waits when a worker falls free.

There is no timer to tune. A batch that fails is run again in halves until what is at fault stands
alone, so that nobody else's request fails with it.
"""

import asyncio
import time
import traceback
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, cast

import torch

from condensery.errors import CondenseryError, ModelFault, Unavailable
from condensery.request_context import MODEL_FIELD, current_request, loop_deadline
from condensery.runtime.queue import (
    MISSING,
    NO_METRICS,
    SHORT_TOKENS,
    BatchLimits,
    FairQueue,
    Item,
    QueuedRequest,
    QueueItem,
    QueueState,
    Result,
    default_limits,
    refuse_if_overloaded,
    send_error,
    send_results,
)
from condensery.runtime.workers import Workers, WorkItem

if TYPE_CHECKING:
    from condensery.metrics import Metrics, Stage

RATE_MEMORY = 0.8  # weight of the past in the drain rate, per batch
MIN_SHARE_TOKENS = 64  # tokens below which a batch is not worth splitting between idle workers

# Items, and what each costs.
CostedItems: TypeAlias = tuple[Sequence[Item], Sequence[int]]
Element = TypeVar("Element")
Outcome = TypeVar("Outcome")


def requests_of(batch: Sequence[QueueItem[Item, Result]]) -> list[QueuedRequest[Item, Result]]:
    """Return the requests that a batch has items of, each once."""
    return list({id(entry.request): entry.request for entry in batch}.values())


class BatcherMetrics:
    """What one batcher counts, with its model's label looked up once."""

    def __init__(self, metrics: "Metrics", model: str) -> None:
        self._tei = metrics.tei
        self.queue_requests = metrics.queue_requests.labels(model)
        self.queue_tokens = metrics.queue_tokens.labels(model)
        self.forwards = metrics.forwards.labels(model)
        self._queue_seconds = metrics.stage_seconds.labels(model, "queue")
        self._forward_seconds = metrics.stage_seconds.labels(model, "forward")
        self._batch_tokens = metrics.batch_tokens.labels(model)
        self._batch_items = metrics.batch_items.labels(model)

    def count_batch(
        self, batch: Sequence[QueueItem[Any, Any]], tokens: int, started: float, seconds: float
    ) -> None:
        """Count a batch that began at ``started`` and took ``seconds``."""
        for request in requests_of(batch):
            self._queue_seconds.observe(started - request.arrived)
        self._forward_seconds.observe(seconds)
        self._batch_tokens.observe(tokens)
        self._batch_items.observe(len(batch))
        if self._tei is not None:
            self._tei.batch(len(batch), tokens)


def run_in_halves(
    run: Callable[[list[Element]], Sequence[Outcome | CondenseryError]],
    batch: list[Element],
    *,
    model: str,
    metrics: "Metrics | None",
    describe: Callable[[Element], str],
) -> list[Outcome | CondenseryError]:
    """Run a batch; if it fails, halve it until the items at fault stand alone.

    Args:
        run: Returns an outcome for each item, in order.
        batch: At least one item.
        describe: What messages call an item that fails; nothing that a user wrote.
    """
    try:
        outcomes = list(run(batch))
        if len(outcomes) == len(batch):
            return outcomes
        cause: Exception | None = None
        reason = f"{len(outcomes)} results for {len(batch)} items"
    except Exception as error:  # whatever a forward raises must not kill the worker
        cause = error
        reason = type(error).__name__
    if cause is not None:
        clear_frames(cause)  # first: a cache gives back only what nothing holds
        if is_out_of_memory(cause):
            empty_device_cache(metrics, model, split=len(batch) > 1)
    if len(batch) > 1:
        middle = len(batch) // 2
        halves = batch[:middle], batch[middle:]
        return [
            outcome
            for half in halves
            for outcome in run_in_halves(run, half, model=model, metrics=metrics, describe=describe)
        ]
    if isinstance(cause, CondenseryError):
        return [cause]
    # Not the error's own text either: it may hold what a user wrote.
    fault = ModelFault(f"{model}: {describe(batch[0])} ({reason})")
    fault.__cause__ = cause
    return [fault]


def clear_frames(error: BaseException) -> None:
    """Let go of what the frames hold that an error came through, and those of what led to it.

    Its traceback stays, without their variables: a failed batch's tensors are as large as those of
    its halves, which would else have to do without that memory.
    """
    seen: set[int] = set()
    errors: list[BaseException | None] = [error]
    while errors:
        each = errors.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            traceback.clear_frames(each.__traceback__)
            errors += [each.__cause__, each.__context__]


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error says that memory ran out."""
    # On a CPU torch raises a plain RuntimeError.
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
    )


def empty_device_cache(metrics: "Metrics | None", model: str, *, split: bool) -> None:
    """Give back what torch keeps for later; halves of the batch, if any, are tried next."""
    (metrics or NO_METRICS).oom.labels(model, "split" if split else "failed").inc()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


class Batcher(Generic[Item, Result]):
    """Runs ``forward`` over items from many callers, a batch at a time on each free worker.

    There is no timer: an idle service adds no delay, and a busy one fills its batches by itself.
    Callers take turns, and of each goes first what is due first (``FairQueue``); short requests and
    long ones get half of the tokens each while both wait.

    Args:
        forward: Called in a worker's thread with a batch; returns a result for each item, in
            order. A ``CondenseryError`` in a result's place fails that item alone.
        workers: Where batches run; shared with other batchers.
        limits: Of a batch and of the queue; by default what suits the device.
        stage: What its forward passes count as.
    """

    def __init__(
        self,
        forward: Callable[[list[Item]], Sequence[Result | CondenseryError]],
        workers: Workers,
        *,
        limits: BatchLimits | None = None,
        model: str = "",
        stage: "Stage" = "forward",
        metrics: "Metrics | None" = None,
    ) -> None:
        self._forward = forward
        self._workers = workers
        self._limits = limits or default_limits(workers.device)
        self._model = model
        self._stage = stage
        self._metrics: Metrics = metrics or NO_METRICS
        self._counts = BatcherMetrics(self._metrics, model)
        self._short: FairQueue[Item, Result] = FairQueue()
        self._long: FairQueue[Item, Result] = FairQueue()
        self._rate = 0.0  # tokens a second and worker
        self._closed = False
        workers.add(self)

    @property
    def queued_tokens(self) -> int:
        """Tokens that wait for a worker."""
        return self._short.tokens + self._long.tokens

    @property
    def workers(self) -> int:
        """How many batches can run at once."""
        return self._workers.count

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
            tokens: What each costs, at least 1.

        Raises:
            Overloaded: Too much waits before it.
            DeadlineExceeded: The caller's time ran out.
            Unavailable: Closed before the items ran.
        """
        return cast(
            list[Result | CondenseryError],
            await self._submit((items, tokens), len(items), sum(tokens), each=True),
        )

    async def submit_parts(
        self,
        parts: AsyncGenerator[CostedItems[Item], None] | CostedItems[Item],
        count: int,
        cost: int,
    ) -> list[Result]:
        """Run items that come part by part; the first run while the last are being made.

        If the caller is cancelled or its time runs out, those not yet begun never run.

        Args:
            parts: Items, and what each costs, in order. An error in them is the request's. Or all
                of them at once.
            count: How many items there will be.
            cost: About what all of them will cost.

        Raises:
            ModelFault: An item failed; its fellows' results are dropped.
            Overloaded, DeadlineExceeded, Unavailable: As ``submit_each``.
        """
        return await self._submit(parts, count, cost)

    async def _submit(
        self,
        parts: AsyncGenerator[CostedItems[Item], None] | CostedItems[Item],
        count: int,
        cost: int,
        *,
        each: bool = False,
    ) -> list[Result]:
        if not count:
            return []
        call = current_request()
        if call.seconds_left <= 0:
            self._count_dropped(begun=False, cause="deadline")
            raise call.expired()
        request: QueuedRequest[Item, Result] = QueuedRequest(
            asyncio.get_running_loop().create_future(), call, [MISSING] * count, count, each=each
        )
        queue = self._short if cost <= SHORT_TOKENS else self._long
        self._admit(queue, call.caller, cost)
        try:
            async with asyncio.timeout_at(loop_deadline(call)):
                if isinstance(parts, tuple):
                    self._put(queue, request, 0, *parts)
                    return await request.reply
                async with aclosing(parts):
                    queued = 0
                    async for items, tokens in parts:
                        queued += self._put(queue, request, queued, items, tokens)
                        if request.reply.done():  # failed already: the rest is not worth making
                            break
                    return await request.reply
        except TimeoutError:
            self._count_dropped(begun=request.begun, cause="deadline")
            raise call.expired() from None
        except asyncio.CancelledError:
            # An endpoint's own timeout for the same deadline may come first.
            cause = "deadline" if call.seconds_left <= 0 else "client"
            self._count_dropped(begun=request.begun, cause=cause)
            raise
        finally:
            # Cancelled, or failed: what is still queued of it never runs.
            if request.waiting:
                with self._workers.changed:
                    queue.drop(request)
                    self._show_queue()

    def _put(
        self,
        queue: FairQueue[Item, Result],
        request: QueuedRequest[Item, Result],
        first: int,
        items: Sequence[Item],
        tokens: Sequence[int],
    ) -> int:
        """Queue a part of a request; returns how many items it has."""
        entries = [
            QueueItem(request, index, item, size)
            for index, (item, size) in enumerate(zip(items, tokens, strict=True), first)
        ]
        with self._workers.changed:
            if self._closed:
                raise self._shutting_down()
            queue.put(request, entries)
            self._show_queue()
            self._workers.wake(len(entries), short=queue is self._short)
        return len(entries)

    def close(self) -> None:
        """Refuse new items and whoever waits; batches that run are finished and delivered."""
        with self._workers.changed:
            if self._closed:
                return
            self._closed = True
            left = [*self._short.clear(), *self._long.clear()]
            self._show_queue()
        self._workers.remove(self)
        for request in left:
            send_error(request, self._shutting_down())

    def _shutting_down(self) -> Unavailable:
        return Unavailable(f"{self._model}: shutting down")

    def _admit(self, queue: FairQueue[Item, Result], caller: str, cost: int) -> None:
        """Refuse what would not fit, or would wait too long for its turns."""
        waiting = self.queued_tokens
        # While the other queue has work, this one gets every second token.
        ahead = queue.tokens_ahead(caller, cost) * (1 if waiting == queue.tokens else 2)
        state = QueueState(waiting, min(waiting, ahead), self.rate)
        refuse_if_overloaded(state, cost, self._limits, model=self._model, metrics=self._metrics)

    def _count_dropped(self, *, begun: bool, cause: str) -> None:
        stage = self._stage if begun else "queue"
        self._metrics.cancelled.labels(self._model, stage, cause).inc()

    def _show_queue(self) -> None:
        self._counts.queue_requests.set(self._short.items + self._long.items)
        self._counts.queue_tokens.set(self.queued_tokens)

    def take(self, idle: int, *, express: bool) -> WorkItem | None:
        """Make a batch of what waits; called by a free worker (``WorkSource``)."""
        if not self.queued_tokens:
            return None
        contested = bool(self._short.items and self._long.items)
        # First the one that has been served less while both had work.
        queues = sorted((self._short, self._long), key=lambda queue: queue.served)
        for queue in (self._short,) if express else queues:
            # A request that finds several workers idle is shared between them.
            share = max(MIN_SHARE_TOKENS, -(-queue.tokens // max(1, idle)))
            batch = queue.take(min(self._limits.batch_tokens, share), self._limits.batch_items)
            self._show_queue()
            if batch:
                break
            contested = False  # nothing waited there, or all that did have gone
        else:
            return None
        tokens = sum(entry.tokens for entry in batch)
        if contested:
            queue.served += tokens
        else:
            self._short.served = self._long.served = 0
        return WorkItem(
            run=lambda: self._run(batch, tokens),
            fail=lambda reason: self._abandon(batch, reason),
            long=queue is self._long,
            seconds=tokens / self._rate if self._rate else 0.0,
        )

    def _run(self, batch: list[QueueItem[Item, Result]], tokens: int) -> None:
        """Run a batch in a worker's thread, and send the results to the callers."""
        started = time.perf_counter()
        outcomes = run_in_halves(
            self._forward_entries,
            batch,
            model=self._model,
            metrics=self._metrics,
            describe=lambda entry: f"failed on item {entry.index}",
        )
        seconds = time.perf_counter() - started
        rate = tokens / max(seconds, 1e-9)
        self._rate = RATE_MEMORY * self._rate + (1 - RATE_MEMORY) * rate if self._rate else rate
        self._counts.count_batch(batch, tokens, started, seconds)
        requests, device = requests_of(batch), self._workers.device.type
        for request in requests:
            request.call.stats.count_forward_pass(
                device, request.arrived, started, started + seconds
            )
            if request.call.trace is not None:
                fields: dict[str, str | int] = {
                    MODEL_FIELD: self._model,
                    "condensery.batch.items": len(batch),
                    "condensery.batch.tokens": tokens,
                    "condensery.batch.requests": len(requests),
                    "condensery.device": device,
                }
                request.call.trace.add("forward", started, started + seconds, fields)
        send_results(batch, outcomes)

    def _forward_entries(
        self, batch: list[QueueItem[Item, Result]]
    ) -> Sequence[Result | CondenseryError]:
        self._counts.forwards.inc()
        return self._forward([entry.item for entry in batch])

    def _abandon(self, batch: list[QueueItem[Item, Result]], reason: str) -> None:
        """Fail a batch whose worker is lost."""
        send_results(batch, [ModelFault(f"{self._model}: {reason}") for _ in batch])
