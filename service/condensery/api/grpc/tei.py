"""TEI's services: each call in a few lines, as in ``calls``; a stream's message is a call too."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import condensery
from condensery.api.grpc import tei_messages as messages
from condensery.api.grpc.bodies import write
from condensery.api.grpc.calls import Call, Given, Unary
from condensery.api.naming import renamed
from condensery.errors import InputError, shorten
from condensery.jobs import tokens
from condensery.jobs.classify import classify
from condensery.jobs.describe import describe
from condensery.jobs.embed import embed
from condensery.jobs.rerank import rerank
from condensery.jobs.services import Services
from condensery.jobs.sparse import embed_sparse
from condensery.metrics import Task
from condensery.stubs import tei_v1_pb2 as pb

# Replies of many kilobytes each, which wait for those before them.
FEW_AT_ONCE = 16
# Of a stream of passages, what must be the same in all messages.
SHARED = ("query", "truncate", "truncation_direction")


async def info(services: Services, given: pb.InfoRequest, model: str | None) -> bytes:
    """Describe the model."""
    found = describe(services, model)
    return messages.info(found, condensery.__version__).SerializeToString()


async def embed_one(services: Services, given: pb.EmbedRequest, model: str | None) -> bytes:
    """Embed a text."""
    with renamed("inputs[0]", "inputs"):
        found = await embed(
            services,
            [given.inputs],
            model=model,
            prompt_name=_prompt(given),
            normalize=given.normalize if given.HasField("normalize") else True,
            truncate=given.truncate,
            side=messages.side(given.truncation_direction),
            dimensions=given.dimensions if given.HasField("dimensions") else None,
            field="inputs",
        )
    return write(services, found, messages.embedded)


async def embed_none(services: Services, given: pb.EmbedSparseRequest, model: str | None) -> bytes:
    """Refuse a sparse vector."""
    await embed_sparse(services, given.inputs, model=model)


async def embed_all(services: Services, given: pb.EmbedAllRequest, model: str | None) -> bytes:
    """Embed each token of a text."""
    with renamed("inputs[0]", "inputs"):
        found = await tokens.embed_tokens(
            services,
            [given.inputs],
            model=model,
            prompt_name=_prompt(given),
            truncate=given.truncate,
            side=messages.side(given.truncation_direction),
        )
    return write(services, found, messages.embedded_tokens)


async def predict(services: Services, given: pb.PredictRequest, model: str | None) -> bytes:
    """Classify a text."""
    return await _classify(services, given, given.inputs, model)


async def predict_pair(
    services: Services, given: pb.PredictPairRequest, model: str | None
) -> bytes:
    """Classify a pair of texts, or one."""
    texts = list(given.inputs)
    if len(texts) not in (1, 2):
        raise InputError(
            f"inputs: {len(texts)} texts are neither one nor a pair.",
            field="inputs",
            value=len(texts),
        )
    return await _classify(services, given, texts[0] if len(texts) == 1 else tuple(texts), model)


async def _classify(services: Services, given: Any, one: Any, model: str | None) -> bytes:
    with renamed("inputs[0]", "inputs"):
        found = await classify(
            services,
            [one],
            model=model,
            truncate=given.truncate,
            side=messages.side(given.truncation_direction),
            raw_scores=given.raw_scores,
        )
    return write(services, found, messages.predicted)


async def rerank_texts(services: Services, given: pb.RerankRequest, model: str | None) -> bytes:
    """Order passages."""
    return await _rerank(services, given, list(given.texts), model, field="texts")


async def rerank_stream(
    services: Services, given: Sequence[pb.RerankStreamRequest], model: str | None
) -> bytes:
    """Order passages that came one by one."""
    first = given[0]
    for place, one in enumerate(given):
        for name in SHARED:
            if (value := getattr(one, name)) != getattr(first, name):
                raise InputError(
                    f"{name}: {shorten(value)} in message {place}, {shorten(getattr(first, name))} "
                    "in the first: a stream ranks passages for one query, in one way.",
                    field=name,
                    value=value,
                )
    return await _rerank(services, first, [one.text for one in given], model, field="text")


async def _rerank(
    services: Services, given: Any, texts: list[str], model: str | None, *, field: str
) -> bytes:
    found = await rerank(
        services,
        given.query,
        texts,
        model=model,
        truncate=given.truncate,
        side=messages.side(given.truncation_direction),
        raw_scores=given.raw_scores,
        field=field,
    )
    return write(services, found, partial(messages.reranked, with_text=given.return_text))


async def tokenize(services: Services, given: pb.EncodeRequest, model: str | None) -> bytes:
    """Tell a text's tokens."""
    with renamed("inputs[0]", "inputs"):
        (found,) = await tokens.tokenize(
            services,
            [given.inputs],
            model=model,
            prompt_name=_prompt(given),
            special=given.add_special_tokens,
        )
    return messages.tokenized(found).SerializeToString()


async def decode(services: Services, given: pb.DecodeRequest, model: str | None) -> bytes:
    """Spell tokens."""
    (text,) = await tokens.decode(
        services, [list(given.ids)], model=model, skip_special=given.skip_special_tokens
    )
    return pb.DecodeResponse(text=text).SerializeToString()


def _prompt(given: Any) -> str | None:
    return given.prompt_name if given.HasField("prompt_name") else None


_call: Callable[..., Call[Any]] = partial(
    Call, scope="infer", package=pb.DESCRIPTOR.package, family="tei", model_field=""
)


def _both(
    service: str,
    name: str,
    request: type[Given],
    task: Task,
    do: Unary[Given],
    **options: Any,
) -> tuple[Call[Any], Call[Any]]:
    """Return the call of one message, and that of a stream of them."""
    return (
        _call(service, name, request, task=task, unary=do),
        _call(service, f"{name}Stream", request, task=task, each=do, **options),
    )


CALLS: tuple[Call[Any], ...] = (
    _call("Info", "Info", pb.InfoRequest, task=None, unary=info),
    *_both("Embed", "Embed", pb.EmbedRequest, "embed", embed_one),
    *_both("Embed", "EmbedSparse", pb.EmbedSparseRequest, "embed", embed_none),
    *_both("Embed", "EmbedAll", pb.EmbedAllRequest, "embed", embed_all, at_once=FEW_AT_ONCE),
    *_both("Predict", "Predict", pb.PredictRequest, "classify", predict),
    *_both("Predict", "PredictPair", pb.PredictPairRequest, "classify", predict_pair),
    _call("Rerank", "Rerank", pb.RerankRequest, task="rerank", unary=rerank_texts),
    _call(*("Rerank", "RerankStream", pb.RerankStreamRequest), task="rerank", gather=rerank_stream),
    *_both("Tokenize", "Tokenize", pb.EncodeRequest, "embed", tokenize, at_once=FEW_AT_ONCE),
    *_both("Tokenize", "Decode", pb.DecodeRequest, "embed", decode),
)
