"""Questions with passages as the compressor's packed input: no padding, slots after the text."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer

from condensery.networks.backbone import row_multiple
from condensery.networks.oscar_compressor import TEXT, CompressorInput
from condensery.networks.oscar_shape import BertShape
from condensery.networks.packing import Packing

FEW_SHAPES = 32  # what the longest passage is rounded up to


@dataclass(frozen=True, slots=True)
class Specials:
    """Ids of the tokenizer's special tokens: [CLS] starts, [SEP] ends a text."""

    start: int
    end: int

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "Specials":
        """Look them up.

        Raises:
            ValueError: The tokenizer has no [CLS] or no [SEP].
        """
        start, end = (tokenizer.token_to_id(name) for name in ("[CLS]", "[SEP]"))
        if start is None or end is None:
            raise ValueError("the tokenizer has no [CLS] and [SEP]")
        return cls(start, end)


@dataclass(frozen=True, slots=True)
class Pairing:
    """One window of a passage to read for a question, word-piece ids without special tokens."""

    question: Sequence[int]
    passage: Sequence[int]


def length(pairing: Pairing, shape: BertShape) -> int:
    """Positions the compressor spends on a pairing: text, three special tokens, slots."""
    return len(pairing.question) + len(pairing.passage) + 3 + shape.slots


def pack(
    pairings: Sequence[Pairing],
    shape: BertShape,
    specials: Specials,
    slot_positions: Sequence[int],
    *,
    dtype: torch.dtype,
    device: torch.device,
    pointing: bool = True,
) -> CompressorInput:
    """Lay ``[CLS] question [SEP] passage [SEP] M0..RR`` of each pairing out in one row.

    Without a pointer (``pointing``) the slots' last hidden states are all that is read.
    """
    lengths = [length(pairing, shape) for pairing in pairings]
    multiple = row_multiple(device, dtype)
    packing = Packing.of(lengths, dtype=dtype, device=device, total_multiple=multiple)
    ids, types, places, slots = (np.zeros(packing.total, dtype=np.int64) for _ in range(4))
    slots[:] = TEXT
    longest = max(len(pairing.passage) for pairing in pairings) + 1
    few = FEW_SHAPES if device.type == "cpu" else 1  # the products over it are torch's
    longest = -(-longest // few) * few
    passage_at = np.full((len(pairings), longest), -1, dtype=np.int64)
    slots_at = np.empty((len(pairings), shape.slots), dtype=np.int64)
    start = 0
    for i, (pairing, size) in enumerate(zip(pairings, lengths, strict=True)):
        text = size - shape.slots
        first = start + len(pairing.question) + 2
        end = start + text
        question = (specials.start, *pairing.question, specials.end)
        ids[start:end] = (*question, *pairing.passage, specials.end)
        types[first:end] = 1
        places[start:end] = np.arange(text)
        places[end : start + size] = slot_positions
        slots[end : start + size] = np.arange(shape.slots)
        passage_at[i, : end - first] = np.arange(first, end)
        slots_at[i] = np.arange(end, start + size)
        start += size
    row_ids, row_types, row_places, row_slots = (
        torch.from_numpy(a).to(device)[None] for a in (ids, types, places, slots)
    )
    at_slots = torch.from_numpy(slots_at).to(device)
    packing.wanted = None if pointing else at_slots.flatten()
    return CompressorInput(
        input_ids=row_ids,
        token_type_ids=row_types,
        position_ids=row_places,
        slot_ids=row_slots,
        passage_at=torch.from_numpy(passage_at).to(device),
        slots_at=at_slots,
        attention={"packing": packing},
    )
