"""Passages by relevance: TEI's body and list, or Cohere's, Jina's and Infinity's object."""

import secrets
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from condensery.api.rest.bodies import load, parse, read_body, read_bytes, validate
from condensery.api.rest.doors import about, reply
from condensery.errors import InputError
from condensery.jobs.accounting import account
from condensery.jobs.rerank import rerank
from condensery.jobs.services import Services
from condensery.schemas import RerankRequest, TeiRerankRequest
from condensery.values import Reranked


async def any_rerank(request: Request, services: Services) -> Response:
    """Rerank by which body it is: ``texts`` is TEI's, ``documents`` Infinity's and Jina's."""
    data = await parse(await read_bytes(request.receive), load)
    keys = data.keys() if isinstance(data, dict) else ()
    if "texts" in keys and "documents" in keys:
        raise InputError("texts: give `texts` or `documents`; got both.", field="texts")
    if "documents" in keys:
        request.state.family = "rerank"
        # Infinity's clients read a document as the plain string.
        return await _rerank(validate(data, RerankRequest), services, wrapped=False)
    if keys and "texts" not in keys:
        raise InputError(
            "texts: give `texts` (TEI) or `documents` (Jina, Cohere, Infinity); got neither.",
            field="texts",
        )
    return await _tei_rerank(validate(data, TeiRerankRequest), services)


async def v1_rerank(request: Request, services: Services) -> Response:
    """Rerank, as Jina and Cohere do."""
    return await _rerank(await read_body(request.receive, RerankRequest), services, wrapped=True)


async def _tei_rerank(body: TeiRerankRequest, services: Services) -> Response:
    with account(services, body.model, "rerank", "rest"):
        result = await rerank(
            services,
            body.query,
            body.texts,
            model=body.model,
            truncate=body.truncate is not False,
            raw_scores=body.raw_scores,
            field="texts",
        )
        with services.metrics.stage(result.model, "serialize"):
            items: list[dict[str, Any]] = [
                {"index": item.index, "score": item.score} for item in result.items
            ]
            if body.return_text:
                for entry, item in zip(items, result.items, strict=True):
                    entry["text"] = item.text
            return reply(items, headers=about(result))


async def _rerank(body: RerankRequest, services: Services, *, wrapped: bool) -> Response:
    with account(services, body.model, "rerank", "rest"):
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
            content = _object(result, documents=bool(body.return_documents), wrapped=wrapped)
            return reply(content, headers=about(result))


def _object(result: Reranked, *, documents: bool, wrapped: bool) -> dict[str, Any]:
    """Return one reply in which the clients of four services find theirs."""
    results = []
    for item in result.items:
        entry: dict[str, Any] = {"index": item.index, "relevance_score": item.score}
        if documents:
            entry["document"] = {"text": item.text} if wrapped else item.text
        results.append(entry)
    return {
        "id": f"rerank_{secrets.token_hex(12)}",
        "object": "rerank",
        "created": int(time.time()),
        "model": result.model,
        "results": results,
        "usage": {"prompt_tokens": result.tokens, "total_tokens": result.tokens},
        "meta": {"api_version": {"version": "1"}, "billed_units": {"search_units": 1}},
    }
