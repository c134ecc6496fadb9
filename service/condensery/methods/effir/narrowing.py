"""Learn which neurons of the MLPs are needed, and slice the others off (EffiR, section 5.1)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from condensery.methods.effir.slimming import Gates
from condensery.methods.retriever.batches import Batch, Batches
from condensery.methods.retriever.network import Retriever, groups, trained
from condensery.methods.retriever.recipe import RetrieverRecipe
from condensery.methods.retriever.tuning import RetrievalLoss
from condensery.methods.trainer.draws import Loss
from condensery.methods.trainer.plots import plot
from condensery.methods.trainer.processes import Processes
from condensery.methods.trainer.recipe import check_field
from condensery.methods.trainer.trainer import Trainer
from condensery.networks.effir import prune, slice_mlps
from condensery.networks.effir_shape import Pruning


@dataclass(frozen=True, slots=True)
class Width:
    """How MLPs are narrowed; defaults are the paper's, but for the rate, which it doesn't say.

    Attributes:
        width: Share of all neurons that goes, from 0 to below 1.
        slim_steps: Steps in which gates learn.
        gate_rate: Their learning rate.
        sparsity: Weight of the surrogate of how many are open.
    """

    width: float = 0.0
    slim_steps: int = 500
    gate_rate: float = 1e-3
    sparsity: float = 1e-8

    def __post_init__(self) -> None:
        """Refuse what can't be narrowed by.

        Raises:
            InputError: A field holds a value that is not allowed; names both.
        """
        check_field(self, "width", 0 <= self.width < 1, "from 0 to below 1")
        check_field(self, "slim_steps", self.slim_steps >= 1, "at least 1")
        check_field(self, "gate_rate", self.gate_rate > 0, "above 0")
        check_field(self, "sparsity", self.sparsity >= 0, "at least 0")


class _Gated(nn.Module):
    """A retriever that does not learn, and the gates that do."""

    def __init__(self, retriever: Retriever, pruning: Pruning) -> None:
        super().__init__()
        self.retriever = retriever.requires_grad_(False)
        self.gates = Gates(retriever.model, pruning)


def narrow(
    retriever: Retriever,
    pruning: Pruning,
    width: Width,
    batches: Batches,
    recipe: RetrieverRecipe,
    out: Path,
    *,
    about: Mapping[str, Any],
    every: int = 500,
    processes: Processes | None = None,
) -> Pruning:
    """Learn gates with the contrastive loss and the sparsity term (equation 8), then slice.

    The weights themselves do not learn meanwhile; slicing before they are tuned equals tuning
    under the mask, and costs less.

    Args:
        retriever: Its MLPs are sliced in place.
        pruning: What it has left.
        width: How far.
        batches: Of the tuning's rows.
        recipe: The tuning's: batch, temperature, schedule.
        out: Folder for checkpoints and log.
        about: What else a run that goes on must share with this one.
        every: Steps between checkpoints.
        processes: Those that train together.

    Returns:
        What is then left.

    Raises:
        InputError: The slimming went wrong: a gate is not finite.
        TrainingStopped: As the trainer says.
    """
    processes = processes or Processes()
    gated = _Gated(retriever, pruning)
    contrast = RetrievalLoss(replace(recipe, distil=0.0), processes)

    def loss(module: _Gated, batch: Batch) -> Loss:
        with module.gates.on(module.retriever.model):
            found = contrast(module.retriever, batch)
        open_gates = module.gates.sparsity()
        total = found.total + width.sparsity * open_gates
        return replace(found, total=total, terms={**found.terms, "open": open_gates})

    settings = replace(
        recipe, steps=width.slim_steps, warmup=min(recipe.warmup, width.slim_steps // 10)
    )
    Trainer[_Gated, Batch](
        gated,
        loss,
        batches,
        settings.trainer(every),
        out,
        groups=groups(gated, width.gate_rate, 0.0),
        names=lambda batch: batch.names,
        weights=trained,
        about=about,
        processes=processes,
    ).run()
    if processes.rank == 0:
        plot(out)
    left, kept = gated.gates.kept(width.width, pruning)
    # Again: an MLP may have lost all of its neurons. Widths are what slicing gives.
    prune(retriever.model, replace(left, sizes=None))
    slice_mlps(retriever.model, kept)
    return left
