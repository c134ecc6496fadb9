"""The FAISS cache of an index's vectors: fast to search, safe to lose."""

import json
import math
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import faiss
import numpy as np
from numpy.typing import NDArray

from condensery.index import kinds
from condensery.index.kinds import Options
from condensery.index.passages import Rows, Stamp
from condensery.values import Floats

METRICS = {"ip": faiss.METRIC_INNER_PRODUCT, "l2": faiss.METRIC_L2}
FORMAT = 1
_HEADER_BYTES = 4096
# With so few rows allowed that their square is under this many times all rows, to score them one by
# one is faster than to walk the graph, as far as the walk must go to meet enough of them.
FEW_FACTOR = 1000
# Share of tombstones past which the cache is compacted, and the number under which it never is.
MAX_DEAD_SHARE = 0.2
MIN_DEAD = 1000
# Vectors copied at once when a flat cache is compacted.
_COPIED = 10_000


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let FAISS compute in the calling thread alone: more would fight torch's for the cores.

    OpenMP keeps the setting for each thread that calls, and torch in that thread has the same one:
    a training that goes on there would be left with one core.
    """
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


class CacheUnusable(Exception):
    """A cache file can't serve; the message says why. Never leaves the index layer."""


@dataclass(frozen=True, slots=True)
class Header:
    """First line of a cache file, as JSON. ``checksum`` is the CRC-32 of what follows it."""

    format: int
    faiss: str
    kind: str
    metric: str
    dims: int
    sequence: int
    stamp: int
    size: int
    checksum: int


class VectorCache:
    """Vectors under row ids. The caller keeps changes away from searches (``ReadWriteLock``).

    Removed rows become tombstones that searches pass over: FAISS can't take a node out of an
    HNSW graph, and takes one out of a flat index by moving all that follow.

    Args:
        kind: One of ``kinds.KINDS``.
        metric: ``ip`` or ``l2``.
        dims: Features of a vector.
        options: The kind's, those that were set.
        index: What FAISS holds; None begins with nothing.
    """

    def __init__(
        self,
        kind: str,
        metric: str,
        dims: int,
        options: Options | None = None,
        index: faiss.IndexIDMap | None = None,
    ) -> None:
        self.kind = kind
        self.metric = metric
        self.dims = dims
        self._options = options or {}
        if index is None:
            index = faiss.IndexIDMap(make_untrained(kind, metric, dims, self._options))
        self._index = index
        self._dead: set[int] = set()
        self._alive_only: Any = None  # the FAISS selector, made when tombstones come

    @property
    def live(self) -> int:
        """Rows that a search can return."""
        return int(self._index.ntotal) - len(self._dead)

    @classmethod
    def trained(
        cls, kind: str, metric: str, dims: int, options: Options, rows: int, sample: Floats
    ) -> Self:
        """Return an empty IVF-PQ cache for ``rows`` vectors, trained on a sample of them."""
        with _one_thread():
            index = train(metric, dims, options, rows, sample)
        return cls(kind, metric, dims, options, faiss.IndexIDMap(index))

    @classmethod
    def standing_in(cls, kind: str, metric: str, dims: int, options: Options | None = None) -> Self:
        """Return an empty flat cache for an index of any kind: filled at once, searched whole."""
        flat = faiss.IndexIDMap(faiss.IndexFlat(dims, METRICS[metric]))
        return cls(kind, metric, dims, options, flat)

    @property
    def searched_as(self) -> str:
        """The kind, or ``flat`` of one whose graph or training is to come."""
        held = faiss.downcast_index(self._index.index)
        return "flat" if isinstance(held, faiss.IndexFlat) else self.kind

    @property
    def approximates(self) -> bool:
        """Whether scores are those of codes, not of vectors."""
        return self._cells is not None

    @property
    def tombstones(self) -> int:
        """Rows that are held, and returned by no search."""
        return len(self._dead)

    @property
    def trains_at(self) -> int | None:
        """Rows at which it is to be trained; None if it is, or never needs it."""
        waits = self.kind == "ivf_pq" and self.searched_as == "flat"
        return kinds.least_rows(self._options) if waits else None

    @property
    def needs_compaction(self) -> bool:
        """Whether tombstones make up so much of the cache that searches suffer."""
        dead = len(self._dead)
        return dead >= MIN_DEAD and dead > MAX_DEAD_SHARE * self._index.ntotal

    @property
    def needs_training(self) -> bool:
        """Whether it holds so much that it should be trained, or anew, or stands in for a graph."""
        if self.trains_at is not None:
            return self.live >= self.trains_at
        if self.searched_as != self.kind:
            return True
        cells = self._cells
        if cells is None or "nlist" in self._options:
            return False
        return kinds.cells_for(self.live) >= 2 * int(cells.nlist)

    @property
    def _cells(self) -> Any:
        """The IVF index under the ids; None if there is none."""
        if self.kind != "ivf_pq":
            return None
        index = faiss.downcast_index(self._index.index)
        return index if isinstance(index, faiss.IndexIVFPQ) else None

    def rows(self) -> Rows:
        """Return every row, tombstones included, in the order they were added."""
        ids: Rows = faiss.vector_to_array(self._index.id_map)
        return ids

    @property
    def last_row(self) -> int:
        """The highest row there is, tombstones included; 0 if there is none."""
        rows = self.rows()
        return int(rows[-1]) if len(rows) else 0

    def add(self, rows: Rows, vectors: Floats) -> None:
        """Add vectors (rows, dims) under new row ids."""
        with _one_thread():
            self._index.add_with_ids(np.ascontiguousarray(vectors), rows)

    def discard(self, rows: Iterable[int]) -> None:
        """Make tombstones of rows that are there."""
        self._dead.update(rows)
        dead = faiss.IDSelectorBatch(self._dead_rows())
        self._alive_only = faiss.IDSelectorNot(dead) if self._dead else None

    def compacted(self) -> "VectorCache":
        """Return a flat cache of the living rows alone; this one stays as it is."""
        fresh = VectorCache.standing_in(self.kind, self.metric, self.dims, self._options)
        held = faiss.downcast_index(self._index.index)
        rows = self.rows()
        vectors = faiss.rev_swig_ptr(held.get_xb(), held.ntotal * self.dims)
        vectors = vectors.reshape(held.ntotal, self.dims)
        living = np.flatnonzero(~np.isin(rows, self._dead_rows()))
        for start in range(0, len(living), _COPIED):
            block = living[start : start + _COPIED]
            fresh.add(rows[block], vectors[block])
        return fresh

    @_one_thread()
    def search(
        self, vector: Floats, k: int, allowed: Rows | None = None
    ) -> tuple[list[int], list[float]]:
        """Return the ``k`` nearest rows (fewer if there are fewer), best first, and their scores.

        Args:
            vector: The query, (dims,), float32.
            k: How many rows.
            allowed: Rows that are there, ascending, no tombstones: no other is returned.

        Returns:
            Rows, and scores where more is nearer: inner products, or minus squared distances; if
            it ``approximates``, those of codes.
        """
        k = min(k, self.live if allowed is None else len(allowed))
        if k == 0:
            return [], []
        if allowed is not None and self._is_few(len(allowed)):
            return self._score(vector, k, allowed)
        if self.approximates:
            return self._look_into_cells(vector, k, allowed)
        # under the ids there are places, which a bitmap can select by
        index = self._index if allowed is None else faiss.downcast_index(self._index.index)
        scores, ids = index.search(vector[None, :], k, params=self._parameters(k, allowed))
        there = ids[0] >= 0
        if self.searched_as == "hnsw" and there.sum() < k:
            # what may not be found can hide the rest from a greedy walk
            return self._score(vector, k, self._living() if allowed is None else allowed)
        return self._named(ids[0][there], scores[0][there], by_place=allowed is not None)

    def save(self, path: Path, stamp: Stamp) -> None:
        """Write the cache aside and rename it into place. Not synced: the file may be lost."""
        payload: NDArray[np.uint8] = faiss.serialize_index(self._index)
        header = Header(
            format=FORMAT,
            faiss=faiss.__version__,
            kind=self.kind,
            metric=self.metric,
            dims=self.dims,
            sequence=stamp.sequence,
            stamp=stamp.value,
            size=payload.nbytes,
            checksum=zlib.crc32(payload.data),
        )
        aside = path.with_suffix(".new")
        try:
            with aside.open("wb") as file:
                file.write(json.dumps(asdict(header)).encode() + b"\n")
                file.write(payload.data)
            aside.replace(path)
        except OSError:
            aside.unlink(missing_ok=True)
            raise

    @classmethod
    def load(
        cls, path: Path, kind: str, metric: str, dims: int, options: Options | None = None
    ) -> tuple[Self, Stamp]:
        """Read a cache file, and the stamp of the state it holds.

        Raises:
            CacheUnusable: It is missing, damaged, or of another index or format.
        """
        try:
            with path.open("rb") as file:
                header = Header(**json.loads(file.readline(_HEADER_BYTES)))
                body = file.read()
        except FileNotFoundError as error:
            raise CacheUnusable("missing") from error
        except OSError as error:
            raise CacheUnusable(f"unreadable: {error.strerror}") from error
        except (ValueError, TypeError) as error:
            raise CacheUnusable("no header") from error
        if (header.format, header.kind, header.metric, header.dims) != (FORMAT, kind, metric, dims):
            raise CacheUnusable("of another format or another index")
        # before FAISS sees it: a damaged size makes it ask for any amount of memory
        if header.size != len(body) or header.checksum != zlib.crc32(body):
            raise CacheUnusable("damaged")
        try:
            index = faiss.deserialize_index(np.frombuffer(body, dtype=np.uint8))
        except RuntimeError as error:
            raise CacheUnusable(f"refused by FAISS {faiss.__version__}") from error
        if not isinstance(index, faiss.IndexIDMap) or index.d != dims:
            raise CacheUnusable("not what its header says")
        return cls(kind, metric, dims, options, index), Stamp(header.sequence, header.stamp)

    def _is_few(self, rows: int) -> bool:
        """Whether so many rows are scored one by one faster than they are looked for."""
        if self.approximates:  # and there are no vectors to score
            return False
        return self.searched_as == "flat" or rows * rows <= FEW_FACTOR * self._index.ntotal

    def _parameters(self, k: int, allowed: Rows | None) -> Any:
        # a new object each time: FAISS writes into it during the search
        selector = self._alive_only if allowed is None else self._bitmap(allowed)
        if self.searched_as == "hnsw":
            breadth = max(self._options.get("ef_search", kinds.HNSW_SEARCH_BREADTH), 2 * k)
            if allowed is not None:
                # of the nodes that the walk looks at, so many are allowed
                breadth = math.ceil(breadth * self._index.ntotal / len(allowed))
            return faiss.SearchParametersHNSW(sel=selector, efSearch=breadth)
        return faiss.SearchParameters(sel=selector)

    def _look_into_cells(
        self, vector: Floats, k: int, allowed: Rows | None
    ) -> tuple[list[int], list[float]]:
        """Search the codes of the nearest cells; of all cells, where these hold too few."""
        cells = int(self._cells.nlist)
        probes = self._options.get("nprobe", kinds.probes_for(cells))
        if allowed is not None:
            # of the vectors in a cell so many are allowed
            probes = math.ceil(probes * self._index.ntotal / len(allowed))
        probes = min(probes, cells)
        index = self._index if allowed is None else self._cells
        while True:
            selector = self._alive_only if allowed is None else self._bitmap(allowed)
            how = faiss.SearchParametersIVF(sel=selector, nprobe=probes)
            scores, ids = index.search(vector[None, :], k, params=how)
            there = ids[0] >= 0
            if there.sum() == k or probes == cells:
                break
            probes = cells
        return self._named(ids[0][there], scores[0][there], by_place=allowed is not None)

    def _bitmap(self, allowed: Rows) -> Any:
        """Return a selector of rows by their places."""
        chosen = np.zeros(self._index.ntotal, dtype=np.bool_)
        chosen[self._places(allowed)] = True
        return faiss.IDSelectorBitmap(np.packbits(chosen, bitorder="little"))

    def _places(self, rows: Rows) -> Rows:
        """Return where rows stand; they were added in ascending order."""
        return np.searchsorted(self.rows(), rows)

    def _dead_rows(self) -> Rows:
        return np.fromiter(self._dead, dtype=np.int64, count=len(self._dead))

    def _living(self) -> Rows:
        return np.setdiff1d(self.rows(), self._dead_rows())

    def _score(self, vector: Floats, k: int, rows: Rows) -> tuple[list[int], list[float]]:
        """Search a few rows one by one: exact. Of equal ones the older come first."""
        storage = faiss.downcast_index(self._index.index)
        if self.searched_as == "hnsw":
            storage = faiss.downcast_index(storage.storage)
        places, query = self._places(rows), np.ascontiguousarray(vector)
        scores = np.empty(len(rows), dtype=np.float32)
        measure = (
            faiss.fvec_inner_products_by_idx if self.metric == "ip" else faiss.fvec_L2sqr_by_idx
        )
        pointers = (faiss.swig_ptr(array) for array in (scores, query))
        measure(*pointers, storage.get_xb(), faiss.swig_ptr(places), self.dims, 1, len(rows))
        nearness = scores if self.metric == "ip" else -scores
        worst = np.partition(nearness, len(rows) - k)[len(rows) - k]
        among = np.flatnonzero(nearness >= worst)
        best = among[np.argsort(-nearness[among], kind="stable")][:k]
        return rows[best].tolist(), nearness[best].tolist()

    def _named(self, ids: Rows, scores: Floats, *, by_place: bool) -> tuple[list[int], list[float]]:
        """Return what FAISS found by rows, where it went by their places, and scores as ours."""
        rows = self.rows()[ids] if by_place else ids
        return rows.tolist(), (scores if self.metric == "ip" else -scores).tolist()


# The FAISS index of each kind


def make_untrained(kind: str, metric: str, dims: int, options: Options) -> Any:
    """Return an empty index: of kind ``ivf_pq`` a flat one, which it is until it is trained."""
    if kind != "hnsw":
        return faiss.IndexFlat(dims, METRICS[metric])
    graph = faiss.IndexHNSWFlat(dims, options.get("m", kinds.HNSW_LINKS), METRICS[metric])
    graph.hnsw.efConstruction = options.get("ef_construction", kinds.HNSW_BUILD_BREADTH)
    return graph


def train(metric: str, dims: int, options: Options, rows: int, sample: Floats) -> Any:
    """Return an empty IVF-PQ index for ``rows`` vectors, trained on a sample of them."""
    quantizer = faiss.IndexFlat(dims, METRICS[metric])
    cells = options.get("nlist", kinds.cells_for(rows))
    codes = options.get("pq_m", kinds.codes_for(dims))
    bits = options.get("pq_bits", kinds.PQ_BITS)
    index = faiss.IndexIVFPQ(quantizer, dims, cells, codes, bits, METRICS[metric])
    for clustering in (index.cp, index.pq.cp):
        clustering.niter = kinds.TRAINING_ROUNDS
        clustering.max_points_per_centroid = kinds.LEAST_A_CENTRE
    index.train(np.ascontiguousarray(sample))
    return index
