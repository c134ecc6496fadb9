"""Texts to vectors, as OpenAI's and TEI's clients ask for it."""

import binascii
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from condensery.api.rest.io import PIECE_NUMBERS, read_body, result_headers, write_list
from condensery.api.rest.schemas.inference import OpenAIEmbedRequest, TeiEmbedRequest
from condensery.encodings import Encoded, Encoding
from condensery.jobs.accounting import count_request
from condensery.jobs.embed import check_scaled, embed, encode_vectors
from condensery.jobs.services import Services
from condensery.values import Embedded, Floats

OCTET_STREAM = "application/octet-stream"


async def openai_embeddings(request: Request, services: Services) -> Response:
    """Embed texts, as OpenAI does; base64 is of little-endian numbers, exact."""
    body = await read_body(request, services, OpenAIEmbedRequest)
    encoding = body.embed_dtype or "float32"
    with count_request(services, body.model, "embed", "rest"):
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
            rows = await encode_vectors(result, encoding)
            if body.encoding_format == "bytes":
                return _bytes_reply(result, rows, encoding)
            extra: dict[str, Any] = {}
            if body.embed_dtype is not None:
                extra = {"embed_dtype": encoding, "dims": result.vectors.shape[1]}
            return await _openai_reply(
                result, rows, base64=body.encoding_format == "base64", extra=extra
            )


async def tei_embed(request: Request, services: Services) -> Response:
    """Embed texts, as TEI does: a list of vectors, for a single text too."""
    return await embed_as_tei(await read_body(request, services, TeiEmbedRequest), services)


async def embed_as_tei(body: TeiEmbedRequest, services: Services) -> Response:
    """Answer a request with TEI's body."""
    with count_request(services, body.model, "embed", "rest"):
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
            rows = _contiguous_rows(result.vectors)
            return await write_list(
                rows, _vectors_per_piece(result), headers=result_headers(result)
            )


async def _openai_reply(
    result: Embedded, rows: Encoded, *, base64: bool, extra: Mapping[str, Any]
) -> Response:
    vectors: Iterable[Any] = map(encode_base64, rows) if base64 else rows
    return await write_list(
        (
            {"object": "embedding", "index": place, "embedding": vector}
            for place, vector in enumerate(vectors)
        ),
        _vectors_per_piece(result),
        within={
            "object": "list",
            "data": None,
            "model": result.model,
            "usage": {"prompt_tokens": result.tokens, "total_tokens": result.tokens},
            **extra,
        },
        field="data",
        headers=result_headers(result),
    )


def _bytes_reply(result: Embedded, rows: Encoded, encoding: Encoding) -> Response:
    """Return the vectors' bytes; headers have their type and shape."""
    headers = {
        **result_headers(result),
        "x-embed-dtype": encoding,
        "x-embed-dims": str(result.vectors.shape[1]),
        "x-embed-count": str(len(rows)),
    }
    return Response(rows.tobytes(), headers=headers, media_type=OCTET_STREAM)


def _vectors_per_piece(result: Embedded) -> int:
    """Return the number of vectors in a piece of the reply."""
    dims: int = result.vectors.shape[1]
    return max(1, PIECE_NUMBERS // dims)


def _contiguous_rows(vectors: Floats) -> list[Floats]:
    """Return the rows, each contiguous, as orjson requires."""
    return list(np.ascontiguousarray(vectors, dtype=np.float32))


def encode_base64(row: Encoded) -> str:
    """Return the base64 of a vector's bytes, which are little-endian."""
    return binascii.b2a_base64(row.data, newline=False).decode("ascii")
