"""Texts to scores: passages by their relevance to a query, and texts by labels."""

from collections.abc import Sequence

import numpy as np

from condensery.jobs.services import Services
from condensery.jobs.validation import (
    check_count,
    check_range,
    check_text,
    check_texts,
    max_chars_of,
)
from condensery.values import (
    Floats,
    Input,
    Predicted,
    Prediction,
    Ranked,
    Reranked,
    TruncationDirection,
)


async def rerank(
    services: Services,
    query: str,
    passages: Sequence[str],
    *,
    model: str | None = None,
    truncate: bool = True,
    side: TruncationDirection = "right",
    raw_scores: bool = False,
    top_n: int | None = None,
    field: str = "documents",
) -> Reranked:
    """Score each passage for the query and sort, best first; of equal ones the earlier first.

    Args:
        model: A reranker's or pair's name; None takes the default.
        truncate: Cut texts that are too long; if false, refuse them.
        raw_scores: Give the logits; else their sigmoids, from 0 to 1.
        top_n: Return only so many of the best; None returns all.
        field: What the request calls ``passages``, for messages.

    Raises:
        ModelNotFound: No such model, or it can't rerank.
        InputError, ModelFault, Overloaded: As for ``embed``.
    """
    scorer = services.registry.scorer(model)
    limits = services.limits
    check_count(passages, field, limits.max_items)
    max_chars = max_chars_of(limits, scorer.info)
    check_text(query, "query", max_chars)
    check_texts(passages, field, max_chars)
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


async def classify(
    services: Services,
    inputs: Sequence[Input],
    *,
    model: str | None = None,
    truncate: bool = True,
    side: TruncationDirection = "right",
    raw_scores: bool = False,
    field: str = "inputs",
) -> Predicted:
    """Score every label for each input, the likeliest first; of equal ones the lower number.

    Args:
        inputs: Texts, and pairs of texts.
        model: A classifier's or cross-encoder's name; None takes the first classifier.
        truncate: Cut what is too long, the longer text of a pair first; if false, refuse it.
        raw_scores: Give the logits; else what is likely: of one label among all by softmax, of
            each by itself by sigmoid, as the model declares.
        field: What the request calls ``inputs``, for messages.

    Raises:
        ModelNotFound: No such model, or it can't classify.
        InputError, ModelFault, Overloaded: As for ``embed``.
    """
    classifier = services.registry.classifier(model)
    info = classifier.info
    check_count(inputs, field, services.limits.max_items)
    max_chars = max_chars_of(services.limits, info)
    for number in (0, 1):
        check_texts([_text_of_input(entry, number) for entry in inputs], field, max_chars)
    classified = await classifier.classify(inputs, truncate=truncate, side=side, field=field)
    if raw_scores:
        scores = classified.logits
    else:
        scores = sigmoid(classified.logits) if info.independent else softmax(classified.logits)
    # By the logit: in float32 a likelihood is 1.0 long before its logit is the greatest.
    orders = np.argsort(-classified.logits, axis=1, kind="stable")
    return Predicted(
        model=classified.model,
        items=tuple(
            tuple(Prediction(float(row[i]), info.labels[i]) for i in order)
            for row, order in zip(scores, orders.tolist(), strict=True)
        ),
        tokens=classified.tokens,
        truncated=classified.truncated,
        fingerprint=classified.fingerprint,
    )


def softmax(logits: Floats) -> Floats:
    """Return the likelihoods (rows, labels), each row of sum 1, computed in float64."""
    wide = np.asarray(logits, np.float64)
    powers = np.exp(wide - wide.max(axis=1, keepdims=True))
    likelihoods: Floats = (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)
    return likelihoods


def _text_of_input(entry: Input, number: int) -> str:
    """Return a text of an input; "" where there is none."""
    if isinstance(entry, str):
        return "" if number else entry
    return entry[number]
