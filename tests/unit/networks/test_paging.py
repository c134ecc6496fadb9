"""One token of each sequence in fixed shapes, against whole sequences by the formula."""

import importlib.util
import os

import numpy as np
import pytest
import torch
from torch import Tensor

from condensery.networks.cached_attention import attend
from condensery.networks.caching import BLOCK, Cache, Span, Step
from condensery.networks.paging import Tokens

SIZE = 32
# Triton's interpreter runs the kernel on a CPU: TRITON_INTERPRET=1, and the package by hand.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton")
DEVICES = [
    pytest.param("cuda", torch.float32, marks=pytest.mark.gpu),
    pytest.param("cuda", torch.bfloat16, marks=pytest.mark.gpu),
    pytest.param(
        *("interpreter", torch.float32),
        marks=pytest.mark.skipif(not INTERPRETED, reason="no interpreter of Triton"),
    ),
]


def cache_of(
    blocks: int, shared: int, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> Cache:
    """Whatever nobody wrote is NaN: to read it would show."""
    made = Cache(1, blocks * BLOCK, shared, SIZE, dtype=dtype, device=torch.device(device))
    for tensor in made.layer(0):
        tensor.fill_(torch.nan)
    return made


def places(*blocks: int) -> np.ndarray:
    return np.concatenate([np.arange(block * BLOCK, (block + 1) * BLOCK) for block in blocks])


def rows(count: int, heads: int, seed: int) -> Tensor:
    return torch.randn(count, heads, SIZE, generator=torch.Generator().manual_seed(seed))


# Blocks of three sequences, and the positions that each has before its token.
OWNED = [places(3), places(0, 7, 2, 9), places(5, 4)]
BEFORE = [0, 3 * BLOCK + 5, BLOCK]


def written(cache: Cache, shared: int) -> None:
    """Write what comes before each sequence's token."""
    for number, (owned, before) in enumerate(zip(OWNED, BEFORE, strict=True)):
        if before:
            key, value = rows(before, shared, 10 * number), rows(before, shared, 10 * number + 1)
            for tensor, part in zip(cache.layer(0), (key, value), strict=True):
                tensor[torch.from_numpy(owned[:before])] = part.to(tensor)


def spans() -> list[Span]:
    return [Span(owned, before, 1) for owned, before in zip(OWNED, BEFORE, strict=True)]


def wanted(shared: int, heads: int, window: int | None) -> tuple[Tensor, list[Tensor]]:
    """Return what steps without fixed shapes give, and their input."""
    cache = cache_of(10, shared)
    written(cache, shared)
    inputs = [rows(3, count, 90 + number) for number, count in enumerate((heads, shared, shared))]
    return attend(Step(cache, spans()), 0, *inputs, scale=0.2, window=window), inputs


@pytest.mark.parametrize("window", [None, 1, 20, 100])
@pytest.mark.parametrize("shared", [1, 2, 4])
@pytest.mark.parametrize("size", [3, 8])
def test_fixed_shapes_give_what_others_give(shared: int, window: int | None, size: int) -> None:
    out, inputs = wanted(shared, 4, window)
    cache = cache_of(10, shared)
    written(cache, shared)
    for tensor in cache.layer(0):  # of the spare block only what was written is read
        assert tensor[cache.spare * BLOCK :].isnan().all()
    tokens = Tokens(cache, 16, 10 * BLOCK).first(size)
    tokens.fill(spans())
    padded = [torch.cat([rows_of, rows_of[:1].expand(size - 3, -1, -1)]) for rows_of in inputs]
    attended = attend(tokens, 0, *padded, scale=0.2, window=window)
    torch.testing.assert_close(attended[:3], out, atol=1e-5, rtol=1e-5)
    assert attended.isfinite().all(), "rows without a sequence must not be NaN either"


def test_a_step_leaves_nothing_behind_for_the_next_one() -> None:
    cache = cache_of(10, 2)
    tokens = Tokens(cache, 4, 10 * BLOCK)
    tokens.fill(spans())
    tokens.fill([Span(OWNED[2], 3, 1)])
    assert tokens.position_ids.tolist() == [[3, 0, 0, 0]]
    spare = cache.spare * BLOCK
    assert tokens.places.tolist() == [5 * BLOCK + 3, spare, spare, spare]
    assert tokens.ends.tolist() == [4, 1, 1, 1]
    assert tokens.table[:, 0].tolist() == [5, cache.spare, cache.spare, cache.spare]


def test_rows_that_change_owners_read_their_new_ones_blocks() -> None:
    cache = cache_of(10, 2)
    whole = Tokens(cache, 4, 10 * BLOCK)
    fresh = [Span(OWNED[1], 20, 1), Span(OWNED[2], 17, 1), Span(OWNED[0], 2, 1)]
    for size, spans_of in (
        (4, spans()),
        (2, fresh[:2]),
        (4, fresh),
        (1, spans()[1:2]),
        (4, spans()),
    ):
        whole.first(size).fill(spans_of)
        table = whole.table.tolist()
        for row, span in enumerate(spans_of):
            blocks = [int(place) // BLOCK for place in span.places[::BLOCK]]
            assert table[row][: len(blocks)] == blocks
        for row in range(len(spans_of), size):
            assert table[row][0] == cache.spare


@pytest.mark.parametrize(("device", "dtype"), DEVICES)
@pytest.mark.parametrize("window", [None, 1, 20])
@pytest.mark.parametrize("shared", [1, 2, 4])
@pytest.mark.parametrize("splits", [None, 1, 3])
def test_the_kernel_gives_what_the_formula_gives(
    device: str, dtype: torch.dtype, shared: int, window: int | None, splits: int | None
) -> None:
    from condensery.networks.paging_kernel import paged_attention_kernel

    place = "cpu" if device == "interpreter" else device
    out, inputs = wanted(shared, 4, window)
    cache = cache_of(10, shared, dtype, place)
    written(cache, shared)
    tokens = Tokens(cache, 3, 10 * BLOCK)
    tokens.fill(spans())
    query, key, value = (tensor.to(place, dtype) for tensor in inputs)
    for tensor, part in zip(cache.layer(0), (key, value), strict=True):
        tensor[tokens.places] = part
    attended = paged_attention_kernel(
        *(query, *cache.layer(0), tokens.table, tokens.ends),
        scale=0.2,
        window=window or 0,
        splits=splits,
    )
    tolerance = 1e-5 if dtype == torch.float32 else 0.03
    torch.testing.assert_close(attended.float().cpu(), out, atol=tolerance, rtol=tolerance)
