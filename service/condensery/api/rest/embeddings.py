"""Texts to vectors, as OpenAI's and TEI's clients ask for it."""

import binascii
from collections.abc import Iterable
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from condensery.api.rest.bodies import read_body
from condensery.api.rest.doors import about
from condensery.api.rest.writing import NUMBERS, reply_list
from condensery.jobs.accounting import account
from condensery.jobs.embed import embed
from condensery.jobs.services import Services
from condensery.schemas import OpenAIEmbedRequest, TeiEmbedRequest
from condensery.values import Embedded, Floats


async def openai_embeddings(request: Request, services: Services) -> Response:
    """Embed texts, as OpenAI does; base64 is of little-endian float32, exact."""
    body = await read_body(request, services, OpenAIEmbedRequest)
    with account(services, body.model, "embed", "rest"):
        result = await embed(
            services,
            body.input,
            model=body.model,
            prompt_name=body.prompt_name,
            normalize=body.normalize,
            truncate=body.truncate,
            dimensions=body.dimensions,
        )
        with services.metrics.stage(result.model, "serialize"):
            return await _openai_reply(result, base64=body.encoding_format == "base64")


async def tei_embed(request: Request, services: Services) -> Response:
    """Embed texts, as TEI does: a list of vectors, for a single text too."""
    return await embed_as_tei(await read_body(request, services, TeiEmbedRequest), services)


async def embed_as_tei(body: TeiEmbedRequest, services: Services) -> Response:
    """Embed what a body of TEI's asks for."""
    with account(services, body.model, "embed", "rest"):
        result = await embed(
            services,
            body.inputs,
            model=body.model,
            prompt_name=body.prompt_name,
            normalize=body.normalize,
            truncate=body.truncate is not False,
            side=body.truncation_direction,
            dimensions=body.dimensions,
            field="inputs",
        )
        with services.metrics.stage(result.model, "serialize"):
            rows = _rows(result.vectors)
            return await reply_list(rows, _each(result), headers=about(result))


async def _openai_reply(result: Embedded, *, base64: bool) -> Response:
    rows = _rows(result.vectors)
    vectors: Iterable[Any] = map(encode, rows) if base64 else rows
    return await reply_list(
        (
            {"object": "embedding", "index": place, "embedding": vector}
            for place, vector in enumerate(vectors)
        ),
        _each(result),
        within={
            "object": "list",
            "data": None,
            "model": result.model,
            "usage": {"prompt_tokens": result.tokens, "total_tokens": result.tokens},
        },
        field="data",
        headers=about(result),
    )


def _each(result: Embedded) -> int:
    """Return how many vectors make a piece of the reply."""
    dims: int = result.vectors.shape[1]
    return max(1, NUMBERS // dims)


def _rows(vectors: Floats) -> list[Floats]:
    """Return the rows, each contiguous, as orjson and base64 want them."""
    return list(np.ascontiguousarray(vectors, dtype=np.float32))


def encode(vector: Floats) -> str:
    """Return the base64 of a vector's little-endian float32 bytes."""
    return binascii.b2a_base64(vector.astype("<f4", copy=False).data, newline=False).decode("ascii")
