"""Passages by relevance: TEI's body and list, or Cohere's, Jina's and Infinity's object."""

import secrets
import time
from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired

from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import TypedDict

from condensery.api.rest.compat import tei
from condensery.api.rest.io import (
    PIECE_TEXTS,
    read_as,
    read_body,
    result_headers,
    write_list,
    write_lists,
)
from condensery.api.rest.schemas.inference import (
    NimRankingRequest,
    RerankRequest,
    TeiRerankRequest,
    given_once,
)
from condensery.api.rest.validation import validate_body
from condensery.errors import InputError
from condensery.jobs.accounting import count_request
from condensery.jobs.rerank import rerank
from condensery.jobs.services import Services
from condensery.values import Metadata, TokenUsage


@dataclass(frozen=True, slots=True)
class PassageText:
    """A passage, as Cohere and Jina wrap it."""

    text: str


class Rank(TypedDict):
    """One passage's place, as Cohere, Jina and Infinity give it."""

    index: int
    relevance_score: float
    document: NotRequired[PassageText | str | None]
    """Only with `return_documents`; of `/rerank` the plain string."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """Passages, the most relevant first: the fields of Cohere, Jina, Infinity and OpenAI."""

    id: str
    object: Literal["rerank"] = field(init=False, default="rerank")
    created: int
    model: str
    results: list[Rank] = field(default_factory=list, kw_only=True)
    usage: TokenUsage
    meta: Metadata


@dataclass(frozen=True, slots=True)
class VoyageRanking(Ranking):
    """The same with the results where Voyage's clients look for them, too."""

    data: list[Rank] = field(default_factory=list, kw_only=True)


@dataclass(frozen=True, slots=True)
class NimRank:
    """One passage's place, as NIM gives it."""

    index: int
    logit: float


@dataclass(frozen=True, slots=True)
class NimRanking:
    """Passages, the most relevant first."""

    rankings: list[NimRank] = field(default_factory=list)


V1Ranking = Ranking | VoyageRanking
AnyRanking = list[tei.TeiRank] | V1Ranking


async def any_rerank(request: Request, services: Services) -> Response:
    """Rerank by which body it is: ``texts`` is TEI's, ``documents`` Infinity's and Jina's."""

    def validate(data: Any) -> TeiRerankRequest | RerankRequest:
        keys = data.keys() if isinstance(data, dict) else ()
        if "texts" in keys and "documents" in keys:
            raise InputError.at("texts", "give `texts` or `documents`; got both.")
        if "documents" in keys:
            request.state.family = "rerank"
            return validate_body(data, RerankRequest)
        if keys and "texts" not in keys:
            raise InputError.at(
                "texts", "give `texts` (TEI) or `documents` (Jina, Cohere, Infinity); got neither."
            )
        return validate_body(data, TeiRerankRequest)

    body = await read_as(request, services, validate)
    if isinstance(body, TeiRerankRequest):
        return await tei.rerank_as_tei(body, services)
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
    if body.model is None:  # a path may name it
        body = body.model_copy(update={"model": request.path_params.get("name")})
    with count_request(services, body.model, "rerank", "rest"):
        result = await rerank(
            services,
            body.query.text,
            [passage.text for passage in body.passages],
            model=body.model,
            truncate=body.truncate == "END",
            raw_scores=True,
            top_n=body.top_k,
            field="passages",
        )
        with services.metrics.stage(result.model, "serialize"):
            return await write_list(
                [NimRank(item.index, item.relevance_score) for item in result.items],
                PIECE_TEXTS,
                within=NimRanking(),
                field="rankings",
                headers=result_headers(result),
            )


async def _rerank_documents(
    body: RerankRequest, services: Services, *, wrapped: bool, version: str = "1"
) -> Response:
    with count_request(services, body.model, "rerank", "rest"):
        result = await rerank(
            services,
            body.query,
            [document.text for document in body.documents],
            model=body.model,
            truncate=given_once(body, "truncate", "truncation") is not False,
            raw_scores=body.raw_scores,
            top_n=given_once(body, "top_n", "top_k"),
        )
        with services.metrics.stage(result.model, "serialize"):
            ranks: list[Rank] = [
                {"index": item.index, "relevance_score": item.relevance_score}
                for item in result.items
            ]
            if body.return_documents:
                for rank, item in zip(ranks, result.items, strict=True):
                    rank["document"] = PassageText(item.text) if wrapped else item.text
            is_voyages = not body.model_fields_set.isdisjoint(("top_k", "truncation"))
            ranking = (VoyageRanking if is_voyages else Ranking)(
                id=f"rerank_{secrets.token_hex(12)}",
                created=int(time.time()),
                model=result.model,
                usage=TokenUsage(result.tokens),
                meta={"api_version": {"version": version}, "billed_units": {"search_units": 1}},
            )
            lists = dict.fromkeys(
                ("results", "data") if is_voyages else ("results",), (ranks, PIECE_TEXTS)
            )
            return await write_lists(ranking, lists, headers=result_headers(result))
