"""What a retriever is tuned to do: find the positive, and rank as a cross-encoder does."""

import torch
from torch import Tensor
from torch.nn import functional as F

from condensery.methods.trainer.processes import Processes

TEMPERATURE = 0.02


def contrastive(
    queries: Tensor,
    passages: Tensor,
    *,
    temperature: float = TEMPERATURE,
    keys: Tensor | None = None,
    answers: Tensor | None = None,
    processes: Processes | None = None,
) -> Tensor:
    """Return InfoNCE over all passages of the batch, of all processes (EffiR, equation 2).

    Args:
        queries: Vectors of length 1, (queries, dims).
        passages: Vectors of length 1, (queries * group, dims): of each query its positive, then its
            hard negatives. Those of other queries are negatives as well.
        temperature: Of the similarities.
        keys: What tells passages' texts apart, (queries * group,).
        answers: The keys of all that answers each query, (queries, most). Passages of those, but
            for its own positive, are then no negatives of it: other queries may bring them.
        processes: Whose passages count too, gradients included.
    """
    processes = processes or Processes()
    group = len(passages) // len(queries)
    everyone = processes.gather(passages)
    first = processes.rank * len(passages)
    positives = first + group * torch.arange(len(queries), device=queries.device)
    scores = queries.float() @ everyone.float().T / temperature
    if keys is not None and answers is not None:
        alike = (processes.gather(keys)[None, :, None] == answers[:, None, :]).any(-1)
        alike[torch.arange(len(queries), device=queries.device), positives] = False
        scores = scores.masked_fill(alike, -torch.inf)
    return F.cross_entropy(scores, positives)


def distilled(
    queries: Tensor, passages: Tensor, teacher: Tensor, *, temperature: float = TEMPERATURE
) -> Tensor:
    """Return how far each query's own passages are from being ranked as a teacher ranks them.

    The cross-entropy of the teacher's distribution, a softmax of its raw scores; it differs from
    the KL divergence by the teacher's entropy, which nothing can lower.

    Args:
        queries: Vectors of length 1, (queries, dims).
        passages: As ``contrastive``'s, (queries * group, dims).
        teacher: A cross-encoder's scores, (queries, group); NaN in rows that have none.
        temperature: Of the similarities.
    """
    known = ~teacher.isnan().any(dim=1)
    if not known.any():
        return queries.new_zeros((), dtype=torch.float32)
    own = passages.view(len(queries), -1, passages.shape[-1])[known].float()
    scores = torch.einsum("qd,qgd->qg", queries[known].float(), own) / temperature
    return -(teacher[known].softmax(-1) * scores.log_softmax(-1)).sum(-1).mean()
