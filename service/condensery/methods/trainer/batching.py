"""Rows of tokens: drawn by the epoch with those of like length together, and padded at the end."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from condensery.methods.trainer.method import Draw

EVALUATED_TOKENS = 8192  # of a batch that is only read, padding included
POOLED = 16  # batches among whose rows those of like length are put together


@dataclass(frozen=True, slots=True)
class Tokens:
    """A text, or a pair of texts.

    Attributes:
        ids: Token ids, special ones included.
        types: As many, 1 for the second text; empty for networks without.
    """

    ids: Sequence[int]
    types: Sequence[int] = ()


def collate(rows: Sequence[Tokens], padding: int, device: torch.device) -> dict[str, Tensor]:
    """Pad rows at their ends to the longest: what a network is called with."""
    longest = max(len(row.ids) for row in rows)
    ids = torch.full((len(rows), longest), padding, dtype=torch.long)
    mask = torch.zeros_like(ids)
    types = torch.zeros_like(ids)
    for place, row in enumerate(rows):
        ids[place, : len(row.ids)] = torch.tensor(row.ids)
        types[place, : len(row.types)] = torch.tensor(row.types, dtype=torch.long)
        mask[place, : len(row.ids)] = 1
    inputs = {"input_ids": ids, "attention_mask": mask}
    if rows[0].types:
        inputs["token_type_ids"] = types
    return {name: value.to(device) for name, value in inputs.items()}


class LengthBuckets:
    """Every row once an epoch, in a new order each; a batch's rows are of like length.

    The shuffled rows of 16 batches are sorted by length and cut into batches, whose order is then
    shuffled: a few per cent of padding instead of half.

    Args:
        lengths: Tokens of each row.
        batch: Rows of a step.
        epoch_steps: Steps of an epoch; 0: as many as all rows take, the last batch filled up.
    """

    def __init__(self, lengths: Sequence[int], batch: int, epoch_steps: int = 0) -> None:
        self._lengths = np.asarray(lengths)
        self._batch = batch
        self.epoch_steps = epoch_steps or -(-len(lengths) // batch)
        self._epoch: tuple[int, int] | None = None
        self._rows: NDArray[np.int64] = np.empty((0, 0), dtype=np.int64)

    def __call__(self, draw: Draw) -> list[int]:
        """Return the rows of a draw's part of its step."""
        epoch, step = divmod(draw.step, self.epoch_steps)
        if self._epoch != (draw.seed, epoch):
            self._epoch, self._rows = (draw.seed, epoch), self._order(draw.seed, epoch)
        rows: list[int] = self._rows[step][draw.part :: draw.parts].tolist()
        return rows

    def _order(self, seed: int, epoch: int) -> NDArray[np.int64]:
        """Return the rows of all batches of an epoch, (steps, batch)."""
        rng = np.random.default_rng((seed, epoch))
        count, wanted = len(self._lengths), self.epoch_steps * self._batch
        rounds = [rng.permutation(count) for _ in range(-(-wanted // count))]
        rows = np.concatenate(rounds)[:wanted]
        size = POOLED * self._batch
        pools = [rows[start : start + size] for start in range(0, wanted, size)]
        ordered = [pool[np.argsort(self._lengths[pool], kind="stable")] for pool in pools]
        batches = np.concatenate(ordered).reshape(self.epoch_steps, self._batch)
        return rng.permutation(batches)


def by_length(rows: Sequence[Tokens], most: int) -> list[list[int]]:
    """Put rows of like length together, at most so many tokens with padding, for evaluation."""
    batches: list[list[int]] = []
    for place in sorted(range(len(rows)), key=lambda place: len(rows[place].ids)):
        longest = len(rows[place].ids)  # they ascend
        if not batches or longest * (len(batches[-1]) + 1) > most:
            batches.append([])
        batches[-1].append(place)
    return batches


def in_batches(rows: Sequence[Tokens], most: int, run: Callable[[list[Tokens]], Tensor]) -> Tensor:
    """Return what ``run`` makes of rows, (rows, ...), in their order.

    Args:
        rows: To be run, those of like length together.
        most: Tokens of a batch, padding included.
        run: From some of the rows to a tensor with a row each.
    """
    batches = by_length(rows, most)
    whole = torch.cat([run([rows[place] for place in batch]) for batch in batches])
    order = torch.tensor([place for batch in batches for place in batch], device=whole.device)
    out = torch.empty_like(whole)
    out[order] = whole
    return out
