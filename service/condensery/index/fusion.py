"""One ranking out of several."""

import math
from collections.abc import Sequence
from dataclasses import replace

from condensery.values import Hit

# Keeps one ranking's very first places from outweighing what the others say; the paper's value.
RANK_OFFSET = 60
# Passages that each ranking puts up at least; of fewer, too few are in both.
LEAST_CANDIDATES = 50


def fuse(rankings: Sequence[Sequence[Hit]], top_k: int) -> list[Hit]:
    """Rank passages by their places in several rankings, whose scores can't be compared.

    A passage's score is the sum, over the rankings that have it, of 1 / (60 + its place), the best
    place being 1: at most 1/61 for each ranking.

    Source: Cormack, Clarke & Büttcher, Reciprocal Rank Fusion (SIGIR 2009), score RRF.

    Args:
        rankings: Each best first, without repetition.
        top_k: Most hits to return.

    Returns:
        Hits with their new scores, best first. Of equal ones the first is the one with the better
        place in the first ranking, then in the second, and so on.
    """
    places = [{hit.id: place for place, hit in enumerate(hits, 1)} for hits in rankings]
    by_id = {hit.id: hit for hits in reversed(rankings) for hit in hits}

    def score(passage: str) -> float:
        return sum(1 / (RANK_OFFSET + ranks[passage]) for ranks in places if passage in ranks)

    def order(passage: str) -> tuple[float, ...]:
        return (-score(passage), *(ranks.get(passage, float("inf")) for ranks in places))

    best = sorted(by_id, key=order)[:top_k]
    return [replace(by_id[passage], score=score(passage)) for passage in best]


def weigh_place(logit: float, place: int, weight: float) -> float:
    """Return a reranker's score of a passage, corrected by its place in retrieval.

    ``logit - weight * ln(place)``: Bayes' rule, if the chance that a passage answers falls with a
    power of its place. A reranker made on other collections and the search then correct each other.

    Args:
        logit: The reranker's, of the log-odds' scale.
        place: The best is 1.
        weight: 0 is the reranker alone.
    """
    return logit - weight * math.log(place)
