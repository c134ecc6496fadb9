"""Who owns which positions of the key/value cache."""

import numpy as np

from condensery.networks.caching import BLOCK, Places


def blocks_for(positions: int) -> int:
    """Return how many blocks so many positions take."""
    return -(-positions // BLOCK)


class Blocks:
    """Positions in blocks of ``BLOCK``, given out and taken back; the caller holds a lock.

    Args:
        positions: How many there are; what is left of them after the last whole block is unused.
    """

    def __init__(self, positions: int) -> None:
        self.count = positions // BLOCK
        self._free = np.ones(self.count, dtype=np.bool_)
        self.free = self.count  # blocks that nobody has

    @property
    def used(self) -> int:
        """Blocks that somebody has."""
        return self.count - self.free

    def take(self, count: int) -> list[int]:
        """Give out ``count`` blocks; there are so many.

        Blocks side by side, where there are any: what lies so is read without gathering it. The
        first ones first: memory that was never used stays untouched.
        """
        assert 0 < count <= self.free
        free = np.flatnonzero(self._free)
        runs = np.flatnonzero(free[count - 1 :] - free[: len(free) - count + 1] == count - 1)
        first = int(runs[0]) if runs.size else 0
        taken = free[first : first + count]
        self._free[taken] = False
        self.free -= count
        return [int(block) for block in taken]

    def give_back(self, blocks: list[int]) -> None:
        """Take blocks back."""
        assert not self._free[blocks].any()
        self._free[blocks] = True
        self.free += len(blocks)


def places_of(blocks: list[int]) -> Places:
    """Return the positions in these blocks, in order."""
    first = np.asarray(blocks, dtype=np.int64)[:, None] * BLOCK
    return (first + np.arange(BLOCK)).reshape(-1)
