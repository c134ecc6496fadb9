"""The FAISS cache of an index's vectors: fast to search, safe to lose."""

import math
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import faiss
import numpy as np
from numpy.typing import NDArray

from condensery.index import cache_file, kinds
from condensery.index.cache_file import CacheUnusable
from condensery.index.flat_vectors import METRICS, FlatVectors, give_back, vectors_of
from condensery.index.kinds import Options
from condensery.index.passages import Rows, Stamp
from condensery.index.places import Places
from condensery.values import Floats

# With so few rows allowed that their square is under this many times all rows, to score them one by
# one is faster than to walk the graph, as far as the walk must go to meet enough of them.
FEW_FACTOR = 1000
# Times as long as a quarter of the vectors are at most. From 3.5 on codes of 4 bits find less than
# those of 8 by inner product (0.88 for 0.96, a hundredth being as long), from 9 on by distance.
UNEVEN = 3
# Share of tombstones past which the cache is compacted, and the number under which it never is.
MAX_DEAD_SHARE = 0.2
MIN_DEAD = 1000
# Vectors copied at once: 6 MB at 384 dimensions.
_COPIED = 4096
# Vectors of a graph that FAISS makes room for by itself: beyond these it would move all of them, to
# twice the room, while queries wait.
_ROOM = 16_384
# Vectors added to FAISS between two chances for queries. An HNSW insert takes about 1 ms. To cells
# FAISS adds from 300 on, or so, two and a half times as many a second as of fewer at a time (40 ms
# for 512 of 384 features to 8,192 cells); where a vector takes long by itself little is gained.
_GRAPH_BLOCK, _CELLS_BLOCK, _WIDE_BLOCK = 32, 512, 64
_WIDE = 2**23  # features times cells


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


@dataclass(frozen=True, slots=True)
class Cut:
    """What a cache holds at one moment, but for the vectors, of which none ever changes."""

    stamp: Stamp
    rows: Rows
    dead: Rows
    structure: NDArray[np.uint8]


@dataclass(frozen=True)
class Memory:
    """Where a cache's vectors are to be, with room for more.

    Attributes:
        vectors: In a FAISS index, or in ``FlatVectors``.
        links: A graph's, which FAISS else moves as it grows, while nobody may search.
    """

    vectors: Any
    links: Any = None

    def let_go(self) -> None:
        """Give back its pages, while other threads run: nobody may look at it any more.

        To free it takes a tenth of a second a gigabyte else, in which Python lets nobody run.
        """
        if isinstance(self.vectors, FlatVectors):
            give_back(self.vectors.matrix)
        elif self.vectors is not None:
            give_back(vectors_of(self.vectors, self.vectors.ntotal))
        if self.links is not None and self.links.size():
            give_back(faiss.rev_swig_ptr(self.links.data(), self.links.size()))


class VectorCache:
    """Vectors under row ids. The caller keeps changes away from searches (``ReadWriteLock``).

    But for additions that harm none (``added_to_while_searched``). FAISS numbers what it holds from
    0 on; ``Places`` says which row stands where. Removed rows become tombstones that searches pass
    over: FAISS can't take a node out of an HNSW graph, and takes one out of a flat index by moving
    all that follow.

    Args:
        kind: One of ``kinds.KINDS``.
        metric: ``ip`` or ``l2``.
        dims: Features of a vector.
        options: The kind's, those that were set.
        index: What is searched; None for the kind's own, with nothing in it.

    Attributes:
        mapped: Whether its vectors are in a file: to be searched, but nothing can be added.
    """

    def __init__(
        self,
        kind: str,
        metric: str,
        dims: int,
        options: Options | None = None,
        index: Any = None,
    ) -> None:
        self.kind = kind
        self.metric = metric
        self.dims = dims
        self._options = options or {}
        if index is None:
            graph = kind == "hnsw"
            index = make_graph(metric, dims, self._options) if graph else FlatVectors(metric, dims)
        self._index: Any = None
        self._vectors: Any = None
        self._flat_vectors: FlatVectors | None = None  # of a flat one that is not mapped
        self._places = Places()
        self.mapped = False
        self._vectors_checksum = 0  # of a mapped one
        self._room = _ROOM  # of a graph: for so many vectors, without moving them
        if isinstance(index, FlatVectors | faiss.IndexFlat):
            self._put(index)
        else:
            self._index = index
            if isinstance(index, faiss.IndexHNSW):
                self._put(faiss.IndexFlat(dims, METRICS[metric]))

    @property
    def live(self) -> int:
        """Rows that a search can return."""
        return len(self._places) - self._places.tombstones

    @classmethod
    def trained(
        cls, kind: str, metric: str, dims: int, options: Options, rows: int, sample: Floats
    ) -> Self:
        """Return an empty IVF-PQ cache for ``rows`` vectors, trained on a sample of them."""
        with _one_thread():
            index = train(metric, dims, options, rows, sample)
        return cls(kind, metric, dims, options, index)

    @classmethod
    def standing_in(cls, kind: str, metric: str, dims: int, options: Options | None = None) -> Self:
        """Return an empty flat cache for an index of any kind: filled at once, searched whole."""
        return cls(kind, metric, dims, options, FlatVectors(metric, dims))

    @property
    def searched_as(self) -> str:
        """The kind, or ``flat`` of one whose graph or training is to come."""
        return "flat" if self._index is self._vectors else self.kind

    @property
    def approximates(self) -> bool:
        """Whether scores are those of codes, not of vectors."""
        return self._vectors is None

    def candidates_for(self, k: int) -> int:
        """Return how many to search for where it ``approximates``, to find the ``k`` nearest."""
        return kinds.candidates_for(k, int(self._index.pq.nbits))

    @property
    def tombstones(self) -> int:
        """Rows that are held, and returned by no search."""
        return self._places.tombstones

    @property
    def trains_at(self) -> int | None:
        """Rows at which it is to be trained; None if it is, or never needs it."""
        waits = self.kind == "ivf_pq" and self.searched_as == "flat"
        return kinds.least_rows(self._options) if waits else None

    @property
    def needs_compaction(self) -> bool:
        """Whether tombstones make up so much of the cache that searches suffer."""
        dead = self.tombstones
        return dead >= MIN_DEAD and dead > MAX_DEAD_SHARE * len(self._places)

    @property
    def needs_training(self) -> bool:
        """Whether it holds so much that it should be trained, or anew, or stands in for a graph."""
        if self.trains_at is not None:
            return self.live >= self.trains_at
        if self.searched_as != self.kind:
            return True
        if not self.approximates or "nlist" in self._options:
            return False
        return kinds.cells_for(self.live) >= 2 * int(self._index.nlist)

    def rows(self) -> Rows:
        """Return every row, tombstones included, in the order they were added."""
        return self._places.rows

    def living(self) -> Rows:
        """Return the rows that are no tombstones, ascending."""
        return self._places.living()

    @property
    def last_row(self) -> int:
        """The highest row there is, tombstones included; 0 if there is none."""
        return self._places.last

    @property
    def block_size(self) -> int:
        """How many vectors to add at a time, where queries are to come between."""
        if self.searched_as == "hnsw":
            return _GRAPH_BLOCK
        if self.approximates and self.dims * self._index.nlist > _WIDE:
            return _WIDE_BLOCK
        return _CELLS_BLOCK

    @property
    def added_to_while_searched(self) -> bool:
        """Whether ``add`` need not be kept away from searches, once there is room."""
        return self._flat_vectors is not None

    def make_room(
        self,
        more: int,
        write_lock: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Make room for so many more vectors.

        Args:
            more: How many.
            write_lock: Keeps searches out. What takes long is done before it is taken.

        Raises:
            MemoryError: There is none; all is as it was.
        """
        if self._flat_vectors is not None:
            if not self._flat_vectors.has_room(more):
                with write_lock():
                    self._flat_vectors.grow(more)
                    self._put(self._flat_vectors)
        elif not self.approximates and len(self._places) + more > self._room:
            grown = self._copy(lambda block: None, more)  # which queries need not wait for
            before = Memory(self._vectors, grown.links)  # once these are taken, the old ones
            with write_lock():
                self.take(grown, more)
            before.let_go()

    def add(self, rows: Rows, vectors: Floats) -> None:
        """Add vectors (rows, dims) under new row ids, to what is not ``mapped``.

        Raises:
            MemoryError: There is no room; nothing is added.
            RuntimeError: FAISS failed in the middle of an addition before: it can't be added to.
        """
        self._check_whole()
        self.make_room(len(rows))
        self._places.reserve(len(rows))
        if self._flat_vectors is not None:
            self._flat_vectors.put(vectors)
            self._places.append(rows)
            # the last: what a search finds has a row by then
            self._flat_vectors.show(len(self._places))
            return
        with _one_thread():
            self._index.add(np.ascontiguousarray(vectors))
        self._places.append(rows)

    def let_go(self) -> None:
        """Give its memory back, where that is much: nobody may use it any more."""
        if self._vectors is not None and not self.mapped:
            links = self._index.hnsw.neighbors if self.searched_as == "hnsw" else None
            Memory(self._flat_vectors or self._vectors, links).let_go()

    def discard(self, rows: Iterable[int]) -> None:
        """Make tombstones of rows that are there."""
        self._places.bury(np.fromiter(rows, dtype=np.int64))

    def compacted(self) -> "VectorCache":
        """Return a flat cache of the living rows alone; this one stays as it is."""
        fresh = VectorCache.standing_in(self.kind, self.metric, self.dims, self._options)
        living, source = np.flatnonzero(self._places.alive()), self._matrix()
        vectors = FlatVectors(self.metric, self.dims, len(living))
        target = vectors.matrix
        for start in range(0, len(living), _COPIED):
            block = slice(start, start + _COPIED)
            # not by indexing, which keeps all other threads of Python waiting
            np.take(source, living[block], axis=0, out=target[block], mode="clip")
        fresh.take(Memory(vectors))
        fresh._places.append(self.rows()[living])
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
        if allowed is not None:
            k = min(k, len(allowed))
        elif self.searched_as != "flat":  # there may be more of a flat one by the time it is
            k = min(k, self.live)
        if k == 0:
            return [], []
        if allowed is not None and self._is_few(len(allowed)):
            return self._score(vector, k, allowed)
        if self.approximates:
            return self._look_into_cells(vector, k, allowed)
        scores, places = self._index.search(vector[None, :], k, params=self._parameters(k, allowed))
        there = places[0] >= 0
        if self.searched_as == "hnsw" and there.sum() < k:
            # what may not be found can hide the rest from a greedy walk
            return self._score(vector, k, self._places.living() if allowed is None else allowed)
        return self._named(places[0][there], scores[0][there])

    # The file

    def cut(self, stamp: Stamp) -> Cut:
        """Return what is to be saved of it as it is, while nobody changes it.

        Raises:
            RuntimeError: FAISS failed in the middle of an addition before.
        """
        self._check_whole()
        if self.searched_as == "flat":
            structure = np.empty(0, np.uint8)
        else:
            structure = faiss.serialize_index(self._index, faiss.IO_FLAG_SKIP_STORAGE)
        return Cut(stamp, self.rows(), self._places.dead(), structure)

    def save(
        self, path: Path, cut: Cut, read_lock: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """Write the file of what it was at a moment, which may be over: rows may have been added.

        Args:
            path: Of the file.
            cut: The moment's.
            read_lock: Taken for a few milliseconds at a time: an addition may move all vectors. It
                may raise, to give up.

        Raises:
            OSError: The disk refused; what ``read_lock`` raises.
        """
        cache_file.write(
            path,
            kind=self.kind,
            metric=self.metric,
            dims=self.dims,
            stamp=cut.stamp,
            parts=(cut.rows, cut.dead, cut.structure),
            vectors=None if self.approximates else self._blocks(len(cut.rows), read_lock),
        )

    @classmethod
    def load(
        cls, path: Path, kind: str, metric: str, dims: int, options: Options | None = None
    ) -> tuple[Self, Stamp]:
        """Read a cache file, and the stamp of the state it holds; its vectors stay ``mapped``.

        Raises:
            CacheUnusable: It is missing, damaged, or of another index or format.
        """
        file = cache_file.read(path, kind, metric, dims)
        try:
            index = faiss.deserialize_index(file.structure) if len(file.structure) else file.vectors
        except RuntimeError as error:
            raise CacheUnusable(f"refused by FAISS {faiss.__version__}") from error
        rows = len(file.rows)
        if index is None or (index.d, index.ntotal) != (dims, rows) or len(file.dead) > rows:
            raise CacheUnusable("not what its header says")
        cache = cls(kind, metric, dims, options, index)
        cache._places.append(file.rows)
        cache._places.bury(file.dead)
        if file.vectors is not None:
            cache._put(file.vectors)
            cache.mapped, cache._vectors_checksum = True, file.vectors_checksum
        return cache, file.stamp

    def in_memory(self, go_on: Callable[[], None] = lambda: None) -> Memory:
        """Return what ``take`` takes: a copy of vectors that are mapped, whose checksum is right.

        Args:
            go_on: Called between blocks; it may raise, to give up.

        Raises:
            CacheUnusable: It is not right: the file is damaged.
        """
        checksum = 0

        def check(block: Floats) -> None:
            nonlocal checksum
            go_on()
            checksum = zlib.crc32(block.data, checksum)

        fresh = self._copy(check)
        if checksum != self._vectors_checksum:
            raise CacheUnusable("damaged")
        return fresh

    def read_anew(self, blocks: Iterable[tuple[Rows, Floats]]) -> Memory:
        """Return what ``take`` takes, of vectors that are read elsewhere.

        Args:
            blocks: (rows, vectors) in any order; of rows that are not there, tombstones' among
                them, nothing is taken.
        """
        fresh, target = self._make_memory(len(self._places))
        for rows, vectors in blocks:
            places = np.minimum(self._places.of(rows), len(target) - 1)
            there = self.rows()[places] == rows
            target[places[there]] = vectors[there]
        return fresh

    def take(self, memory: Memory, more: int = 0) -> None:
        """Go on with vectors in other memory, the same at the same places, with room for more."""
        self._put(memory.vectors)
        if memory.links is not None:
            own = self._index.hnsw.neighbors
            own.owned_data.swap(memory.links)
            own.resize(own.size())  # and looks where they are
        self.mapped = False
        self._room = _room_for(self._vectors.ntotal + more)

    def _put(self, vectors: Any) -> None:
        if isinstance(vectors, FlatVectors):
            self._flat_vectors = vectors
            vectors = vectors.index
        if self.searched_as == "flat":
            self._index = vectors
        else:
            # SWIG takes from Python what is put into a member; it is Python's to free, as before.
            # What a new graph had, an empty index, is nobody's then: to take over what Python did
            # not make breaks SWIG's count of its own objects, and the process with it.
            self._index.storage = vectors
            self._index.own_fields = False
            vectors.this.own(True)
        self._vectors = vectors

    def _copy(self, seen: Callable[[Floats], None], more: int = 0) -> Memory:
        """Return a copy of the vectors, a graph's with room for more; ``seen`` gets each block."""
        source = self._matrix()
        fresh, target = self._make_memory(len(source), more)
        for start in range(0, len(source), _COPIED):
            block = slice(start, start + _COPIED)
            target[block] = source[block]
            seen(target[block])
        return fresh

    def _make_memory(self, count: int, more: int = 0) -> tuple[Memory, Floats]:
        """Return what ``take`` takes, and its vectors, (count, dims), which are to be written."""
        if self.searched_as == "flat":
            flat = FlatVectors(self.metric, self.dims, count)
            return Memory(flat), flat.matrix
        # a graph adds to its vectors by itself, which needs memory of FAISS's own
        owned, room = faiss.IndexFlat(self.dims, METRICS[self.metric]), _room_for(count + more)
        _resize(owned.codes, 4 * self.dims * count, 4 * self.dims * room)
        owned.ntotal = count
        graph, links = self._index.hnsw, faiss.Int32Vector()
        size = graph.neighbors.size()
        # As many for each as so far; how many levels one has is chance.
        each = size / count if count else graph.nb_neighbors(0)
        _resize(links, size, int((each + 2) * room))
        if size:
            source, target = (
                faiss.rev_swig_ptr(numbers.data(), size) for numbers in (graph.neighbors, links)
            )
            target[:] = source
        return Memory(owned, links), vectors_of(owned, count)

    def _check_whole(self) -> None:
        """Raise if FAISS and ``Places`` would call a vector by different rows from now on."""
        if self._index.ntotal != len(self._places):
            raise RuntimeError("FAISS failed in the middle of an addition; restart the server")

    def _matrix(self) -> Floats:
        """Return the vectors by their places, (count, dims), where they are at the moment."""
        return vectors_of(self._vectors, self._vectors.ntotal)

    def _blocks(
        self, count: int, read_lock: Callable[[], AbstractContextManager[None]]
    ) -> Iterator[Floats]:
        for start in range(0, count, _COPIED):
            with read_lock():
                block = self._matrix()[start : min(start + _COPIED, count)].copy()
            yield block

    # Searching

    def _is_few(self, rows: int) -> bool:
        """Whether so many rows are scored one by one faster than they are looked for."""
        if self.approximates:  # and there are no vectors to score
            return False
        return self.searched_as == "flat" or rows * rows <= FEW_FACTOR * len(self._places)

    def _parameters(self, k: int, allowed: Rows | None) -> Any:
        # a new object each time: FAISS writes into it during the search
        selector = self._places.selector(allowed)
        if self.searched_as == "hnsw":
            breadth = max(self._options.get("ef_search", kinds.HNSW_SEARCH_BREADTH), 2 * k)
            if allowed is not None:
                # of the nodes that the walk looks at, so many are allowed
                breadth = math.ceil(breadth * len(self._places) / len(allowed))
            return faiss.SearchParametersHNSW(sel=selector, efSearch=breadth)
        return faiss.SearchParameters(sel=selector)

    def _look_into_cells(
        self, vector: Floats, k: int, allowed: Rows | None
    ) -> tuple[list[int], list[float]]:
        """Search the codes of the nearest cells; of all cells, where these hold too few.

        Codes of 4 bits are compared by whole numbers, and FAISS returns none that is at the least
        of these: where all codes are equally near, as to a query of zeros, it returns nothing.
        """
        cells = int(self._index.nlist)
        probes = self._options.get("nprobe", kinds.probes_for(cells))
        if allowed is not None:
            # of the vectors in a cell so many are allowed
            probes = math.ceil(probes * len(self._places) / len(allowed))
        probes = min(probes, cells)
        while True:
            selector = self._places.selector(allowed)
            how = faiss.SearchParametersIVF(sel=selector, nprobe=probes)
            scores, places = self._index.search(vector[None, :], k, params=how)
            there = places[0] >= 0
            if there.sum() == k or probes == cells:
                break
            probes = cells
        rows, nearness = self._named(places[0][there], scores[0][there])
        if len(rows) < k:
            left = np.setdiff1d(self._places.living() if allowed is None else allowed, rows)
            more = left[: k - len(rows)].tolist()
            rows, nearness = rows + more, nearness + [min(nearness, default=0.0)] * len(more)
        return rows, nearness

    def _score(self, vector: Floats, k: int, rows: Rows) -> tuple[list[int], list[float]]:
        """Search a few rows one by one: exact. Of equal ones the older come first."""
        places, query = self._places.of(rows), np.ascontiguousarray(vector)
        scores = np.empty(len(rows), dtype=np.float32)
        measure = (
            faiss.fvec_inner_products_by_idx if self.metric == "ip" else faiss.fvec_L2sqr_by_idx
        )
        pointers = (faiss.swig_ptr(array) for array in (scores, query))
        measure(*pointers, self._vectors.get_xb(), faiss.swig_ptr(places), self.dims, 1, len(rows))
        nearness = scores if self.metric == "ip" else -scores
        worst = np.partition(nearness, len(rows) - k)[len(rows) - k]
        among = np.flatnonzero(nearness >= worst)
        best = among[np.argsort(-nearness[among], kind="stable")][:k]
        return rows[best].tolist(), nearness[best].tolist()

    def _named(self, places: Rows, scores: Floats) -> tuple[list[int], list[float]]:
        """Return what FAISS found by rows, and scores as ours."""
        nearness = scores if self.metric == "ip" else -scores
        return self.rows()[places].tolist(), nearness.tolist()


# The FAISS index of each kind


def _room_for(count: int) -> int:
    return max(_ROOM, count + count // 4)


def _resize(vector: Any, size: int, room: int) -> None:
    """Resize a vector of FAISS's so that it can grow to ``room`` where it is."""
    vector.resize(room)
    vector.resize(size)  # the room stays


def make_graph(metric: str, dims: int, options: Options) -> Any:
    """Return an empty HNSW index."""
    graph = faiss.IndexHNSWFlat(dims, options.get("m", kinds.HNSW_LINKS), METRICS[metric])
    graph.hnsw.efConstruction = options.get("ef_construction", kinds.HNSW_BUILD_BREADTH)
    return graph


def is_uneven(sample: Floats) -> bool:
    """Tell whether codes of 4 bits would confuse vectors, since some are far longer than others.

    FAISS compares such codes by whole numbers up to 255, whose scale reaches to the longest. What
    is coded is how vectors differ from their cell's centre, which is not known before the training:
    so they are measured from the origin, and from their mean.
    """
    for origin in (np.float32(0), sample.mean(axis=0, dtype=np.float64).astype(np.float32)):
        blocks = (sample[at : at + _COPIED] - origin for at in range(0, len(sample), _COPIED))
        lengths = np.concatenate([np.linalg.norm(block, axis=1) for block in blocks])
        if lengths.max() > UNEVEN * np.quantile(lengths, 0.25):
            return True
    return False


def train(metric: str, dims: int, options: Options, rows: int, sample: Floats) -> Any:
    """Return an empty IVF-PQ index for ``rows`` vectors, trained on a sample of them."""
    quantizer = faiss.IndexFlat(dims, METRICS[metric])
    cells = options.get("nlist", kinds.cells_for(rows))
    bits = kinds.bits_for(options, dims)
    if "pq_bits" not in options and is_uneven(sample):
        bits = kinds.FULL_BITS
    codes = options.get("pq_m", kinds.codes_for(dims, bits))
    make = faiss.IndexIVFPQFastScan if bits == kinds.FAST_BITS else faiss.IndexIVFPQ
    index = make(quantizer, dims, cells, codes, bits, METRICS[metric])
    for clustering in (index.cp, index.pq.cp):
        clustering.niter = kinds.TRAINING_ROUNDS
        clustering.max_points_per_centroid = kinds.LEAST_A_CENTRE
    index.train(np.ascontiguousarray(sample))
    return index
