"""nDCG as trec_eval has it, by trec_eval itself (pytrec_eval), and of an encoder's search."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import pytrec_eval

from condensery.methods.ranking.retrieval import Retriever
from condensery.methods.ranking.sets import RankingSet
from condensery.runtime.encoder import Encoder

Judgements = Mapping[str, Mapping[str, int]]  # query, document, grade


def ndcg(
    hits: Mapping[str, Sequence[str]], judged: Judgements, depth: int = 10
) -> dict[str, float]:
    """Return each judged query's nDCG, 0 to 1: gains are grades, discounts log2(place + 1).

    Source: Järvelin & Kekäläinen (2002), as trec_eval's ``ndcg_cut``.

    Args:
        hits: For each query its documents, best first; a query that is not there found none.
        judged: Grades above 0, by query and document; every query has one at the least.
        depth: How many of the best count.

    Raises:
        ValueError: A document comes twice for a query.
    """
    runs = {}
    for query, documents in hits.items():
        # Places rather than scores: trec_eval would sort equal scores by the documents' names.
        run = {name: float(-place) for place, name in enumerate(documents)}
        if len(run) != len(documents):
            raise ValueError(f"query {query!r}: a document comes twice")
        if query in judged:
            runs[query] = run
    measure = f"ndcg_cut_{depth}"
    evaluator = pytrec_eval.RelevanceEvaluator(
        {query: dict(grades) for query, grades in judged.items()}, {f"ndcg_cut.{depth}"}
    )
    measured = evaluator.evaluate(runs)
    return {query: float(measured.get(query, {}).get(measure, 0.0)) for query in judged}


DEPTH = 10


def search(encoder: Encoder, ranking_set: RankingSet, depth: int = DEPTH) -> dict[str, list[str]]:
    """Return each query's best passages by inner product, best first, out of the whole corpus.

    Passages are read with their titles, as BEIR's measures read them; what is too long is cut.
    """
    with (
        TemporaryDirectory() as folder,
        Retriever.build(ranking_set.passages, Path(folder), encoder=encoder) as retriever,
    ):
        hits = retriever.search(list(ranking_set.queries.values()), depth, "dense")
    return {
        q: [name for name, _ in hits_of]
        for q, hits_of in zip(ranking_set.queries, hits, strict=True)
    }


def measure(encoder: Encoder, ranking_set: RankingSet, depth: int = DEPTH) -> dict[str, Any]:
    """Return nDCG, by query and their mean."""
    by_query = ndcg(search(encoder, ranking_set, depth), ranking_set.judged, depth)
    return {"queries": len(by_query), f"ndcg@{depth}": fmean(by_query.values()), "by": by_query}
