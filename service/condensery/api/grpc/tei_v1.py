"""The contract tei.v1 of text-embeddings-inference: its methods, and our values as its messages.

Each message of a stream is a call of its own.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import condensery
from condensery import values
from condensery.api.grpc.condensery_v1 import RpcMethod, UnaryHandler
from condensery.api.grpc.convert import serialize_timed
from condensery.errors import InputError, rename_field, shorten
from condensery.jobs.embed import decode_tokens, embed, embed_sparse, embed_tokens
from condensery.jobs.embed import tokenize as tokenize_texts
from condensery.jobs.models import ModelDescription, describe_model
from condensery.jobs.rerank import classify, rerank
from condensery.jobs.services import Services
from condensery.metrics import Task
from condensery.request_context import current_request
from condensery.stubs import tei_v1_pb2 as pb
from condensery.values import TruncationDirection

TRUNCATION_DIRECTIONS: dict[int, TruncationDirection] = {
    pb.TRUNCATION_DIRECTION_RIGHT: "right",
    pb.TRUNCATION_DIRECTION_LEFT: "left",
}
NANOSECONDS = 1e9


def read_truncation_direction(direction: int) -> TruncationDirection:
    """Read at which end a text that is too long is cut.

    Raises:
        InputError: The number is not one of TEI's.
    """
    side = TRUNCATION_DIRECTIONS.get(direction)
    if side is None:
        raise InputError.at(
            "truncation_direction", f"{direction} is neither 0 (right) nor 1 (left).", direction
        )
    return side


def write_request_stats(tokens: int) -> pb.Metadata:
    """Write what the request that is being served took so far."""
    context = current_request()
    stats = context.stats
    return pb.Metadata(
        compute_chars=stats.characters,
        compute_tokens=tokens,
        total_time_ns=round(NANOSECONDS * (time.monotonic() - context.started)),
        tokenization_time_ns=round(NANOSECONDS * stats.tokenizing),
        queue_time_ns=round(NANOSECONDS * stats.wait_seconds),
        inference_time_ns=round(NANOSECONDS * stats.forward_seconds),
    )


def write_embedding(result: values.Embedded) -> pb.EmbedResponse:
    """Write the only text's vector."""
    return pb.EmbedResponse(
        embeddings=result.vectors[0].tolist(), metadata=write_request_stats(result.tokens)
    )


def write_token_embeddings(result: values.EmbeddedTokens) -> pb.EmbedAllResponse:
    """Write the vectors of the only text's tokens."""
    rows = (pb.TokenEmbedding(embeddings=row) for row in result.vectors[0].tolist())
    return pb.EmbedAllResponse(token_embeddings=rows, metadata=write_request_stats(result.tokens))


def write_predictions(result: values.Predicted) -> pb.PredictResponse:
    """Write the only text's labels."""
    labels = (pb.Prediction(score=label.score, label=label.label) for label in result.items[0])
    return pb.PredictResponse(predictions=labels, metadata=write_request_stats(result.tokens))


def write_ranking(result: values.Reranked, *, with_text: bool) -> pb.RerankResponse:
    """Write passages in their order."""
    ranks = (
        pb.Rank(index=item.index, score=item.score, text=item.text if with_text else None)
        for item in result.items
    )
    return pb.RerankResponse(ranks=ranks, metadata=write_request_stats(result.tokens))


def write_info(description: ModelDescription, version: str) -> pb.InfoResponse:
    """Write what a model is."""
    model = description.model
    kind = pb.MODEL_TYPE_RERANKER
    if "embed" in description.tasks:
        kind = pb.MODEL_TYPE_EMBEDDING
    elif "rerank" not in description.tasks:
        kind = pb.MODEL_TYPE_CLASSIFIER
    return pb.InfoResponse(
        version=version,
        model_id=model.name,
        model_sha=model.fingerprint,
        model_dtype=model.dtype,
        model_type=kind,
        max_concurrent_requests=description.max_concurrent_requests,
        max_input_length=model.max_tokens,
        max_batch_tokens=description.max_batch_tokens,
        max_client_batch_size=description.max_client_batch_size,
        tokenization_workers=description.tokenization_workers,
    )


# Fewer of these: each reply is many kilobytes, and waits for those before it.
LARGE_REPLIES_AT_ONCE = 16
# What must be the same in all messages of a stream of passages.
SHARED_FIELDS = ("query", "truncate", "truncation_direction")


async def show_info(
    services: Services, request: pb.InfoRequest, model: str | None
) -> pb.InfoResponse:
    """Describe the model."""
    return write_info(describe_model(services, model), condensery.__version__)


async def embed_one(services: Services, request: pb.EmbedRequest, model: str | None) -> bytes:
    """Embed a text."""
    with rename_field("inputs[0]", "inputs"):
        result = await embed(
            services,
            [request.inputs],
            prompt_name=_prompt_name(request),
            normalize=request.normalize if request.HasField("normalize") else True,
            **_shared_options(request, model),
            dimensions=request.dimensions if request.HasField("dimensions") else None,
            field="inputs",
        )
    return serialize_timed(services, result, write_embedding)


async def refuse_sparse(
    services: Services, request: pb.EmbedSparseRequest, model: str | None
) -> bytes:
    """Refuse a sparse vector."""
    await embed_sparse(services, [request.inputs], model=model)


async def embed_all(services: Services, request: pb.EmbedAllRequest, model: str | None) -> bytes:
    """Embed each token of a text."""
    with rename_field("inputs[0]", "inputs"):
        result = await embed_tokens(
            services,
            [request.inputs],
            prompt_name=_prompt_name(request),
            **_shared_options(request, model),
        )
    return serialize_timed(services, result, write_token_embeddings)


async def predict(services: Services, request: pb.PredictRequest, model: str | None) -> bytes:
    """Classify a text."""
    return await _classify(services, request, request.inputs, model)


async def predict_pair(
    services: Services, request: pb.PredictPairRequest, model: str | None
) -> bytes:
    """Classify a pair of texts, or one."""
    texts = list(request.inputs)
    if len(texts) not in (1, 2):
        raise InputError.at("inputs", f"{len(texts)} texts are neither one nor a pair.", len(texts))
    return await _classify(services, request, texts[0] if len(texts) == 1 else tuple(texts), model)


async def _classify(services: Services, request: Any, text: Any, model: str | None) -> bytes:
    with rename_field("inputs[0]", "inputs"):
        result = await classify(
            services, [text], raw_scores=request.raw_scores, **_shared_options(request, model)
        )
    return serialize_timed(services, result, write_predictions)


async def rerank_texts(services: Services, request: pb.RerankRequest, model: str | None) -> bytes:
    """Order passages."""
    return await _rerank(services, request, list(request.texts), model, field="texts")


async def rerank_stream(
    services: Services, requests: Sequence[pb.RerankStreamRequest], model: str | None
) -> bytes:
    """Order passages that came one by one."""
    first = requests[0]
    for place, request in enumerate(requests):
        for name in SHARED_FIELDS:
            if (value := getattr(request, name)) != getattr(first, name):
                raise InputError.at(
                    name,
                    f"{shorten(value)} in message {place}, {shorten(getattr(first, name))} "
                    "in the first: a stream ranks passages for one query, in one way.",
                    value,
                )
    return await _rerank(
        services, first, [request.text for request in requests], model, field="text"
    )


async def _rerank(
    services: Services, request: Any, texts: list[str], model: str | None, *, field: str
) -> bytes:
    result = await rerank(
        services,
        request.query,
        texts,
        raw_scores=request.raw_scores,
        field=field,
        **_shared_options(request, model),
    )
    return serialize_timed(services, result, partial(write_ranking, with_text=request.return_text))


async def tokenize(
    services: Services, request: pb.EncodeRequest, model: str | None
) -> dict[str, list[values.TextToken]]:
    """Return a text's tokens."""
    with rename_field("inputs[0]", "inputs"):
        (text_tokens,) = await tokenize_texts(
            services,
            [request.inputs],
            model=model,
            prompt_name=_prompt_name(request),
            special=request.add_special_tokens,
        )
    return {"tokens": text_tokens}


async def decode(
    services: Services, request: pb.DecodeRequest, model: str | None
) -> dict[str, str]:
    """Return the text of tokens."""
    with rename_field("ids[0]", "ids"):
        (text,) = await decode_tokens(
            services, [list(request.ids)], model=model, skip_special=request.skip_special_tokens
        )
    return {"text": text}


def _shared_options(request: Any, model: str | None) -> dict[str, Any]:
    side = read_truncation_direction(request.truncation_direction)
    return {"model": model, "truncate": request.truncate, "side": side}


def _prompt_name(request: Any) -> str | None:
    return request.prompt_name if request.HasField("prompt_name") else None


_method: Callable[..., RpcMethod[Any]] = partial(
    RpcMethod, scope="infer", contract=pb.DESCRIPTOR, family="tei", model_field=""
)


def _unary_and_stream(
    service: str, name: str, task: Task, unary: UnaryHandler[Any], **options: Any
) -> tuple[RpcMethod[Any], RpcMethod[Any]]:
    """Return the method of one message, and that of a stream of them."""
    return (
        _method(service, name, task=task, unary=unary),
        _method(service, f"{name}Stream", task=task, each=unary, **options),
    )


METHODS: tuple[RpcMethod[Any], ...] = (
    _method("Info", "Info", task=None, unary=show_info),
    *_unary_and_stream("Embed", "Embed", "embed", embed_one),
    *_unary_and_stream("Embed", "EmbedSparse", "embed", refuse_sparse),
    *_unary_and_stream("Embed", "EmbedAll", "embed", embed_all, at_once=LARGE_REPLIES_AT_ONCE),
    *_unary_and_stream("Predict", "Predict", "classify", predict),
    *_unary_and_stream("Predict", "PredictPair", "classify", predict_pair),
    _method("Rerank", "Rerank", task="rerank", unary=rerank_texts),
    _method("Rerank", "RerankStream", task="rerank", gather=rerank_stream),
    *_unary_and_stream("Tokenize", "Tokenize", "embed", tokenize, at_once=LARGE_REPLIES_AT_ONCE),
    *_unary_and_stream("Tokenize", "Decode", "embed", decode),
)
