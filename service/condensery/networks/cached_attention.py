"""Attention over cached keys and values: one forward pass over many sequences, each at its place.

A row sees those before it. Of a model whose attention is not causal, a prompt is read at once, and
each of its rows sees all of it; what follows is read as of any other.

``cached_attention`` is registered with transformers under ``CACHED``, so any causal model that goes
through its attention interface runs in steps (``caching.Step``, ``paging.Tokens``).
"""

import inspect
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface

from condensery.networks import native
from condensery.networks.attention import attend as attend_packed
from condensery.networks.attention import refuse_options, refuse_padded
from condensery.networks.caching import Step
from condensery.networks.paging import Tokens, paged_attention

CACHED = "condensery_cached"


def attend(
    step: Step | Tokens,
    layer: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    window: int | None = None,
    two_way: bool = False,
) -> Tensor:
    """Write a step's keys and values to the cache, and let each row see its own sequence's.

    Args:
        step: Where the rows belong.
        layer: Whose keys and values they are.
        query: (padded, heads, size).
        key: (padded, key heads, size); query head ``i`` reads key head
            ``i // (heads / key heads)``.
        value: As ``key``.
        scale: Of the scores.
        window: A row sees so many keys, its own included; None is all.
        two_way: Whether the rows of a prompt see all of it.

    Returns:
        (padded, heads, size).
    """
    keys, values = step.cache.layer(layer)
    keys.index_copy_(0, step.places, key)
    values.index_copy_(0, step.places, value)
    return see(step, layer, query, key, value, scale=scale, window=window, two_way=two_way)


def see(
    step: Step | Tokens,
    layer: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    window: int | None = None,
    two_way: bool = False,
) -> Tensor:
    """Do what ``attend`` does once a step's keys and values are in the cache."""
    keys, values = step.cache.layer(layer)
    if isinstance(step, Tokens):
        return paged_attention(step, query, keys, values, scale=scale, window=window)
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
        output = _varlen(step, query, keys, values, scale, window)
        if two_way and step.prompts is not None:
            whole, packing = step.prompts
            parts = (part.index_select(0, whole) for part in (query, key, value))
            seen_whole = attend_packed(packing, *parts, scale=scale, causal=False)
            output.index_copy_(0, whole, seen_whole)
        return output
    if step.singles == step.padded and native.can_attend(query):
        return native.attend(query, keys, values, *step.singles_see(window), scale)
    output = torch.empty_like(query)
    if step.singles and native.can_attend(query):
        first = query[: step.singles]
        output[: step.singles] = native.attend(
            first, keys, values, *step.singles_see(window), scale
        )
    elif step.singles:
        output[: step.singles] = _singles(step, query[: step.singles], keys, values, scale, window)
    for chunk, seen in zip(step.chunks, step.seen(window)[step.singles :], strict=True):
        rows = slice(chunk.first, chunk.last)
        # One that begins its prompt has all it sees at hand.
        read = (keys[seen], values[seen]) if chunk.start else (key[rows], value[rows])
        causal = bool(chunk.start) or not two_way
        output[rows] = _chunk(
            chunk.start, query[rows], *read, scale=scale, window=window, causal=causal
        )
    if step.padded > step.total:
        output[step.total :] = 0.0  # not what happened to lie there, a NaN maybe
    return output


def _singles(
    step: Step, query: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None
) -> Tensor:
    """Attend from one row a sequence, (singles, heads, size), each sequence by itself.

    For where our own kernel was not built. On a CPU this is 1.5 to 5 times as fast as keys padded
    to the longest in one fused call: most keys are read where they lie. In bf16 the products are in
    fp32, which is faster as well.
    """
    count, heads, size = query.shape
    shared = keys.shape[1]
    # The query heads that share a key head stand as rows of one query: no key is repeated.
    grouped = (query.float() * scale).reshape(count, shared, heads // shared, size)
    output = torch.empty_like(grouped)
    for row, seen in enumerate(step.seen(window)[:count]):
        key, value = keys[seen].float(), values[seen].float()
        if heads == shared:  # one row is no matrix: as sums, a third faster than as products
            weights = (key * grouped[row, :, 0]).sum(dim=-1, keepdim=True).softmax(dim=0)
            torch.sum(value * weights, dim=0, out=output[row, :, 0])
        else:
            weights = torch.bmm(grouped[row], key.permute(1, 2, 0)).softmax(dim=-1)
            torch.bmm(weights, value.transpose(0, 1), out=output[row])
    return output.reshape(count, heads, size)


def _chunk(
    start: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    window: int | None,
    causal: bool,
) -> Tensor:
    """Attend from ``query`` (rows, heads, size), at positions from ``start``, to all its keys."""
    count, heads, size = query.shape
    if (window is None or window >= start + count) and native.can_attend_packed(query, key, value):
        return native.attend_packed(
            query, key, value, np.array([count]), scale=scale, causal=causal, before=start
        )
    shared = key.shape[1]
    mask = None
    if start or (window is not None and window < count):
        row = torch.arange(start, start + count, device=query.device)[:, None]
        place = torch.arange(start + count, device=query.device)[None, :]
        mask = place <= row
        if window is not None:
            mask &= place > row - window
    key, value = (
        rows.transpose(0, 1)[:, None].expand(shared, heads // shared, -1, size)
        for rows in (key, value)
    )
    output = F.scaled_dot_product_attention(
        query.reshape(count, shared, heads // shared, size).permute(1, 2, 0, 3),
        key,
        value,
        attn_mask=mask,
        is_causal=causal and mask is None,
        scale=scale,
    )
    return output.permute(2, 0, 1, 3).reshape(count, heads, size)


def _varlen(
    step: Step, query: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None
) -> Tensor:
    """Attend from all rows in one call; single rows are prompts of one row there."""
    # Imported here: the module is young, and on a CPU it has no kernel.
    from torch.nn.attention.varlen import varlen_attn

    key, value = (rows.index_select(0, step.keys) for rows in (keys, values))
    repeats = query.shape[1] // keys.shape[1]
    options: dict[str, Any] = {}
    if repeats > 1 and "enable_gqa" in inspect.signature(varlen_attn).parameters:
        options["enable_gqa"] = True
    elif repeats > 1:  # torch 2.11's knows no shared key heads
        key, value = (rows.repeat_interleave(repeats, dim=1) for rows in (key, value))
    output = varlen_attn(
        query.contiguous(),
        key,
        value,
        *step.ends,
        scale=scale,
        # Rows are the last ones of their keys: the causal rule holds from the end.
        window_size=(-1 if window is None else window - 1, 0),
        **options,
    )
    assert isinstance(output, Tensor)  # a pair only where auxiliary outputs are asked for
    return output


def cached_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    step: Step | Tokens | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend within each sequence of a step; transformers calls this in every layer.

    Args:
        module: The attention module; its ``layer_idx`` says which layer it is.
        query: (1, heads, padded, size).
        key: (1, key heads, padded, size).
        value: As ``key``.
        attention_mask: Must be None.
        scaling: Of the scores; 1 / sqrt(size) if not given.
        dropout: Must be 0.
        step: The model's ``step`` keyword argument.
        options: What the model passes besides; refused where it would change the result.

    Returns:
        (1, padded, heads, size), and None for the weights.

    Raises:
        ValueError: Called without ``step``, or with what cached attention does not do.
    """
    if step is None:
        raise ValueError(f"the attention {CACHED!r} needs the keyword argument step=Step(...)")
    refuse_padded("cached", query, attention_mask, dropout)
    if query.shape[2] != step.padded or key.shape[2] != step.padded:
        raise ValueError(
            f"{query.shape[2]} queries and {key.shape[2]} keys for a step of {step.padded}"
        )
    refuse_options("cached", options)
    two_way = not getattr(module, "is_causal", True)
    window: int | None = options.get("sliding_window")
    if two_way and window is not None:
        raise ValueError("cached attention has no window where it is not causal")
    step.visits += 1
    layer: Any = module.layer_idx
    output = attend(
        step,
        layer,
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=window,
        two_way=two_way,
    )
    return output[None], None


AttentionInterface.register(CACHED, cached_attention)
