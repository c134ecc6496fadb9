"""What a method gives the trainer: batches by the draw, and the loss of each."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


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
