"""Attention over packed sequences: no padding tokens, and no sequence sees another.

Sequences lie one after another in one row. ``packed_attention`` is registered with transformers
under ``PACKED``, so any model that goes through its attention interface runs packed:

    packing = Packing.of([5, 122, 17], dtype=torch.bfloat16)
    model(input_ids=..., position_ids=packing.position_ids, packing=packing)

No mask function is registered on purpose: transformers then builds no mask at all, and a model
that is called without ``packing`` fails instead of mixing its sequences.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface

PACKED = "condensery_packed"

# On a CPU, softmax over a key length that is not a multiple of 16 (one AVX-512 register of
# fp32) ends in a scalar loop: 122 keys take twice as long as 128. Keys are therefore padded to
# a multiple of 16, inside the attention only; all else stays free of padding.
KEY_MULTIPLE = 16

# On a CPU in bf16, two products with a softmax between them take 0.7 of the fused kernel's time
# (122 keys); past this length the scores no longer fit the cache, and the fused kernel wins.
LONGEST_PRODUCTS = 1024


@dataclass(frozen=True, slots=True)
class Bucket:
    """Sequences whose lengths round up to the same ``length``, padded to it.

    Attributes:
        start: Their first row in the padded layout.
        mask: 0 at real keys and -inf at padding, (sequences, 1, 1, length); None if none is padded.
    """

    start: int
    sequences: int
    length: int
    mask: Tensor | None

    def split(self, rows: Tensor) -> Tensor:
        """Cut this bucket out of ``rows`` (padded, heads, size).

        Returns:
            (sequences, heads, length, size).
        """
        mine = rows[self.start : self.start + self.sequences * self.length]
        return mine.view(self.sequences, self.length, *rows.shape[1:]).transpose(1, 2)


class Packing:
    """Where each sequence lies in a packed row, worked out once for a whole forward pass.

    Attributes:
        lengths: Tokens of each sequence, in the row's order.
        total: Length of the row: the sequences, then filler that no sequence sees.
        dtype: Of the forward pass (the padding mask is added to its scores).
    """

    def __init__(
        self, lengths: tuple[int, ...], total: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.lengths = lengths
        self.total = total
        self.device = device
        self.dtype = dtype
        self._lengths = np.asarray(lengths, dtype=np.int64)
        self._ends = np.cumsum(self._lengths)
        self._starts = self._ends - self._lengths

    @classmethod
    def of(
        cls,
        lengths: Sequence[int],
        *,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        total_multiple: int = 1,
    ) -> "Packing":
        """Pack sequences of these lengths.

        Args:
            lengths: Tokens of each sequence, each at least 1.
            dtype: The forward pass's.
            device: The forward pass's.
            total_multiple: Round the row up to a multiple of this with filler. oneDNN prepares
                a kernel for each new number of rows, so a CPU likes few different ones.

        Raises:
            ValueError: No sequence, or an empty one.
        """
        if not lengths or min(lengths) < 1:
            raise ValueError(f"can't pack sequences of lengths {list(lengths)[:8]}")
        total = -(-sum(lengths) // total_multiple) * total_multiple
        return cls(tuple(lengths), total, torch.device(device), dtype)

    @property
    def longest(self) -> int:
        """The longest sequence, tokens."""
        return max(self.lengths)

    @cached_property
    def cu_seqlens(self) -> Tensor:
        """Where each sequence starts, and where the last ends: (sequences + 1,), int32."""
        return self._tensor(np.concatenate([[0], self._ends]).astype(np.int32))

    @cached_property
    def starts(self) -> Tensor:
        """Row of each sequence's first token, (sequences,)."""
        return self._tensor(self._starts)

    @cached_property
    def ends(self) -> Tensor:
        """Row of each sequence's last token, (sequences,)."""
        return self._tensor(self._ends - 1)

    @cached_property
    def sequence_ids(self) -> Tensor:
        """Which sequence each real token belongs to, (real tokens,)."""
        return self._tensor(np.repeat(np.arange(len(self.lengths)), self._lengths))

    @cached_property
    def position_ids(self) -> Tensor:
        """Each token's place in its own sequence, (1, total), int64; 0 at filler."""
        places = np.arange(self._ends[-1]) - np.repeat(self._starts, self._lengths)
        return self.row(places)

    def row(self, values: Sequence[int] | np.ndarray[Any, Any], fill: int = 0) -> Tensor:
        """Make one int64 row (1, total) of the sequences' values end to end, ``fill`` at filler."""
        row = np.full((1, self.total), fill, dtype=np.int64)
        row[0, : len(values)] = values
        return self._tensor(row)

    def _tensor(self, array: np.ndarray[Any, Any]) -> Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)

    @cached_property
    def _padded(self) -> tuple[Tensor | None, Tensor | None, tuple[Bucket, ...]]:
        """Row of each padded place, padded place of each row, and the buckets.

        Both indexes are None where the packed row is the padded layout already.
        """
        padded = -(-self._lengths // KEY_MULTIPLE) * KEY_MULTIPLE
        # Stable: sequences of one bucket stay in order, so equal lengths need no gather at all.
        order = np.argsort(padded, kind="stable")
        gather: list[np.ndarray[Any, Any]] = []
        scatter = np.zeros(self.total, dtype=np.int64)
        buckets: list[Bucket] = []
        start = 0
        for length, group in groupby(order, key=lambda sequence: int(padded[sequence])):
            members = np.fromiter(group, dtype=np.int64)
            real = self._lengths[members][:, None]
            place = np.arange(length)[None, :]
            # Padding repeats the sequence's last token: finite, and masked out as a key.
            rows = self._starts[members][:, None] + np.minimum(place, real - 1)
            inside = place < real
            gather.append(rows.reshape(-1))
            scatter[rows[inside]] = start + np.flatnonzero(inside)
            mask = None
            if not inside.all():
                outside = self._tensor(~inside)[:, None, None, :]
                mask = torch.zeros(outside.shape, dtype=self.dtype, device=self.device)
                mask.masked_fill_(outside, -torch.inf)
            buckets.append(Bucket(start, len(members), length, mask))
            start += rows.size
        gathered = np.concatenate(gather)
        if np.array_equal(gathered, np.arange(self.total)):
            return None, None, tuple(buckets)
        return self._tensor(gathered), self._tensor(scatter), tuple(buckets)

    def pad(self, rows: Tensor) -> Tensor:
        """Lay packed rows (total, ...) out in buckets (padded, ...)."""
        gather = self._padded[0]
        return rows if gather is None else rows.index_select(0, gather)

    def unpad(self, rows: Tensor) -> Tensor:
        """Undo ``pad``; filler gets some finite row."""
        scatter = self._padded[1]
        return rows if scatter is None else rows.index_select(0, scatter)

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """The padded layout's buckets, shortest first."""
        return self._padded[2]


def attend(
    packing: Packing, query: Tensor, key: Tensor, value: Tensor, *, scale: float, causal: bool
) -> Tensor:
    """Let each sequence attend to itself: softmax(q kᵀ · scale) v.

    Args:
        packing: Where the sequences lie.
        query: (total, heads, size).
        key: (total, key heads, size); query head ``i`` reads key head ``i // (heads / key heads)``.
        value: As ``key``.
        scale: Of the scores.
        causal: Whether a token sees only itself and those before it.

    Returns:
        (total, heads, size), dtype of ``query``; filler rows hold nothing of meaning.
    """
    repeats = query.shape[1] // key.shape[1]
    if repeats > 1:  # varlen_attn of torch 2.11 knows no shared key heads either
        key, value = (rows.repeat_interleave(repeats, dim=1) for rows in (key, value))
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
        return _attend_varlen(packing, query, key, value, scale=scale, causal=causal)
    padded = (packing.pad(query), packing.pad(key), packing.pad(value))
    return attend_padded(packing, *padded, scale=scale, causal=causal)


def attend_padded(
    packing: Packing, query: Tensor, key: Tensor, value: Tensor, *, scale: float, causal: bool
) -> Tensor:
    """Do what ``attend`` does, on rows that ``packing.pad`` has laid out already."""
    outputs = []
    products = query.dtype == torch.bfloat16 and query.device.type == "cpu"
    for bucket in packing.buckets:
        parts = bucket.split(query), bucket.split(key), bucket.split(value)
        # Padding comes last, so the causal rule hides it from real tokens by itself.
        mask = None if causal else bucket.mask
        if products and bucket.length <= LONGEST_PRODUCTS:
            output = _products(*parts, mask, scale=scale, causal=causal)
        else:
            output = F.scaled_dot_product_attention(
                *parts, attn_mask=mask, is_causal=causal, scale=scale
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
        hidden = mask.expand(-1, heads, -1, -1).reshape(-1, 1, length)
    else:
        hidden = query.new_zeros(1)
    scores = torch.baddbmm(hidden, query, key.transpose(1, 2), alpha=scale)
    return torch.bmm(scores.softmax(-1), value).view(sequences, heads, length, size)


def _attend_varlen(
    packing: Packing, query: Tensor, key: Tensor, value: Tensor, *, scale: float, causal: bool
) -> Tensor:
    # Imported here: the module is young, and on a CPU it has no kernel.
    from torch.nn.attention.varlen import varlen_attn

    output = varlen_attn(
        query,
        key,
        value,
        packing.cu_seqlens,
        packing.cu_seqlens,
        packing.longest,
        packing.longest,
        scale=scale,
        window_size=(-1, 0) if causal else (-1, -1),
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
    if attention_mask is not None or dropout or query.shape[0] != 1:
        raise ValueError("packed attention takes one row, no mask and no dropout")
    if query.shape[2] != packing.total or key.shape[2] != packing.total:
        raise ValueError(
            f"{query.shape[2]} queries and {key.shape[2]} keys for a row of {packing.total}"
        )
    window = options.get("sliding_window")
    if window is not None and window < packing.longest:
        raise ValueError(f"sequences of {packing.longest} tokens in a window of {window}")
    for name in ("softcap", "s_aux", "position_bias"):
        if options.get(name) is not None:
            raise ValueError(f"packed attention knows no {name}")
    output = attend(
        packing,
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        causal=bool(getattr(module, "is_causal", False) if is_causal is None else is_causal),
    )
    return output[None], None


AttentionInterface.register(PACKED, packed_attention)
