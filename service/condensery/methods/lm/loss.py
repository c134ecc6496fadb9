"""Cross-entropy over a large vocabulary, its logits never whole in memory."""

from typing import Any

import torch
from torch import Tensor

CHUNK = 512  # positions scored at once: 60 MB of float32 logits at 30,522 words


class _Scored(torch.autograd.Function):
    """Keeps the gradient that each chunk of logits gives, instead of the logits."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, learns: bool) -> Tensor:
        by_hidden = torch.empty_like(hidden)
        trained = learns and weight.requires_grad
        by_weight = torch.zeros_like(weight, dtype=torch.float32) if trained else None
        total = hidden.new_zeros((), dtype=torch.float32)
        for at in range(0, len(hidden), CHUNK):
            some, wanted = hidden[at : at + CHUNK], labels[at : at + CHUNK, None]
            logits = (some @ weight.T).float()
            peak = logits.logsumexp(1, keepdim=True)
            total += (peak - logits.gather(1, wanted)).sum()
            if not learns:
                continue
            share = logits.sub_(peak).exp_()
            share.scatter_add_(1, wanted, share.new_full(wanted.shape, -1.0))
            share = share.to(weight.dtype)
            by_hidden[at : at + CHUNK] = share @ weight
            if by_weight is not None:
                by_weight += share.T @ some
        ctx.save_for_backward(by_hidden, by_weight)
        return total / len(hidden)

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> tuple[Tensor | None, ...]:
        by_hidden, by_weight = ctx.saved_tensors
        factor = above[0] / len(by_hidden)
        if by_weight is not None:
            by_weight = (by_weight * factor).to(by_hidden.dtype)
        return by_hidden * factor.to(by_hidden.dtype), by_weight, None, None


def linear_cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of ``hidden @ weight.T``, in nats.

    Args:
        hidden: (positions, width).
        weight: (vocabulary, width); gets a gradient if it is trained.
        labels: Which word is right, (positions,).
    """
    learns = torch.is_grad_enabled()  # in the function it never is
    loss: Tensor = _Scored.apply(hidden, weight, labels, learns)  # type: ignore[no-untyped-call]
    return loss
