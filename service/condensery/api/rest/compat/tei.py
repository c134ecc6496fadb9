"""TEI's routes: vectors, ranks, labels, tokens, similar texts, the one for all, and `/info`."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, NotRequired

import numpy as np
from pydantic import ConfigDict
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import TypedDict

import condensery
from condensery.api.rest.embeddings import Vector, Vectors, vectors_per_piece
from condensery.api.rest.io import (
    PIECE_TEXTS,
    read_as,
    read_body,
    result_headers,
    write_json,
    write_list,
)
from condensery.api.rest.schemas.inference import (
    TeiDecodeRequest,
    TeiEmbedAllRequest,
    TeiEmbedRequest,
    TeiPredictRequest,
    TeiRerankRequest,
    TeiSimilarityOptions,
    TeiSimilarityRequest,
    TeiTokenizeRequest,
)
from condensery.api.rest.validation import validate_body
from condensery.jobs.accounting import count_request
from condensery.jobs.embed import (
    compare_texts,
    decode_tokens,
    embed,
    embed_sparse,
    embed_tokens,
    tokenize,
)
from condensery.jobs.models import (
    ModelDescription,
    describe_model,
    is_classifier,
    list_capabilities,
)
from condensery.jobs.rerank import classify, rerank
from condensery.jobs.services import Services
from condensery.values import Prediction, TextToken

Predictions = list[Prediction] | list[list[Prediction]]
TokenVectors = list[Vectors]
Cosines = Vector
Tokenized = list[list[TextToken]]
Decoded = list[str]


class TeiRank(TypedDict):
    """One passage's place, as TEI gives it."""

    index: int
    score: float
    text: NotRequired[str | None]
    """Only with `return_text`."""


Anything = Vectors | Cosines | list[TeiRank]


@dataclass(frozen=True, slots=True)
class TeiInfo:
    """The default model as TEI describes it, and beside it what this service can do."""

    # TEI adds fields without notice: clients take it as open.
    __pydantic_config__: ClassVar = ConfigDict(extra="ignore")

    model_id: str
    model_sha: str
    model_dtype: str
    served_model_name: str
    model_type: dict[str, dict[str, Any]]
    max_concurrent_requests: int
    max_input_length: int
    max_batch_tokens: int
    max_batch_requests: int | None = field(init=False, default=None)
    max_client_batch_size: int
    auto_truncate: bool = field(init=False, default=True)
    tokenization_workers: int
    version: str
    sha: str | None = field(init=False, default=None)
    docker_label: str | None = field(init=False, default=None)
    capabilities: dict[str, list[str]]
    refused: dict[str, str]


async def tei_info(_request: Request, services: Services) -> Response:
    """Describe the default model as TEI does, and beside it all that this service can do."""
    described = describe_model(services)
    default = described.model
    capabilities = list_capabilities(services)
    return write_json(
        TeiInfo(
            model_id=default.id,
            model_sha=default.fingerprint,
            model_dtype=default.dtype,
            served_model_name=default.id,
            model_type=_model_type(described),
            max_concurrent_requests=described.max_concurrent_requests,
            max_input_length=default.max_tokens,
            max_batch_tokens=described.max_batch_tokens,
            max_client_batch_size=described.max_client_batch_size,
            tokenization_workers=described.tokenization_workers,
            version=condensery.__version__,
            capabilities={
                task: [info.id for info in infos] for task, infos in capabilities.items()
            },
            refused=dict(services.registry.refusals()),
        )
    )


async def tei_embed(request: Request, services: Services) -> Response:
    """Embed texts, as TEI does: a list of vectors, for a single text too."""
    return await _embed_texts(await read_body(request, services, TeiEmbedRequest), services)


async def tei_predict(request: Request, services: Services) -> Response:
    """Classify texts or pairs: a list of labels, or of a list of inputs a list of those."""
    return await _classify_texts(await read_body(request, services, TeiPredictRequest), services)


async def tei_embed_all(request: Request, services: Services) -> Response:
    """Return the vectors of all tokens, neither pooled nor scaled."""
    body = await read_body(request, services, TeiEmbedAllRequest)
    with count_request(services, body.model, "embed", "rest"):
        result = await embed_tokens(
            services,
            body.inputs,
            prompt_name=body.prompt_name,
            **_shared_options(body),
        )
        with services.metrics.stage(result.model, "serialize"):
            return await write_list(result.vectors, 1, headers=result_headers(result))


async def tei_embed_sparse(request: Request, services: Services) -> Response:
    """Refuse sparse vectors, as TEI does where its model gives none: no model here does."""
    body = await read_body(request, services, TeiEmbedAllRequest)
    with count_request(services, body.model, "embed", "rest"):
        await embed_sparse(services, body.inputs, model=body.model)


async def tei_similarity(request: Request, services: Services) -> Response:
    """Return the cosine between a text and each of others."""
    return await _compare_texts(await read_body(request, services, TeiSimilarityRequest), services)


async def tei_tokenize(request: Request, services: Services) -> Response:
    """Return the tokens of texts; nothing is cut."""
    body = await read_body(request, services, TeiTokenizeRequest)
    with count_request(services, body.model, "embed", "rest"):
        rows = await tokenize(
            services,
            body.inputs,
            model=body.model,
            prompt_name=body.prompt_name,
            special=body.add_special_tokens,
        )
        return await write_list(rows, PIECE_TEXTS)


async def tei_decode(request: Request, services: Services) -> Response:
    """Return the text that tokens spell: a list, of one text too."""
    body = await read_body(request, services, TeiDecodeRequest)
    with count_request(services, body.model, "embed", "rest"):
        # An empty list is a list of no texts.
        is_nested = not body.ids or isinstance(body.ids[0], list)
        ids: Any = body.ids if is_nested else [body.ids]
        texts = await decode_tokens(
            services, ids, model=body.model, skip_special=body.skip_special_tokens
        )
        return write_json(texts)


async def tei_any(request: Request, services: Services) -> Response:
    """Do what the body asks for: compare or rerank; else what its model can, embed or classify.

    TEI does what its one model can. huggingface_hub's client posts here, whatever its task.
    """
    Body = TeiEmbedRequest | TeiPredictRequest | TeiSimilarityRequest | TeiRerankRequest

    def validate(data: Any) -> Body:
        keys = data.keys() if isinstance(data, dict) else ()
        if "texts" in keys:
            return validate_body(data, TeiRerankRequest)
        if "inputs" in keys and isinstance(data["inputs"], dict):
            return validate_body(data, TeiSimilarityRequest)
        if is_classifier(services, data.get("model") if isinstance(data, dict) else None):
            return validate_body(data, TeiPredictRequest)
        return validate_body(data, TeiEmbedRequest)

    body = await read_as(request, services, validate)
    if isinstance(body, TeiRerankRequest):
        return await rerank_as_tei(body, services)
    if isinstance(body, TeiSimilarityRequest):
        return await _compare_texts(body, services)
    if isinstance(body, TeiPredictRequest):
        return await _classify_texts(body, services)
    return await _embed_texts(body, services)


async def _embed_texts(body: TeiEmbedRequest, services: Services) -> Response:
    with count_request(services, body.model, "embed", "rest"):
        result = await embed(
            services,
            body.inputs,
            prompt_name=body.prompt_name,
            normalize=body.normalize,
            dimensions=body.dimensions,
            field="inputs",
            **_shared_options(body),
        )
        with services.metrics.stage(result.model, "serialize"):
            # Each row contiguous, as orjson requires.
            rows = list(np.ascontiguousarray(result.vectors, dtype=np.float32))
            return await write_list(rows, vectors_per_piece(result), headers=result_headers(result))


async def _classify_texts(body: TeiPredictRequest, services: Services) -> Response:
    with count_request(services, body.model, "classify", "rest"):
        inputs = body.inputs if isinstance(body.inputs, list) else [body.inputs]
        result = await classify(
            services,
            inputs,
            raw_scores=body.raw_scores,
            **_shared_options(body),
        )
        with services.metrics.stage(result.model, "serialize"):
            reply = result.items if isinstance(body.inputs, list) else result.items[0]
            return await write_list(reply, PIECE_TEXTS, headers=result_headers(result))


async def _compare_texts(body: TeiSimilarityRequest, services: Services) -> Response:
    with count_request(services, body.model, "embed", "rest"):
        options = body.parameters or TeiSimilarityOptions()
        result = await compare_texts(
            services,
            body.inputs.source_sentence,
            body.inputs.sentences,
            model=body.model,
            prompt_name=options.prompt_name,
            truncate=options.truncate is not False,
            side=options.truncation_direction,
        )
        with services.metrics.stage(result.model, "serialize"):
            return write_json(result.cosines, headers=result_headers(result))


async def rerank_as_tei(body: TeiRerankRequest, services: Services) -> Response:
    """Answer a request with TEI's body."""
    with count_request(services, body.model, "rerank", "rest"):
        result = await rerank(
            services,
            body.query,
            body.texts,
            raw_scores=body.raw_scores,
            field="texts",
            **_shared_options(body),
        )
        with services.metrics.stage(result.model, "serialize"):
            ranks: list[TeiRank] = [
                {"index": item.index, "score": item.relevance_score} for item in result.items
            ]
            if body.return_text:
                for rank, item in zip(ranks, result.items, strict=True):
                    rank["text"] = item.text
            return await write_list(ranks, PIECE_TEXTS, headers=result_headers(result))


def _shared_options(body: Any) -> dict[str, Any]:
    """Return the jobs' arguments for what most of TEI's bodies have."""
    truncate = body.truncate is not False  # null is as true
    return {"model": body.model, "truncate": truncate, "side": body.truncation_direction}


def _model_type(described: ModelDescription) -> dict[str, Any]:
    """Return TEI's dict of a single key, which names the model's type."""
    if "embed" in described.tasks:
        return {"embedding": {"pooling": described.model.pooling}}
    labels = described.model.labels or ("relevance",)
    mappings = {
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
    }
    return {"reranker" if "rerank" in described.tasks else "classifier": mappings}
