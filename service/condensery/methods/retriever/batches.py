"""Batches of queries, each with a passage that answers it and hard negatives."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor

from condensery.errors import InputError, shorten
from condensery.methods.retriever.recipe import RetrieverRecipe
from condensery.methods.retriever.rows import Example
from condensery.methods.trainer.method import Draw, Epochs
from condensery.runtime.tokenizing import TextTokenizer

NOBODY = -1  # no text's key: keys are not negative


@dataclass(frozen=True, slots=True)
class Batch:
    """Token ids of queries and passages.

    Attributes:
        queries: Of each query.
        passages: Query by query, the positive first, then its hard negatives.
        scores: A teacher's, (queries, group); NaN in rows that have none.
        keys: What tells passages' texts apart, (passages,).
        answers: Of each query, the keys of all that answers it, (queries, most), ``NOBODY`` beside.
        names: What to call each query.
    """

    queries: Sequence[Sequence[int]]
    passages: Sequence[Sequence[int]]
    scores: Tensor
    keys: Tensor
    answers: Tensor
    names: Sequence[str]


class Batches:
    """Every row once an epoch, in a new order each, with other negatives each time.

    Args:
        examples: Rows.
        tokenizer: The model's, cutting at the recipe's length.
        recipe: How many of each.
        query_prompt: Put before queries.
        passage_prompt: Put before passages.

    Raises:
        InputError: A row has no negative where the recipe wants some; it is named.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        tokenizer: TextTokenizer,
        recipe: RetrieverRecipe,
        *,
        query_prompt: str = "",
        passage_prompt: str = "",
    ) -> None:
        for one in examples if recipe.negatives else ():
            if not one.negatives:
                raise InputError(
                    f"{one.where}: negatives: has none; mine some, or tune with --negatives 0",
                    field="negatives",
                )
        self._examples, self._tokenizer, self._recipe = examples, tokenizer, recipe
        self._prompts = query_prompt, passage_prompt
        self._order = Epochs(len(examples))

    def __call__(self, draw: Draw) -> Batch:
        """Return the draw's batch; batches of a step follow each other in the epoch's order."""
        count, rng = self._recipe.queries, draw.rng()
        first = (draw.step * draw.parts + draw.part) * count
        rows = [self._examples[self._order(draw.seed, first + i)] for i in range(count)]
        passages: list[str] = []
        scores: list[list[float]] = []
        for one in rows:
            places = [rng.randrange(len(one.positives))]
            places += [len(one.positives) + n for n in self._chosen(rng, len(one.negatives))]
            texts = one.positives + one.negatives
            passages += [texts[place] for place in places]
            given = one.scores
            scores.append([math.nan if given is None else given[place] for place in places])
        most = max(len(one.positives) for one in rows)
        answers = [
            [*map(key, one.positives)] + [NOBODY] * (most - len(one.positives)) for one in rows
        ]
        asked, read = self._prompts
        return Batch(
            self._ids([one.query for one in rows], asked),
            self._ids(passages, read),
            torch.tensor(scores),
            torch.tensor([key(text) for text in passages]),
            torch.tensor(answers),
            [f"{one.where}: {shorten(one.query)}" for one in rows],
        )

    def _chosen(self, rng: random.Random, there: int) -> list[int]:
        """Choose negatives; where there are too few, some come twice."""
        wanted = self._recipe.negatives
        found: list[int] = []
        while len(found) < wanted:
            found += rng.sample(range(there), min(there, wanted - len(found)))
        return found

    def _ids(self, texts: Sequence[str], prompt: str) -> list[list[int]]:
        most = self._tokenizer.max_characters  # a caller's longer text is refused
        given = [text[:most] for text in texts]
        return [one.ids for one in self._tokenizer.encode(given, prompt=prompt)]


def key(text: str) -> int:
    """Return 63 bits that tell a text from others, the same in every process."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) >> 1
