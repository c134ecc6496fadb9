"""Rows that a retriever is tuned on: a query, what answers it, what does not, and scores.

``{"query": ..., "positive": text or texts, "negatives": [texts], "scores": [numbers]}``, scores
for the positives, then the negatives; or FlagEmbedding's ``pos``, ``neg``, ``pos_scores`` and
``neg_scores``.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from condensery.errors import InputError, shorten
from condensery.methods.trainer.rows import Row, read_rows


@dataclass(frozen=True, slots=True)
class Example:
    """A query with passages.

    Attributes:
        query: As it is asked.
        positives: Passages that answer it, at least one.
        negatives: Passages that do not.
        scores: A teacher's, of the positives, then of the negatives; None if there are none.
        where: File and line.
    """

    query: str
    positives: tuple[str, ...]
    negatives: tuple[str, ...]
    scores: tuple[float, ...] | None
    where: str


def read_examples(paths: Iterable[Path]) -> list[Example]:
    """Read rows from JSONL files, folders of them or ``datasets`` folders.

    Raises:
        InputError: A file can't be read, a row is of another form, or there is none; names file,
            line and field.
    """
    found = [_example(row) for path in paths for row in read_rows(path)]
    if not found:
        raise InputError("data: holds no row", field="data")
    return found


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
    return Example(query, positives, negatives, scores, row.where)


def _named(value: Mapping[str, Any], name: str, other: str) -> tuple[str, Any]:
    """Return the field that a row has of two names for one thing, and what it holds."""
    chosen = other if name not in value and other in value else name
    return chosen, value.get(chosen)


def _texts(row: Row, name: str, given: Any) -> tuple[str, ...]:
    texts = [given] if isinstance(given, str) else given if given is not None else []
    if not isinstance(texts, list):
        raise _wrong(row, name, given, "is no list of texts")
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
    found: list[float] = []
    for name, given, count in parts:
        numbers = [given] if isinstance(given, int | float) else given
        if not isinstance(numbers, list) or len(numbers) != count:
            raise _wrong(row, name, given, f"is no list of {count} scores, one a passage")
        for place, number in enumerate(numbers):
            if isinstance(number, bool) or not isinstance(number, int | float):
                raise _wrong(row, f"{name}[{place}]", number, "is no number")
            if not math.isfinite(number):
                raise _wrong(row, f"{name}[{place}]", number, "is not finite")
        found += map(float, numbers)
    return tuple(found)


def _wrong(row: Row, name: str, value: object, why: str) -> InputError:
    return InputError(
        f"{row.where}: {name}: {shorten(value)} {why}", field=name, value=shorten(value)
    )
