"""Flat FAISS indexes over memory that is not FAISS's: they look at bytes, and copy none.

FAISS's own moves all of its vectors as it grows, to twice the room, while nobody may search.
"""

import ctypes
import mmap
import struct
import sys
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from condensery.values import Floats

METRICS = {"ip": faiss.METRIC_INNER_PRODUCT, "l2": faiss.METRIC_L2}

_PAGE = 4096
_LEAST = 2**20  # bytes of memory that there is room in


def file_start(metric: str, dims: int, rows: int) -> bytes:
    """Return what FAISS's file of a flat index of so many vectors has before their numbers."""
    empty = faiss.IndexFlat(dims, METRICS[metric])
    empty.ntotal = rows
    start: bytes = faiss.serialize_index(empty).tobytes()
    return start[:-8] + struct.pack("<Q", rows * dims)


def look_at(data: NDArray[np.uint8]) -> Any:
    """Return a FAISS index over the bytes of its file, which the caller keeps; never added to.

    Raises:
        RuntimeError: FAISS refused them.
    """
    return faiss.read_index(faiss.ZeroCopyIOReader(faiss.swig_ptr(data), data.nbytes))


def vectors_of(flat: Any, count: int) -> Floats:
    """Return a flat FAISS index's first vectors, (count, dims), where they are at the moment."""
    if not count:  # they may be nowhere
        return np.empty((0, flat.d), np.float32)
    numbers: Floats = faiss.rev_swig_ptr(flat.get_xb(), count * flat.d)
    return numbers.reshape(count, flat.d)


def give_back(numbers: NDArray[Any]) -> None:
    """Let the system have the pages of memory that is about to be freed; its content is lost."""
    if sys.platform != "linux":
        return  # elsewhere this keeps the pages
    start = -(-numbers.ctypes.data // _PAGE) * _PAGE
    size = (numbers.ctypes.data + numbers.nbytes - start) // _PAGE * _PAGE
    if size > 0:  # called so, it does not hold Python's lock
        advice = mmap.MADV_DONTNEED
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), advice)


class FlatVectors:
    """Vectors in memory that grows in place (``mremap``), and a FAISS index that looks at them.

    The system gives a page when it is first written, and moves none to make room for more. Vectors
    that are there never change, so that searches may go on while others are put behind them; only
    ``grow`` needs nobody searching.

    Args:
        metric: ``ip`` or ``l2``.
        dims: Features of a vector.
        count: Vectors that there are at first, all zero: written through ``matrix``.

    Attributes:
        index: FAISS's; another one after ``grow``.

    Raises:
        MemoryError: There is no room.
    """

    def __init__(self, metric: str, dims: int, count: int = 0) -> None:
        self.metric = metric
        self.dims = dims
        self._room = max(_LEAST // (4 * dims), count, 1)
        try:
            self._memory = mmap.mmap(-1, self._bytes(self._room), flags=mmap.MAP_PRIVATE)
        except OSError as error:
            raise MemoryError(str(error)) from error
        self.index = self._look(count, file_start(metric, dims, self._room))

    def __len__(self) -> int:
        return int(self.index.ntotal)

    @property
    def matrix(self) -> Floats:
        """The vectors, (count, dims), where they are until ``grow``."""
        # not by the mapping's own buffer: as long as somebody has that, it can't be resized
        return vectors_of(self.index, len(self))

    def has_room(self, more: int) -> bool:
        """Whether so many more vectors can be put without ``grow``."""
        return len(self) + more <= self._room

    def grow(self, more: int) -> None:
        """Make room for so many more vectors at least, while nobody searches.

        Raises:
            MemoryError: There is none; all is as it was.
        """
        least = len(self) + more
        try:
            self._grow_to(max(least, 2 * self._room))
        except MemoryError:
            self._grow_to(least)

    def put(self, vectors: Floats) -> None:
        """Write vectors (n, dims) behind those there are, where no search sees them yet."""
        count = len(self)
        vectors_of(self.index, count + len(vectors))[count:] = vectors

    def show(self, count: int) -> None:
        """Let searches see so many, all of which were put."""
        self.index.ntotal = count

    def _grow_to(self, room: int) -> None:
        start = file_start(self.metric, self.dims, room)
        try:
            self._memory.resize(self._bytes(room))
        except OSError as error:
            raise MemoryError(str(error)) from error
        self._room = room
        self.index = self._look(len(self), start)

    def _bytes(self, room: int) -> int:
        return _PAGE + -(-4 * self.dims * room // _PAGE) * _PAGE

    def _look(self, count: int, start: bytes) -> Any:
        """Return FAISS's look at the memory where it is now."""
        begin = _PAGE - len(start)
        self._memory[begin:_PAGE] = start
        held = ctypes.c_ubyte.from_buffer(self._memory)
        whole = (ctypes.c_ubyte * len(self._memory)).from_address(ctypes.addressof(held))
        del held
        index = look_at(np.ctypeslib.as_array(whole)[begin : _PAGE + 4 * self.dims * self._room])
        index.ntotal = count
        index.referenced_objects = [self._memory]
        return index
