"""Attention over packed sequences: no padding tokens, and no sequence sees another.

Sequences lie one after another in one row. ``packed_attention`` is registered with transformers
under ``PACKED``, so any model that goes through its attention interface runs packed:

    packing = Packing.of([5, 122, 17], dtype=torch.bfloat16)
    model(input_ids=..., position_ids=packing.position_ids, packing=packing)

No mask function is registered on purpose: transformers then builds no mask at all, and a model
that is called without ``packing`` fails instead of mixing its sequences.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface

from condensery.networks import native
from condensery.networks.packing import Packing

PACKED = "condensery_packed"

# On a CPU in bf16, two products with a softmax between them take 0.7 of the fused kernel's time
# (122 keys); past this length the scores no longer fit the cache, and the fused kernel wins.
LONGEST_PRODUCTS = 1024
# So it does where there are so few scores that starting the products costs more than they do: one
# query of 16 tokens, one head: 9 us against 42, twelve heads: 34 against 57.
FEW_SCORES = 10_000


def attend(
    packing: Packing,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    causal: bool,
    reach: int | None = None,
) -> Tensor:
    """Let each sequence attend to itself: softmax(q kᵀ · scale) v.

    Args:
        packing: Where the sequences lie.
        query: (total, heads, size).
        key: (total, key heads, size); query head ``i`` reads key head ``i // (heads / key heads)``.
        value: As ``key``.
        scale: Of the scores.
        causal: Whether a token sees only itself and those before it.
        reach: The farthest that a token sees, tokens; None: all of its sequence.

    Returns:
        (total, heads, size), dtype of ``query``; filler rows hold nothing of meaning.
    """
    far = reach is None or reach >= packing.longest - 1
    if far and native.can_attend_packed(query, key, value):
        return native.attend_packed(query, key, value, packing.row_ends, scale=scale, causal=causal)
    repeats = query.shape[1] // key.shape[1]
    if repeats > 1:  # varlen_attn of torch 2.11 knows no shared key heads either
        key, value = (rows.repeat_interleave(repeats, dim=1) for rows in (key, value))
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
        return _attend_varlen(packing, query, key, value, scale=scale, causal=causal, reach=reach)
    padded = (packing.pad(query), packing.pad(key), packing.pad(value))
    return attend_padded(packing, *padded, scale=scale, causal=causal, reach=reach)


def attend_padded(
    packing: Packing,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    causal: bool,
    reach: int | None = None,
) -> Tensor:
    """Do what ``attend`` does, on rows that ``packing.pad`` has laid out already."""
    outputs = []
    products = query.dtype == torch.bfloat16 and query.device.type == "cpu"
    for bucket in packing.buckets:
        parts = bucket.split(query), bucket.split(key), bucket.split(value)
        # Padding comes last, so the causal rule hides it from real tokens by itself.
        mask = None if causal else bucket.mask
        rule = causal
        if reach is not None and reach < bucket.length - 1:
            mask, rule = _band(bucket.length, reach, causal, query, mask), False
        scores = bucket.sequences * query.shape[1] * bucket.length**2
        if products and scores > FEW_SCORES and bucket.length <= LONGEST_PRODUCTS:
            output = _products(*parts, mask, scale=scale, causal=rule)
        else:
            output = F.scaled_dot_product_attention(
                *parts, attn_mask=mask, is_causal=rule, scale=scale
            )
        outputs.append(output.transpose(1, 2).flatten(0, 1))
    return packing.unpad(outputs[0] if len(outputs) == 1 else torch.cat(outputs))


def _products(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, scale: float, causal: bool
) -> Tensor:
    """Attend, (sequences, heads, length, size) each; the mask is added within the product."""
    sequences, heads, length, size = query.shape
    query, key, value = (part.reshape(-1, length, size) for part in (query, key, value))
    if causal:
        hidden = torch.full((length, length), -torch.inf, dtype=query.dtype).triu_(1)
    elif mask is not None:
        rows = mask.shape[-2]  # 1 where a key is hidden from all queries alike
        hidden = mask.expand(sequences, heads, rows, length).reshape(-1, rows, length)
    else:
        hidden = query.new_zeros(1)
    scores = torch.baddbmm(hidden, query, key.transpose(1, 2), alpha=scale)
    return torch.bmm(scores.softmax(-1), value).view(sequences, heads, length, size)


def _band(length: int, reach: int, causal: bool, like: Tensor, mask: Tensor | None) -> Tensor:
    """Return 0 where a token sees another and -inf where not, (sequences or 1, 1, length, length).

    Each place sees itself, padding too: a row of nothing but -inf has no gradient but NaN.
    """
    places = torch.arange(length, device=like.device)
    distance = places[:, None] - places
    seen = (distance <= reach) & (distance >= (0 if causal else -reach))
    band = torch.zeros(length, length, dtype=like.dtype, device=like.device)
    band = band.masked_fill_(~seen, -torch.inf)[None, None]
    return band if mask is None else (band + mask).masked_fill_(distance == 0, 0.0)


def _attend_varlen(
    packing: Packing,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    causal: bool,
    reach: int | None,
) -> Tensor:
    # Imported here: the module is young, and on a CPU it has no kernel.
    from torch.nn.attention.varlen import varlen_attn

    far = -1 if reach is None else reach
    output = varlen_attn(
        query,
        key,
        value,
        packing.cu_seqlens,
        packing.cu_seqlens,
        packing.longest,
        packing.longest,
        scale=scale,
        window_size=(far, 0 if causal else far),
    )
    assert isinstance(output, Tensor)  # a pair only where auxiliary outputs are asked for
    return output


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    packing: Packing | None = None,
    is_causal: bool | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend within each packed sequence; transformers calls this in every layer.

    Args:
        module: The attention module; its ``is_causal`` decides where ``is_causal`` is not given.
        query: (1, heads, total, size).
        key: (1, key heads, total, size).
        value: As ``key``.
        attention_mask: Must be None.
        scaling: Of the scores; 1 / sqrt(size) if not given.
        dropout: Must be 0.
        packing: The model's ``packing`` keyword argument.
        is_causal: Overrides the module.
        options: What the model passes besides; refused where it would change the result.

    Returns:
        (1, total, heads, size), and None for the weights.

    Raises:
        ValueError: Called without ``packing``, or with what packed attention does not do.
    """
    if packing is None:
        raise ValueError(
            f"the attention {PACKED!r} needs the keyword argument packing=Packing(...)"
        )
    refuse_padded("packed", query, attention_mask, dropout)
    if query.shape[2] != packing.total or key.shape[2] != packing.total:
        raise ValueError(
            f"{query.shape[2]} queries and {key.shape[2]} keys for a row of {packing.total}"
        )
    refuse_options("packed", options)
    window = options.get("sliding_window")  # counts the token itself, in one direction
    output = attend(
        packing,
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        causal=bool(getattr(module, "is_causal", False) if is_causal is None else is_causal),
        reach=window - 1 if window is not None and window < packing.longest else None,
    )
    return output[None], None


def refuse_padded(kind: str, query: Tensor, mask: Tensor | None, dropout: float) -> None:
    """Raise ValueError where a model asks attention over one packed row for several, or a mask."""
    if mask is not None or dropout or query.shape[0] != 1:
        raise ValueError(f"{kind} attention takes one row, no mask and no dropout")


def refuse_options(kind: str, options: Mapping[str, Any]) -> None:
    """Raise ValueError where a model asks its attention for what would change the result."""
    for name in ("softcap", "s_aux", "position_bias"):
        if options.get(name) is not None:
            raise ValueError(f"{kind} attention knows no {name}")


AttentionInterface.register(PACKED, packed_attention)
