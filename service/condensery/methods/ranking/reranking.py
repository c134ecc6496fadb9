"""Put BM25's best passages in another order, and say how good it is."""

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np

from condensery.methods.distil.retrieval import Retriever, titled_text
from condensery.methods.oscar.scoring import bootstrap
from condensery.methods.ranking.measures import ndcg
from condensery.methods.ranking.parts import StoredRows
from condensery.methods.ranking.rankers import Ranker
from condensery.methods.ranking.sets import RankingSet

log = logging.getLogger(__name__)
BM25: Literal["bm25"] = "bm25"
LOGGED_EVERY = 20  # queries between lines of progress
Candidates = Mapping[str, Sequence[str]]  # query, passages, best first


def retrieve(ranking_set: RankingSet, depth: int, work: Path) -> tuple[dict[str, list[str]], float]:
    """Return BM25's best passages of each query, and the seconds a query took.

    Args:
        ranking_set: The set.
        depth: Most passages.
        work: Folder for the index.
    """
    with Retriever.build(ranking_set.passages, work / "index") as retriever:
        began = time.perf_counter()
        hits = retriever.search(list(ranking_set.queries.values()), depth, BM25)
        seconds = (time.perf_counter() - began) / len(ranking_set.queries)
    candidates = {
        query: [name for name, _ in ranked]
        for query, ranked in zip(ranking_set.queries, hits, strict=True)
    }
    return candidates, seconds


def score(
    ranking_set: RankingSet, candidates: Candidates, ranker: Ranker, stored: StoredRows
) -> float:
    """Score the candidates of the queries that have no stored scores yet.

    Returns:
        Seconds that reading passages ahead of the queries took.
    """
    # As they are indexed: the title on a line before the text.
    texts = {passage.id: titled_text(passage) for passage in ranking_set.passages}
    missing = [query for query in ranking_set.queries if query not in stored.found]
    ahead = ranker.prepare(
        list(dict.fromkeys(texts[name] for query in missing for name in candidates[query]))
    )
    for done, query in enumerate(missing, start=1):
        names = candidates[query]
        began = time.perf_counter()
        scores = ranker.scores(ranking_set.queries[query], [texts[name] for name in names])
        seconds = time.perf_counter() - began
        stored.add(query, seconds=seconds, scores=dict(zip(names, scores, strict=True)))
        if done % LOGGED_EVERY == 0 or done == len(missing):
            log.info("%s: %d of %d queries", ranking_set.name, done, len(missing))
    return ahead


def reorder(names: Sequence[str], scores: Mapping[str, float]) -> list[str]:
    """Sort by falling score; of equal ones what came first stays first."""
    return sorted(names, key=lambda name: -scores[name])


def compare(
    ranking_set: RankingSet, candidates: Candidates, orders: Mapping[str, Candidates], seed: int
) -> dict[str, Any]:
    """Measure all orders of the same candidates: nDCG@10, each difference from the others.

    Args:
        ranking_set: The set.
        candidates: BM25's.
        orders: Theirs, by name; ``bm25`` is one of them.
        seed: Of the bootstrap.

    Returns:
        For each order ``ndcg10``, ``low``, ``high`` (95%, bootstrap over queries); under
        ``differences`` those of each order from those named before it, paired; and ``recall``,
        the mean share of a query's judged passages that are among the candidates: what no order
        can exceed.
    """
    queries = list(ranking_set.queries)
    columns = {}
    for name, order in orders.items():
        measured = ndcg(order, ranking_set.judged)
        columns[name] = np.array([measured[query] for query in queries])
    names = list(columns)
    pairs = [(a, b) for i, a in enumerate(names) for b in names[:i]]
    table = np.stack([*columns.values(), *(columns[a] - columns[b] for a, b in pairs)], axis=1)
    estimates = bootstrap(table, seed=seed)
    rows = [
        [round(float(value), 4) for value in bounds]
        for bounds in zip(estimates.mean, estimates.low, estimates.high, strict=True)
    ]
    figures: dict[str, Any] = {
        name: dict(zip(("ndcg10", "low", "high"), row, strict=True))
        for name, row in zip(names, rows, strict=False)
    }
    figures["differences"] = {
        f"{a}_minus_{b}": dict(zip(("ndcg10", "low_95", "high_95"), row, strict=True))
        for (a, b), row in zip(pairs, rows[len(names) :], strict=True)
    }
    judged = ranking_set.judged
    figures["recall"] = round(
        fmean(len(judged[q].keys() & set(candidates[q])) / len(judged[q]) for q in queries), 4
    )
    return figures
