"""Examples to tensors: laid end to end, as the service lays them, so that nothing is padding."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from condensery.methods.oscar.data import UNSCORED, Ids
from condensery.methods.oscar.prefixes import Prefixes
from condensery.networks.oscar_compressor import CompressorInput
from condensery.networks.oscar_generator import PASSAGE, QUESTION, Placing
from condensery.networks.oscar_packing import Pairing, Specials, pack
from condensery.networks.oscar_shape import OscarShape
from condensery.networks.packing import Packing

IGNORED = -100
# On a CPU prompts are filled up to a multiple of this: oneDNN prepares kernels for each new number
# of rows, forwards and backwards, and the prompts of batches differ far more than their passages.
PROMPT_MULTIPLE = 64


@dataclass(frozen=True, slots=True)
class Row:
    """One passage to compress for one question.

    Attributes:
        question: Its word pieces.
        passage: Its word pieces.
        answer: First of ``passage`` that answers and the one after the last; None where none do.
        score: The logit to regress relevance to; ``UNSCORED``: to learn ``relevant``.
        relevant: Whether it answers; None where nobody knows, and nothing is learnt from it.
    """

    question: Ids
    passage: Ids
    answer: tuple[int, int] | None
    score: float = UNSCORED
    relevant: bool | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """One question for the generator: its rows in prompt order, and the answer's word pieces.

    Attributes:
        question: Its word pieces.
        rows: The passages.
        answer: What is to be said; empty where the passages are only to be ranked.
        plain: The generator reads the passages' tokens instead of memory vectors.
        said: What it is told it has said so far, as long as ``answer``; None: the answer.
        spelled: Passages, and which of them answers, where no compressor reads them: the vectors
            are then the answer's words, one each, and the end (``losses.spell``).
    """

    question: Ids
    rows: tuple[Row, ...]
    answer: Ids
    plain: bool = False
    said: Ids | None = None
    spelled: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """How batches are laid out.

    Attributes:
        shape: The pair's dimensions.
        specials: Special token ids.
        slot_positions: Position ids of the compressor's slots.
        placing: Of a two-way generator, where the parts of its prompts stand.
        dtype: Of the forward pass.
        device: Of the forward pass.
    """

    shape: OscarShape
    specials: Specials
    slot_positions: Sequence[int]
    placing: Placing | None = None
    dtype: torch.dtype = torch.float32
    device: torch.device = torch.device("cpu")  # noqa: RUF009 (immutable)

    def __post_init__(self) -> None:
        """Check that it says where parts stand, if anybody needs to know."""
        if self.shape.two_way != (self.placing is not None):
            raise ValueError("placing is given for a two-way generator, and for no other")


@dataclass(frozen=True, slots=True)
class Batch:
    """A training batch.

    Attributes:
        given: The compressor's input over all rows of the items that are not plain; None if none.
        judged_at: Rows known to answer their question or not to, and without a score.
        judged: Which of them do, float.
        scored_at: Rows with a score.
        scores: Their scores.
        pointed: For each row and memory token, which of ``passage_at`` to point at, (rows, l);
            IGNORED where it is free.
        answers_at: Rows whose answer's bounds are known, or that have none.
        answers: Of them its first token and how many it has, 0: none, (known rows, 2).
        prompt: The generator's word ids of all items, (total,); memory and separators hold 0.
        packing: Where each item's prompt lies.
        places: Of a two-way generator, the positions of ``prompt``, their kinds, the ranks of their
            passages, and 1 where they are an answer's, (4, total).
        prefixes: Of such a generator, what of ``packing`` are prompts.
        memory_at: Positions in ``prompt`` of each row's memory vectors, (rows, l).
        spelled_at: Positions of the vectors that are spelled, (spelled rows * l,).
        spelled: The words they spell, as long.
        separator_at: Positions of the separators.
        labels_at: Positions whose next token is an answer token.
        labels: Those tokens.
        copied_at: Which of ``labels`` stand in a passage that is read as text.
        copied: Positions in ``prompt`` of those words.
        repeats_at: Which of ``labels``, once for each other token said before it.
        repeats: Those tokens, which to say again would be wrong.
    """

    given: CompressorInput | None
    judged_at: Tensor
    judged: Tensor
    scored_at: Tensor
    scores: Tensor
    pointed: Tensor
    answers_at: Tensor
    answers: Tensor
    prompt: Tensor
    packing: Packing
    places: Tensor | None
    prefixes: Prefixes | None
    memory_at: Tensor
    spelled_at: Tensor
    spelled: Tensor
    separator_at: Tensor
    labels_at: Tensor
    labels: Tensor
    copied_at: Tensor
    copied: Tensor
    repeats_at: Tensor
    repeats: Tensor


def collate(items: Sequence[Item], layout: Layout) -> Batch:
    """Build the batch of ``items``."""
    shape, device = layout.shape, layout.device
    rows = [row for item in items if not item.plain for row in item.rows]
    packed = (
        pack(
            [Pairing(row.question.tolist(), row.passage.tolist()) for row in rows],
            shape,
            layout.specials,
            layout.slot_positions,
            dtype=layout.dtype,
            device=device,
        )
        if rows
        else None
    )
    scored = [not math.isnan(row.score) for row in rows]
    judged = [i for i, row in enumerate(rows) if row.relevant is not None and not scored[i]]
    known = [i for i, row in enumerate(rows) if _bounds_known(row)]
    prompts = _Prompts(layout)
    for item in items:
        prompts.add(item)
    multiple = PROMPT_MULTIPLE if device.type == "cpu" else 1
    packing = Packing.of(
        prompts.lengths, dtype=layout.dtype, device=device, total_multiple=multiple
    )

    def whole(values: Sequence[object]) -> Tensor:
        return torch.tensor(values, dtype=torch.long).to(device, non_blocking=True)

    def real(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32).to(device, non_blocking=True)

    return Batch(
        given=packed,
        judged_at=whole(judged),
        judged=real([float(bool(rows[i].relevant)) for i in judged]),
        scored_at=whole([i for i, has in enumerate(scored) if has]),
        scores=real([row.score for row, has in zip(rows, scored, strict=True) if has]),
        pointed=whole([point(row, shape.memory_tokens) for row in rows]),
        answers_at=whole(known),
        answers=whole([_bounds(rows[i]) for i in known]),
        prompt=packing.row(prompts.ids)[0],
        packing=packing,
        places=torch.cat([packing.row(row) for row in zip(*prompts.places, strict=True)])
        if prompts.places
        else None,
        prefixes=Prefixes(packing, prompts.heads) if prompts.places else None,
        memory_at=whole(prompts.memory_at),
        spelled_at=whole(prompts.spelled_at),
        spelled=whole(prompts.spelled),
        separator_at=whole(prompts.separator_at),
        labels_at=whole(prompts.labels_at),
        labels=whole(prompts.labels),
        copied_at=whole(prompts.copied_at),
        copied=whole(prompts.copied),
        repeats_at=whole(prompts.repeats_at),
        repeats=whole(prompts.repeats),
    )


def point(row: Row, memory: int) -> list[int]:
    """Return what each memory token is to point at, as an index among the passage's tokens.

    Token i at the answer's token i, the next at the passage's [SEP], which stands after its
    tokens; where the passage does not answer, the first at [SEP] at once. IGNORED is
    free: all of them where the passage answers and nobody says with which words.
    """
    targets = [IGNORED] * memory
    if not _bounds_known(row):
        return targets
    start, end = row.answer or (0, 0)
    span = [*range(start, end), len(row.passage)][:memory]
    return [*span, *targets[len(span) :]]


def _bounds_known(row: Row) -> bool:
    return row.relevant is not None and not (row.relevant and row.answer is None)


def _bounds(row: Row) -> tuple[int, int]:
    start, end = row.answer or (0, 0)
    return start, end - start


class _Prompts:
    """Prompts end to end: passages, separators, ``[CLS] question [SEP]``, what was said."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.ids: list[int] = []
        self.lengths: list[int] = []
        self.heads: list[int] = []  # how much of each is a prompt
        self.places: list[tuple[int, int, int, int]] = []  # of a two-way generator's
        self.memory_at: list[list[int]] = []
        self.spelled_at: list[int] = []
        self.spelled: list[int] = []
        self.separator_at: list[int] = []
        self.labels_at: list[int] = []
        self.labels: list[int] = []
        self.copied_at: list[int] = []
        self.copied: list[int] = []
        self.repeats_at: list[int] = []
        self.repeats: list[int] = []

    def add(self, item: Item) -> None:
        """Lay one item's prompt behind those before it."""
        specials, memory = self._layout.specials, self._layout.shape.memory_tokens
        ids, begin = self.ids, len(self.ids)
        passages, answer_place = item.spelled or (0, 0)
        for passage in range(passages):
            words = self._spell(item.answer) if passage == answer_place else []
            self.spelled += [*words, *[specials.end] * (memory - len(words))]
            self.spelled_at.extend(range(len(ids), len(ids) + memory))
            self.separator_at.append(len(ids) + memory)
            ids.extend([0] * (memory + 1))
        asked = [specials.start, *item.question.tolist(), specials.end]
        if item.plain and self._layout.shape.ask_first:
            self.separator_at.append(len(ids) + len(asked))
            ids.extend([*asked, 0])
        for row in item.rows:
            if item.plain:
                if row.answer is not None and row.relevant:
                    start, end = row.answer
                    span = row.passage[start:end]
                    if np.array_equal(span, item.answer):
                        self.copied_at.extend(range(len(self.labels), len(self.labels) + len(span)))
                        self.copied.extend(range(len(ids) + start, len(ids) + end))
                ids.extend(row.passage.tolist())
            else:
                self.memory_at.append(list(range(len(ids), len(ids) + memory)))
                ids.extend([0] * memory)
            self.separator_at.append(len(ids))
            ids.append(0)
        ids.extend(asked)
        target = [*item.answer.tolist(), specials.end] if item.answer.size else []
        self.labels_at.extend(range(len(ids) - 1, len(ids) - 1 + len(target)))
        fed = (item.answer if item.said is None else item.said).tolist()
        for i, label in enumerate(target):
            if self._unspelled(item, i):  # nobody can know it, but that there is more
                target[i], before = IGNORED, [specials.end]
            else:
                before = sorted({*fed[:i]} - {label})
            self.repeats_at.extend([len(self.labels) + i] * len(before))
            self.repeats.extend(before)
        self.labels.extend(target)
        self.heads.append(len(ids) - begin)
        ids.extend(fed)
        self.lengths.append(len(ids) - begin)
        sizes = [memory] * passages
        sizes += [len(row.passage) if item.plain else memory for row in item.rows]
        self._place(sizes, len(asked), len(fed))

    def _place(self, passages: Sequence[int], question: int, answer: int) -> None:
        """Say where a two-way generator has what was laid, each passage with its separator."""
        placing = self._layout.placing
        if placing is None:
            return
        for number, size in enumerate(passages):
            at, rank = placing.passage(size + 1, question), placing.rank(number)
            self.places += [(place, PASSAGE, rank, 0) for place in at]
        self.places += [(place, QUESTION, 0, 0) for place in placing.question(question)]
        self.places += [(place, QUESTION, 0, 1) for place in placing.answer(range(answer))]

    def _spell(self, answer: Ids) -> list[int]:
        """Return the words that vectors spell: the first ones, and the last for the rest."""
        shape = self._layout.shape
        words: list[int] = answer[: shape.memory_tokens].tolist()
        if shape.bounds and len(words) == shape.memory_tokens:
            words[-1] = int(answer[-1])
        return words

    def _unspelled(self, item: Item, place: int) -> bool:
        """Return whether no vector carries a word of an answer, since it has so many."""
        shape = self._layout.shape
        reads_vectors = shape.bounds and not item.plain and (item.rows or item.spelled)
        return bool(reads_vectors and shape.memory_tokens - 1 <= place < len(item.answer) - 1)
