"""How often a passage that answers comes first, by three orders of the same candidates."""

from collections.abc import Callable, Mapping, Sequence

from condensery.methods.oscar.scoring import paired_bootstrap
from condensery.methods.rerank.negatives import Mined
from condensery.methods.rerank.sets import RankingSets

Scorer = Callable[[str, Sequence[str]], list[float]]


def order_of(scores: Sequence[float]) -> list[int]:
    """Return places by falling score; what is as good as another stays behind it."""
    return sorted(range(len(scores)), key=lambda i: -scores[i])


def reciprocal_rank(order: Sequence[int], gold: Sequence[int]) -> float:
    """Return 1 / the place of the first gold passage, counted from 1; 0 if there is none."""
    ranks = [rank for rank, passage in enumerate(order, start=1) if passage in gold]
    return 1 / ranks[0] if ranks else 0.0


def measure(
    scorer: Scorer, sets: RankingSets, mined: Mined, most: int | None = None
) -> dict[str, object]:
    """Measure the held-out queries.

    A query's candidates are BM25's best and the gold passages that are not among them, which
    come last in BM25's order. Others that hold an answer count as wrong for all orders alike.

    Args:
        scorer: Scores of passages for a query.
        sets: Queries and passages.
        mined: The candidates and the encoder's similarities.
        most: Queries measured, None for all.

    Returns:
        Of each order (``bm25``, ``encoder``, ``cross_encoder``) ``mrr`` and ``gold_first``, both
        0 to 100; and for the cross-encoder's MRR less another's the mean and its 95% interval by
        bootstrap over queries.
    """
    queries = sets.held_out[:most]
    ranks: dict[str, list[float]] = {"bm25": []}
    for row, query in enumerate(queries):
        candidates = mined.candidates[row]
        orders = {"bm25": candidates}
        if mined.encoder:
            orders["encoder"] = [candidates[i] for i in order_of(mined.encoder[row])]
        scores = scorer(query.text, [sets.passages[i] for i in candidates])
        orders["cross_encoder"] = [candidates[i] for i in order_of(scores)]
        for name, order in orders.items():
            ranks.setdefault(name, []).append(100 * reciprocal_rank(order, query.gold))
    figures: dict[str, object] = {name: _mean(values) for name, values in ranks.items()}
    for name, values in ranks.items():
        if name != "cross_encoder":
            mean, low, high = paired_bootstrap(ranks["cross_encoder"], values)
            figures[f"cross_encoder_minus_{name}"] = {"mrr": mean, "low_95": low, "high_95": high}
    figures["queries"] = len(queries)
    figures["candidates"] = sum(map(len, mined.candidates[:most])) / len(queries)
    return figures


def _mean(ranks: Sequence[float]) -> Mapping[str, float]:
    first = [rank for rank in ranks if rank == 100]
    return {"mrr": sum(ranks) / len(ranks), "gold_first": 100 * len(first) / len(ranks)}
