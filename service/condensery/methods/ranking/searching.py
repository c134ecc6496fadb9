"""How well an encoder finds passages in a whole corpus: nDCG@10 on sets in BEIR's form."""

from statistics import fmean
from typing import Any

import numpy as np

from condensery.methods.distil.embedding import PASSAGE_PROMPTS, QUERY_PROMPTS, embed
from condensery.methods.distil.retrieval import whole
from condensery.methods.ranking.measures import ndcg
from condensery.methods.ranking.sets import RankingSet
from condensery.runtime.encoder import Encoder

DEPTH = 10


def search(encoder: Encoder, given: RankingSet, depth: int = DEPTH) -> dict[str, list[str]]:
    """Return each query's best passages by inner product, best first, out of the whole corpus.

    Passages are read with their titles, as BEIR's measures read them; what is too long is cut.
    """
    names = np.array([one.id for one in given.passages])
    passages = embed(encoder, [whole(one) for one in given.passages], PASSAGE_PROMPTS)
    queries = embed(encoder, list(given.queries.values()), QUERY_PROMPTS)
    found: dict[str, list[str]] = {}
    most = min(depth, len(names))
    for query, vector in zip(given.queries, queries, strict=True):
        scores = passages @ vector
        best = np.argpartition(-scores, most - 1)[:most]
        found[query] = names[best[np.argsort(-scores[best], kind="stable")]].tolist()
    return found


def measure(encoder: Encoder, given: RankingSet, depth: int = DEPTH) -> dict[str, Any]:
    """Return nDCG, by query and their mean."""
    by_query = ndcg(search(encoder, given, depth), given.judged, depth)
    return {"queries": len(by_query), f"ndcg@{depth}": fmean(by_query.values()), "by": by_query}
