"""One token of each sequence, in shapes that never change: what a CUDA graph can be made of.

``Tokens`` has a row for so many sequences; rows without one read and write the cache's spare block.
All that differs between steps is in its tensors, so that a captured forward pass can be run again.
Keys are found by a table of blocks, however many there are, so nothing is gathered or padded.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from condensery.networks.caching import BLOCK, Cache, CachePositions, Span

NOBODY: CachePositions = np.zeros(0, dtype=np.int64)


class Tokens:
    """Where a token of each sequence goes in the cache, and what it sees.

    Args:
        cache: What is read and written.
        rows: How many sequences there can be.
        longest: Positions of the longest one.

    Attributes:
        cache: What is read and written.
        total: Rows.
        position_ids: (1, rows).
        places: Where each row is written, (rows,).
        table: Blocks that each row's sequence has, in order, (rows, blocks), int32.
        ends: Positions that each row sees, its own included, (rows,), int32.
        visits: How many layers have called.
        wanted: None: every row is read (as ``Step.wanted``).
    """

    wanted: None = None

    @property
    def padded(self) -> int:
        """As ``Step.padded``: rows without a sequence are rows like others here."""
        return self.total

    def __init__(self, cache: Cache, rows: int, longest: int) -> None:
        self.cache = cache
        self.total = rows
        self.visits = 0
        device, blocks = cache.device, -(-longest // BLOCK)
        self.position_ids = torch.zeros(1, rows, dtype=torch.int64, device=device)
        self.places = torch.zeros(rows, dtype=torch.int64, device=device)
        self.table = torch.full((rows, blocks), cache.spare, dtype=torch.int32, device=device)
        self.ends = torch.zeros(rows, dtype=torch.int32, device=device)
        self._owners: list[CachePositions] = [NOBODY] * rows  # whose blocks the table's rows hold
        self._blocks = np.full((rows, blocks), cache.spare, dtype=np.int32)
        self.fill([])

    def first(self, rows: int) -> "Tokens":
        """Return the first rows, in the same memory."""
        part = Tokens.__new__(Tokens)
        part.cache, part.total, part.visits = self.cache, rows, 0
        part.position_ids, part.places = self.position_ids[:, :rows], self.places[:rows]
        part.table, part.ends = self.table[:rows], self.ends[:rows]
        part._owners, part._blocks = self._owners, self._blocks[:rows]
        return part

    def fill(self, spans: Sequence[Span]) -> None:
        """Write where these sequences are, one row each, into the first rows.

        Their places lie in whole blocks: position ``i`` in the block of position ``i - i % BLOCK``.
        """
        rows, count = self.total, len(spans)
        positions, ends = np.zeros((1, rows), dtype=np.int64), np.ones(rows, dtype=np.int32)
        positions[0, :count] = [span.start for span in spans]
        ends[:count] = [span.end for span in spans]
        places = np.full(rows, self.cache.spare * BLOCK, dtype=np.int64)
        places[:count] = [span.places[span.start] for span in spans]
        self._own([span.places for span in spans] + [NOBODY] * (rows - count))
        for target, values in (
            (self.position_ids, positions),
            (self.places, places),
            (self.ends, ends),
        ):
            target.copy_(self.cache.tensor(values))

    def _own(self, owners: Sequence[CachePositions]) -> None:
        """Write the table's rows that are other sequences' than in the step before."""
        widest = 0
        for row, owner in enumerate(owners):
            if owner is self._owners[row]:
                continue
            blocks = owner[::BLOCK][: self._blocks.shape[1]] // BLOCK
            self._blocks[row, : len(blocks)] = blocks
            if owner is NOBODY:
                self._blocks[row, 0] = self.cache.spare
            self._owners[row] = owner
            widest = max(widest, len(blocks), 1)
        if widest:
            changed = np.ascontiguousarray(self._blocks[:, :widest])
            self.table[:, :widest].copy_(self.cache.tensor(changed))


def paged_attention(
    tokens: Tokens,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    scale: float,
    window: int | None = None,
) -> Tensor:
    """Let each row see its own sequence's keys.

    Args:
        tokens: Where they are.
        query: (rows, heads, size).
        keys: Of the whole cache, (positions, key heads, size).
        values: As ``keys``.
        scale: Of the scores.
        window: A row sees so many keys, its own included; None is all.

    Returns:
        (rows, heads, size).
    """
    if query.is_cuda:
        # Imported here: Triton comes with torch's CUDA builds only.
        from condensery.networks.paging_kernel import paged_attention_kernel

        return paged_attention_kernel(
            query, keys, values, tokens.table, tokens.ends, scale=scale, window=window or 0
        )
    return _by_formula(tokens, query, keys, values, scale, window)


def _by_formula(
    tokens: Tokens, query: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None
) -> Tensor:
    """Attend over each row's whole table: slow, and what the kernel is held against."""
    count, heads, size = query.shape
    shared = keys.shape[1]
    place = torch.arange(BLOCK, device=query.device)
    places = (tokens.table[:, :, None].long() * BLOCK + place).flatten(1)
    grouped = query.float().reshape(count, shared, heads // shared, size)
    scores = torch.einsum("rsgd,rksd->rsgk", grouped, keys[places].float()) * scale
    position = torch.arange(places.shape[1], device=query.device)
    hidden = position >= tokens.ends[:, None]
    if window is not None:
        hidden |= position < tokens.ends[:, None] - window
    weights = scores.masked_fill(hidden[:, None, None], -torch.inf).softmax(dim=-1)
    # What was never written may be NaN, and 0 x NaN is NaN.
    read = values[places].float().masked_fill(hidden[..., None, None], 0.0)
    return torch.einsum("rsgk,rksd->rsgd", weights, read).to(query.dtype).reshape(query.shape)
