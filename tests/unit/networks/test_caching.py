import numpy as np
import pytest
import torch

from condensery.networks.caching import BLOCK, Cache, Span, Step


def cache_of(positions: int) -> Cache:
    return Cache(1, positions, 1, 4, dtype=torch.float32, device=torch.device("cpu"))


def test_there_is_a_block_that_nobody_owns() -> None:
    for positions in (5, BLOCK, BLOCK + 1):
        cache = cache_of(positions)
        assert cache.positions == positions
        assert cache.spare * BLOCK >= positions
        assert all(len(rows) == (cache.spare + 1) * BLOCK for rows in cache.layer(0))


def test_keys_side_by_side_are_read_where_they_lie_and_others_gathered() -> None:
    cache = cache_of(64)
    apart = np.concatenate([np.arange(32, 48), np.arange(16)])
    step = Step(cache, [Span(np.arange(8, 40), 20, 1), Span(apart, 19, 1), Span(apart, 2, 9)])
    near, far, chunk = step.seen(None)
    assert near == slice(8, 29)
    assert far.tolist() == apart[:20].tolist()
    assert chunk == slice(32, 43)
    near, far, chunk = step.seen(5)
    assert near == slice(24, 29)
    assert far.tolist() == [47, 0, 1, 2, 3]
    assert chunk == slice(32, 43), "its first row sees further back than its last"


def test_positions_are_each_sequences_own() -> None:
    places = np.arange(32)
    step = Step(cache_of(32), [Span(places[16:], 5, 1), Span(places, 2, 3)])
    assert step.position_ids.tolist() == [[5, 2, 3, 4]]
    assert step.places.tolist() == [21, 2, 3, 4]
    assert step.last.tolist() == [0, 3]
    assert (step.total, step.singles) == (4, 1)


def test_longer_pieces_must_come_after_single_rows() -> None:
    places = np.arange(8)
    with pytest.raises(ValueError, match="single tokens come first"):
        Step(cache_of(8), [Span(places, 0, 2), Span(places, 0, 1)])
    with pytest.raises(ValueError, match="needs rows"):
        Step(cache_of(8), [])
