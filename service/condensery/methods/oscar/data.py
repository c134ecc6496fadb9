"""Questions with passages, as word pieces: what the pair is trained on."""

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from condensery.methods.trainer.rows import read_rows

Ids = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Example:
    """A question whose answer is a stretch of its passage.

    ``passage`` indexes the passages of the data set; ``start:end`` are its tokens that answer.
    """

    question: Ids
    passage: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class QaData:
    """Examples over shared passages; ``group[i]`` lists the passages of passage i's article."""

    examples: list[Example]
    passages: list[Ids]
    group: list[list[int]]


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSONL file.

    Raises:
        InputError: A line is not a JSON object; names the file and the line.
    """
    for row in read_rows(path):
        yield row.value


def load_qa(rows: Iterable[dict[str, Any]], tokenizer: Tokenizer) -> QaData:
    """Tokenise QA rows {question, answers, context, title}; unfindable answers are left out.

    The answer's position is ``answer_start`` (characters) where the row has one, else its first
    occurrence in the context.
    """
    passages: list[Ids] = []
    spans: list[list[tuple[int, int]]] = []
    index: dict[str, int] = {}
    articles: dict[str, list[int]] = defaultdict(list)
    group: list[list[int]] = []
    examples = []
    for row in rows:
        context = row["context"]
        if not row["answers"] or not context:
            continue
        answer = row["answers"][0]
        start = row["answer_start"][0] if row.get("answer_start") else context.find(answer)
        if start < 0:
            start = context.lower().find(answer.lower())
        if start < 0:
            continue
        if context not in index:
            encoded = tokenizer.encode(context, add_special_tokens=False)
            index[context] = len(passages)
            passages.append(np.array(encoded.ids, dtype=np.int32))
            spans.append(encoded.offsets)
            article = row.get("title") or f"only {len(passages)}"
            articles[article].append(index[context])
            group.append(articles[article])
        passage = index[context]
        tokens = [
            i
            for i, (a, b) in enumerate(spans[passage])
            if a < start + len(answer) and b > start and b > a
        ]
        if tokens:
            question = tokenizer.encode(row["question"], add_special_tokens=False).ids
            examples.append(
                Example(np.array(question, dtype=np.int32), passage, tokens[0], tokens[-1] + 1)
            )
    return QaData(examples, passages, group)


def crop(length: int, start: int, end: int, size: int, rng: random.Random) -> tuple[int, int]:
    """Choose a random window of ``size`` tokens (all if there are fewer) round ``start:end``."""
    size = min(length, max(end - start, size))
    first = rng.randint(max(0, end - size), min(start, length - size))
    return first, first + size
