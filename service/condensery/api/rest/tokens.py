"""What TEI's clients ask about tokens and similar texts, and its route for everything."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from condensery.api.rest.bodies import read, read_body, validate
from condensery.api.rest.doors import about, reply
from condensery.api.rest.embeddings import embed_as_tei
from condensery.api.rest.predict import predict_as_tei
from condensery.api.rest.rerank import rerank_as_tei
from condensery.api.rest.writing import TEXTS, reply_list
from condensery.jobs.accounting import account
from condensery.jobs.describe import classifies
from condensery.jobs.services import Services
from condensery.jobs.similarity import similarity
from condensery.jobs.tokens import decode, embed_tokens, tokenize
from condensery.schemas import (
    TeiDecodeRequest,
    TeiEmbedAllRequest,
    TeiEmbedRequest,
    TeiPredictRequest,
    TeiRerankRequest,
    TeiSimilarityOptions,
    TeiSimilarityRequest,
    TeiTokenizeRequest,
)
from condensery.values import Piece


async def tei_embed_all(request: Request, services: Services) -> Response:
    """Return the vectors of all tokens, neither pooled nor scaled."""
    body = await read_body(request, services, TeiEmbedAllRequest)
    with account(services, body.model, "embed", "rest"):
        result = await embed_tokens(
            services,
            body.inputs,
            model=body.model,
            prompt_name=body.prompt_name,
            truncate=body.truncate is not False,
            side=body.truncation_direction,
        )
        with services.metrics.stage(result.model, "serialize"):
            return await reply_list(result.vectors, 1, headers=about(result))


async def tei_similarity(request: Request, services: Services) -> Response:
    """Return the cosine between a text and each of others."""
    return await _similarity(await read_body(request, services, TeiSimilarityRequest), services)


async def tei_tokenize(request: Request, services: Services) -> Response:
    """Return the tokens of texts; nothing is cut."""
    body = await read_body(request, services, TeiTokenizeRequest)
    with account(services, body.model, "embed", "rest"):
        found = await tokenize(
            services,
            body.inputs,
            model=body.model,
            prompt_name=body.prompt_name,
            special=body.add_special_tokens,
        )
        return await reply_list([[_token(piece) for piece in row] for row in found], TEXTS)


async def tei_decode(request: Request, services: Services) -> Response:
    """Return the text that tokens spell: a list, of one text too."""
    body = await read_body(request, services, TeiDecodeRequest)
    with account(services, body.model, "embed", "rest"):
        # An empty list is one of no texts.
        several = not body.ids or isinstance(body.ids[0], list)
        ids: Any = body.ids if several else [body.ids]
        found = await decode(services, ids, model=body.model, skip_special=body.skip_special_tokens)
        return reply(found)


async def tei_root(request: Request, services: Services) -> Response:
    """Do what the body asks for: compare or rerank; else what its model can, embed or classify.

    TEI does what its one model can. huggingface_hub's client posts here, whatever its task.
    """
    Body = TeiEmbedRequest | TeiPredictRequest | TeiSimilarityRequest | TeiRerankRequest

    def fit(data: Any) -> Body:
        keys = data.keys() if isinstance(data, dict) else ()
        if "texts" in keys:
            return validate(data, TeiRerankRequest)
        if "inputs" in keys and isinstance(data["inputs"], dict):
            return validate(data, TeiSimilarityRequest)
        named = data.get("model") if isinstance(data, dict) else None
        if classifies(services, request.headers.get("x-model") if named is None else named):
            return validate(data, TeiPredictRequest)
        return validate(data, TeiEmbedRequest)

    body = await read(request, services, fit)
    if isinstance(body, TeiRerankRequest):
        return await rerank_as_tei(body, services)
    if isinstance(body, TeiSimilarityRequest):
        return await _similarity(body, services)
    if isinstance(body, TeiPredictRequest):
        return await predict_as_tei(body, services)
    return await embed_as_tei(body, services)


async def _similarity(body: TeiSimilarityRequest, services: Services) -> Response:
    with account(services, body.model, "embed", "rest"):
        options = body.parameters or TeiSimilarityOptions()
        result = await similarity(
            services,
            body.inputs.source_sentence,
            body.inputs.sentences,
            model=body.model,
            prompt_name=options.prompt_name,
            truncate=options.truncate is not False,
            side=options.truncation_direction,
        )
        with services.metrics.stage(result.model, "serialize"):
            return reply(result.cosines, headers=about(result))


def _token(piece: Piece) -> dict[str, Any]:
    return {
        "id": piece.id,
        "text": piece.text,
        "special": piece.special,
        "start": piece.start,
        "stop": piece.end,
    }
