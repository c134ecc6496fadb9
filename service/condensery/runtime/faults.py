"""A batch that fails is run again in halves, until what is at fault stands alone."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import torch

from condensery.errors import CondenseryError, ModelFault

if TYPE_CHECKING:
    from condensery.metrics import Metrics

Given = TypeVar("Given")
Outcome = TypeVar("Outcome")


def run_in_halves(
    run: Callable[[list[Given]], Sequence[Outcome | CondenseryError]],
    batch: list[Given],
    *,
    model: str,
    metrics: "Metrics | None",
    said: Callable[[Given], str],
) -> list[Outcome | CondenseryError]:
    """Run a batch; if it fails, halve it until the items at fault stand alone.

    Args:
        run: Returns an outcome for each item, in order.
        batch: At least one item.
        model: Name in messages.
        metrics: Where to count.
        said: What to say of an item that fails; nothing that a user wrote.
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
    if cause is not None and is_out_of_memory(cause):
        make_room(metrics, model, split=len(batch) > 1)
    if len(batch) > 1:
        middle = len(batch) // 2
        halves = batch[:middle], batch[middle:]
        return [
            outcome
            for half in halves
            for outcome in run_in_halves(run, half, model=model, metrics=metrics, said=said)
        ]
    if isinstance(cause, CondenseryError):
        return [cause]
    # Not the fault's own text either: it may hold what a user wrote.
    fault = ModelFault(f"{model}: {said(batch[0])} ({reason})")
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
