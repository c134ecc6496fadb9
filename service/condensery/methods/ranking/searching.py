"""How well an encoder finds passages in a whole corpus: nDCG@10 on sets in BEIR's form."""

from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from condensery.methods.distil.retrieval import Retriever
from condensery.methods.ranking.measures import ndcg
from condensery.methods.ranking.sets import RankingSet
from condensery.runtime.encoder import Encoder

DEPTH = 10


def search(encoder: Encoder, given: RankingSet, depth: int = DEPTH) -> dict[str, list[str]]:
    """Return each query's best passages by inner product, best first, out of the whole corpus.

    Passages are read with their titles, as BEIR's measures read them; what is too long is cut.
    """
    with (
        TemporaryDirectory() as folder,
        Retriever.build(given.passages, Path(folder), encoder=encoder) as retriever,
    ):
        hits = retriever.search(list(given.queries.values()), depth, "dense")
    return {q: [name for name, _ in one] for q, one in zip(given.queries, hits, strict=True)}


def measure(encoder: Encoder, given: RankingSet, depth: int = DEPTH) -> dict[str, Any]:
    """Return nDCG, by query and their mean."""
    by_query = ndcg(search(encoder, given, depth), given.judged, depth)
    return {"queries": len(by_query), f"ndcg@{depth}": fmean(by_query.values()), "by": by_query}
