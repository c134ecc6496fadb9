"""Examples to tensors: padded for training, one row a passage."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from condensery.methods.oscar.data import Ids
from condensery.networks.oscar_compressor import TEXT, CompressorInput
from condensery.networks.oscar_packing import Specials
from condensery.networks.oscar_shape import OscarShape

IGNORED = -100


@dataclass(frozen=True, slots=True)
class Row:
    """One passage to compress for one question: ``[CLS] question [SEP] passage [SEP]`` + slots.

    ``start:end`` are the tokens of ``passage`` that answer; None where it doesn't.
    """

    question: Ids
    passage: Ids
    answer: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Item:
    """One question for the generator: its rows in prompt order, and the answer's word pieces.

    With ``plain`` the generator reads the passages' tokens instead of memory vectors.
    """

    question: Ids
    rows: tuple[Row, ...]
    answer: Ids
    plain: bool = False


@dataclass(frozen=True, slots=True)
class Batch:
    """A training batch.

    Attributes:
        given: The compressor's input over all rows of the items that are not plain; None if none.
        relevant: Which rows answer their question, (rows,), float.
        pointed: For each row and memory token, which of ``passage_at`` to point at, (rows, l);
            IGNORED where it is free.
        prompt: Generator's word ids, (items, seq); memory and separator positions hold 0.
        memory_at: Flat positions in ``prompt`` of each row's memory vectors, (rows, l).
        separator_at: Flat positions of the separators.
        labels_at: Flat positions whose next token is an answer token.
        labels: Those tokens.
    """

    given: CompressorInput | None
    relevant: Tensor
    pointed: Tensor
    prompt: Tensor
    memory_at: Tensor
    separator_at: Tensor
    labels_at: Tensor
    labels: Tensor


def pad_rows(
    rows: Sequence[Row], shape: OscarShape, specials: Specials, positions: int
) -> tuple[CompressorInput, Tensor]:
    """Lay rows out padded; slots stand first, where they stand doesn't matter (fixed positions).

    Args:
        rows: What to compress.
        shape: The pair's dimensions.
        specials: Special token ids.
        positions: Positions the backbone has (max_position_embeddings).

    Returns:
        The compressor's input, and each row's index of its passage's [SEP] in ``passage_at``.
    """
    slots, count = shape.slots, len(rows)
    texts = [len(r.question) + len(r.passage) + 3 for r in rows]
    width = -(-(slots + max(texts)) // 32) * 32  # few distinct shapes: oneDNN compiles each one
    longest = max(len(r.passage) for r in rows) + 1
    ids = np.zeros((count, width), dtype=np.int64)
    types, place = np.zeros_like(ids), np.zeros_like(ids)
    slot = np.full_like(ids, TEXT)
    mask = np.zeros_like(ids)
    at = np.full((count, longest), -1, dtype=np.int64)
    ends = np.zeros(count, dtype=np.int64)
    slot[:, :slots] = np.arange(slots)
    place[:, :slots] = np.arange(positions - slots, positions)
    for i, (row, text) in enumerate(zip(rows, texts, strict=True)):
        first = slots + len(row.question) + 2
        ids[i, slots : slots + text] = np.concatenate(
            ([specials.start], row.question, [specials.end], row.passage, [specials.end])
        )
        types[i, first : slots + text] = 1
        place[i, slots : slots + text] = np.arange(text)
        mask[i, : slots + text] = 1
        ends[i] = len(row.passage)
        at[i, : len(row.passage) + 1] = i * width + first + np.arange(len(row.passage) + 1)
    slots_at = np.arange(count)[:, None] * width + np.arange(slots)
    given = CompressorInput(
        input_ids=torch.from_numpy(ids),
        token_type_ids=torch.from_numpy(types),
        position_ids=torch.from_numpy(place),
        slot_ids=torch.from_numpy(slot),
        passage_at=torch.from_numpy(at),
        slots_at=torch.from_numpy(slots_at),
        attention={"attention_mask": torch.from_numpy(mask)},
    )
    return given, torch.from_numpy(ends)


def collate(items: Sequence[Item], shape: OscarShape, specials: Specials, positions: int) -> Batch:
    """Build the batch of ``items``."""
    memory = shape.memory_tokens
    rows = [row for item in items if not item.plain for row in item.rows]
    given, ends = pad_rows(rows, shape, specials, positions) if rows else (None, torch.zeros(0))
    pointed = torch.full((len(rows), memory), IGNORED, dtype=torch.long)
    for i, row in enumerate(rows):
        if row.answer is None:
            pointed[i, 0] = ends[i]  # nothing here: point at the passage's [SEP]
        else:
            start, end = row.answer
            span = torch.arange(start, min(end, start + memory))
            pointed[i, : len(span)] = span
            if len(span) < memory:
                pointed[i, len(span)] = ends[i]
    prompts, memory_at, separators, labels_at, labels = [], [], [], [], []
    for item in items:
        ids: list[int] = []
        slots: list[list[int]] = []
        marks: list[int] = []
        for row in item.rows:
            if item.plain:
                ids.extend(row.passage)
            else:
                slots.append(list(range(len(ids), len(ids) + memory)))
                ids.extend([0] * memory)
            marks.append(len(ids))
            ids.append(0)
        ids.extend([specials.start, *item.question, specials.end])
        target = [*item.answer, specials.end]
        labels_at.append(np.arange(len(ids) - 1, len(ids) - 1 + len(target)))
        labels.append(target)
        ids.extend(item.answer)
        prompts.append(ids)
        memory_at.append(slots)
        separators.append(marks)
    width = -(-max(map(len, prompts)) // 16) * 16
    prompt = np.zeros((len(items), width), dtype=np.int64)
    for i, ids in enumerate(prompts):
        prompt[i, : len(ids)] = ids
    flat = [[i * width + p for p in slot] for i, s in enumerate(memory_at) for slot in s]
    return Batch(
        given=given,
        relevant=torch.tensor([float(r.answer is not None) for r in rows]),
        pointed=pointed,
        prompt=torch.from_numpy(prompt),
        memory_at=torch.tensor(flat, dtype=torch.long).reshape(len(rows), memory),
        separator_at=torch.tensor(
            [i * width + p for i, m in enumerate(separators) for p in m], dtype=torch.long
        ),
        labels_at=torch.from_numpy(
            np.concatenate([i * width + a for i, a in enumerate(labels_at)])
        ),
        labels=torch.tensor([t for target in labels for t in target], dtype=torch.long),
    )
