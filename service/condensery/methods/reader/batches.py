"""What a span reader reads: questions beside passages, drawn, cropped, laid out as padded batches.

Training pairs with a reader as teacher needs no more than this: it imports no pydantic.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from condensery.errors import InputError

Ids = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class SpanQuestion:
    """A question and where its answer stands.

    Attributes:
        question: Its word pieces.
        passage: Which of the data's passages answers it.
        start: First token of the answer in that passage.
        end: One past its last; ``start`` again where the passage does not answer.
        others: Passages of the same row or article that hold none of its answers.
    """

    question: Ids
    passage: int
    start: int
    end: int
    others: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SpanQuestions:
    """Questions of one source over shared passages."""

    examples: list[SpanQuestion]
    passages: list[Ids]


@dataclass(frozen=True, slots=True)
class PairForm:
    """How an encoder reads a question beside a passage.

    Attributes:
        start: Id of the token before both: BERT's [CLS], MPNet's <s>.
        end: Of the one behind each: [SEP], </s>. MPNet was made with two between texts; one
            tells them apart as well once it is trained so.
        padding: Of what fills up a batch; MPNet counts positions by it.
        types: Whether it has a type for each text.
    """

    start: int
    end: int
    padding: int = 0
    types: bool = True

    @classmethod
    def of(cls, tokenizer: Tokenizer, model_type: str) -> Self:
        """Look the tokens up.

        Args:
            tokenizer: The encoder's.
            model_type: transformers' name of its kind, one of ``FORMS``.

        Raises:
            InputError: The tokenizer lacks one of them.
        """
        ids = []
        for name in FORMS[model_type]:
            number = tokenizer.token_to_id(name)
            if number is None:
                raise InputError(
                    f"tokenizer: it has no {name}, which {model_type} reads",
                    field="tokenizer",
                    value=name,
                )
            ids.append(number)
        start, end, padding = ids
        return cls(start, end, padding, types=model_type == "bert")


FORMS = {"bert": ("[CLS]", "[SEP]", "[PAD]"), "mpnet": ("<s>", "</s>", "<pad>")}


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
        inputs: What the network reads: ids, mask, types if it has any, each (rows, seq).
        spans: Positions that may begin or end an answer, the first for "none", (rows, seq), bool.
        first: Position of each row's passage, (rows,).
        start: Of the answer's first token, 0 for none, (rows,).
        end: Of its last token, 0 for none, (rows,).
    """

    inputs: dict[str, Tensor]
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
        example = rng.choice(source.examples)
        tokens_asked = example.question[:question]
        passage = source.passages[example.passage]
        start, end = example.start, example.end
        if start == end:
            start = end = rng.randrange(len(passage))
        first, last = crop(len(passage), start, end, size, rng)
        answers = example.end > example.start
        span = (start - first, end - first) if answers else None
        added = [Row(tokens_asked, passage[first:last], span)]
        if example.others and rng.random() < others:
            other = source.passages[rng.choice(example.others)]
            at = rng.randrange(len(other))
            first, last = crop(len(other), at, at, size, rng)
            added.append(Row(tokens_asked, other[first:last]))
        rows += added
        tokens -= sum(len(row.question) + len(row.passage) + 3 for row in added)
    return rows


def collate(rows: Sequence[Row], form: PairForm) -> Batch:
    """Lay the rows out, padded to few distinct widths: oneDNN compiles each one."""
    texts = [len(row.question) + len(row.passage) + 3 for row in rows]
    width = -(-max(texts) // 32) * 32
    ids = np.full((len(rows), width), form.padding, dtype=np.int64)
    types, mask = np.zeros_like(ids), np.zeros_like(ids)
    spans = np.zeros_like(ids, dtype=bool)
    bounds: NDArray[np.int64] = np.zeros((2, len(rows)), dtype=np.int64)
    spans[:, 0] = True
    firsts = []
    for i, (row, text) in enumerate(zip(rows, texts, strict=True)):
        first = len(row.question) + 2
        ids[i, :text] = np.concatenate(
            ([form.start], row.question, [form.end], row.passage, [form.end])
        )
        types[i, first:text] = 1
        mask[i, :text] = 1
        spans[i, first : first + len(row.passage)] = True
        firsts.append(first)
        if row.answer is not None:
            bounds[:, i] = first + row.answer[0], first + row.answer[1] - 1
    inputs = {"input_ids": ids, "attention_mask": mask}
    if form.types:
        inputs["token_type_ids"] = types
    start, end = torch.from_numpy(bounds)
    return Batch(
        {name: torch.from_numpy(values) for name, values in inputs.items()},
        torch.from_numpy(spans),
        firsts,
        start,
        end,
    )
