"""Attention for training a two-way generator: prompts see all of themselves, answers what came."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface

from condensery.networks.attention import attend, refuse_options, refuse_padded
from condensery.networks.packing import Packing

PREFIXED = "condensery_prefixed"


class Prefixes:
    """Where prompts and the answers behind them lie in a packed row.

    Args:
        packing: Of the row, in which each sequence is a prompt with its answer.
        prompts: Positions of each prompt, at least 1.
    """

    def __init__(self, packing: Packing, prompts: Sequence[int]) -> None:
        lengths, starts = np.array(packing.lengths), np.cumsum([0, *packing.lengths[:-1]])
        heads = np.array(prompts)
        self.packing = packing
        self.prompts = Packing.of(prompts, dtype=packing.dtype, device=packing.device)
        place = np.arange(packing.longest)
        rows = starts[:, None] + place
        self.prompt_rows = self._tensor(rows[place < heads[:, None]])
        answers = lengths - heads
        self.longest_answer = int(answers.max())
        step = np.arange(self.longest_answer)
        real = step < answers[:, None]
        at = (starts + heads)[:, None] + step
        self.answer_rows = self._tensor(at[real])
        # what is no answer's looks as the last row does, and is dropped
        self.answers_at = self._tensor(np.minimum(at, (starts + lengths - 1)[:, None]))
        self.real = self._tensor(np.flatnonzero(real))  # of the padded answers, row by row
        self.keys_at = self._tensor(np.minimum(rows, (starts + lengths - 1)[:, None]))
        last = np.minimum(heads[:, None] + step, (lengths - 1)[:, None])
        self.seen = self._tensor(place <= last[..., None])[:, None]

    def _tensor(self, array: np.ndarray[Any, Any]) -> Tensor:
        return torch.from_numpy(array).to(self.packing.device, non_blocking=True)


def prefixed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    prefixes: Prefixes | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend within each packed sequence; transformers calls this in every layer.

    Args:
        module: The attention module.
        query: (1, heads, total, size).
        key: (1, heads, total, size).
        value: As ``key``.
        attention_mask: Must be None.
        scaling: Of the scores; 1 / sqrt(size) if not given.
        dropout: Must be 0.
        prefixes: The model's ``prefixes`` keyword argument.
        options: What the model passes besides; refused where it would change the result.

    Returns:
        (1, total, heads, size), and None for the weights; filler rows are zero.

    Raises:
        ValueError: Called without ``prefixes``, or with what this attention does not do.
    """
    if prefixes is None:
        raise ValueError(f"the attention {PREFIXED!r} needs prefixes=Prefixes(...)")
    refuse_padded("prefixed", query, attention_mask, dropout)
    refuse_options("prefixed", options)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    query, key, value = (part[0].transpose(0, 1) for part in (query, key, value))
    rows = prefixes.prompt_rows
    read = (part.index_select(0, rows) for part in (query, key, value))
    prompts = attend(prefixes.prompts, *read, scale=scale, causal=False)
    output = torch.zeros_like(query).index_copy(0, rows, prompts)
    if prefixes.longest_answer:
        answers = F.scaled_dot_product_attention(
            query[prefixes.answers_at].transpose(1, 2),
            key[prefixes.keys_at].transpose(1, 2),
            value[prefixes.keys_at].transpose(1, 2),
            attn_mask=prefixes.seen,
            scale=scale,
        )
        real = answers.transpose(1, 2).flatten(0, 1).index_select(0, prefixes.real)
        output = output.index_copy(0, prefixes.answer_rows, real)
    return output[None], None


AttentionInterface.register(PREFIXED, prefixed_attention)
