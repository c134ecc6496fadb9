"""A few rows of a frozen embedding table that learn: those of new tokens."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class OwnRows(nn.Module):
    """An embedding table that stays as it is but for a few rows, which are parameters.

    Training the table whole for the sake of a separator would cost an optimizer's state for
    every word, and put the table into every checkpoint.

    Args:
        table: (vocabulary, hidden).
        ids: Of the tokens whose rows learn, ascending.

    Attributes:
        weight: The table, its rows of ``ids`` as they were at first.
        own: The rows of ``ids``, (ids, hidden).
    """

    def __init__(self, table: nn.Parameter, ids: Sequence[int]) -> None:
        super().__init__()
        self.weight = table
        self.own = nn.Parameter(table.detach()[list(ids)].clone())
        self.ids = nn.Buffer(torch.tensor(ids, device=table.device), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the rows of ``ids`` (...), (..., hidden)."""
        found = F.embedding(ids, self.weight)
        hits = ids[..., None] == self.ids
        own = F.embedding(hits.int().argmax(-1), self.own)
        return torch.where(hits.any(-1, keepdim=True), own, found)

    def merged(self) -> Tensor:
        """Return the table with its own rows in it."""
        table = self.weight.detach().clone()
        table[self.ids] = self.own.detach()
        return table


class TiedHead(nn.Module):
    """An output layer whose weight is such a table.

    Args:
        rows: The table; not a part of this module, so that it has one name.
    """

    def __init__(self, rows: OwnRows) -> None:
        super().__init__()
        self._rows = (rows,)

    @property
    def weight(self) -> Tensor:
        """The table."""
        return self._rows[0].weight

    def forward(self, hidden: Tensor) -> Tensor:
        """Score every token after ``hidden`` (..., hidden), (..., vocabulary)."""
        (rows,) = self._rows
        scores = F.linear(hidden, rows.weight)
        return scores.index_copy(-1, rows.ids, F.linear(hidden, rows.own))
