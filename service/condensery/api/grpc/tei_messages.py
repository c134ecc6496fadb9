"""Our values as TEI's messages. No decisions here."""

import time

from condensery import callers, values
from condensery.errors import InputError
from condensery.jobs.describe import Described
from condensery.stubs import tei_v1_pb2 as pb
from condensery.values import Side

SIDES: dict[int, Side] = {
    pb.TRUNCATION_DIRECTION_RIGHT: "right",
    pb.TRUNCATION_DIRECTION_LEFT: "left",
}
NANO = 1e9


def side(direction: int) -> Side:
    """Read where too long a text is cut.

    Raises:
        InputError: It is a number that TEI has no name for.
    """
    found = SIDES.get(direction)
    if found is None:
        raise InputError(
            f"truncation_direction: {direction} is neither 0 (right) nor 1 (left).",
            field="truncation_direction",
            value=direction,
        )
    return found


def took(tokens: int) -> pb.Metadata:
    """Tell what the request that is being served took so far."""
    call = callers.current()
    spent = call.spent
    return pb.Metadata(
        compute_chars=spent.characters,
        compute_tokens=tokens,
        total_time_ns=round(NANO * (time.monotonic() - call.started)),
        tokenization_time_ns=round(NANO * spent.tokenizing),
        queue_time_ns=round(NANO * spent.waiting),
        inference_time_ns=round(NANO * spent.running),
    )


def embedded(found: values.Embedded) -> pb.EmbedResponse:
    """Write the only text's vector."""
    return pb.EmbedResponse(embeddings=found.vectors[0].tolist(), metadata=took(found.tokens))


def embedded_tokens(found: values.EmbeddedTokens) -> pb.EmbedAllResponse:
    """Write the vectors of the only text's tokens."""
    rows = (pb.TokenEmbedding(embeddings=row) for row in found.vectors[0].tolist())
    return pb.EmbedAllResponse(token_embeddings=rows, metadata=took(found.tokens))


def predicted(found: values.Predicted) -> pb.PredictResponse:
    """Write the only text's labels."""
    labels = (pb.Prediction(score=one.score, label=one.label) for one in found.items[0])
    return pb.PredictResponse(predictions=labels, metadata=took(found.tokens))


def reranked(found: values.Reranked, *, with_text: bool) -> pb.RerankResponse:
    """Write passages in their order."""
    ranks = (
        pb.Rank(index=one.index, score=one.score, text=one.text if with_text else None)
        for one in found.items
    )
    return pb.RerankResponse(ranks=ranks, metadata=took(found.tokens))


def tokenized(pieces: list[values.Piece]) -> pb.EncodeResponse:
    """Write a text's tokens."""
    tokens = (
        pb.SimpleToken(id=one.id, text=one.text, special=one.special, start=one.start, stop=one.end)
        for one in pieces
    )
    return pb.EncodeResponse(tokens=tokens)


def info(found: Described, version: str) -> pb.InfoResponse:
    """Write what a model is."""
    model = found.model
    kinds = {"encoder": pb.MODEL_TYPE_EMBEDDING, "classifier": pb.MODEL_TYPE_CLASSIFIER}
    return pb.InfoResponse(
        version=version,
        model_id=model.name,
        model_sha=model.fingerprint,
        model_dtype=model.dtype,
        model_type=kinds.get(model.kind, pb.MODEL_TYPE_RERANKER),
        max_concurrent_requests=found.max_concurrent_requests,
        max_input_length=model.max_tokens,
        max_batch_tokens=found.max_batch_tokens,
        max_client_batch_size=found.max_client_batch_size,
        tokenization_workers=found.tokenization_workers,
    )
