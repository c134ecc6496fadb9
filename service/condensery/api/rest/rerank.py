"""Passages by relevance: TEI's body and list, or Cohere's, Jina's and Infinity's object."""

import secrets
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from condensery.api.rest.io import (
    PIECE_TEXTS,
    read_as,
    read_body,
    result_headers,
    write_list,
)
from condensery.api.rest.schemas.inference import NimRankingRequest, RerankRequest, TeiRerankRequest
from condensery.api.rest.validation import validate_body
from condensery.errors import InputError
from condensery.jobs.accounting import count_request
from condensery.jobs.rerank import rerank
from condensery.jobs.services import Services
from condensery.values import Reranked


async def any_rerank(request: Request, services: Services) -> Response:
    """Rerank by which body it is: ``texts`` is TEI's, ``documents`` Infinity's and Jina's."""

    def validate(data: Any) -> TeiRerankRequest | RerankRequest:
        keys = data.keys() if isinstance(data, dict) else ()
        if "texts" in keys and "documents" in keys:
            raise InputError("texts: give `texts` or `documents`; got both.", field="texts")
        if "documents" in keys:
            request.state.family = "rerank"
            return validate_body(data, RerankRequest)
        if keys and "texts" not in keys:
            raise InputError(
                "texts: give `texts` (TEI) or `documents` (Jina, Cohere, Infinity); got neither.",
                field="texts",
            )
        return validate_body(data, TeiRerankRequest)

    body = await read_as(request, services, validate)
    if isinstance(body, TeiRerankRequest):
        return await rerank_as_tei(body, services)
    # Infinity's clients read a document as the plain string.
    return await _rerank_documents(body, services, wrapped=False)


async def v1_rerank(request: Request, services: Services) -> Response:
    """Rerank, as Jina and Cohere do."""
    return await _rerank_documents(
        await read_body(request, services, RerankRequest), services, wrapped=True
    )


async def v2_rerank(request: Request, services: Services) -> Response:
    """Rerank, as the second version of Cohere's does."""
    body = await read_body(request, services, RerankRequest)
    return await _rerank_documents(body, services, wrapped=True, version="2")


async def nim_ranking(request: Request, services: Services) -> Response:
    """Rank passages, as NVIDIA's NIM does: logits, the best first."""
    body = await read_body(request, services, NimRankingRequest)
    with count_request(services, body.model, "rerank", "rest"):
        result = await rerank(
            services,
            body.query.text,
            [passage.text for passage in body.passages],
            model=body.model,
            truncate=body.truncate == "END",
            raw_scores=True,
            field="passages",
        )
        with services.metrics.stage(result.model, "serialize"):
            rankings = [
                {"index": item.index, "logit": item.relevance_score} for item in result.items
            ]
            return await write_list(
                rankings,
                PIECE_TEXTS,
                within={"rankings": None},
                field="rankings",
                headers=result_headers(result),
            )


async def rerank_as_tei(body: TeiRerankRequest, services: Services) -> Response:
    """Answer a request with TEI's body."""
    with count_request(services, body.model, "rerank", "rest"):
        result = await rerank(
            services,
            body.query,
            body.texts,
            model=body.model,
            truncate=body.truncate is not False,
            side=body.truncation_direction,
            raw_scores=body.raw_scores,
            field="texts",
        )
        with services.metrics.stage(result.model, "serialize"):
            items: list[dict[str, Any]] = [
                {"index": item.index, "score": item.relevance_score} for item in result.items
            ]
            if body.return_text:
                for entry, item in zip(items, result.items, strict=True):
                    entry["text"] = item.text
            return await write_list(items, PIECE_TEXTS, headers=result_headers(result))


async def _rerank_documents(
    body: RerankRequest, services: Services, *, wrapped: bool, version: str = "1"
) -> Response:
    with count_request(services, body.model, "rerank", "rest"):
        result = await rerank(
            services,
            body.query,
            [document.text for document in body.documents],
            model=body.model,
            truncate=body.truncate,
            raw_scores=body.raw_scores,
            top_n=body.top_n,
        )
        with services.metrics.stage(result.model, "serialize"):
            results = _write_results(result, documents=bool(body.return_documents), wrapped=wrapped)
            return await write_list(
                results,
                PIECE_TEXTS,
                within=_ranking_envelope(result, version),
                field="results",
                headers=result_headers(result),
            )


def _write_results(result: Reranked, *, documents: bool, wrapped: bool) -> list[dict[str, Any]]:
    results = []
    for item in result.items:
        entry: dict[str, Any] = {"index": item.index, "relevance_score": item.relevance_score}
        if documents:
            entry["document"] = {"text": item.text} if wrapped else item.text
        results.append(entry)
    return results


def _ranking_envelope(result: Reranked, version: str) -> dict[str, Any]:
    """Return the fields around the results: those of Cohere, Jina, Infinity and OpenAI together."""
    return {
        "id": f"rerank_{secrets.token_hex(12)}",
        "object": "rerank",
        "created": int(time.time()),
        "model": result.model,
        "results": None,
        "usage": {"prompt_tokens": result.tokens, "total_tokens": result.tokens},
        "meta": {"api_version": {"version": version}, "billed_units": {"search_units": 1}},
    }
