"""nDCG as trec_eval has it, by trec_eval itself (pytrec_eval)."""

from collections.abc import Mapping, Sequence

import pytrec_eval

Judgements = Mapping[str, Mapping[str, int]]  # query, document, grade


def ndcg(
    found: Mapping[str, Sequence[str]], judged: Judgements, depth: int = 10
) -> dict[str, float]:
    """Return each judged query's nDCG, 0 to 1: gains are grades, discounts log2(place + 1).

    Source: Järvelin & Kekäläinen (2002), as trec_eval's ``ndcg_cut``.

    Args:
        found: For each query its documents, best first; a query that is not there found none.
        judged: Grades above 0, by query and document; every query has one at the least.
        depth: How many of the best count.

    Raises:
        ValueError: A document comes twice for a query.
    """
    runs = {}
    for query, documents in found.items():
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
