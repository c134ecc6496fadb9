"""Which token comes next."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from condensery.questions import Sampling


@dataclass(frozen=True, slots=True)
class Choice:
    """A token that was chosen.

    Attributes:
        id: Its.
        logprob: Natural logarithm of its probability; None if it was not asked for.
        top: The likeliest tokens and theirs, best first.
    """

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


def choose(
    scores: Tensor, wishes: Sequence[Sampling], draws: Sequence[float]
) -> list[Choice | None]:
    """Choose a token for each row.

    Args:
        scores: (rows, vocabulary), fp32.
        wishes: How, for each row.
        draws: A random number from [0, 1) for each row; greedy ones need none.

    Returns:
        None where a row's scores are NaN or infinite.
    """
    best, ids = scores.max(dim=-1)
    sampled = [row for row, wish in enumerate(wishes) if wish.temperature > 0]
    if sampled:
        at = torch.tensor(sampled, device=scores.device)
        ids[at] = _draw(
            scores[at],
            scores.new_tensor([[wishes[row].temperature] for row in sampled]),
            scores.new_tensor([[wishes[row].top_p] for row in sampled]),
            scores.new_tensor([[draws[row]] for row in sampled]),
        )
    finite = torch.isfinite(best).tolist()
    chosen: list[Choice | None] = [
        Choice(token) if good else None for token, good in zip(ids.tolist(), finite, strict=True)
    ]
    for row, wish in enumerate(wishes):
        if wish.logprobs is not None and (choice := chosen[row]) is not None:
            chosen[row] = _report(scores[row], choice.id, wish.logprobs)
    return chosen


def _draw(scores: Tensor, temperature: Tensor, top_p: Tensor, draw: Tensor) -> Tensor:
    """Choose by inverse transform, so that a row needs one random number and no other row's."""
    # Less the best: a small temperature must not overflow.
    weights = ((scores - scores.amax(dim=-1, keepdim=True)) / temperature).softmax(dim=-1)
    ordered, order = weights.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(dim=-1) - ordered
    kept = ordered.masked_fill(before >= top_p, 0.0)
    sums = kept.cumsum(dim=-1)
    place = torch.searchsorted(sums, draw * sums[:, -1:], right=True)
    last = (kept > 0).sum(dim=-1, keepdim=True) - 1
    return order.gather(-1, place.minimum(last).clamp_min(0)).squeeze(-1)


def _report(scores: Tensor, chosen: int, count: int) -> Choice:
    logprobs = scores.log_softmax(dim=-1)
    best, ids = logprobs.topk(min(count, scores.shape[-1]))
    return Choice(
        chosen,
        float(logprobs[chosen]),
        tuple(zip(ids.tolist(), best.tolist(), strict=True)),
    )
