"""Texts, or pairs of texts, to labels."""

from collections.abc import Sequence

import numpy as np

from condensery.jobs.checks import check_count, check_texts
from condensery.jobs.rerank import sigmoid
from condensery.jobs.services import Services
from condensery.values import Floats, Input, Predicted, Prediction, Side


async def classify(
    services: Services,
    inputs: Sequence[Input],
    *,
    model: str | None = None,
    truncate: bool = True,
    side: Side = "right",
    raw_scores: bool = False,
    field: str = "inputs",
) -> Predicted:
    """Score every label for each input, the likeliest first; of equal ones the lower number.

    Args:
        services: The running parts.
        inputs: Texts, and pairs of texts.
        model: A classifier's or cross-encoder's name; None takes the first classifier.
        truncate: Cut what is too long, the longer text of a pair first; if false, refuse it.
        side: Where to cut.
        raw_scores: Give the logits; else what is likely: of one label among all by softmax, of
            each by itself by sigmoid, as the model declares.
        field: What the door calls ``inputs``, for messages.

    Raises:
        ModelNotFound: No such model, or it can't classify.
        InputError, ModelFault, Overloaded: As for ``embed``.
    """
    classifier = services.pool.classifier(model)
    info = classifier.info
    check_count(inputs, field, services.limits.max_items)
    most = info.max_tokens * services.limits.chars_per_token
    for number in (0, 1):
        texts = [_text(one, number) for one in inputs]
        check_texts(texts, field, most)
    found = await classifier.classify(inputs, truncate=truncate, side=side, field=field)
    if raw_scores:
        scores = found.logits
    else:
        scores = sigmoid(found.logits) if info.independent else softmax(found.logits)
    # By the logit: in float32 a likelihood is 1.0 long before its logit is the greatest.
    orders = np.argsort(-found.logits, axis=1, kind="stable")
    return Predicted(
        model=found.model,
        items=tuple(
            tuple(Prediction(info.labels[i], float(row[i])) for i in order)
            for row, order in zip(scores, orders.tolist(), strict=True)
        ),
        tokens=found.tokens,
        truncated=found.truncated,
        fingerprint=found.fingerprint,
    )


def softmax(logits: Floats) -> Floats:
    """Return the likelihoods (rows, labels), each row of sum 1, computed in float64."""
    wide = np.asarray(logits, np.float64)
    powers = np.exp(wide - wide.max(axis=1, keepdims=True))
    found: Floats = (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)
    return found


def _text(one: Input, number: int) -> str:
    """Return a text of an input; "" where there is none."""
    if isinstance(one, str):
        return "" if number else one
    return one[number]
