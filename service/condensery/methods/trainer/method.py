"""What a method gives the trainer: its network, batches, loss, groups of parameters, figures.

A method is a subclass of ``Method``; ``trainer.run_training`` does the rest. How one is made is
told in CONTRIBUTING.md, "A new training".
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from condensery.errors import shorten
from condensery.methods.trainer.optimizer import Group
from condensery.methods.trainer.processes import Processes
from condensery.methods.trainer.recipe import TrainerRecipe
from condensery.runtime.device import choose_dtype

M = TypeVar("M", bound=nn.Module)
B = TypeVar("B")


@dataclass(frozen=True, slots=True)
class TrainingSetup:
    """Where a run computes and how often it saves: what the command line gives every method.

    Attributes:
        device: Where the network is.
        dtype: Of the weights in the forward pass; by default what the device multiplies best.
        every: Steps between checkpoints, each with an evaluation.
        command: The command line, for the card.
        processes: Those that train together.
    """

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dtype: torch.dtype = None  # type: ignore[assignment]  # chosen by __post_init__
    every: int = 500
    command: str = ""
    processes: Processes = field(default_factory=Processes)

    def __post_init__(self) -> None:
        """Choose the dtype where none was."""
        if self.dtype is None:
            object.__setattr__(self, "dtype", choose_dtype(self.device))

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that writes."""
        return self.processes.rank == 0

    def place(self, module: nn.Module) -> None:
        """Move a network to the device and the dtype."""
        nn.Module.to(module, device=self.device, dtype=self.dtype)  # PreTrainedModel types its own
        # SDPA's backward pass is slow in bf16 on a CPU.
        if self.device.type == "cpu" and isinstance(module, PreTrainedModel):
            module.set_attn_implementation("eager")


@dataclass(frozen=True, slots=True)
class Draw:
    """Which batch is asked for: the ``part``-th of ``parts`` in a step.

    What a batch holds may depend on nothing else, so that a resumed run sees what the first
    would have seen. Batches of a step are spread over processes and accumulation alike.
    """

    seed: int
    step: int
    part: int = 0
    parts: int = 1

    def rng(self) -> random.Random:
        """Return where the batch's chance comes from."""
        part = f" {self.part}" if self.part else ""
        return random.Random(f"{self.seed} {self.step}{part}")

    def seed_torch(self) -> None:
        """Seed torch for the forward pass (dropout): no random state outlives a batch."""
        torch.manual_seed((self.seed * 1_000_003 + self.step + self.part * 7_368_787) % 2**63)


class Epochs:
    """Every row once an epoch, in a new order each.

    Args:
        count: Rows.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._orders: dict[tuple[int, int], NDArray[np.int64]] = {}

    def __call__(self, seed: int, number: int) -> int:
        """Return the row that is the ``number``-th drawn of all."""
        epoch, at = divmod(number, self._count)
        if (seed, epoch) not in self._orders:
            # A batch may lie across two epochs; no more are kept.
            self._orders = {k: v for k, v in self._orders.items() if k == (seed, epoch - 1)}
            order = np.random.default_rng((seed, epoch)).permutation(self._count)
            self._orders[seed, epoch] = order
        return int(self._orders[seed, epoch][at])


@dataclass(frozen=True, slots=True)
class Loss:
    """What a batch is to lower.

    Attributes:
        total: Mean over the batch, a scalar.
        weight: What the mean is over (tokens, items): the step's loss is the mean over all of
            its batches, weighted by it.
        items: Examples seen, for the log.
        terms: Parts of the total, by name, for the log.
    """

    total: Tensor
    weight: float = 1.0
    items: int = 1
    terms: Mapping[str, Tensor] = field(default_factory=dict)

    def detached(self) -> "Loss":
        """Return it without its graph, to be summed once the step is done."""
        terms = {name: term.detach() for name, term in self.terms.items()}
        return replace(self, total=self.total.detach(), terms=terms)


class Method(ABC, Generic[M, B]):
    """One way of making a model, for ``run_training``.

    What it needs (data, tokenizer, teacher) a subclass takes in its own ``__init__``.

    Attributes:
        module: The network; bf16 weights get fp32 masters.
        recipe: Steps, learning rates over time, checkpoints.
        identity: What a resumed run must share with the one that began it, beside the recipe
            (shapes, fingerprints of the data); JSON.
    """

    module: M
    recipe: TrainerRecipe
    identity: Mapping[str, Any]

    @abstractmethod
    def batch(self, draw: Draw) -> B:
        """Return the batch of a draw, which depends on the draw alone."""

    @abstractmethod
    def loss(self, batch: B) -> Loss:
        """Run the network on a batch, with gradients; all terms are logged and plotted."""

    @abstractmethod
    def groups(self) -> Sequence[Group]:
        """Return the parameters that learn, with their learning rates; others stay."""

    def names(self, batch: B) -> Sequence[str]:
        """Return what a batch's items are called, for when a run stops for one.

        By default what the batch itself has as ``names``.
        """
        names: Sequence[str] = getattr(batch, "names", None) or [shorten(batch)]
        return names

    def weights(self) -> Mapping[str, Tensor]:
        """Return what a checkpoint holds of the network; by default all of its state."""
        return whole_state(self.module)

    def prepare_step(self, step: int) -> None:
        """Set the network up for a step, counted from 0, as its number alone decides.

        Called before each step, and before the evaluation of a resumed run: a layer converted,
        a weight of the loss changed, a part frozen.
        """

    def evaluate(self) -> Mapping[str, object] | None:
        """Return figures of the network on held-out data, after each checkpoint; None for none.

        The network is in evaluation mode, without gradients, in the first process alone.
        """
        return None

    def write(self, out: Path) -> None:
        """Write the finished model beside the checkpoints, in the first process alone."""


def whole_state(module: nn.Module) -> dict[str, Tensor]:
    """Return all of a network's tensors; one that has several names, by the first."""
    seen: set[int] = set()
    state = {}
    for name, value in module.state_dict(keep_vars=True).items():
        if id(value) not in seen:
            seen.add(id(value))
            state[name] = value.detach()
    return state


def learning_state(module: nn.Module) -> dict[str, Tensor]:
    """Return the weights that learn, by name: what a checkpoint need hold beside a stored base."""
    return {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}
