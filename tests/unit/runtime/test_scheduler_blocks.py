import numpy as np

from condensery.networks.caching import BLOCK
from condensery.runtime.scheduler import BlockAllocator, block_positions, blocks_for


def test_positions_are_rounded_up_to_blocks() -> None:
    assert [blocks_for(n) for n in (1, BLOCK, BLOCK + 1)] == [1, 1, 2]
    assert BlockAllocator(3 * BLOCK + 5).count == 3


def test_nobody_gets_what_another_has_and_all_comes_back() -> None:
    blocks = BlockAllocator(10 * BLOCK)
    mine, theirs = blocks.take(4), blocks.take(6)
    assert sorted(mine + theirs) == list(range(10))
    assert (blocks.free, blocks.used) == (0, 10)
    blocks.give_back(mine)
    assert sorted(blocks.take(4)) == sorted(mine)


def test_what_came_back_last_is_given_out_first() -> None:
    blocks = BlockAllocator(100 * BLOCK)
    for _ in range(50):
        blocks.give_back(blocks.take(3))
    assert blocks.take(3) == [0, 1, 2]


def test_blocks_lie_side_by_side_where_there_are_such() -> None:
    blocks = BlockAllocator(10 * BLOCK)
    first, second, _ = blocks.take(2), blocks.take(3), blocks.take(1)
    blocks.give_back(first)
    assert blocks.take(3) == [6, 7, 8], "not the first two and another"
    blocks.give_back(second)
    assert blocks.take(6) == [0, 1, 2, 3, 4, 9], "none but these"
    assert blocks.free == 0


def test_places_are_those_of_the_blocks_in_order() -> None:
    places = block_positions([2, 0])
    assert places.tolist() == [*range(32, 48), *range(16)]
    assert places.dtype == np.int64
