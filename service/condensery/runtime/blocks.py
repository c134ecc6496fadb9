"""Who owns which positions of the key/value cache."""

import numpy as np

from condensery.networks.caching import Places

BLOCK = 16


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
        # What came back last is given out first: memory that was never used stays untouched.
        self._free = list(range(self.count - 1, -1, -1))

    @property
    def free(self) -> int:
        """Blocks that nobody has."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Blocks that somebody has."""
        return self.count - self.free

    def take(self, count: int) -> list[int]:
        """Give out ``count`` blocks; there are so many."""
        assert 0 < count <= self.free
        taken = self._free[-count:]
        del self._free[-count:]
        return taken[::-1]

    def give_back(self, blocks: list[int]) -> None:
        """Take blocks back."""
        self._free.extend(reversed(blocks))
        assert self.free <= self.count


def places_of(blocks: list[int]) -> Places:
    """Return the positions in these blocks, in order."""
    first = np.asarray(blocks, dtype=np.int64)[:, None] * BLOCK
    return (first + np.arange(BLOCK)).reshape(-1)
