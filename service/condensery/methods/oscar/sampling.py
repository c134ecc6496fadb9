"""Which questions, passages and crops a training step sees."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from condensery.errors import InputError
from condensery.methods.oscar.batches import Item, Row
from condensery.methods.oscar.data import Example, Ids, QaData, RetrievedPassage, crop
from condensery.networks.oscar_interface import cut_windows
from condensery.networks.oscar_shape import OscarShape

FEW = 2048  # examples that are ordered at once


@dataclass(frozen=True, slots=True)
class Mix:
    """Shares of the training items.

    Attributes:
        several: Share with other passages beside the one that answers.
        others: Most other passages beside it.
        retrieved: Share of those taken from what was retrieved for the question, where it was.
        same_article: Share of the rest taken from the same article.
        first: Share of those in which the passage that answers stands first, as the best scored
            one does where the pair serves; in the rest it stands anywhere.
        spelled: Share of the batches in which no compressor reads: the generator alone learns to
            say what vectors spell, at a tenth of the cost.
        plain: Share whose passages the generator reads as plain text.
        plain_tokens: Most tokens those are cropped to, since no compressor's window bounds them; 0:
            as the others.
        none: Share without any passage.
        cut: Share in which the sentence of the answer is cut out of its passage, which then is
            near and answers nothing: the rerank head and the pointer learn from it alone.
        slips: Share of the answer's tokens that the generator is told it said otherwise: the token
            before again, or any of the passage's. It then learns to go on, not to repeat.
        smallest: Fewest tokens passages are cropped to; a batch has one size.
    """

    several: float = 0.4
    others: int = 4
    retrieved: float = 0.8
    same_article: float = 0.7
    first: float = 0.5
    spelled: float = 0.2
    plain: float = 0.2
    plain_tokens: int = 0
    none: float = 0.02
    cut: float = 0.0
    slips: float = 0.1
    smallest: int = 32

    def __post_init__(self) -> None:
        """Refuse what is no share.

        Raises:
            InputError: Names field and value.
        """
        for field in fields(self):
            value = getattr(self, field.name)
            least, most = (0.0, 1.0) if field.type is float else (1, None)
            if field.name == "plain_tokens":
                least = 0
            if value < least or (most is not None and value > most):
                wanted = "from 0 to 1" if most else "at least 1"
                raise InputError(
                    f"{field.name}={value}: must be {wanted}", field=field.name, value=value
                )
        if self.plain + self.none + self.cut > 1:
            raise InputError(
                f"plain={self.plain}: more than none={self.none} and cut={self.cut} leave",
                field="plain",
            )


class Sampler:
    """Draws batches from several sets, each set in a new order every epoch.

    A batch comes from one set and has one crop size: attention pads rows of a batch to few
    lengths.

    Args:
        sets: The sets with their shares of the tokens.
        shape: The pair's dimensions.
        mix: What items look like.
        rng: Where all chance comes from.
        sentence_ends: Tokens that end a sentence.
    """

    def __init__(
        self,
        sets: Sequence[tuple[QaData, float]],
        shape: OscarShape,
        mix: Mix,
        rng: random.Random,
        sentence_ends: Iterable[int] = (),
    ) -> None:
        self._sets = [data for data, _ in sets]
        self._weights = [weight for _, weight in sets]
        self._orders: list[list[int]] = [[] for _ in sets]
        self._shape, self._mix, self._rng = shape, mix, rng
        self._sentence_ends = np.array(sorted(sentence_ends), np.int32)

    def batch(self, tokens: int) -> list[Item]:
        """Draw items until their passages take ``tokens`` positions of who reads them."""
        (which,) = self._rng.choices(range(len(self._sets)), self._weights)
        data, order = self._sets[which], self._orders[which]
        size = self._rng.randint(self._mix.smallest, self._shape.passage_tokens)
        spelled = self._rng.random() < self._mix.spelled
        items: list[Item] = []
        while tokens > 0:
            if not order:
                order.extend(range(len(data.examples)))
                if len(order) > FEW:  # to shuffle all for a batch takes long
                    order[:] = self._rng.sample(order, FEW)
                else:
                    self._rng.shuffle(order)
            example = data.examples[order.pop()]
            if spelled and not example.ranked_only:
                item = self._spelled(data, example)
                passages, _ = item.spelled or (0, 0)
                cost = passages * (self._shape.memory_tokens + 1)
                tokens -= cost + len(item.question) + len(item.answer) + 2
            else:
                item = self._item(data, example, size)
                tokens -= sum(len(row.question) + len(row.passage) + 12 for row in item.rows) or 32
            items.append(item)
        return items

    def _spelled(self, data: QaData, example: Example) -> Item:
        """Give the generator the answer's words for vectors; longer ones are cut."""
        rng, mix = self._rng, self._mix
        passage = data.passages[example.passage]
        answer = passage[example.start : example.end]
        answer = answer if example.label is None else example.label
        if not self._shape.bounds:
            answer = answer[: self._shape.memory_tokens]
        passages = 1 + (rng.randint(1, mix.others) if rng.random() < mix.several else 0)
        place = 0 if rng.random() < mix.first else rng.randrange(passages)
        question = example.question[: self._shape.query_tokens]
        fed = self._slip(answer, passage)
        return Item(question, (), answer, said=fed, spelled=(passages, place))

    def _item(self, data: QaData, example: Example, size: int) -> Item:
        """Crop the example's passage, choose what stands beside it."""
        rng, mix = self._rng, self._mix
        question = example.question[: self._shape.query_tokens]
        span = data.passages[example.passage][example.start : example.end]
        answer = span if example.label is None else example.label
        best = RetrievedPassage(example.passage, example.start, example.end, example.score)
        if not example.answerable:
            rows = [self._row(data, question, best, size, answers=False)]
            return Item(question, (*rows, *self._company(data, example, answer, size)), answer)
        if example.ranked_only:
            size = self._shape.passage_tokens
            gold = self._row(data, question, best, size, answers=True, likeliest=True)
            others = self._others(data, example, answer, size, rng.randint(1, mix.others))
            return Item(question, (replace(gold, relevant=True), *others), answer)
        draw = rng.random()
        plain = mix.none + mix.cut <= draw < mix.none + mix.cut + mix.plain
        if plain:
            longest = self._shape.passage_tokens
            size = size * (mix.plain_tokens or longest) // longest
        gold = self._row(data, question, best, size, answers=True)
        fed = self._slip(answer, gold.passage)
        if draw < mix.none:
            return Item(question, (), answer, said=fed)
        if draw < mix.none + mix.cut:
            near = self._without_answer(data, example, question, size)
            if near is not None:
                return Item(question, (near, *self._company(data, example, span, size)), answer[:0])
        rows = [gold]
        if rng.random() < mix.several:
            looked_for = span if len(span) else answer
            rows += self._others(data, example, looked_for, size, rng.randint(1, mix.others))
            if rng.random() >= mix.first:
                rng.shuffle(rows)
        return Item(question, tuple(rows), answer, plain=plain, said=fed)

    def _company(self, data: QaData, example: Example, answer: Ids, size: int) -> list[Row]:
        """Crop what stands beside a passage that does not answer; often nothing."""
        if self._rng.random() >= self._mix.several:
            return []
        return self._others(data, example, answer, size, self._rng.randint(1, self._mix.others))

    def _without_answer(
        self, data: QaData, example: Example, question: Ids, size: int
    ) -> Row | None:
        """Crop the example's passage round the place where its answer's sentence was cut out.

        None where nothing would be left, or the answer stands elsewhere too.
        """
        passage = data.passages[example.passage]
        span = passage[example.start : example.end]
        if not span.size:
            return None
        ends = np.flatnonzero(np.isin(passage, self._sentence_ends)) + 1
        first = int(max(ends[ends <= example.start], default=0))
        last = int(min(ends[ends >= example.end], default=len(passage)))
        rest = np.concatenate([passage[:first], passage[last:]])
        if not len(rest) or contains(rest, span):
            return None
        at = min(first, len(rest) - 1)
        start, end = crop(len(rest), at, at, size, self._rng)
        return Row(question, rest[start:end], None, relevant=False)

    def _row(
        self,
        data: QaData,
        question: Ids,
        place: RetrievedPassage,
        size: int,
        *,
        answers: bool,
        likeliest: bool = False,
    ) -> Row:
        """Crop a passage, round its answer if it has one.

        Args:
            data: Has the passage.
            question: Asked of it.
            place: The passage, and where its answer stands.
            size: Tokens to keep.
            answers: Whether it is the one to answer from. What else holds the answer's words may
                say them of something else; then the score tells.
            likeliest: Keep its likeliest window, since nobody says where its answer stands.
        """
        passage = data.passages[place.passage]
        holds = place.end > place.start
        start, end = (place.start, place.end) if holds else (0, 0)
        if likeliest:
            first, last = likeliest_window(passage, question, size)
        else:
            if not holds:
                start = end = self._rng.randrange(len(passage))
            first, last = crop(len(passage), start, end, size, self._rng)
        # Without a score, what holds no answer does not answer. A score above 0 says it does.
        positive = answers or place.score > 0
        return Row(
            question,
            passage[first:last],
            (start - first, end - first) if holds else None,
            score=place.score,
            relevant=positive if holds == positive else None,
        )

    def _others(
        self, data: QaData, example: Example, answer: Ids, size: int, count: int
    ) -> list[Row]:
        """Crop other passages: retrieved ones, or any that do not hold the answer."""
        rng = self._rng
        question = example.question[: self._shape.query_tokens]
        rows: list[Row] = []
        seen = {example.passage}
        for _ in range(4 * count):
            if len(rows) == count:
                break
            if example.beside and rng.random() < self._mix.retrieved:
                other = rng.choice(example.beside)
            else:
                group = data.group[example.passage]
                near = len(group) > 1 and rng.random() < self._mix.same_article
                other = RetrievedPassage(
                    rng.choice(group) if near else rng.randrange(len(data.passages))
                )
                if contains(data.passages[other.passage], answer):
                    continue
            if other.passage in seen:
                continue
            seen.add(other.passage)
            likeliest = example.ranked_only
            rows.append(self._row(data, question, other, size, answers=False, likeliest=likeliest))
        return rows

    def _slip(self, answer: Ids, passage: Ids) -> Ids | None:
        """Return the answer with slips of the tongue, None if none were made."""
        rng = self._rng
        slipped = answer.copy()
        for i in range(len(answer)):
            if rng.random() < self._mix.slips:
                again = i > 0 and rng.random() < 0.5
                slipped[i] = slipped[i - 1] if again else passage[rng.randrange(len(passage))]
        return None if np.array_equal(slipped, answer) else slipped


def likeliest_window(passage: Ids, question: Ids, size: int) -> tuple[int, int]:
    """Return the first of the windows the service cuts that holds most of the question's words.

    A long passage is ranked by its best window. One cut anywhere is often not what the passage
    was judged for.
    """
    return max(
        cut_windows(len(passage), size),
        key=lambda window: len(np.intersect1d(passage[slice(*window)], question)),
    )


def contains(passage: Ids, answer: Ids) -> bool:
    """Return whether the answer's tokens stand in the passage."""
    if not len(answer):
        return False
    starts = np.flatnonzero(passage == answer[0]).tolist()
    return any(np.array_equal(passage[s : s + len(answer)], answer) for s in starts)
