"""What a cross-encoder is trained on and what it is measured on, evaluation text kept out."""

import hashlib
import json
import logging
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from condensery.errors import InputError
from condensery.methods.rerank.recipe import RerankRecipe
from condensery.methods.rerank.sources import Query, Sources, read_pool
from condensery.methods.trainer.rows import read_rows
from condensery.methods.trainer.texts import HeldOutText

log = logging.getLogger(__name__)
GROUPS = 8  # fewest articles or passages that held-out questions come from
FIELDS = ("question", "context", "passages", "text")


@dataclass(frozen=True, slots=True)
class RankingSets:
    """Queries over shared passages.

    Attributes:
        passages: The corpus.
        train: Queries to train on.
        held_out: Queries to measure on; no query of ``train`` is of their articles or passages.
        report: What was read, and what was left out for what, by count.
    """

    passages: tuple[str, ...]
    train: tuple[Query, ...]
    held_out: tuple[Query, ...]
    report: dict[str, int]

    def fingerprint(self) -> str:
        """Return the sha256 of all of it, in its order."""
        digest = hashlib.sha256()
        queries = [
            [[q.text, q.gold, q.answers] for q in part] for part in (self.train, self.held_out)
        ]
        for part in (self.passages, *queries):
            digest.update(json.dumps(part).encode() + b"\n")
        return digest.hexdigest()


def load_sets(sources: Sources, recipe: RerankRecipe, most: int | None = None) -> RankingSets:
    """Read the data, leave out what is like evaluation text, hold some out, choose the rest.

    Args:
        sources: What to read.
        recipe: How many queries to hold out, and the seed.
        most: Queries to train on at most, as a run has no use for more; None for all.

    Raises:
        InputError: A row is wrong, or nothing is left to train or to measure on.
    """
    pool = read_pool(sources)
    report = {f"left out: {kind}": count for kind, count in sorted(pool.left_out.items())}
    report["queries read"] = len(pool.queries)
    report["passages read"] = len(pool.passages)
    passages, queries = leave_out(pool.passages, pool.queries, sources.not_like, report)
    train, held_out = _hold_out(queries, recipe)
    report["left out: of an article or passage held out"] = (
        len(queries) - len(train) - len(held_out)
    )
    if most is not None and len(train) > most:
        report["left out: more than the steps have use for"] = len(train) - most
        train = random.Random(f"{recipe.seed} queries").sample(train, most)
    for name, queries_of in (("train", train), ("measure", held_out)):
        if not queries_of:
            raise InputError(f"data: holds no query to {name} on; {report}", field="data")
        report[f"queries to {name} on"] = len(queries_of)
    report["passages"] = len(passages)
    log.info("%s", ", ".join(f"{name}: {count}" for name, count in report.items()))
    return RankingSets(tuple(passages), tuple(train), tuple(held_out), report)


def texts_of(paths: Iterable[Path]) -> list[str]:
    """Return the texts of rows: their questions, contexts, passages and texts.

    Raises:
        InputError: A file can't be read, or none of its rows has such a field.
    """
    texts: list[str] = []
    for path in paths:
        before = len(texts)
        for row in read_rows(path):
            for name in FIELDS:
                value: Any = row.value.get(name)
                values = value if isinstance(value, list) else [value]
                texts += [text for text in values if isinstance(text, str) and text.strip()]
        if len(texts) == before:
            raise InputError(
                f"not-like: {path}: no row has any of {', '.join(FIELDS)}", field="not_like"
            )
    return texts


def leave_out(
    passages: Sequence[str],
    queries: Sequence[Query],
    not_like: Sequence[Path],
    report: dict[str, int],
) -> tuple[list[str], list[Query]]:
    """Leave out what shares ten words in a row with evaluation text, and renumber the rest.

    ``report`` receives how much that was.
    """
    if not not_like:
        return list(passages), list(queries)
    evaluation = HeldOutText(texts_of(not_like))
    unlike = [old for old, text in enumerate(passages) if not evaluation.shares(text)]
    new = {old: number for number, old in enumerate(unlike)}
    kept = [
        Query(q.text, tuple(new[g] for g in q.gold), q.answers, q.group, q.where)
        for q in queries
        if all(g in new for g in q.gold) and not evaluation.shares(q.text)
    ]
    report["left out: passages like evaluation text"] = len(passages) - len(new)
    report["left out: queries like evaluation text, or of such passages"] = len(queries) - len(kept)
    return [passages[old] for old in unlike], kept


def _hold_out(queries: Sequence[Query], recipe: RerankRecipe) -> tuple[list[Query], list[Query]]:
    """Choose queries to measure on; none of their articles, or gold passages, is trained on.

    Articles come in random order, each gives at most an eighth of the queries, so that a few
    long ones are not all that is measured. At most a fifth of all queries are chosen.
    """
    rng = random.Random(f"{recipe.seed} held out")
    ordered = sorted(queries, key=lambda q: q.group)
    groups = [list(members) for _, members in groupby(ordered, key=lambda q: q.group)]
    rng.shuffle(groups)
    count = min(recipe.held_out, max(1, len(queries) // 5))
    most = -(-count // GROUPS)
    chosen: list[Query] = []
    closed: set[str] = set()
    gold: set[int] = set()
    for group in groups[:-1]:  # at least one to train on
        if len(chosen) == count:
            break
        wanted = min(most, count - len(chosen), len(group))
        chosen += rng.sample(group, wanted)
        closed.add(group[0].group)
        gold.update(g for q in group for g in q.gold)
    train = [q for q in queries if q.group not in closed and gold.isdisjoint(q.gold)]
    return train, chosen
