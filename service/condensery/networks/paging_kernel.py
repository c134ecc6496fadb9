"""Attention from one token of each sequence to its keys in blocks, in one Triton kernel.

Split keys are merged by their log-sum-exp, as in Flash-Decoding. The query heads that share a key
head are one small matrix, so that each key is read once.
"""

from contextlib import nullcontext
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from condensery.networks.caching import BLOCK

TILE = 64  # keys read at a time
LEAST_ROWS = 16  # of a matrix product, for the tensor cores
# Programs that fill a large card, twice; fewer rows than that split their keys.
PROGRAMS = 264
MOST_SPLITS = 16


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _attend(  # type: ignore[no-untyped-def]  # Triton reads the bare names
    query,
    keys,
    values,
    table,
    ends,
    output,
    sums,
    scale,
    query_row,
    query_head,
    place_stride,
    head_stride,
    table_row,
    output_split,
    output_row,
    output_head,
    sums_split,
    sums_row,
    WINDOW: tl.constexpr,
    SPLITS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_ROWS: tl.constexpr,
    SIZE: tl.constexpr,
    SIZE_COLUMNS: tl.constexpr,
    BLOCK_PLACES: tl.constexpr,
    TILE_PLACES: tl.constexpr,
):
    row, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    end = tl.load(ends + row)
    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(end - WINDOW, 0)
    each = tl.cdiv(end - begin, SPLITS * TILE_PLACES) * TILE_PLACES
    first = begin + split * each
    last = tl.minimum(first + each, end)
    member = tl.arange(0, GROUP_ROWS)
    feature = tl.arange(0, SIZE_COLUMNS)
    real = (member[:, None] < GROUP) & (feature[None, :] < SIZE)
    head_of = head * GROUP + member
    q = tl.load(
        query + row * query_row + head_of[:, None] * query_head + feature[None, :],
        mask=real,
        other=0.0,
    )
    best = tl.full([GROUP_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_ROWS], tl.float32)
    mixed = tl.zeros([GROUP_ROWS, SIZE_COLUMNS], tl.float32)
    for start in range(first, last, TILE_PLACES):
        position = start + tl.arange(0, TILE_PLACES)
        inside = position < last
        block = tl.load(table + row * table_row + position // BLOCK_PLACES, mask=inside, other=0)
        place = block.to(tl.int64) * BLOCK_PLACES + position % BLOCK_PLACES
        at = place * place_stride + head * head_stride
        k = tl.load(
            keys + at[None, :] + feature[:, None],
            mask=inside[None, :] & (feature[:, None] < SIZE),
            other=0.0,
        )
        scores = tl.dot(q, k, input_precision="ieee") * scale
        scores = tl.where(inside[None, :], scores, float("-inf"))
        top = tl.maximum(best, tl.max(scores, 1))
        kept = tl.exp(best - top)
        weights = tl.exp(scores - top[:, None])
        v = tl.load(
            values + at[:, None] + feature[None, :],
            mask=inside[:, None] & (feature[None, :] < SIZE),
            other=0.0,
        )
        mixed = mixed * kept[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        total = total * kept + tl.sum(weights, 1)
        best = top
    some = total > 0  # else this split has no keys
    divisor = tl.where(some, total, 1.0)
    result = mixed / divisor[:, None]
    tl.store(
        output
        + split * output_split
        + row * output_row
        + head_of[:, None] * output_head
        + feature[None, :],
        result.to(output.dtype.element_ty),
        mask=real,
    )
    if SPLITS > 1:
        tl.store(
            sums + split * sums_split + row * sums_row + head_of,
            tl.where(some, best + tl.log(divisor), float("-inf")),
            mask=member < GROUP,
        )


def paged_attention_kernel(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    ends: Tensor,
    *,
    scale: float,
    window: int,
    splits: int | None = None,
) -> Tensor:
    """Compute what ``paging.paged_attention`` says.

    Args:
        query: (rows, heads, size).
        keys: (positions, key heads, size), its last two dimensions contiguous.
        values: As ``keys``.
        table: Blocks of each row, (rows, blocks), int32.
        ends: Positions that each row sees, (rows,), int32, at least 1.
        scale: Of the scores.
        window: A row sees so many keys; 0 is all.
        splits: Parts that a row's keys are read in; by default what fills the device.
    """
    rows, heads, size = query.shape
    shared = keys.shape[1]
    group = heads // shared
    query = query.contiguous()
    if splits is None:
        splits = max(1, min(MOST_SPLITS, PROGRAMS // (rows * shared)))
    kind = query.dtype if splits == 1 else torch.float32
    output = torch.empty(splits, rows, heads, size, dtype=kind, device=query.device)
    sums = torch.empty(splits, rows, heads, dtype=torch.float32, device=query.device)
    launch: Any = _attend[rows, shared, splits]
    # Triton launches on the current device, whatever its tensors are on.
    with torch.cuda.device(query.device) if query.is_cuda else nullcontext():
        launch(
            query,
            keys,
            values,
            table,
            ends,
            output,
            sums,
            scale,
            *query.stride()[:2],
            *keys.stride()[:2],
            table.stride(0),
            *output.stride()[:3],
            *sums.stride()[:2],
            WINDOW=window,
            SPLITS=splits,
            GROUP=group,
            GROUP_ROWS=max(LEAST_ROWS, triton.next_power_of_2(group)),
            SIZE=size,
            SIZE_COLUMNS=max(LEAST_ROWS, triton.next_power_of_2(size)),
            BLOCK_PLACES=BLOCK,
            TILE_PLACES=TILE,
        )
    if splits == 1:
        return output[0]
    weights = sums.softmax(dim=0)[..., None]  # a split without keys has weight 0
    return (output * weights).sum(dim=0).to(query.dtype)
