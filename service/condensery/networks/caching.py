"""Keys and values of many sequences in one cache, and where a step's rows belong in it.

A step's rows lie one after another, without padding: single tokens of sequences that are being
generated first, then pieces of prompts.

    step = Step(cache, [Span(places, start=41, count=1), Span(places, start=0, count=128)])
    model(inputs_embeds=..., position_ids=step.position_ids, step=step, use_cache=False)

Writing is idempotent: a step that has failed half-way can be run again, or in halves.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from condensery.networks.packing import Packing

# Positions that are given out together.
BLOCK = 16
# oneDNN prepares each product for each new number of rows: 0.4 ms and up to 0.6 MB. On a CPU a
# step's rows are therefore rounded up with filler, to less where a few rows are a large part of it;
# not those that are read of it, which are as many as sequences at most.
EXACT_ROWS = 16
FEW_ROWS, FEW_MULTIPLE, MULTIPLE = 64, 8, 16

CachePositions = np.ndarray[Any, np.dtype[np.int64]]
# Where keys lie: side by side, so that nothing has to be gathered, or anywhere.
KeyPositions: TypeAlias = slice | Tensor


class Cache:
    """Keys and values of every layer, by position; who owns which position is decided elsewhere.

    There is one block more than asked for, ``spare``, that nobody owns.

    Args:
        layers: Of the model.
        positions: How many there are, for all sequences together.
        heads: Key heads.
        size: Of a head.
        dtype: The model's.
        device: The model's.

    Attributes:
        positions: As given.
        spare: Number of the spare block.
    """

    def __init__(
        self,
        layers: int,
        positions: int,
        heads: int,
        size: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.positions = positions
        self.spare = -(-positions // BLOCK)
        rows = (self.spare + 1) * BLOCK
        # Not zeros: on a CPU, memory that was never written takes no room.
        self._memory = torch.empty(layers, 2, rows, heads, size, dtype=dtype, device=device)

    @property
    def layers(self) -> int:
        """Of the model."""
        return self._memory.shape[0]

    @property
    def rows(self) -> int:
        """Positions, those of the spare block too."""
        return self._memory.shape[2]

    @property
    def dtype(self) -> torch.dtype:
        """The model's."""
        return self._memory.dtype

    @property
    def device(self) -> torch.device:
        """The model's."""
        return self._memory.device

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Return a layer's keys and values, (positions and the spare block, heads, size) each."""
        keys, values = self._memory[index]
        return keys, values

    def tensor(self, array: np.ndarray[Any, Any]) -> Tensor:
        """Bring an array to the cache's device."""
        return torch.from_numpy(array).to(self.device, non_blocking=True)

    def copy(self, places: CachePositions) -> Tensor:
        """Return what these positions hold, (layers, 2, positions, heads, size)."""
        return self._memory[:, :, self.tensor(places)]

    def put(self, places: CachePositions, rows: Tensor) -> None:
        """Write to positions what ``copy`` gave."""
        self._memory.index_copy_(2, self.tensor(places), rows)


@dataclass(frozen=True, slots=True)
class Prefix:
    """Keys and values of tokens that prompts begin with, so that each need not read them again.

    Attributes:
        ids: The tokens'.
        rows: As ``Cache.copy`` gives them, at positions from 0 on.
    """

    ids: tuple[int, ...]
    rows: Tensor

    def begins(self, part: Sequence[int] | Tensor) -> bool:
        """Tell whether a prompt's first part begins with the tokens."""
        return not isinstance(part, Tensor) and tuple(part[: len(self.ids)]) == self.ids


@dataclass(frozen=True, slots=True)
class Span:
    """The rows of one sequence in a step.

    Attributes:
        places: Of the sequence's positions in the cache, in order, those to come included.
        start: Position of the first row.
        count: Rows.
    """

    places: CachePositions
    start: int
    count: int

    @property
    def end(self) -> int:
        """Position after the last row."""
        return self.start + self.count


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a prompt: rows ``first`` to ``last`` of a step, ``start`` positions before it."""

    first: int
    last: int
    start: int


class Step:
    """Where a step's rows go in the cache and what each sees, worked out once for all layers.

    Args:
        cache: What is read and written.
        spans: Whose rows they are, in order; those of one row come first.

    Attributes:
        cache: What is read and written.
        total: Rows of the sequences.
        padded: Those and filler behind them, which nobody sees and whose places are spare.
        singles: The first so many rows are sequences of their own, one token each.
        chunks: What the other rows are.
        position_ids: (1, padded).
        places: Where each row is written, (padded,).
        last: Row of each span's last token, (spans,).
        visits: How many layers have called; a model whose attention is another one never does.
        wanted: Rows whose last hidden states are read, (wanted,); None: all of them.
    """

    def __init__(self, cache: Cache, spans: Sequence[Span]) -> None:
        singles = sum(span.count == 1 for span in spans)
        if not spans or any(span.count != 1 for span in spans[:singles]):
            raise ValueError("a step needs rows, and single tokens come first")
        self.cache = cache
        self.singles = singles
        self.visits = 0
        self.wanted: Tensor | None = None
        self._spans = spans
        ends = np.cumsum([span.count for span in spans])
        self.total = int(ends[-1])
        self.padded = _round_up(self.total) if cache.device.type == "cpu" else self.total
        filler = np.zeros(self.padded - self.total, dtype=np.int64)
        self.position_ids = cache.tensor(
            np.concatenate([*(np.arange(span.start, span.end) for span in spans), filler])
        )[None]
        places = np.concatenate(
            [*(span.places[span.start : span.end] for span in spans), filler + cache.spare * BLOCK]
        )
        # Kernels write there without looking.
        if len(places) != self.padded or places.min() < 0 or places.max() >= cache.rows:
            raise ValueError(f"{len(places)} places for {self.padded} rows, or not in the cache")
        self.places = cache.tensor(places)
        self.last = cache.tensor(ends - 1)
        self.chunks = [
            Chunk(int(end) - span.count, int(end), span.start)
            for span, end in zip(spans[singles:], ends[singles:], strict=True)
        ]
        self._seen: dict[int | None, list[KeyPositions]] = {}
        self._singles_seen: dict[int | None, tuple[CachePositions, CachePositions]] = {}

    def seen(self, window: int | None) -> list[KeyPositions]:
        """Return where the keys are that each span sees; a single row's no more than a window."""
        if window not in self._seen:
            self._seen[window] = [
                self._keys(span, window if span.count == 1 else None) for span in self._spans
            ]
        return self._seen[window]

    def singles_see(self, window: int | None) -> tuple[CachePositions, CachePositions]:
        """Return where the keys are that the single rows see, row after row, and where each ends.

        Args:
            window: They see so many, their own included; None is all.

        Returns:
            (keys,), and (singles + 1,) with where each row's begin.
        """
        if window not in self._singles_seen:
            of_rows = [
                span.places[0 if window is None else max(0, span.end - window) : span.end]
                for span in self._spans[: self.singles]
            ]
            ends = np.cumsum([0, *map(len, of_rows)])
            self._singles_seen[window] = np.concatenate(of_rows), ends
        return self._singles_seen[window]

    def _keys(self, span: Span, window: int | None) -> KeyPositions:
        first = 0 if window is None else max(0, span.end - window)
        places = span.places[first : span.end]
        begin = int(places[0])
        if np.array_equal(places, np.arange(begin, begin + len(places))):
            return slice(begin, begin + len(places))
        return self.cache.tensor(places)

    @cached_property
    def keys(self) -> Tensor:
        """Places of the keys that each span sees, all spans' one after another."""
        return self.cache.tensor(np.concatenate([span.places[: span.end] for span in self._spans]))

    @cached_property
    def prompts(self) -> tuple[Tensor, Packing] | None:
        """The rows of the prompts that begin here, and where each lies among them; None: none do.

        Of single rows, which see what they see, there are none.
        """
        begins = [chunk for chunk in self.chunks if not chunk.start]
        if not begins:
            return None
        rows = np.concatenate([np.arange(chunk.first, chunk.last) for chunk in begins])
        lengths = [chunk.last - chunk.first for chunk in begins]
        packing = Packing.of(lengths, dtype=self.cache.dtype, device=self.cache.device)
        return self.cache.tensor(rows), packing

    @cached_property
    def ends(self) -> tuple[Tensor, Tensor, int, int]:
        """Where each span's rows and its keys end, each from 0, int32; the most of each."""
        rows = [span.count for span in self._spans]
        keys = [span.end for span in self._spans]
        ends = [
            self.cache.tensor(np.cumsum([0, *counts]).astype(np.int32)) for counts in (rows, keys)
        ]
        return ends[0], ends[1], max(rows), max(keys)


def _round_up(rows: int) -> int:
    if rows <= EXACT_ROWS:
        return rows
    multiple = FEW_MULTIPLE if rows <= FEW_ROWS else MULTIPLE
    return -(-rows // multiple) * multiple
