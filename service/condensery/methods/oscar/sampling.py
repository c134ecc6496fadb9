"""Which questions, passages and crops a training step sees."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from condensery.methods.oscar.batches import Item, Row
from condensery.methods.oscar.data import Example, Ids, QaData, crop
from condensery.networks.oscar_shape import OscarShape


@dataclass(frozen=True, slots=True)
class Mix:
    """Shares of the training items.

    Attributes:
        several: Share with other passages beside the one that answers.
        others: Most other passages beside it.
        same_article: Share of those taken from the same article.
        plain: Share whose passage the generator reads as plain text.
        none: Share without any passage.
        smallest: Fewest tokens passages are cropped to; a batch has one size.
    """

    several: float = 0.35
    others: int = 3
    same_article: float = 0.7
    plain: float = 0.08
    none: float = 0.02
    smallest: int = 32


class Sampler:
    """Draws batches from several sets, each set in a new order every epoch.

    A batch comes from one set and has one crop size, so that little of it is padding.

    Args:
        sets: The sets with their shares of the tokens.
        shape: The pair's dimensions.
        mix: What items look like.
        rng: Where all chance comes from.
    """

    def __init__(
        self,
        sets: Sequence[tuple[QaData, float]],
        shape: OscarShape,
        mix: Mix,
        rng: random.Random,
    ) -> None:
        self._sets = [data for data, _ in sets]
        self._weights = [weight for _, weight in sets]
        self._orders: list[list[int]] = [[] for _ in sets]
        self._shape, self._mix, self._rng = shape, mix, rng

    def batch(self, tokens: int) -> list[Item]:
        """Draw items until their passages take ``tokens`` positions of the compressor."""
        (which,) = self._rng.choices(range(len(self._sets)), self._weights)
        data, order = self._sets[which], self._orders[which]
        size = self._rng.randint(self._mix.smallest, self._shape.passage_tokens)
        items: list[Item] = []
        while tokens > 0:
            if not order:
                order.extend(range(len(data.examples)))
                self._rng.shuffle(order)
            item = self._item(data, data.examples[order.pop()], size)
            items.append(item)
            tokens -= sum(len(row.question) + len(row.passage) + 12 for row in item.rows) or 32
        return items

    def _item(self, data: QaData, example: Example, size: int) -> Item:
        """Crop the example's passage, choose what stands beside it."""
        rng, mix = self._rng, self._mix
        question = example.question[: self._shape.query_tokens]
        passage = data.passages[example.passage]
        first, last = crop(len(passage), example.start, example.end, size, rng)
        answer = passage[example.start : example.end]
        gold = Row(question, passage[first:last], (example.start - first, example.end - first))
        draw = rng.random()
        if draw < mix.none:
            return Item(question, (), answer)
        if draw < mix.none + mix.plain:
            return Item(question, (gold,), answer, plain=True)
        rows = [gold]
        if rng.random() < mix.several:
            rows += self._others(data, example, answer, size, rng.randint(1, mix.others))
            rng.shuffle(rows)
        return Item(question, tuple(rows), answer)

    def _others(
        self, data: QaData, example: Example, answer: Ids, size: int, count: int
    ) -> list[Row]:
        """Crop other passages, none of which holds the answer."""
        rng = self._rng
        question = example.question[: self._shape.query_tokens]
        rows: list[Row] = []
        for _ in range(4 * count):
            if len(rows) == count:
                break
            group = data.group[example.passage]
            near = len(group) > 1 and rng.random() < self._mix.same_article
            other = rng.choice(group) if near else rng.randrange(len(data.passages))
            passage = data.passages[other]
            if other == example.passage or contains(passage, answer):
                continue
            at = rng.randrange(len(passage))
            first, last = crop(len(passage), at, at, size, rng)
            rows.append(Row(question, passage[first:last], None))
        return rows


def contains(passage: Ids, answer: Ids) -> bool:
    """Return whether the answer's tokens stand in the passage."""
    starts = np.flatnonzero(passage == answer[0]).tolist()
    return any(np.array_equal(passage[s : s + len(answer)], answer) for s in starts)
