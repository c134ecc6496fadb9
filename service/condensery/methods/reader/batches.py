"""What a step of a span reader sees: questions with cropped passages, padded."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from condensery.methods.reader.data import Ids, SpanQuestions
from condensery.networks.oscar_packing import Specials


@dataclass(frozen=True, slots=True)
class Row:
    """``[CLS] question [SEP] passage [SEP]``; ``answer`` is its span in the passage, if any."""

    question: Ids
    passage: Ids
    answer: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """Padded rows.

    Attributes:
        given: What the network reads: ids, types, mask, each (rows, seq).
        spans: Positions that may begin or end an answer, [CLS] for "none", (rows, seq), bool.
        first: Position of each row's passage, (rows,).
        start: Of the answer's first token, 0 for none, (rows,).
        end: Of its last token, 0 for none, (rows,).
    """

    given: dict[str, Tensor]
    spans: Tensor
    first: list[int]
    start: Tensor
    end: Tensor


def crop(length: int, start: int, end: int, size: int, rng: random.Random) -> tuple[int, int]:
    """Choose a random window of ``size`` tokens (all if there are fewer) round ``start:end``."""
    size = min(length, max(end - start, size))
    first = rng.randint(max(0, end - size), min(start, length - size))
    return first, first + size


def draw_rows(
    sources: Sequence[SpanQuestions],
    shares: Sequence[float],
    rng: random.Random,
    *,
    tokens: int,
    sizes: tuple[int, int],
    question: int,
    others: float,
) -> list[Row]:
    """Draw rows of one source and one crop size, so that little of a batch is padding.

    Args:
        sources: What there is.
        shares: How often each source is drawn from.
        rng: Where all chance comes from.
        tokens: Of all rows together, about.
        sizes: Fewest and most tokens of a cropped passage.
        question: Most tokens of a question.
        others: Chance that a passage without the answer comes beside the one that has it.
    """
    (source,) = rng.choices(sources, shares)
    size = rng.randint(*sizes)
    rows: list[Row] = []
    while tokens > 0:
        spot = rng.choice(source.examples)
        asked = spot.question[:question]
        passage = source.passages[spot.passage]
        first, last = crop(len(passage), spot.start, spot.end, size, rng)
        added = [Row(asked, passage[first:last], (spot.start - first, spot.end - first))]
        if spot.others and rng.random() < others:
            other = source.passages[rng.choice(spot.others)]
            at = rng.randrange(len(other))
            first, last = crop(len(other), at, at, size, rng)
            added.append(Row(asked, other[first:last]))
        rows += added
        tokens -= sum(len(row.question) + len(row.passage) + 3 for row in added)
    return rows


def collate(rows: Sequence[Row], specials: Specials) -> Batch:
    """Lay the rows out, padded to few distinct widths: oneDNN compiles each one."""
    texts = [len(row.question) + len(row.passage) + 3 for row in rows]
    width = -(-max(texts) // 32) * 32
    ids = np.zeros((len(rows), width), dtype=np.int64)
    types, mask = np.zeros_like(ids), np.zeros_like(ids)
    spans = np.zeros_like(ids, dtype=bool)
    bounds: NDArray[np.int64] = np.zeros((2, len(rows)), dtype=np.int64)
    spans[:, 0] = True
    firsts = []
    for i, (row, text) in enumerate(zip(rows, texts, strict=True)):
        first = len(row.question) + 2
        ids[i, :text] = np.concatenate(
            ([specials.start], row.question, [specials.end], row.passage, [specials.end])
        )
        types[i, first:text] = 1
        mask[i, :text] = 1
        spans[i, first : first + len(row.passage)] = True
        firsts.append(first)
        if row.answer is not None:
            bounds[:, i] = first + row.answer[0], first + row.answer[1] - 1
    given = {"input_ids": ids, "token_type_ids": types, "attention_mask": mask}
    start, end = torch.from_numpy(bounds)
    return Batch(
        {name: torch.from_numpy(one) for name, one in given.items()},
        torch.from_numpy(spans),
        firsts,
        start,
        end,
    )
