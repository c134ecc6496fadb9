"""Passages in the order of their relevance to a query."""

from collections.abc import Sequence

import numpy as np

from condensery.jobs.checks import check_count, check_range, check_text, check_texts
from condensery.jobs.services import Services
from condensery.values import Floats, Ranked, Reranked, Side


async def rerank(
    services: Services,
    query: str,
    passages: Sequence[str],
    *,
    model: str | None = None,
    truncate: bool = True,
    side: Side = "right",
    raw_scores: bool = False,
    top_n: int | None = None,
    field: str = "documents",
) -> Reranked:
    """Score each passage for the query and sort, best first; of equal ones the earlier first.

    Args:
        services: The running parts.
        query: What is asked.
        passages: What is scored.
        model: A reranker's or pair's name; None takes the default.
        truncate: Cut texts that are too long; if false, refuse them.
        side: Where to cut.
        raw_scores: Give the logits; else their sigmoids, from 0 to 1.
        top_n: Return only so many of the best; None returns all.
        field: What the door calls ``passages``, for messages.

    Raises:
        ModelNotFound: No such model, or it can't rerank.
        InputError, ModelFault, Overloaded: As for ``embed``.
    """
    scorer = services.pool.scorer(model)
    limits = services.limits
    check_count(passages, field, limits.max_items)
    most = scorer.info.max_tokens * limits.chars_per_token
    check_text(query, "query", most)
    check_texts(passages, field, most)
    if top_n is not None:
        check_range(top_n, "top_n", 1, 2**31 - 1)
    scored = await scorer.score(query, passages, truncate=truncate, side=side, field=field)
    # By the logit, not the sigmoid: in float32 that is 1.0 for all above 17.
    order = np.argsort(-scored.scores, kind="stable")[:top_n]
    scores = scored.scores if raw_scores else sigmoid(scored.scores)
    return Reranked(
        model=scored.model,
        items=tuple(Ranked(int(i), float(scores[i]), passages[i]) for i in order),
        tokens=scored.tokens,
        truncated=scored.truncated,
        query_truncated=scored.query_truncated,
        fingerprint=scored.fingerprint,
    )


def sigmoid(logits: Floats) -> Floats:
    """Return 1 / (1 + exp(-x)) in float32, computed in float64 so that no end overflows."""
    half = np.asarray(logits, np.float64) / 2
    return (0.5 + 0.5 * np.tanh(half)).astype(np.float32)
