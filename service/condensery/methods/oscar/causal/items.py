"""Rows as a training step reads them: through the texts that serving reads them with."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor

from condensery.errors import InputError, shorten
from condensery.methods.oscar.causal.building import Bases
from condensery.methods.oscar.causal.recipe import CausalRecipe
from condensery.methods.trainer.method import Draw, Epochs
from condensery.methods.trainer.questions import TrainingQuestion
from condensery.networks.oscar_interface import PassageWindow, PromptPart, SpecialTokenEscaper
from condensery.networks.oscar_texts import CausalTexts


@dataclass(frozen=True, slots=True)
class Item:
    """What one row teaches.

    Attributes:
        question: As far as training reads it; "" in pretraining.
        readings: What the compressor reads, a passage each; none where the passages are plain.
        texts: What the generator reads of plain passages.
        label: Tokens to be said, the one that ends them included.
        scores: The teacher's, a passage each; None where there are none.
        frame: In pretraining the tokens before and after the vectors, for the prompt has no words.
        name: What the row is called, when a run stops for it.
    """

    question: str
    readings: tuple[PassageWindow, ...]
    texts: tuple[str, ...]
    label: tuple[int, ...]
    scores: tuple[float, ...] | None = None
    frame: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    name: str = ""

    def prompt(self, texts: CausalTexts, memories: Sequence[Tensor]) -> list[PromptPart]:
        """Return the generator's prompt, the compressor's vectors in it."""
        if self.frame is None:
            return texts.prompt(self.question, [*memories, *self.texts])
        return [self.frame[0], *memories, self.frame[1]]


class Source(Protocol):
    """Rows, made into items as they are drawn."""

    def __len__(self) -> int:
        """Return how many there are."""
        ...

    def item(self, number: int, *, plain: bool = False, part: float = 0.0) -> Item:
        """Return a row's item.

        Args:
            number: Of the row.
            plain: Whether the generator reads its passages as text.
            part: Chance's share in it, 0 to 1.
        """
        ...


class Questions:
    """Questions with passages and labels, checked.

    Args:
        rows: As read.
        bases: The pair's texts and tokens.
        recipe: How many passages, and how long a label may be.

    Raises:
        InputError: A prompt of so many passages does not fit the generator.
    """

    def __init__(
        self, rows: Sequence[TrainingQuestion], bases: Bases, recipe: CausalRecipe
    ) -> None:
        self.rows, self._texts = rows, bases.texts
        self._recipe, self._bases = recipe, bases
        self._neutral = SpecialTokenEscaper(bases.tokenizer)
        most = max((min(recipe.passages, len(row.passages)) for row in rows), default=0)
        longest = max(
            (row.question for row in rows), key=lambda q: self._texts.cut(q)[1], default=""
        )
        needed = positions(bases, longest, most) + recipe.label_tokens + 1
        if needed > bases.shape.generator.positions:
            raise InputError(
                f"passages={most}: with the longest question and label they take {needed} "
                f"positions, the generator has {bases.shape.generator.positions}",
                field="passages",
                value=most,
            )

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.rows)

    def item(self, number: int, *, plain: bool = False, part: float = 0.0) -> Item:
        """Return a question's item; of a long passage, one window (``window_of``)."""
        row = self.rows[number]
        question = row.question  # as it serves, cut for the compressor alone
        passages = row.passages[: self._recipe.passages]
        windows = self._texts.make_windows(self._texts.cut(question)[0], passages)
        golds = [text.casefold() for text in (row.label, *row.answers) if text.strip()]
        readings = [window_of(*pair, golds) for pair in zip(passages, windows, strict=True)]
        item = Item(
            question,
            tuple(readings),
            (),
            self.label(row.label),
            None if row.scores is None else row.scores[: len(passages)],
            name=f"{row.where}: {shorten(row.question)}",
        )
        if not plain:
            return item
        read = [p[r.start : r.end] for p, r in zip(passages, readings, strict=True)]
        while read and not self._fits(question, read, len(item.label)):
            read.pop()  # the best come first
        return replace(item, readings=(), texts=tuple(read), scores=None)

    def label(self, text: str) -> tuple[int, ...]:
        """Return a label's tokens and the one that ends it; special tokens in it are text."""
        encoding = self._bases.tokenizer.encode(self._neutral(text), add_special_tokens=False)
        return (*encoding.ids, self._bases.end)

    def _fits(self, question: str, texts: Sequence[str], label: int) -> bool:
        size = sum(map(len, self._texts.prompt(question, texts)))
        return size + label <= self._bases.shape.generator.positions


def window_of(
    passage: str, windows: Sequence[PassageWindow], golds: Sequence[str]
) -> PassageWindow:
    """Return which window of a passage to train on: the first that holds an answer, else the first.

    Served, the window with the best relevance counts.

    Args:
        passage: Its text.
        windows: As the compressor reads them.
        golds: Answers, case-folded.
    """
    for window in windows if len(windows) > 1 else ():
        text = passage[window.start : window.end].casefold()
        if any(gold in text for gold in golds):
            return window
    return windows[0]


def positions(bases: Bases, question: str, passages: int) -> int:
    """Return the positions of a prompt of so many compressed passages."""
    shape = bases.shape
    vectors = shape.compressor.vectors[0]
    each = bases.tokenizer.encode(
        f"{shape.generator.passage_before}{shape.generator.passage_after}", add_special_tokens=False
    )
    frame = sum(map(len, bases.texts.prompt(question, [])))
    return frame + passages * (vectors + len(each.ids))


class Chunks:
    """Pieces of plain text to say again, or to go on with (COCOM, arXiv:2407.09252).

    A piece is as long as the compressor's longest passage; what follows it, as far as a label may
    be, is its continuation. The compressor reads it with an empty question.

    Args:
        documents: Texts.
        bases: The pair's texts and tokens.
        recipe: How often a piece is continued, and how long a label may be.

    Raises:
        InputError: No text is longer than a piece, or a prompt does not fit the generator.
    """

    def __init__(self, documents: Sequence[str], bases: Bases, recipe: CausalRecipe) -> None:
        self._bases, self._recipe = bases, recipe
        self._neutral = SpecialTokenEscaper(bases.tokenizer)
        self._places = [
            (document, first, last, after)
            for document in documents
            for first, last, after in self._cut(document)
        ]
        if not self._places:
            raise InputError(
                f"text: no document is longer than a piece ({bases.built.passage_tokens} tokens)",
                field="text",
            )
        shape = bases.shape
        size = shape.compressor.vectors[0] + 3
        most = max(
            recipe.label_tokens, *(len(self.item(i, part=1.0).label) for i in self._longest())
        )
        if size + most > shape.generator.positions:
            raise InputError(
                f"passage_tokens={bases.built.passage_tokens}: said again, a piece takes "
                f"{size + most} positions, the generator has {shape.generator.positions}",
                field="passage_tokens",
                value=bases.built.passage_tokens,
            )

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._places)

    def item(self, number: int, *, plain: bool = False, part: float = 0.0) -> Item:
        """Return a piece's item: continued where ``part`` is below the recipe's share."""
        document, first, last, after = self._places[number]
        bases, continued = self._bases, part < self._recipe.continuation
        (readings,) = bases.texts.make_windows("", [document[first:last]])
        piece = document[last:after] if continued else document[first:last]
        ids = bases.tokenizer.encode(self._neutral(piece), add_special_tokens=False).ids
        label = ids[: self._recipe.label_tokens] if continued else [*ids, bases.end]
        after_ids = [] if continued else [bases.autoencode]
        return Item(
            "",
            tuple(readings[:1]),
            (),
            tuple(label),
            frame=(tuple(bases.start), (*bases.separator, *after_ids)),
            name=shorten(document[first:last]),
        )

    def _longest(self) -> list[int]:
        """Return a few pieces of the most characters, which have the most tokens or nearly."""
        order = sorted(range(len(self)), key=lambda i: self._places[i][1] - self._places[i][2])
        return order[:20]

    def _cut(self, document: str) -> list[tuple[int, int, int]]:
        """Return where each piece begins and ends in a document, and its continuation's end."""
        offsets = self._bases.reading.encode(document, add_special_tokens=False).offsets
        size = self._bases.built.passage_tokens
        firsts = range(0, len(offsets) - size, size)
        return [
            (
                offsets[i][0],
                offsets[i + size - 1][1],
                offsets[min(i + 2 * size, len(offsets)) - 1][1],
            )
            for i in firsts
        ]


class Batches:
    """Items in a new order every epoch, the same whatever draws them.

    Args:
        source: The rows.
        recipe: How many make a batch, and how many are plain.
    """

    def __init__(self, source: Source, recipe: CausalRecipe) -> None:
        self._source, self._recipe = source, recipe
        self._order = Epochs(len(source))

    def __call__(self, draw: Draw) -> list[Item]:
        """Return the draw's batch; batches of a step follow each other in the epoch's order."""
        rng, rows = draw.rng(), self._recipe.rows
        first = (draw.step * draw.parts + draw.part) * rows
        items = []
        for number in range(first, first + rows):
            plain, part = rng.random() < self._recipe.plain, rng.random()
            items.append(self._source.item(self._order(draw.seed, number), plain=plain, part=part))
        return items
