"""Where the sequences of a packed row lie: end to end, with no padding but inside the attention."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

# On a CPU, softmax over a key length that is not a multiple of 16 (one AVX-512 register of
# fp32) ends in a scalar loop: 122 keys take twice as long as 128. Keys are therefore padded to
# a multiple of 16, inside the attention only; all else stays free of padding.
KEY_MULTIPLE = 16


@dataclass(frozen=True, slots=True)
class Bucket:
    """Sequences whose lengths round up to the same ``length``, padded to it.

    Attributes:
        start: Their first row in the padded layout.
        mask: 0 at real keys and -inf at padding, (sequences, 1, 1, length); None if none is padded.
    """

    start: int
    sequences: int
    length: int
    mask: Tensor | None

    def split(self, rows: Tensor) -> Tensor:
        """Cut this bucket out of ``rows`` (padded, heads, size).

        Returns:
            (sequences, heads, length, size).
        """
        mine = rows[self.start : self.start + self.sequences * self.length]
        return mine.view(self.sequences, self.length, *rows.shape[1:]).transpose(1, 2)


class Packing:
    """Where each sequence lies in a packed row, worked out once for a whole forward pass.

    Attributes:
        lengths: Tokens of each sequence, in the row's order.
        total: Length of the row: the sequences, then filler that no sequence sees.
        dtype: Of the forward pass (the padding mask is added to its scores).
        wanted: Rows whose last hidden states are read, (wanted,); None: all of them. Others may
            hold anything (``networks.last_layer``).
    """

    def __init__(
        self, lengths: tuple[int, ...], total: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.lengths = lengths
        self.total = total
        self.device = device
        self.dtype = dtype
        self.wanted: Tensor | None = None
        self._lengths = np.asarray(lengths, dtype=np.int64)
        self._ends = np.cumsum(self._lengths)
        self._starts = self._ends - self._lengths

    @classmethod
    def of(
        cls,
        lengths: Sequence[int],
        *,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        total_multiple: int = 1,
    ) -> "Packing":
        """Pack sequences of these lengths.

        Args:
            lengths: Tokens of each sequence, each at least 1.
            dtype: The forward pass's.
            device: The forward pass's.
            total_multiple: Round the row up to a multiple of this with filler. oneDNN prepares
                a kernel for each new number of rows, so a CPU likes few different ones.

        Raises:
            ValueError: No sequence, or an empty one.
        """
        if not lengths or min(lengths) < 1:
            raise ValueError(f"can't pack sequences of lengths {list(lengths)[:8]}")
        total = -(-sum(lengths) // total_multiple) * total_multiple
        return cls(tuple(lengths), total, torch.device(device), dtype)

    @property
    def longest(self) -> int:
        """The longest sequence, tokens."""
        return max(self.lengths)

    @property
    def row_ends(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Row after each sequence's last, (sequences,)."""
        return self._ends

    @cached_property
    def cu_seqlens(self) -> Tensor:
        """Where each sequence starts, and where the last ends: (sequences + 1,), int32."""
        return self._tensor(np.concatenate([[0], self._ends]).astype(np.int32))

    @cached_property
    def starts(self) -> Tensor:
        """Row of each sequence's first token, (sequences,)."""
        return self._tensor(self._starts)

    @cached_property
    def ends(self) -> Tensor:
        """Row of each sequence's last token, (sequences,)."""
        return self._tensor(self._ends - 1)

    @cached_property
    def sequence_ids(self) -> Tensor:
        """Which sequence each real token belongs to, (real tokens,)."""
        return self._tensor(np.repeat(np.arange(len(self.lengths)), self._lengths))

    @cached_property
    def position_ids(self) -> Tensor:
        """Each token's place in its own sequence, (1, total), int64; 0 at filler."""
        places = np.arange(self._ends[-1]) - np.repeat(self._starts, self._lengths)
        return self.row(places)

    def row(self, values: Sequence[int] | np.ndarray[Any, Any], fill: int = 0) -> Tensor:
        """Make one int64 row (1, total) of the sequences' values end to end, ``fill`` at filler."""
        row = np.full((1, self.total), fill, dtype=np.int64)
        row[0, : len(values)] = values
        return self._tensor(row)

    def _tensor(self, array: np.ndarray[Any, Any]) -> Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)

    @cached_property
    def _padded(self) -> tuple[Tensor | None, Tensor | None, tuple[Bucket, ...]]:
        """Row of each padded place, padded place of each row, and the buckets.

        Both indexes are None where the packed row is the padded layout already.
        """
        padded = -(-self._lengths // KEY_MULTIPLE) * KEY_MULTIPLE
        # Stable: sequences of one bucket stay in order, so equal lengths need no gather at all.
        order = np.argsort(padded, kind="stable")
        gather: list[np.ndarray[Any, Any]] = []
        scatter = np.zeros(self.total, dtype=np.int64)
        buckets: list[Bucket] = []
        start = 0
        for length, group in groupby(order, key=lambda sequence: int(padded[sequence])):
            members = np.fromiter(group, dtype=np.int64)
            real = self._lengths[members][:, None]
            place = np.arange(length)[None, :]
            # Padding repeats the sequence's last token: finite, and masked out as a key.
            rows = self._starts[members][:, None] + np.minimum(place, real - 1)
            inside = place < real
            gather.append(rows.reshape(-1))
            scatter[rows[inside]] = start + np.flatnonzero(inside)
            mask = None
            if not inside.all():
                outside = self._tensor(~inside)[:, None, None, :]
                mask = torch.zeros(outside.shape, dtype=self.dtype, device=self.device)
                mask.masked_fill_(outside, -torch.inf)
            buckets.append(Bucket(start, len(members), length, mask))
            start += rows.size
        gathered = np.concatenate(gather)
        if np.array_equal(gathered, np.arange(self.total)):
            return None, None, tuple(buckets)
        return self._tensor(gathered), self._tensor(scatter), tuple(buckets)

    def pad(self, rows: Tensor) -> Tensor:
        """Lay packed rows (total, ...) out in buckets (padded, ...)."""
        gather = self._padded[0]
        return rows if gather is None else rows.index_select(0, gather)

    def unpad(self, rows: Tensor) -> Tensor:
        """Undo ``pad``; filler gets some finite row."""
        scatter = self._padded[1]
        return rows if scatter is None else rows.index_select(0, scatter)

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """The padded layout's buckets, shortest first."""
        return self._padded[2]
