"""Refuse what would not fit the queue, or would wait too long in it."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from condensery.errors import Overloaded
from condensery.runtime.lanes import Lane
from condensery.runtime.limits import Limits

if TYPE_CHECKING:
    from condensery.metrics import Metrics

MOST_SECONDS = 60  # that anybody is told to come back after


@dataclass(frozen=True, slots=True)
class Queue:
    """What a new request finds.

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


def refuse(
    queue: Queue, cost: int, limits: Limits, *, model: str, metrics: "Metrics | None"
) -> None:
    """Raise if a request can't be queued; one that finds the queue empty always can.

    Args:
        queue: What it finds.
        cost: Tokens it will take.
        limits: ``queue_tokens`` and ``queue_seconds`` count.
        model: Name in the message.
        metrics: Where to count.

    Raises:
        Overloaded: With the time after which it is worth coming back.
    """
    if not queue.waiting:
        return
    over = queue.waiting + cost - limits.queue_tokens
    wait = queue.ahead / queue.drain if queue.drain else 0.0
    if over > 0:
        reason = "queue_tokens"
        # Before anything has run there is no rate to go by.
        seconds = min(over, queue.waiting) / queue.drain if queue.drain else 1.0
        message = (
            f"{queue.waiting} {queue.waits} and {cost} more are over the limit of "
            f"{limits.queue_tokens}"
        )
    elif wait > limits.queue_seconds:
        reason, seconds = "queue_seconds", wait - limits.queue_seconds
        message = (
            f"it would wait {wait:.0f} s for {queue.until}, over the limit of "
            f"{limits.queue_seconds:g} s"
        )
    else:
        return
    if metrics is not None:
        metrics.rejected.labels(reason).inc()
    raise Overloaded(
        f"{model}: {message}",
        retry_after_seconds=float(min(MOST_SECONDS, max(1, math.ceil(seconds)))),
    )


def refuse_overload(
    lane: Lane[Any, Any],
    caller: str,
    cost: int,
    drain: float,
    limits: Limits,
    *,
    model: str,
    metrics: "Metrics | None",
) -> None:
    """Raise if a request of ``cost`` positions can't wait for room in a cache.

    Args:
        lane: Where it would wait.
        caller: Whose it is.
        cost: Positions it will take.
        drain: Positions given back per second; 0 if not known yet.
        limits: As in ``refuse``.
        model: Name in the message.
        metrics: Where to count.

    Raises:
        Overloaded: As in ``refuse``.
    """
    queue = Queue(
        *(lane.tokens, lane.ahead(caller, cost), drain),
        waits="positions wait for room",
        until="room",
    )
    refuse(queue, cost, limits, model=model, metrics=metrics)
