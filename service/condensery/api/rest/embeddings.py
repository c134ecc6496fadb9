"""Texts to vectors, as OpenAI's and TEI's clients ask for it."""

import binascii
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from condensery.api.rest.bodies import read_body
from condensery.api.rest.doors import about
from condensery.api.rest.writing import NUMBERS, reply_list
from condensery.encodings import Encoded, Encoding
from condensery.jobs.accounting import account
from condensery.jobs.embed import check_scaled, embed, encoded
from condensery.jobs.services import Services
from condensery.schemas import OpenAIEmbedRequest, TeiEmbedRequest
from condensery.values import Embedded, Floats

BYTES = "application/octet-stream"


async def openai_embeddings(request: Request, services: Services) -> Response:
    """Embed texts, as OpenAI does; base64 is of little-endian numbers, exact."""
    body = await read_body(request, services, OpenAIEmbedRequest)
    encoding = body.embed_dtype or "float32"
    with account(services, body.model, "embed", "rest"):
        check_scaled(body.normalize, encoding)
        result = await embed(
            services,
            body.input,
            model=body.model,
            prompt_name=body.prompt_name,
            input_type=body.input_type,
            normalize=body.normalize,
            truncate=body.truncate,
            side=body.truncation_direction,
            dimensions=body.dimensions,
        )
        with services.metrics.stage(result.model, "serialize"):
            rows = await encoded(result, encoding)
            if body.encoding_format == "bytes":
                return _bytes_reply(result, rows, encoding)
            told = {"embed_dtype": encoding, "dims": result.vectors.shape[1]}
            extra = {} if body.embed_dtype is None else told
            return await _openai_reply(
                result, rows, base64=body.encoding_format == "base64", extra=extra
            )


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


async def _openai_reply(
    result: Embedded, rows: Encoded, *, base64: bool, extra: Mapping[str, Any]
) -> Response:
    vectors: Iterable[Any] = map(in_base64, rows) if base64 else rows
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
            **extra,
        },
        field="data",
        headers=about(result),
    )


def _bytes_reply(result: Embedded, rows: Encoded, encoding: Encoding) -> Response:
    """Return the vectors' bytes; what they are is in the headers."""
    headers = {
        **about(result),
        "x-embed-dtype": encoding,
        "x-embed-dims": str(result.vectors.shape[1]),
        "x-embed-count": str(len(rows)),
    }
    return Response(rows.tobytes(), headers=headers, media_type=BYTES)


def _each(result: Embedded) -> int:
    """Return how many vectors make a piece of the reply."""
    dims: int = result.vectors.shape[1]
    return max(1, NUMBERS // dims)


def _rows(vectors: Floats) -> list[Floats]:
    """Return the rows, each contiguous, as orjson wants them."""
    return list(np.ascontiguousarray(vectors, dtype=np.float32))


def in_base64(row: Encoded) -> str:
    """Return the base64 of a vector's bytes, little-endian as they are."""
    return binascii.b2a_base64(row.data, newline=False).decode("ascii")
