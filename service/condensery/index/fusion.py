"""One ranking out of several."""

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
    places = [{hit.passage.id: place for place, hit in enumerate(one, 1)} for one in rankings]
    hits = {hit.passage.id: hit for one in reversed(rankings) for hit in one}

    def score(passage: str) -> float:
        return sum(1 / (RANK_OFFSET + one[passage]) for one in places if passage in one)

    def order(passage: str) -> tuple[float, ...]:
        return (-score(passage), *(one.get(passage, float("inf")) for one in places))

    best = sorted(hits, key=order)[:top_k]
    return [replace(hits[passage], score=score(passage)) for passage in best]
