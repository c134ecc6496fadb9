"""Attention over cached keys and values: one forward pass over many sequences, each at its place.

A step's rows lie one after another, without padding: single tokens of sequences that are being
generated first, then pieces of prompts. ``cached_attention`` is registered with transformers under
``CACHED``, so any causal model that goes through its attention interface runs so:

    step = Step(cache, [Span(places, start=41, count=1), Span(places, start=0, count=128)])
    model(inputs_embeds=..., position_ids=step.position_ids, step=step, use_cache=False)

Writing is idempotent: a step that has failed half-way can be run again, or in halves.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface

from condensery.networks.attention import KEY_MULTIPLE

CACHED = "condensery_cached"

Places = np.ndarray[Any, np.dtype[np.int64]]


class Cache:
    """Keys and values of every layer, by position; who owns which position is decided elsewhere.

    Args:
        layers: Of the model.
        positions: How many there are, for all sequences together.
        heads: Key heads.
        size: Of a head.
        dtype: The model's.
        device: The model's.
    """

    def __init__(
        self,
        layers: int,
        positions: int,
        heads: int,
        size: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        # Not zeros: on a CPU, memory that was never written takes no room.
        self._memory = torch.empty(layers, 2, positions, heads, size, dtype=dtype, device=device)

    @property
    def layers(self) -> int:
        """Of the model."""
        return self._memory.shape[0]

    @property
    def positions(self) -> int:
        """How many there are."""
        return self._memory.shape[2]

    @property
    def dtype(self) -> torch.dtype:
        """The model's."""
        return self._memory.dtype

    @property
    def device(self) -> torch.device:
        """The model's."""
        return self._memory.device

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Return a layer's keys and values, (positions, heads, size) each."""
        keys, values = self._memory[index]
        return keys, values


@dataclass(frozen=True, slots=True)
class Span:
    """The rows of one sequence in a step.

    Attributes:
        places: Of the sequence's positions in the cache, in order, those to come included.
        start: Position of the first row.
        count: Rows.
    """

    places: Places
    start: int
    count: int

    @property
    def end(self) -> int:
        """Position after the last row."""
        return self.start + self.count


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a prompt: rows ``first`` to ``last`` of a step, ``start`` positions before it."""

    first: int
    last: int
    start: int


class Step:
    """Where a step's rows go in the cache and what each sees, worked out once for all layers.

    Args:
        cache: What is read and written.
        spans: Whose rows they are, in order; those of one row come first.

    Attributes:
        cache: What is read and written.
        total: Rows.
        singles: The first so many rows are sequences of their own, one token each.
        position_ids: (1, total).
        places: Where each row is written, (total,).
        last: Row of each span's last token, (spans,).
        visits: How many layers have called; a model whose attention is another one never does.
    """

    def __init__(self, cache: Cache, spans: Sequence[Span]) -> None:
        singles = sum(span.count == 1 for span in spans)
        if not spans or any(span.count != 1 for span in spans[:singles]):
            raise ValueError("a step needs rows, and single tokens come first")
        self.cache = cache
        self.singles = singles
        self.visits = 0
        self._spans = spans
        ends = np.cumsum([span.count for span in spans])
        self.total = int(ends[-1])
        self.position_ids = self._tensor(
            np.concatenate([np.arange(span.start, span.end) for span in spans])
        )[None]
        self.places = self._tensor(
            np.concatenate([span.places[span.start : span.end] for span in spans])
        )
        self.last = self._tensor(ends - 1)
        self.chunks = [
            Chunk(int(end) - span.count, int(end), span.start)
            for span, end in zip(spans[singles:], ends[singles:], strict=True)
        ]
        self._hidden: dict[int | None, Tensor | None] = {}

    def _tensor(self, array: np.ndarray[Any, Any]) -> Tensor:
        return torch.from_numpy(array).to(self.cache.device, non_blocking=True)

    @cached_property
    def single_keys(self) -> Tensor:
        """Place of every key that the single rows see, padded, (singles * keys,)."""
        keys = np.empty((self.singles, self._longest), dtype=np.int64)
        for row, span in enumerate(self._spans[: self.singles]):
            keys[row, : span.end] = span.places[: span.end]
            # Its own first place: whatever is there is finite wherever the sequence is.
            keys[row, span.end :] = span.places[0]
        return self._tensor(keys.reshape(-1))

    @property
    def _longest(self) -> int:
        longest = max(span.end for span in self._spans[: self.singles])
        return -(-longest // KEY_MULTIPLE) * KEY_MULTIPLE

    def single_mask(self, window: int | None) -> Tensor | None:
        """Return 0 where a single row sees a key and -inf elsewhere, (singles, 1, 1, keys)."""
        if window not in self._hidden:
            ends = np.array([span.end for span in self._spans[: self.singles]])[:, None]
            key = np.arange(self._longest)[None, :]
            outside = key >= ends
            if window is not None:
                outside |= key < ends - window
            mask = None
            if outside.any():
                hidden = self._tensor(outside)[:, None, None, :]
                mask = torch.zeros(hidden.shape, dtype=self.cache.dtype, device=self.cache.device)
                mask.masked_fill_(hidden, -torch.inf)
            self._hidden[window] = mask
        return self._hidden[window]

    @cached_property
    def chunk_keys(self) -> list[Tensor]:
        """Places of the keys that each chunk sees, in order."""
        return [self._tensor(span.places[: span.end]) for span in self._spans[self.singles :]]

    @cached_property
    def chunk_ends(self) -> tuple[Tensor, Tensor, int, int]:
        """Where each chunk's rows and its keys end, each from 0, int32; the most of each."""
        spans = self._spans[self.singles :]
        rows, keys = [span.count for span in spans], [span.end for span in spans]
        ends = [self._tensor(np.cumsum([0, *counts]).astype(np.int32)) for counts in (rows, keys)]
        return ends[0], ends[1], max(rows), max(keys)


def attend(
    step: Step,
    layer: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    window: int | None = None,
) -> Tensor:
    """Write a step's keys and values to the cache, and let each row see its own sequence's.

    Args:
        step: Where the rows belong.
        layer: Whose keys and values they are.
        query: (total, heads, size).
        key: (total, key heads, size); query head ``i`` reads key head ``i // (heads / key heads)``.
        value: As ``key``.
        scale: Of the scores.
        window: A row sees so many keys, its own included; None is all.

    Returns:
        (total, heads, size).
    """
    keys, values = step.cache.layer(layer)
    keys.index_copy_(0, step.places, key)
    values.index_copy_(0, step.places, value)
    outputs = []
    if step.singles:
        outputs.append(_singles(step, query[: step.singles], keys, values, scale, window))
    if step.chunks and query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
        outputs.append(_chunks_varlen(step, query[step.singles :], keys, values, scale, window))
    elif step.chunks:
        for number, chunk in enumerate(step.chunks):
            rows = slice(chunk.first, chunk.last)
            if chunk.start:
                places = step.chunk_keys[number]
                seen = keys.index_select(0, places), values.index_select(0, places)
            else:  # it begins its prompt: all it sees is at hand
                seen = key[rows], value[rows]
            outputs.append(_chunk(chunk.start, query[rows], *seen, scale=scale, window=window))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _singles(
    step: Step, query: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None
) -> Tensor:
    count, heads, size = query.shape
    shared = keys.shape[1]
    places = step.single_keys
    key, value = (
        rows.index_select(0, places).view(count, -1, shared, size).transpose(1, 2)
        for rows in (keys, values)
    )
    # The query heads that share a key head stand where queries stand: no key is repeated.
    output = F.scaled_dot_product_attention(
        query.reshape(count, shared, heads // shared, size),
        key,
        value,
        attn_mask=step.single_mask(window),
        scale=scale,
    )
    return output.reshape(count, heads, size)


def _chunk(
    start: int, query: Tensor, key: Tensor, value: Tensor, *, scale: float, window: int | None
) -> Tensor:
    """Attend from ``query`` (rows, heads, size), at positions from ``start``, to all its keys."""
    count, heads, size = query.shape
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
        is_causal=mask is None,
        scale=scale,
    )
    return output.permute(2, 0, 1, 3).reshape(count, heads, size)


def _chunks_varlen(
    step: Step, query: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None
) -> Tensor:
    # Imported here: the module is young, and on a CPU it has no kernel.
    from torch.nn.attention.varlen import varlen_attn

    places = torch.cat(step.chunk_keys)
    key, value = (rows.index_select(0, places) for rows in (keys, values))
    repeats = query.shape[1] // keys.shape[1]
    if repeats > 1:  # torch 2.11's knows no shared key heads
        key, value = (rows.repeat_interleave(repeats, dim=1) for rows in (key, value))
    row_ends, key_ends, most_rows, most_keys = step.chunk_ends
    output = varlen_attn(
        *(query.contiguous(), key, value, row_ends, key_ends, most_rows, most_keys),
        scale=scale,
        # Rows are the last ones of their keys: the causal rule holds from the end.
        window_size=(-1 if window is None else window - 1, 0),
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
    step: Step | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend within each sequence of a step; transformers calls this in every layer.

    Args:
        module: The attention module; its ``layer_idx`` says which layer it is.
        query: (1, heads, total, size).
        key: (1, key heads, total, size).
        value: As ``key``.
        attention_mask: Must be None.
        scaling: Of the scores; 1 / sqrt(size) if not given.
        dropout: Must be 0.
        step: The model's ``step`` keyword argument.
        options: What the model passes besides; refused where it would change the result.

    Returns:
        (1, total, heads, size), and None for the weights.

    Raises:
        ValueError: Called without ``step``, or with what cached attention does not do.
    """
    if step is None:
        raise ValueError(f"the attention {CACHED!r} needs the keyword argument step=Step(...)")
    if attention_mask is not None or dropout or query.shape[0] != 1:
        raise ValueError("cached attention takes one row, no mask and no dropout")
    if query.shape[2] != step.total or key.shape[2] != step.total:
        raise ValueError(
            f"{query.shape[2]} queries and {key.shape[2]} keys for a step of {step.total}"
        )
    for name in ("softcap", "s_aux", "position_bias"):
        if options.get(name) is not None:
            raise ValueError(f"cached attention knows no {name}")
    if not getattr(module, "is_causal", True):
        raise ValueError("cached attention is causal")
    step.visits += 1
    layer: Any = module.layer_idx
    output = attend(
        step,
        layer,
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=options.get("sliding_window"),
    )
    return output[None], None


AttentionInterface.register(CACHED, cached_attention)
