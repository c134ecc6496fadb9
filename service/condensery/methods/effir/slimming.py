"""Learn which neurons of the MLPs are needed, and slice the others off (EffiR, section 5.1).

``MLP(x) = W_down (ReLU(z) * Act(W_gate x) * (W_up x))`` (equation 7), z starting as ones. Training
z with the retrieval loss and a sparsity term ranks all neurons of all layers together.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from condensery.errors import InputError
from condensery.methods.retriever.batches import Batch, Batches
from condensery.methods.retriever.network import Retriever
from condensery.methods.retriever.recipe import RetrieverRecipe
from condensery.methods.retriever.tuning import retrieval_loss
from condensery.methods.trainer.method import Draw, Loss, Method, TrainingSetup, learning_state
from condensery.methods.trainer.optimizer import Group, split_groups
from condensery.methods.trainer.recipe import check_field
from condensery.methods.trainer.trainer import run_training
from condensery.networks.effir import prune, slice_mlps
from condensery.networks.effir_shape import Pruning
from condensery.networks.sublayers import family_of, layers_of, linears

BETA = 5.0  # sharpness of the surrogate (appendix A.1)


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


class Gates(nn.Module):
    """A gate for every neuron of the MLPs that a model still has.

    Args:
        model: A base model of a known family; not changed.
        pruning: What it has left.

    Raises:
        ValueError: Its family is not known.
    """

    def __init__(self, model: nn.Module, pruning: Pruning) -> None:
        super().__init__()
        family = family_of(model)
        self.values = nn.ParameterDict()
        for number, layer in enumerate(layers_of(model, family)):
            if number not in pruning.mlp:
                (down,) = linears(layer, [family.down])
                ones = torch.ones(down.in_features, device=down.weight.device)
                self.values[str(number)] = nn.Parameter(ones)

    @contextmanager
    def on(self, model: nn.Module) -> Iterator[None]:
        """Multiply the neurons of ``model`` by their gates meanwhile; fp32, then its own dtype."""
        family = family_of(model)
        layers = layers_of(model, family)
        handles = []
        for number, gate in self.values.items():
            (down,) = linears(layers[int(number)], [family.down])

            def gated(_: nn.Module, args: tuple[Any, ...], gate: Tensor = gate) -> tuple[Tensor]:
                return (args[0] * torch.relu(gate).to(args[0].dtype),)

            handles.append(down.register_forward_pre_hook(gated))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def sparsity(self) -> Tensor:
        """Return the surrogate of how many gates are open: the sum of ``sigmoid(beta ReLU(z))``."""
        parts = [torch.sigmoid(BETA * torch.relu(gate)).sum() for gate in self.values.values()]
        return torch.stack(parts).sum()

    def kept(self, share: float, pruning: Pruning) -> tuple[Pruning, list[Tensor | None]]:
        """Choose which neurons stay when the share of lowest gates goes, over all layers at once.

        Of equal gates, as at 0, those of the lower layer and the lower number go first. A layer
        that loses all of its neurons loses its MLP.

        Args:
            share: Of all neurons, from 0 to below 1.
            pruning: What the model has left.

        Returns:
            What is then left, and each layer's neurons (kept,), ascending; None where the MLP is
            gone.

        Raises:
            InputError: The share is of no use, or a gate is not finite.
        """
        if not 0 <= share < 1:
            raise InputError(
                f"width={share}: must be from 0 to below 1", field="width", value=share
            )
        names = sorted(self.values, key=int)
        gates = [torch.relu(self.values[name].detach()).float().cpu() for name in names]
        flat = torch.cat(gates)
        if not torch.isfinite(flat).all():
            raise InputError("width: a gate is not finite: the slimming went wrong", field="width")
        gone = flat.argsort(stable=True)[: int(share * len(flat))]
        stays = torch.ones(len(flat), dtype=torch.bool)
        stays[gone] = False
        kept: list[Tensor | None] = [None] * pruning.layers
        for name, mask in zip(names, stays.split([len(gate) for gate in gates]), strict=True):
            neurons = mask.nonzero().flatten()
            kept[int(name)] = neurons if len(neurons) else None
        sizes = tuple(0 if neurons is None else len(neurons) for neurons in kept)
        mlp = tuple(layer for layer, size in enumerate(sizes) if not size)
        return Pruning(pruning.layers, pruning.attention, mlp, sizes), kept


class _Gated(nn.Module):
    """A retriever that does not learn, and the gates that do."""

    def __init__(self, retriever: Retriever, pruning: Pruning) -> None:
        super().__init__()
        self.retriever = retriever.requires_grad_(False)
        self.gates = Gates(retriever.model, pruning)


class GateTraining(Method[_Gated, Batch]):
    """The training of gates by the contrastive loss and sparsity (equation 8); see ``narrow``."""

    def __init__(
        self,
        retriever: Retriever,
        pruning: Pruning,
        width: Width,
        batches: Batches,
        recipe: RetrieverRecipe,
        identity: Mapping[str, Any],
        setup: TrainingSetup,
    ) -> None:
        self.module, self.identity = _Gated(retriever, pruning), identity
        self._width, self._batches, self._processes = width, batches, setup.processes
        self._own_recipe = replace(
            recipe,
            steps=width.slim_steps,
            warmup=min(recipe.warmup, width.slim_steps // 10),
            distil=0.0,
        )
        self.recipe = self._own_recipe.trainer(setup.every)

    def batch(self, draw: Draw) -> Batch:
        """Return queries, each with a positive and hard negatives."""
        return self._batches(draw)

    def loss(self, batch: Batch) -> Loss:
        """Return the contrastive loss under the gates, and how many are open."""
        gates, retriever = self.module.gates, self.module.retriever
        with gates.on(retriever.model):
            contrast = retrieval_loss(retriever, batch, self._own_recipe, self._processes)
        open_gates = gates.sparsity()
        total = contrast.total + self._width.sparsity * open_gates
        return replace(contrast, total=total, terms={**contrast.terms, "open": open_gates})

    def groups(self) -> list[Group]:
        """Return the gates."""
        return split_groups(self.module, self._width.gate_rate, 0.0)

    def weights(self) -> dict[str, Tensor]:
        """Return the gates."""
        return learning_state(self.module)


def narrow(
    retriever: Retriever,
    pruning: Pruning,
    width: Width,
    batches: Batches,
    recipe: RetrieverRecipe,
    out: Path,
    *,
    identity: Mapping[str, Any],
    setup: TrainingSetup,
) -> Pruning:
    """Learn gates, then slice.

    The weights themselves do not learn meanwhile; slicing before they are tuned equals tuning
    under the mask, and costs less.

    Args:
        retriever: Its MLPs are sliced in place.
        pruning: What it has left.
        width: How far.
        batches: Of the tuning's rows.
        recipe: The tuning's: batch, temperature, schedule.
        out: Folder for checkpoints and log.
        identity: What else a run that goes on must share with this one.
        setup: How often it saves, and with which processes.

    Returns:
        What is then left.

    Raises:
        InputError: The slimming went wrong: a gate is not finite.
        TrainingStopped: As ``run_training`` says.
    """
    method = GateTraining(retriever, pruning, width, batches, recipe, identity, setup)
    gated = run_training(method, out, setup.processes)
    narrowed, kept = gated.gates.kept(width.width, pruning)
    # Again: an MLP may have lost all of its neurons. Widths are what slicing gives.
    prune(retriever.model, replace(narrowed, sizes=None))
    slice_mlps(retriever.model, kept)
    return narrowed
