"""Which passages stand beside a question: its own among others, others' only, or one rewritten."""

import random
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]  # {question, answers, context, title}


def place_among_others(
    rows: Sequence[Row], count: int, rng: random.Random
) -> list[tuple[list[str], int]]:
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


def other_passages(rows: Sequence[Row], count: int, rng: random.Random) -> list[list[str]]:
    """Give each question ``count`` passages of other articles, none holding an answer of it.

    A passage without a title is an article of its own.

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
            if (title != row["title"] or (not title and context != row["context"]))
            and not any(contains_words(lower, gold) for gold in golds)
        ]
        if len(free) < count:
            raise ValueError(
                f"only {len(free)} passages hold no answer to {row['question']!r}, not {count}"
            )
        chosen.append(rng.sample(free, count))
    return chosen


def contains_words(text: str, words: str) -> bool:
    """Return whether ``words`` stand in ``text``, not within a word ("l" is in every text)."""
    return words in text and bool(re.search(rf"(?<!\w){re.escape(words)}(?!\w)", text))


def replaced(rows: Sequence[Row], rng: random.Random) -> list[Row]:
    """Swap each answer, throughout its passage, for another question's answer of its sort.

    A reader that follows the passage gives the new answer; one that remembers, or looks at the
    question alone, does not. Questions whose answer can't be swapped are left out.
    """
    by_sort: dict[tuple[bool, bool, int], list[str]] = defaultdict(list)
    for row in rows:
        by_sort[answer_kind(row["answers"][0])].append(row["answers"][0])
    swapped = []
    for row in rows:
        old = row["answers"][0]
        new = [
            text
            for text in by_sort[answer_kind(old)]
            if text.lower() not in row["context"].lower() and old.lower() not in text.lower()
        ]
        if new and old in row["context"] and old.lower() not in row["question"].lower():
            pick = rng.choice(new)
            context = row["context"].replace(old, pick)
            swapped.append({**row, "context": context, "answers": [pick], "old": row["answers"]})
    return swapped


def answer_kind(text: str) -> tuple[bool, bool, int]:
    """Tell numbers from names from other words, by how many words there are."""
    return any(c.isdigit() for c in text), text[:1].isupper(), min(4, len(text.split()))
