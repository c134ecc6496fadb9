import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from condensery.index import flat_vectors, kinds
from condensery.index import vectors as module
from condensery.index.cache_file import CacheUnusable
from condensery.index.passages import Stamp
from condensery.index.places import Places
from condensery.index.vectors import VectorCache, is_uneven

DIMS = 16
STAMP = Stamp(7, -123456789)


def make_vectors(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, DIMS)).astype(np.float32)


def fill(kind: str, metric: str, vectors: np.ndarray) -> VectorCache:
    cache = VectorCache(kind, metric, DIMS)
    cache.add(np.arange(len(vectors), dtype=np.int64) + 1000, vectors)
    return cache


def save(cache: VectorCache, path: Path) -> None:
    cache.save(path, cache.cut(STAMP), nullcontext)


def load(path: Path, kind: str, metric: str, dims: int = DIMS) -> tuple[VectorCache, Stamp]:
    """Read a cache and its vectors into memory."""
    cache, stamp = VectorCache.load(path, kind, metric, dims)
    assert cache.mapped
    cache.take(cache.in_memory(lambda: None))
    return cache, stamp


def brute(
    vectors: np.ndarray, query: np.ndarray, metric: str, without: set[int] = frozenset()
) -> list[int]:
    matrix = vectors.astype(np.float64)
    scores = matrix @ query if metric == "ip" else -((matrix - query) ** 2).sum(axis=1)
    return [int(at) + 1000 for at in np.argsort(-scores) if at + 1000 not in without]


@pytest.mark.parametrize("metric", ["ip", "l2"])
def test_flat_finds_what_brute_force_finds(metric: str) -> None:
    vectors = make_vectors(500)
    cache = fill("flat", metric, vectors)
    for query in make_vectors(20, seed=1):
        rows, scores = cache.search(query, 10)
        assert rows == brute(vectors, query, metric)[:10]
        expected = vectors[np.array(rows) - 1000].astype(np.float64)
        exact = expected @ query if metric == "ip" else -((expected - query) ** 2).sum(axis=1)
        np.testing.assert_allclose(scores, exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("metric", ["ip", "l2"])
def test_hnsw_finds_nearly_what_brute_force_finds(metric: str) -> None:
    vectors = make_vectors(2000)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cache = fill("hnsw", metric, vectors)
    hits = [
        len({*cache.search(query, 10)[0]} & {*brute(vectors, query, metric)[:10]})
        for query in make_vectors(50, seed=1)
    ]
    assert sum(hits) / 500 > 0.95


@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_removed_rows_are_passed_over_and_top_k_is_still_met(kind: str) -> None:
    vectors = make_vectors(400)
    query = make_vectors(1, seed=1)[0]
    cache = fill(kind, "ip", vectors)
    nearest = set(brute(vectors, query, "ip")[:300])  # more than the graph's walk looks at
    cache.discard(nearest)
    assert cache.live == 100
    rows, best = cache.search(query, 20)[0], brute(vectors, query, "ip", nearest)[:20]
    assert len(rows) == 20
    assert not nearest.intersection(rows)
    assert rows == best if kind == "flat" else len({*rows} & {*best}) >= 15
    assert len(cache.search(query, 500)[0]) == 100


def test_an_hnsw_walk_looks_at_more_the_fewer_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FEW_FACTOR", 0)  # else so few are scored one by one
    chance, dims = np.random.default_rng(0), 64  # in which neighbours lie far apart
    vectors = chance.standard_normal((3000, dims)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cache = VectorCache("hnsw", "ip", dims)
    cache.add(np.arange(len(vectors), dtype=np.int64) + 1000, vectors)
    allowed = np.sort(chance.permutation(len(vectors))[:300]) + 1000
    without = {*range(1000, 4000)} - {*allowed.tolist()}
    hits = [
        len({*cache.search(query, 10, allowed)[0]} & {*brute(vectors, query, "ip", without)[:10]})
        for query in chance.standard_normal((30, dims)).astype(np.float32)
    ]
    assert sum(hits) / 300 > 0.985  # 0.96 with the breadth of a search without a filter


def test_an_hnsw_walk_lost_among_removed_rows_falls_back_to_a_scan() -> None:
    near = make_vectors(1000) * 0.01 + 1  # a cluster around the query, all removed
    far = make_vectors(30, seed=2) * 0.01 - 1
    vectors, query = np.concatenate([near, far]), np.ones(DIMS, np.float32)
    cache = fill("hnsw", "l2", vectors)
    cache.discard(range(1000, 2000))
    gone = set(range(1000, 2000))
    assert cache.search(query, 10)[0] == brute(vectors, query, "l2", gone)[:10]


def test_compaction_of_a_flat_cache_changes_no_result() -> None:
    vectors = make_vectors(3000)
    cache = fill("flat", "ip", vectors)
    cache.discard(range(1000, 1999))
    assert not cache.needs_compaction
    cache.discard([1999])
    assert cache.needs_compaction
    query = make_vectors(1, seed=1)[0]
    before = cache.search(query, 50)
    cache = cache.compacted()
    assert not cache.needs_compaction
    assert cache.search(query, 50) == before
    assert sorted(cache.rows()) == list(range(2000, 4000))


@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_an_empty_cache_finds_nothing(kind: str) -> None:
    cache = VectorCache(kind, "ip", DIMS)
    assert cache.search(make_vectors(1)[0], 5) == ([], [])
    cache = fill(kind, "ip", make_vectors(2))
    cache.discard([1000, 1001])
    assert cache.search(make_vectors(1)[0], 5) == ([], [])


def test_equal_vectors_far_larger_than_usual_give_finite_scores() -> None:
    vectors = np.full((2, DIMS), 1e16, np.float32)
    for metric in ("ip", "l2"):
        cache = fill("flat", metric, np.array([vectors[0], -vectors[0]]))
        assert np.isfinite(cache.search(vectors[0], 2)[1]).all()


def assert_same(got: tuple[list[int], list[float]], wanted: tuple[list[int], list[float]]) -> None:
    """Where rows lie otherwise in memory, FAISS adds up in another order on some CPUs."""
    assert got == (wanted[0], pytest.approx(wanted[1], rel=1e-6))


@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_a_saved_cache_comes_back(kind: str, tmp_path: Path) -> None:
    cache = fill(kind, "l2", make_vectors(300))
    cache.discard([1005, 1200])
    save(cache, tmp_path / "c.faiss")
    query = make_vectors(1, seed=1)[0]
    allowed = np.array([1001, 1007, 1250])
    mapped, stamp = VectorCache.load(tmp_path / "c.faiss", kind, "l2", DIMS)
    again, _ = load(tmp_path / "c.faiss", kind, "l2")
    assert stamp == STAMP
    for other in (mapped, again):
        assert (other.searched_as, other.live, other.tombstones) == (kind, 298, 2)
        assert_same(other.search(query, 10), cache.search(query, 10))
        assert_same(other.search(query, 2, allowed), cache.search(query, 2, allowed))
    again.add(np.array([5000], dtype=np.int64), query[None])
    assert again.search(query, 1)[0] == [5000]
    again.discard([5000])
    assert_same(again.search(query, 10), cache.search(query, 10))
    assert [path.name for path in tmp_path.iterdir()] == ["c.faiss"]


def test_a_graph_grows_where_it_is_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAISS moves a graph's links to twice the room, a quarter of a second at a million."""
    monkeypatch.setattr(module, "_ROOM", 100)
    save(fill("hnsw", "ip", make_vectors(400)), tmp_path / "c")
    cache, _ = load(tmp_path / "c", "hnsw", "ip")  # room for a quarter more

    def links() -> int:
        own = cache._index.hnsw.neighbors
        return int(faiss.rev_swig_ptr(own.data(), 1).ctypes.data)

    held: list[int] = []

    @contextmanager
    def write_lock() -> Iterator[None]:
        held.append(links())
        yield
        held.append(links())

    for start in range(400, 1000, 10):
        before = links()
        cache.make_room(10, write_lock)
        there = links()
        cache.add(np.arange(start, start + 10, dtype=np.int64) + 1000, make_vectors(10, start))
        assert links() == there, "the room was made before"
        assert there == before or held[-2:] == [before, there]
    assert len(held) > 2, "and it was made more than once"
    again = np.concatenate(
        [make_vectors(400), *(make_vectors(10, at) for at in range(400, 1000, 10))]
    )
    for query in make_vectors(20, seed=3):
        found = cache.search(query, 10)[0]
        assert len(set(found) & set(brute(again, query, "ip")[:10])) >= 8


@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_what_is_saved_is_one_moment_whatever_is_added_meanwhile(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_COPIED", 50)
    cache, query = fill(kind, "ip", make_vectors(300)), make_vectors(1, seed=1)[0]
    cache.discard([1009])
    before, cut = cache.search(query, 20), cache.cut(STAMP)
    added = 0

    @contextmanager
    def beside() -> Iterator[None]:
        nonlocal added
        rows = np.arange(2000 + added, 3000 + added, dtype=np.int64)  # FAISS moves all vectors
        cache.add(rows, make_vectors(1000, seed=added))
        cache.discard([1010 + added // 1000])
        added += 1000
        yield

    cache.save(tmp_path / "c", cut, beside)
    assert added == 6000
    again, _ = load(tmp_path / "c", kind, "ip")
    assert (again.live, again.tombstones) == (299, 1)
    assert again.search(query, 20) == before
    assert cache.search(query, 20) != before


def test_saving_that_is_given_up_leaves_the_file_that_was_there(tmp_path: Path) -> None:
    save(fill("flat", "ip", make_vectors(20)), tmp_path / "c")
    before = (tmp_path / "c").read_bytes()
    cache = fill("flat", "ip", make_vectors(30))

    def give_up() -> Any:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        cache.save(tmp_path / "c", cache.cut(STAMP), give_up)
    assert (tmp_path / "c").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize("metric", ["ip", "l2"])
@pytest.mark.parametrize("rows", [0, 1, 777])
def test_the_vectors_stand_in_the_file_as_faiss_writes_them(
    metric: str, rows: int, tmp_path: Path
) -> None:
    vectors = make_vectors(rows)
    own = faiss.IndexFlat(DIMS, flat_vectors.METRICS[metric])
    own.add(vectors)
    save(fill("flat", metric, vectors), tmp_path / "c")
    data, expected = (tmp_path / "c").read_bytes(), faiss.serialize_index(own).tobytes()
    assert data.endswith(expected)
    assert (len(data) - vectors.nbytes) % 64 == 0


def test_damaged_vectors_are_found_out_before_anything_is_added(tmp_path: Path) -> None:
    save(fill("flat", "ip", make_vectors(5000)), tmp_path / "c")
    data = bytearray((tmp_path / "c").read_bytes())
    data[-70_000] ^= 1
    (tmp_path / "c").write_bytes(data)
    cache, _ = VectorCache.load(tmp_path / "c", "flat", "ip", DIMS)
    with pytest.raises(CacheUnusable, match="damaged"):
        cache.in_memory(lambda: None)
    vectors, query = make_vectors(5000), make_vectors(1, seed=1)[0]
    halves = [(np.arange(1000 + at, 3500 + at), vectors[at : at + 2500]) for at in (2500, 0)]
    cache.discard([4000])
    cache.take(cache.read_anew([*halves, (np.array([1, 9999]), make_vectors(2))]))
    expected = brute(vectors, query, "ip", {4000})[:30]
    assert cache.search(query, 30)[0] == expected


def test_a_damaged_file_is_refused_wherever_it_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "c.faiss"
    save(fill("flat", "ip", make_vectors(50)), path)
    good = path.read_bytes()
    header = good.index(b"\n")
    for place in (0, 20, header - 3, header, header + 5, header + 60, len(good) // 2, -1):
        data = bytearray(good)
        data[place] ^= 0x41
        path.write_bytes(data)
        if json_header(bytes(data)) == json_header(good) or json_header(bytes(data)) is None:
            with pytest.raises(CacheUnusable):
                load(path, "flat", "ip")
    for length in (0, 10, header, header + 1, len(good) - 1):
        path.write_bytes(good[:length])
        with pytest.raises(CacheUnusable):
            load(path, "flat", "ip")
    path.write_bytes(good + b"x")
    with pytest.raises(CacheUnusable, match="damaged"):
        VectorCache.load(path, "flat", "ip", DIMS)


def json_header(data: bytes) -> object:
    try:
        return json.loads(data.partition(b"\n")[0])
    except ValueError:
        return None


@pytest.mark.parametrize(
    ("kind", "metric", "dims"), [("hnsw", "ip", DIMS), ("flat", "l2", DIMS), ("flat", "ip", 8)]
)
def test_a_file_of_another_index_is_refused(
    kind: str, metric: str, dims: int, tmp_path: Path
) -> None:
    save(fill("flat", "ip", make_vectors(5)), tmp_path / "c")
    with pytest.raises(CacheUnusable, match="another"):
        VectorCache.load(tmp_path / "c", kind, metric, dims)


def test_a_missing_file_is_unusable(tmp_path: Path) -> None:
    with pytest.raises(CacheUnusable, match="missing"):
        VectorCache.load(tmp_path / "c", "flat", "ip", DIMS)


class Watched:
    """A FAISS index that notes how many threads it may use when it is called."""

    def __init__(self, index: Any) -> None:
        self.index, self.threads = index, list[int]()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.index, name)
        if name not in ("search", "add"):
            return value
        self.threads.append(faiss.omp_get_max_threads())
        return value


def test_faiss_uses_one_thread_and_leaves_the_callers_own_as_they_were() -> None:
    cache = fill("hnsw", "ip", make_vectors(5))
    watched = Watched(cache._index)
    cache._index = watched
    after = []

    def work() -> None:
        faiss.omp_set_num_threads(2)
        cache.add(np.array([77]), make_vectors(1))
        cache.search(make_vectors(1)[0], 1)
        after.append(faiss.omp_get_max_threads())  # torch has the same setting

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert watched.threads == [1, 1]
    assert after == [2]


def address(cache: VectorCache) -> int:
    numbers = faiss.rev_swig_ptr(cache._vectors.get_xb(), DIMS)
    return int(numbers.ctypes.data)


def test_room_for_more_of_a_graph_changes_nothing_and_is_made_before_it_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_ROOM", 100)
    vectors, query = make_vectors(500), make_vectors(1, seed=1)[0]
    cache, whole = VectorCache("hnsw", "ip", DIMS), fill("hnsw", "ip", vectors)
    moved = 0

    @contextmanager
    def count() -> Iterator[None]:
        nonlocal moved
        moved += 1
        yield

    for start in range(0, 500, 10):
        block = slice(start, start + 10)
        before = cache.search(query, 20)
        cache.make_room(10, count)
        assert cache.search(query, 20) == before
        at = address(cache)
        cache.add(np.arange(1000 + start, 1010 + start, dtype=np.int64), vectors[block])
        assert not moved or address(cache) == at, "FAISS moved them itself"
    assert cache._vectors.thisown, "nobody would ever free them"
    assert moved == 7  # at 100, 130, 170, ...: a quarter more each time
    assert cache.search(query, 20) == whole.search(query, 20)


@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_the_first_write_may_be_larger_than_the_room_there_is(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ROOM", 10)
    vectors, query = make_vectors(3000), make_vectors(1, seed=1)[0]
    cache = VectorCache(kind, "ip", DIMS)
    cache.add(np.arange(1000, 4000), vectors)
    assert cache.search(query, 10)[0] == brute(vectors, query, "ip")[:10]


@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_a_row_without_room_adds_nothing_and_shifts_none(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    vectors, query = make_vectors(60), make_vectors(1, seed=1)[0]
    cache = fill(kind, "ip", vectors[:50])

    def fail(*_: object) -> None:
        raise MemoryError("no room")

    for name in ("reserve", "append"):  # before FAISS has them, and when it has
        with monkeypatch.context() as patch:
            patch.setattr(Places, name, fail)
            with pytest.raises(MemoryError):
                cache.add(np.arange(1050, 1055), vectors[50:55])
        if name == "reserve":
            cache.add(np.arange(1050, 1055), vectors[50:55])
            assert cache.search(query, 10)[0] == brute(vectors[:55], query, "ip")[:10]
    if kind == "flat":  # which no search had seen yet
        cache.add(np.arange(1055, 1060), vectors[55:])
        assert cache.search(query, 10)[0] == brute(vectors, query, "ip")[:10]
        return
    for change in (
        lambda: cache.add(np.arange(1055, 1060), vectors[55:]),
        lambda: cache.cut(STAMP),
    ):
        with pytest.raises(RuntimeError, match="middle"):
            change()


def make_uneven(share: float, times: float, shift: float) -> np.ndarray:
    """Vectors of which some are longer, in all directions."""
    vectors = make_vectors(2000)
    vectors[: int(share * len(vectors))] *= times
    return vectors + np.float32(shift)


@pytest.mark.parametrize("shift", [0, 1, 100])
def test_vectors_of_which_some_are_far_longer_are_uneven(shift: float) -> None:
    for share, times in ((0, 1), (0.01, 1.2), (0.5, 1.3)):
        assert not is_uneven(make_uneven(share, times, shift))
    for share, times in ((0.001, 10), (0.01, 10), (0.5, 10), (0.7, 10)):
        assert is_uneven(make_uneven(share, times, shift))


def test_vectors_of_equal_length_are_even_and_equal_ones_too() -> None:
    vectors = make_vectors(2000)
    assert not is_uneven(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    for same in (0.0, 1.0, 1e16):
        assert not is_uneven(np.full((2000, DIMS), same, np.float32))


@pytest.mark.parametrize(("options", "bits"), [({}, 8), ({"pq_bits": 4}, 4)])
def test_uneven_vectors_get_codes_that_tell_them_apart(
    options: dict[str, int], bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By distance codes of 4 bits would find one of ten."""
    monkeypatch.setattr(kinds, "bits_for", lambda options, dims: options.get("pq_bits", 4))
    vectors = np.concatenate([make_uneven(0, 1, 0), make_uneven(0.02, 100, 0)])
    options = {"nlist": 16, **options}
    cache = VectorCache.trained("ivf_pq", "l2", DIMS, options, len(vectors), vectors)
    assert cache._index.pq.nbits == bits
    cache.add(np.arange(len(vectors)) + 1000, vectors)
    found = 0
    for query in make_vectors(20, seed=1):
        near, _ = cache.search(query, 100)
        found += len({*near} & {*brute(vectors, query, "l2")[:10]})
    assert (found / 200 > 0.9) == (bits == 8)


@pytest.mark.parametrize("dims", [2, 13])
def test_dimensions_that_nothing_divides_lose_little(dims: int) -> None:
    """One code of 4 bits, all that they have, would find two fifths."""
    chance = np.random.default_rng(dims)
    near = chance.standard_normal((100, dims))[chance.integers(100, size=10_000)]
    vectors = (near + 0.3 * chance.standard_normal(near.shape)).astype(np.float32)
    cache = VectorCache.trained("ivf_pq", "l2", dims, {}, len(vectors), vectors)
    cache.add(np.arange(len(vectors)) + 1000, vectors)
    found = 0
    for query in vectors[:30]:
        near_codes, _ = cache.search(query, cache.candidates_for(10))
        found += len({*near_codes} & {*brute(vectors, query, "l2")[:10]})
    assert found / 300 > 0.9
