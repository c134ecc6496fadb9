"""Tune a retriever: contrastive loss and a reranker's scores, on the shared trainer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from condensery.methods.retriever.batches import Batch, Batches
from condensery.methods.retriever.losses import contrastive, distilled
from condensery.methods.retriever.network import Retriever, groups, trained
from condensery.methods.retriever.recipe import RetrieverRecipe
from condensery.methods.trainer.draws import Loss
from condensery.methods.trainer.plots import plot
from condensery.methods.trainer.processes import Processes
from condensery.methods.trainer.trainer import Trainer


class RetrievalLoss:
    """The loss of a batch: InfoNCE, and the teacher's ranking where rows have scores.

    Source: EffiR, equation 2 and appendix A.2.

    Args:
        recipe: Temperature, and weight of the scores.
        processes: Whose passages are negatives too.
    """

    def __init__(self, recipe: RetrieverRecipe, processes: Processes | None = None) -> None:
        self._recipe, self._processes = recipe, processes or Processes()

    def __call__(self, module: Retriever, batch: Batch) -> Loss:
        """Read queries and passages in one pass; ``first``: the share of queries found first."""
        vectors = module([*batch.queries, *batch.passages])
        queries, passages = vectors.split([len(batch.queries), len(batch.passages)])
        device, temperature = vectors.device, self._recipe.temperature
        found = contrastive(
            queries,
            passages,
            temperature=temperature,
            keys=batch.keys.to(device),
            answers=batch.answers.to(device),
            processes=self._processes,
        )
        total, terms = found, {"contrastive": found}
        if self._recipe.distil and not batch.scores.isnan().all():
            scores = batch.scores.to(device)
            terms["distil"] = distilled(queries, passages, scores, temperature=temperature)
            total = total + self._recipe.distil * terms["distil"]
        group = len(passages) // len(queries)
        own = (queries[:, None] * passages.view(len(queries), group, -1)).sum(-1)
        terms["first"] = (own.argmax(1) == 0).float().mean()
        return Loss(total, len(queries), len(queries), terms)


def tune(
    retriever: Retriever,
    batches: Batches,
    recipe: RetrieverRecipe,
    out: Path,
    *,
    about: Mapping[str, Any],
    every: int = 500,
    processes: Processes | None = None,
) -> Retriever:
    """Tune to the last step, or go on from what ``out`` holds.

    Args:
        retriever: What learns; changed in place.
        batches: Its batches.
        recipe: How.
        out: Folder for checkpoints and log.
        about: What else a run that goes on must share with this one.
        every: Steps between checkpoints.
        processes: Those that train together.

    Raises:
        TrainingStopped: As the trainer says.
    """
    processes = processes or Processes()
    if recipe.tuning == "lora":
        retriever.adapt(rank=recipe.lora_rank, alpha=recipe.lora_alpha)
    else:
        retriever.requires_grad_(True)
    if recipe.recompute:
        retriever.recompute()
    loss = RetrievalLoss(recipe, processes)
    Trainer[Retriever, Batch](
        retriever,
        loss,
        batches,
        recipe.trainer(every),
        out,
        groups=groups(retriever, recipe.rate, recipe.weight_decay),
        names=lambda batch: batch.names,
        weights=trained,
        about=about,
        processes=processes,
    ).run()
    if processes.rank == 0:
        plot(out)
    retriever.eval()
    return retriever
