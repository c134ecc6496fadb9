"""What a batch, a step and a queue may hold."""

from dataclasses import dataclass

import torch

# A request of no more tokens is short: a query, or a passage or two. Short ones never share a
# batch with long ones, and the express worker takes them while all others run long batches.
SHORT_TOKENS = 512


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
