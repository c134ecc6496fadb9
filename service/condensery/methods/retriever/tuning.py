"""Tune a retriever: contrastive loss and a reranker's scores, on the shared trainer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from condensery.methods.retriever.batches import Batch, Batches
from condensery.methods.retriever.network import Retriever
from condensery.methods.retriever.recipe import TEMPERATURE, RetrieverRecipe
from condensery.methods.trainer.method import Draw, Loss, Method, TrainingSetup, learning_state
from condensery.methods.trainer.optimizer import Group, split_groups
from condensery.methods.trainer.processes import Processes
from condensery.methods.trainer.trainer import run_training


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
    taught = ~teacher.isnan().any(dim=1)
    if not taught.any():
        return queries.new_zeros((), dtype=torch.float32)
    own = passages.view(len(queries), -1, passages.shape[-1])[taught].float()
    scores = torch.einsum("qd,qgd->qg", queries[taught].float(), own) / temperature
    return -(teacher[taught].softmax(-1) * scores.log_softmax(-1)).sum(-1).mean()


def retrieval_loss(
    module: Retriever, batch: Batch, recipe: RetrieverRecipe, processes: Processes | None = None
) -> Loss:
    """Return InfoNCE, and the teacher's ranking where rows have scores.

    Queries and passages are read in one pass. Its term ``first`` is the share of queries found
    first. Source: EffiR, equation 2 and appendix A.2.

    Args:
        module: In training.
        batch: Queries and passages.
        recipe: Temperature, and weight of the scores.
        processes: Whose passages are negatives too.
    """
    vectors = module([*batch.queries, *batch.passages])
    queries, passages = vectors.split([len(batch.queries), len(batch.passages)])
    device, temperature = vectors.device, recipe.temperature
    total = contrastive(
        queries,
        passages,
        temperature=temperature,
        keys=batch.keys.to(device),
        answers=batch.answers.to(device),
        processes=processes,
    )
    terms = {"contrastive": total}
    if recipe.distil and not batch.scores.isnan().all():
        scores = batch.scores.to(device)
        terms["distil"] = distilled(queries, passages, scores, temperature=temperature)
        total = total + recipe.distil * terms["distil"]
    group = len(passages) // len(queries)
    own = (queries[:, None] * passages.view(len(queries), group, -1)).sum(-1)
    terms["first"] = (own.argmax(1) == 0).float().mean()
    return Loss(total, len(queries), len(queries), terms)


class RetrieverTuning(Method[Retriever, Batch]):
    """The tuning of a retriever, by adapters or of all its weights; see ``tune``."""

    def __init__(
        self,
        retriever: Retriever,
        batches: Batches,
        recipe: RetrieverRecipe,
        identity: Mapping[str, Any],
        setup: TrainingSetup,
        *,
        freeze_embeddings: bool = False,
    ) -> None:
        self.module, self.identity, self._batches = retriever, identity, batches
        self.recipe, self._own_recipe = recipe.trainer(setup.every), recipe
        self._processes = setup.processes
        if recipe.tuning == "lora":
            retriever.adapt(rank=recipe.lora_rank, alpha=recipe.lora_alpha)
        else:
            retriever.requires_grad_(True)
        if freeze_embeddings:
            retriever.freeze_embeddings()
        if recipe.recompute:
            retriever.recompute()

    def batch(self, draw: Draw) -> Batch:
        """Return queries, each with a positive and hard negatives."""
        return self._batches(draw)

    def loss(self, batch: Batch) -> Loss:
        """Return InfoNCE, and the teacher's ranking."""
        return retrieval_loss(self.module, batch, self._own_recipe, self._processes)

    def groups(self) -> list[Group]:
        """Return what learns, at one rate."""
        return split_groups(self.module, self._own_recipe.rate, self._own_recipe.weight_decay)

    def weights(self) -> dict[str, Tensor]:
        """Return what learns."""
        return learning_state(self.module)


def tune(
    retriever: Retriever,
    batches: Batches,
    recipe: RetrieverRecipe,
    out: Path,
    *,
    freeze_embeddings: bool = False,
    identity: Mapping[str, Any],
    setup: TrainingSetup | None = None,
) -> Retriever:
    """Tune to the last step, or go on from what ``out`` holds.

    Args:
        retriever: What learns; changed in place.
        batches: Its batches.
        recipe: How.
        out: Folder for checkpoints and log.
        freeze_embeddings: Whether they stay as they are; adapters never touch them.
        identity: What else a run that goes on must share with this one.
        setup: How often it saves, and with which processes.

    Raises:
        TrainingStopped: As ``run_training`` says.
    """
    setup = setup or TrainingSetup()
    method = RetrieverTuning(
        retriever, batches, recipe, identity, setup, freeze_embeddings=freeze_embeddings
    )
    return run_training(method, out, setup.processes)
