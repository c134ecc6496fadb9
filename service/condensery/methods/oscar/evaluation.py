"""How well a pair answers: asked through the running pair, as the service would."""

import asyncio
import copy
import random
import re
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from condensery.agreement import exact, f1
from condensery.answers import CompressedPassage
from condensery.errors import CondenseryError
from condensery.networks.oscar import OscarPair
from condensery.runtime.pair import make_ready
from condensery.runtime.reader import Reader
from condensery.runtime.workers import Workers

ANSWER_TOKENS = 24
AT_ONCE = 16  # questions asked side by side

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Scores:
    """Per question: EM, F1, the answer, and which passage the rerank head put first (-1: none)."""

    em: list[float]
    f1: list[float]
    answers: list[str]
    first: list[int]

    def means(self) -> dict[str, float]:
        """Return EM and F1 in percent."""
        return {"em": 100 * fmean(self.em), "f1": 100 * fmean(self.f1)}


async def answer(
    reader: Reader, question: str, passages: Sequence[str], *, keep: int | None, plain: bool
) -> tuple[str, int]:
    """Answer a question; returns the text and the place of the best scored passage (-1: none)."""
    if plain:
        stream = reader.generate(question, passages, max_tokens=ANSWER_TOKENS)
        return "".join([token.text async for token in stream]), -1
    found = [whole(one) for one in await reader.compress(question, passages)] if passages else []
    order = sorted(range(len(found)), key=lambda place: -(found[place].relevance or 0.0))
    memory = [found[place].memory for place in order[:keep]]
    stream = reader.generate(question, memory, max_tokens=ANSWER_TOKENS)
    return "".join([token.text async for token in stream]), order[0] if order else -1


def whole(found: CompressedPassage | CondenseryError) -> CompressedPassage:
    """Return a compressed passage; an evaluation that leaves some out measures something else."""
    if isinstance(found, CondenseryError):
        raise found
    return found


async def score(
    reader: Reader,
    rows: Sequence[Row],
    passages: Sequence[Sequence[str]],
    *,
    keep: int | None = None,
    plain: bool = False,
) -> Scores:
    """Answer every row's question from its passages and score against its gold answers.

    Args:
        reader: The running pair.
        rows: Questions {question, answers}.
        passages: For each question.
        keep: How many of the best passages the generator reads; None for all.
        plain: Let it read their tokens instead of memory vectors.
    """
    room = asyncio.Semaphore(AT_ONCE)

    async def one(row: Row, texts: Sequence[str]) -> tuple[str, int]:
        async with room:
            return await answer(reader, row["question"], texts, keep=keep, plain=plain)

    found = await asyncio.gather(*map(one, rows, passages))
    return Scores(
        [exact(text, row["answers"]) for (text, _), row in zip(found, rows, strict=True)],
        [f1(text, row["answers"]) for (text, _), row in zip(found, rows, strict=True)],
        [text for text, _ in found],
        [first for _, first in found],
    )


def beside(rows: Sequence[Row], count: int, rng: random.Random) -> list[tuple[list[str], int]]:
    """Put each question's passage among ``count - 1`` others, of its own article if there are.

    Returns:
        For each row its passages in random order, and where the gold one stands.

    Raises:
        ValueError: The rows have fewer than ``count`` passages in all.
    """
    by_title: dict[str, list[str]] = defaultdict(list)
    for context, title in {row["context"]: row["title"] for row in rows}.items():
        by_title[title].append(context)
    everything = sorted({row["context"] for row in rows})
    if len(everything) < count:
        raise ValueError(f"{len(everything)} passages can't make {count} for a question")
    placed = []
    for row in rows:
        near = [context for context in by_title[row["title"]] if context != row["context"]]
        others = rng.sample(near, min(len(near), count - 1))
        while len(others) < count - 1:
            pick = rng.choice(everything)
            if pick != row["context"] and pick not in others:
                others.append(pick)
        at = rng.randrange(count)
        placed.append(([*others[:at], row["context"], *others[at:]], at))
    return placed


def of_others(rows: Sequence[Row], count: int, rng: random.Random) -> list[list[str]]:
    """Give each question ``count`` passages of other articles, none holding an answer of it.

    Raises:
        ValueError: Too few passages are free of a question's answers.
    """
    everything = sorted({(row["context"], row["context"].lower(), row["title"]) for row in rows})
    chosen = []
    for row in rows:
        golds = [gold.lower() for gold in row["answers"]]
        free = [
            context
            for context, lower, title in everything
            if title != row["title"] and not any(says(lower, gold) for gold in golds)
        ]
        if len(free) < count:
            raise ValueError(
                f"only {len(free)} passages hold no answer to {row['question']!r}, not {count}"
            )
        chosen.append(rng.sample(free, count))
    return chosen


def says(text: str, words: str) -> bool:
    """Return whether ``words`` stand in ``text``, not within a word ("l" is in every text)."""
    return words in text and bool(re.search(rf"(?<!\w){re.escape(words)}(?!\w)", text))


def replaced(rows: Sequence[Row], rng: random.Random) -> list[Row]:
    """Swap each answer, throughout its passage, for another question's answer of its sort.

    A reader that follows the passage gives the new answer; one that remembers, or looks at the
    question alone, does not. Questions whose answer can't be swapped are left out.
    """
    by_sort: dict[tuple[bool, bool, int], list[str]] = defaultdict(list)
    for row in rows:
        by_sort[sort_of(row["answers"][0])].append(row["answers"][0])
    swapped = []
    for row in rows:
        old = row["answers"][0]
        new = [
            text
            for text in by_sort[sort_of(old)]
            if text.lower() not in row["context"].lower() and old.lower() not in text.lower()
        ]
        if new and old in row["context"] and old.lower() not in row["question"].lower():
            pick = rng.choice(new)
            context = row["context"].replace(old, pick)
            swapped.append({**row, "context": context, "answers": [pick], "old": row["answers"]})
    return swapped


def sort_of(text: str) -> tuple[bool, bool, int]:
    """Tell numbers from names from other words, by how many words there are."""
    return any(c.isdigit() for c in text), text[:1].isupper(), min(4, len(text.split()))


def running(pair: OscarPair, directory: Path, workers: Workers) -> Reader:
    """Run a copy of networks in training; ``directory`` holds their tokenizer."""
    served = make_ready(copy.deepcopy(pair).eval())
    threads = ThreadPoolExecutor(1)
    return Reader.of(served, directory, workers, name="in-training", threads=threads)


def validate(
    pair: OscarPair, directory: Path, rows: Sequence[Row], *, limit: int
) -> dict[str, object]:
    """Answer ``limit`` validation questions: gold passage compressed and plain, and among five."""
    rng = random.Random(0)
    rows = rng.sample(list(rows), min(limit, len(rows)))
    workers = Workers(max(1, torch.get_num_threads()))
    reader = running(pair, directory, workers)
    placed = beside(rows, 5, rng)

    async def ask() -> dict[str, object]:
        alone = [[row["context"]] for row in rows]
        gold = await score(reader, rows, alone)
        plain = await score(reader, rows, alone, plain=True)
        five = await score(reader, rows, [passages for passages, _ in placed])
        first = [float(a == b) for a, (_, b) in zip(five.first, placed, strict=True)]
        pairs = zip(rows[:4], gold.answers, strict=False)
        return {
            "gold": gold.means(),
            "plain": plain.means(),
            "among_five": five.means(),
            "gold_first": float(np.mean(first)),
            "samples": [f"{r['question']} -> {a} [{r['answers'][0]}]" for r, a in pairs],
        }

    try:
        return asyncio.run(ask())
    finally:
        reader.close()
        workers.close()
