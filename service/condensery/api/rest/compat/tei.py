"""TEI's routes beside embeddings and ranks: labels, tokens, similar texts, and the one for all."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from condensery.api.rest.embeddings import embed_as_tei
from condensery.api.rest.io import (
    PIECE_TEXTS,
    read_as,
    read_body,
    result_headers,
    write_json,
    write_list,
)
from condensery.api.rest.rerank import rerank_as_tei
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
from condensery.jobs.embed import compare_texts, decode_tokens, embed_tokens, tokenize
from condensery.jobs.models import is_classifier
from condensery.jobs.rerank import classify
from condensery.jobs.services import Services
from condensery.values import TextToken


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
            model=body.model,
            prompt_name=body.prompt_name,
            truncate=body.truncate is not False,
            side=body.truncation_direction,
        )
        with services.metrics.stage(result.model, "serialize"):
            return await write_list(result.vectors, 1, headers=result_headers(result))


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
        return await write_list(
            [[_write_token(token) for token in row] for row in rows], PIECE_TEXTS
        )


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
        model = data.get("model") if isinstance(data, dict) else None
        if is_classifier(services, request.headers.get("x-model") if model is None else model):
            return validate_body(data, TeiPredictRequest)
        return validate_body(data, TeiEmbedRequest)

    body = await read_as(request, services, validate)
    if isinstance(body, TeiRerankRequest):
        return await rerank_as_tei(body, services)
    if isinstance(body, TeiSimilarityRequest):
        return await _compare_texts(body, services)
    if isinstance(body, TeiPredictRequest):
        return await _classify_texts(body, services)
    return await embed_as_tei(body, services)


async def _classify_texts(body: TeiPredictRequest, services: Services) -> Response:
    with count_request(services, body.model, "classify", "rest"):
        inputs = body.inputs if isinstance(body.inputs, list) else [body.inputs]
        result = await classify(
            services,
            inputs,
            model=body.model,
            truncate=body.truncate is not False,
            side=body.truncation_direction,
            raw_scores=body.raw_scores,
        )
        with services.metrics.stage(result.model, "serialize"):
            rows = [
                [{"score": label.score, "label": label.label} for label in item]
                for item in result.items
            ]
            reply = rows if isinstance(body.inputs, list) else rows[0]
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


def _write_token(token: TextToken) -> dict[str, Any]:
    return {
        "id": token.id,
        "text": token.text,
        "special": token.special,
        "start": token.start,
        "stop": token.end,
    }
