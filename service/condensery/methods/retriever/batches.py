"""What a retriever is tuned on: rows of a query with passages, and batches of them.

A row is ``{"query": ..., "positive": text or texts, "negatives": [texts], "scores": [numbers]}``,
scores for the positives, then the negatives; or FlagEmbedding's ``pos``, ``neg``, ``pos_scores``
and ``neg_scores``. It may have an ``instruction``, which says what its query looks for.
"""

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from condensery.errors import InputError, shorten
from condensery.methods.retriever.recipe import RetrieverRecipe
from condensery.methods.trainer.method import Draw, Epochs
from condensery.methods.trainer.rows import Row, read_rows
from condensery.runtime.tokenizing import TextTokenizer

NOBODY = -1  # no text's key: keys are not negative


@dataclass(frozen=True, slots=True)
class Example:
    """A query with passages.

    Attributes:
        query: As it is asked.
        positives: Passages that answer it, at least one.
        negatives: Passages that do not.
        scores: A teacher's, of the positives, then of the negatives; None if there are none.
        where: File and line.
        instruction: What the query looks for, for models that read it; else empty.
    """

    query: str
    positives: tuple[str, ...]
    negatives: tuple[str, ...]
    scores: tuple[float, ...] | None
    where: str
    instruction: str = ""


def read_examples(paths: Iterable[Path]) -> list[Example]:
    """Read rows from JSONL files, folders of them or ``datasets`` folders.

    Raises:
        InputError: A file can't be read, a row is of another form, or there is none; names file,
            line and field.
    """
    examples = [_example(row) for path in paths for row in read_rows(path)]
    if not examples:
        raise InputError("data: holds no row", field="data")
    return examples


def _example(row: Row) -> Example:
    value = row.value
    query = value.get("query")
    if not isinstance(query, str) or not query.strip():
        raise _wrong(row, "query", query, "is no text")
    positives = _texts(row, *_named(value, "positive", "pos"))
    if not positives:
        raise _wrong(row, "positive", value.get("positive"), "names no passage")
    negatives = _texts(row, *_named(value, "negatives", "neg"))
    scores = _scores(row, len(positives), len(negatives))
    instruction = value.get("instruction", "")
    if not isinstance(instruction, str):
        raise _wrong(row, "instruction", instruction, "is no text")
    return Example(query, positives, negatives, scores, row.where, instruction)


def _named(value: Mapping[str, Any], name: str, other: str) -> tuple[str, Any]:
    """Return the field that a row has of two names for one thing, and what it holds."""
    chosen = other if name not in value and other in value else name
    return chosen, value.get(chosen)


def _texts(row: Row, name: str, value: Any) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value if value is not None else []
    if not isinstance(texts, list):
        raise _wrong(row, name, value, "is no list of texts")
    for place, text in enumerate(texts):
        if not isinstance(text, str) or not text.strip():
            raise _wrong(row, f"{name}[{place}]", text, "is no text")
    return tuple(texts)


def _scores(row: Row, positives: int, negatives: int) -> tuple[float, ...] | None:
    value = row.value
    if value.get("scores") is not None:
        parts = [("scores", value["scores"], positives + negatives)]
    elif value.get("pos_scores") is not None or value.get("neg_scores") is not None:
        parts = [
            ("pos_scores", value.get("pos_scores"), positives),
            ("neg_scores", value.get("neg_scores"), negatives),
        ]
    else:
        return None
    scores: list[float] = []
    for name, value_given, count in parts:
        numbers = [value_given] if isinstance(value_given, int | float) else value_given
        if not isinstance(numbers, list) or len(numbers) != count:
            raise _wrong(row, name, value_given, f"is no list of {count} scores, one a passage")
        for place, number in enumerate(numbers):
            if isinstance(number, bool) or not isinstance(number, int | float):
                raise _wrong(row, f"{name}[{place}]", number, "is no number")
            if not math.isfinite(number):
                raise _wrong(row, f"{name}[{place}]", number, "is not finite")
        scores += map(float, numbers)
    return tuple(scores)


def _wrong(row: Row, name: str, value: object, why: str) -> InputError:
    return InputError(
        f"{row.where}: {name}: {shorten(value)} {why}", field=name, value=shorten(value)
    )


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
        for example in examples if recipe.negatives else ():
            if not example.negatives:
                raise InputError(
                    f"{example.where}: negatives: has none; mine some, or tune with --negatives 0",
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
        for example in rows:
            places = [rng.randrange(len(example.positives))]
            places += [
                len(example.positives) + n for n in self._chosen(rng, len(example.negatives))
            ]
            texts = example.positives + example.negatives
            passages += [texts[place] for place in places]
            teacher = example.scores
            scores.append([math.nan if teacher is None else teacher[place] for place in places])
        most = max(len(example.positives) for example in rows)
        answers = [
            [*map(key, example.positives)] + [NOBODY] * (most - len(example.positives))
            for example in rows
        ]
        query_prompt, passage_prompt = self._prompts
        return Batch(
            self._ids([example.query for example in rows], query_prompt),
            self._ids(passages, passage_prompt),
            torch.tensor(scores),
            torch.tensor([key(text) for text in passages]),
            torch.tensor(answers),
            [f"{example.where}: {shorten(example.query)}" for example in rows],
        )

    def _chosen(self, rng: random.Random, there: int) -> list[int]:
        """Choose negatives; where there are too few, some come twice."""
        wanted = self._recipe.negatives
        chosen: list[int] = []
        while len(chosen) < wanted:
            chosen += rng.sample(range(there), min(there, wanted - len(chosen)))
        return chosen

    def _ids(self, texts: Sequence[str], prompt: str) -> list[list[int]]:
        most = self._tokenizer.max_characters  # a caller's longer text is refused
        cut = [text[:most] for text in texts]
        return [encoding.ids for encoding in self._tokenizer.encode(cut, prompt=prompt)]


def key(text: str) -> int:
    """Return 63 bits that tell a text from others, the same in every process."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) >> 1
