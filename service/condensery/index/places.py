"""Which row stands at which place of a FAISS index, and which of them a search may return."""

from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from condensery.index.passages import Rows

_LEAST = 1024


class Places:
    """Rows in the order in which they were added, ascending; removed ones are tombstones.

    The caller keeps ``bury`` away from searches; rows may be appended beside them. What takes long,
    more room, is rare: it doubles.
    """

    def __init__(self) -> None:
        self._rows = np.empty(_LEAST, dtype=np.int64)
        self._alive = np.full(_LEAST // 8, 0xFF, dtype=np.uint8)  # a bit a place, the lowest first
        self._count = 0
        self._dead = 0

    def __len__(self) -> int:
        return self._count

    @property
    def tombstones(self) -> int:
        """How many rows are held that no search may return."""
        return self._dead

    @property
    def rows(self) -> Rows:
        """Every row, tombstones included; (count,), of which later changes change nothing."""
        return self._rows[: self._count]

    @property
    def last(self) -> int:
        """The highest row there is, tombstones included; 0 if there is none."""
        return int(self._rows[self._count - 1]) if self._count else 0

    def reserve(self, more: int) -> None:
        """Make room for so many more rows; after it ``append`` of them can't fail."""
        count = self._count + more
        if count > len(self._rows):
            room = max(2 * len(self._rows), -(-count // _LEAST) * _LEAST)
            more_rows, more_alive = np.empty(room, np.int64), np.full(room // 8, 0xFF, np.uint8)
            more_rows[: self._count] = self.rows
            more_alive[: len(self._alive)] = self._alive
            self._rows, self._alive = more_rows, more_alive

    def append(self, rows: Rows) -> None:
        """Put rows at the places that follow; they are over all there are, and ascending."""
        self.reserve(len(rows))
        self._rows[self._count : self._count + len(rows)] = rows
        self._count += len(rows)

    def of(self, rows: Rows) -> Rows:
        """Return where rows stand that are there."""
        return np.searchsorted(self.rows, rows)

    def bury(self, rows: Rows) -> None:
        """Make tombstones of rows that are there; of those that are tombstones, nothing."""
        places = self.of(np.unique(rows))
        bits = (1 << (places & 7)).astype(np.uint8)
        newly = (self._alive[places >> 3] & bits) != 0
        np.bitwise_and.at(self._alive, places[newly] >> 3, ~bits[newly])
        self._dead += int(newly.sum())

    def alive(self) -> NDArray[np.bool_]:
        """Return of each place whether its row is none of the tombstones."""
        bits = np.unpackbits(self._alive, count=self._count, bitorder="little")
        return bits.view(np.bool_)

    def dead(self) -> Rows:
        """Return the tombstones, ascending."""
        return self.rows[~self.alive()] if self._dead else np.empty(0, np.int64)

    def living(self) -> Rows:
        """Return the rows that are no tombstones, ascending."""
        return self.rows[self.alive()] if self._dead else self.rows

    def selector(self, allowed: Rows | None) -> Any:
        """Return what tells FAISS the places that it may return: a new one for each search.

        Args:
            allowed: Rows that are there, no tombstones; None for all that are none.
        """
        if allowed is not None:
            chosen = np.zeros(self._count, dtype=np.bool_)
            chosen[self.of(allowed)] = True
            return faiss.IDSelectorBitmap(np.packbits(chosen, bitorder="little"))
        return faiss.IDSelectorBitmap(self._alive) if self._dead else None
