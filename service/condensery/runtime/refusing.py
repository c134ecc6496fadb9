"""Refuse what would not fit the queue, or would wait too long in it."""

import math
from typing import TYPE_CHECKING, Any

from condensery.errors import Overloaded
from condensery.runtime.batcher import Limits
from condensery.runtime.lanes import Lane

if TYPE_CHECKING:
    from condensery.metrics import Metrics


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
    """Raise if a request of ``cost`` positions can't be queued; one that is alone always can.

    Args:
        lane: Where it would wait.
        caller: Whose it is.
        cost: Positions it will take.
        drain: Positions given back per second; 0 if not known yet.
        limits: ``queue_tokens`` and ``queue_seconds`` count.
        model: Name in the message.
        metrics: Where to count.

    Raises:
        Overloaded: With the time after which it is worth coming back.
    """
    if not lane.items:
        return
    over = lane.tokens + cost - limits.queue_tokens
    ahead = lane.ahead(caller, cost)
    if over > 0:
        reason, seconds = "queue_tokens", min(over, lane.tokens) / drain if drain else 1.0
        message = (
            f"{lane.tokens} positions wait for room and {cost} more are over the limit of "
            f"{limits.queue_tokens}"
        )
    elif drain and ahead / drain > limits.queue_seconds:
        reason, seconds = "queue_seconds", ahead / drain - limits.queue_seconds
        message = (
            f"it would wait {ahead / drain:.0f} s for room, over the limit of "
            f"{limits.queue_seconds:g} s"
        )
    else:
        return
    if metrics is not None:
        metrics.rejected.labels(reason).inc()
    raise Overloaded(
        f"{model}: {message}", retry_after_seconds=float(min(60, max(1, math.ceil(seconds))))
    )
