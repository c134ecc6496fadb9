"""Vectors in memory that grows in place, and FAISS's look at them."""

import gc
from pathlib import Path

import faiss
import numpy as np
import pytest

from condensery.index.flat_vectors import METRICS, FlatVectors
from condensery.values import Floats

DIMS = 24


def make_vectors(rows: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal((rows, DIMS)).astype(np.float32)


def append(flat: FlatVectors, vectors: Floats) -> None:
    if not flat.has_room(len(vectors)):
        flat.grow(len(vectors))
    flat.put(vectors)
    flat.show(len(flat) + len(vectors))


@pytest.mark.parametrize("metric", ["ip", "l2"])
def test_it_finds_what_faiss_finds_however_often_it_grows(metric: str) -> None:
    flat, own = FlatVectors(metric, DIMS), faiss.IndexFlat(DIMS, METRICS[metric])
    queries = make_vectors(5, seed=1)
    assert flat.index.search(queries, 1)[1].tolist() == [[-1]] * 5
    for seed, rows in enumerate([1, 1022, 1, 1, 7000, 3, 40_000]):
        append(flat, make_vectors(rows, seed))
        own.add(make_vectors(rows, seed))
        gc.collect()
        assert len(flat) == own.ntotal
        for ours, theirs in zip(
            flat.index.search(queries, 20), own.search(queries, 20), strict=True
        ):
            np.testing.assert_array_equal(ours, theirs)
    assert np.array_equal(flat.matrix.ravel(), faiss.vector_to_array(own.codes).view(np.float32))


def test_what_is_put_is_not_found_before_it_is_shown() -> None:
    flat, vectors = FlatVectors("ip", DIMS, 10), make_vectors(5)
    flat.matrix[:] = make_vectors(10, seed=2)
    flat.put(100 * vectors)
    assert flat.index.search(vectors, 1)[1].max() < 10
    flat.show(15)
    assert flat.index.search(vectors, 1)[1].min() >= 10


def test_where_memory_ends_all_is_as_it_was() -> None:
    flat, vectors = FlatVectors("ip", DIMS), make_vectors(100)
    append(flat, vectors)
    with pytest.raises(MemoryError):
        flat.grow(2**45)
    with pytest.raises(MemoryError):
        FlatVectors("ip", DIMS, 2**45)
    assert np.array_equal(flat.matrix, vectors)
    append(flat, make_vectors(5000, seed=1))
    assert flat.index.search(vectors[:1], 1)[1].tolist() == [[0]]


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="asks Linux for its memory")
def test_room_costs_no_memory_and_what_is_let_go_gives_it_back() -> None:
    before = resident_mib()
    flat = FlatVectors("ip", 1024, 50_000)  # 195 MiB of zeros
    assert resident_mib() - before < 50
    flat.matrix[:] = 1
    flat.grow(1)  # to twice the room
    assert resident_mib() - before < 250
    del flat
    gc.collect()
    assert resident_mib() - before < 50
