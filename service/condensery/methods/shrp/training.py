"""One training for every stage: a network tuned as it is, layer after layer converted, settled."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from condensery.methods.shrp.conversion import (
    Conversion,
    balance_loss,
    counted,
    prune_experts,
    used_experts,
)
from condensery.methods.shrp.recipe import ShrpRecipe
from condensery.methods.trainer.method import Draw, Loss, Method, TrainingSetup
from condensery.methods.trainer.optimizer import Group, split_groups
from condensery.methods.trainer.trainer import run_training
from condensery.networks.dtypes import dtype_name
from condensery.networks.shrp import Experts

NEW = ("expander.", "gate.", "classifier.")  # parts that start from random weights


class Task(Protocol):
    """What a network is to do: its rows, its loss, and how well it does.

    Attributes:
        kind: Of the model that it makes: encoder, classifier, reranker.
        epoch_steps: Steps of an epoch.
        fingerprint: Of the data.
    """

    kind: str
    epoch_steps: int
    fingerprint: str

    def batch(self, draw: Draw, device: torch.device) -> Any:
        """Return the batch of a draw."""
        ...

    def loss(self, network: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss, and its parts by name."""
        ...

    def evaluate(self, network: nn.Module) -> dict[str, float]:
        """Return figures on the validation rows; every one of them runs through the network."""
        ...


class ShrpTraining(Method[nn.Module, Any]):
    """The training of a network for a task, with or without layers that are converted.

    Args:
        network: transformers': a base model, or a classifier.
        task: What it is to do.
        recipe: How.
        epochs: All of this run's.
        identity: What a run that goes on must share, beside recipe and data.
        setup: Where.
        conversion: Of some of its layers: one more at the start of each epoch.
    """

    def __init__(
        self,
        network: nn.Module,
        task: Task,
        recipe: ShrpRecipe,
        epochs: int,
        identity: Mapping[str, Any],
        setup: TrainingSetup,
        conversion: Conversion | None = None,
    ) -> None:
        self.module, self._task, self._own_recipe = network, task, recipe
        self._conversion, self._device = conversion, setup.device
        self.recipe = recipe.trainer(epochs, task.epoch_steps, setup.every)
        setup.place(network)
        self.identity = {
            **identity,
            "recipe": dict(recipe.identity()),
            "data": task.fingerprint,
            "dtype": dtype_name(setup.dtype),
            "order": list(conversion.order) if conversion else [],
        }

    def batch(self, draw: Draw) -> Any:
        """Return the task's batch."""
        return self._task.batch(draw, self._device)

    def loss(self, batch: Any) -> Loss:
        """Return the task's loss; while layers are still converted, with the balance loss."""
        total, terms = self._task.loss(self.module, batch)
        count = len(batch.names)
        if self._balanced and self._conversion is not None:
            terms["balance"] = balance_loss([*self._conversion.running.values()])
            total = total + self._own_recipe.balance * terms["balance"]
        return Loss(total, count, count, terms)

    def groups(self) -> list[Group]:
        """Return all parameters, those that start anew at a rate of their own."""
        recipe = self._own_recipe

        def rate(name: str) -> float:
            new = any(part in name for part in NEW)
            return recipe.new_rate or recipe.rate if new else recipe.rate

        return split_groups(self.module, rate, recipe.weight_decay)

    def prepare_step(self, step: int) -> None:
        """Convert one more layer at the start of each epoch, until all are."""
        epoch = step // self._task.epoch_steps
        self._balanced = self._conversion is not None and epoch < len(self._conversion.order)
        if self._conversion is not None:
            self._conversion.convert(epoch + 1)

    def evaluate(self) -> dict[str, object]:
        """Return the task's figures, and how many experts each layer uses in effect."""
        experts = self._conversion.running if self._conversion is not None else {}
        with counted(experts) as usage:
            figures: dict[str, object] = dict(self._task.evaluate(self.module))
        for number, counts in usage.items():
            figures[f"layer {number}"] = {"experts used": used_experts(counts)}
        return figures


def tune_network(
    network: nn.Module,
    task: Task,
    recipe: ShrpRecipe,
    epochs: int,
    out: Path,
    *,
    identity: Mapping[str, Any],
    setup: TrainingSetup,
) -> None:
    """Tune a network as it is, to the last step, or go on from what ``out`` holds; in place.

    Raises:
        TrainingStopped: As ``run_training`` says.
    """
    method = ShrpTraining(network, task, recipe, epochs, identity, setup)
    run_training(method, out, setup.processes)


class Converted:
    """What came of a conversion.

    Attributes:
        experts: Which heads are left of which layers.
        usage: By layer, how many validation rows each expert attended for, (heads,).
        routed: Figures with all experts, just before the others went.
        pruned: Figures of the static network.
    """

    def __init__(
        self,
        experts: Experts,
        usage: Mapping[int, Tensor],
        routed: Mapping[str, float],
        pruned: Mapping[str, float],
    ) -> None:
        self.experts, self.usage = experts, usage
        self.routed, self.pruned = routed, pruned


def convert_network(
    network: nn.Module,
    base: nn.Module,
    task: Task,
    recipe: ShrpRecipe,
    order: Sequence[int],
    keep: int,
    out: Path,
    *,
    identity: Mapping[str, Any],
    setup: TrainingSetup,
) -> Converted:
    """Convert layers, let experts specialise, count their use and prune them; in place.

    Args:
        network: transformers': a base model, or a classifier.
        base: The base model in it.
        task: What it is to do.
        recipe: How.
        order: Layers, in the order in which they are converted.
        keep: Experts that stay of each.
        out: Folder for checkpoints and log; a run that was killed goes on from it.
        identity: What else a run that goes on must share with this one.
        setup: Where.

    Raises:
        InputError: The network can't be converted so; the field is named.
        TrainingStopped: As ``run_training`` says.
    """
    conversion = Conversion(
        base,
        order,
        top_k=recipe.top_k,
        straight_through=recipe.straight_through,
        scale=recipe.expander_scale,
        seed=recipe.seed,
    )
    epochs = len(conversion.order) + recipe.extra_epochs
    method = ShrpTraining(network, task, recipe, epochs, identity, setup, conversion)
    run_training(method, out, setup.processes)
    conversion.convert(len(conversion.order))
    layers = conversion.running
    with counted(layers) as usage:
        routed = task.evaluate(network)
    conversion.finish()
    total = int(base.config.num_hidden_layers)  # type: ignore[union-attr, arg-type]
    experts = prune_experts(layers, usage, keep, total)
    return Converted(experts, usage, routed, task.evaluate(network))
