"""Texts to vectors, as OpenAI's clients ask for it."""

import binascii
from typing import Annotated, Literal, NotRequired

from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import TypedDict

from condensery.api.rest.io import PIECE_NUMBERS, read_body, result_headers, write_list
from condensery.api.rest.schemas.inference import OpenAIEmbedRequest
from condensery.encodings import Encoded, Encoding
from condensery.jobs.accounting import count_request
from condensery.jobs.embed import check_scaled, embed, encode_vectors
from condensery.jobs.services import Services
from condensery.values import Described, Embedded, TokenUsage

OCTET_STREAM = "application/octet-stream"

Vector = list[float]
Vectors = list[Vector]


class Embedding(TypedDict):
    """One text's vector: numbers, or base64 of them, little-endian."""

    object: Literal["embedding"]
    index: int
    embedding: Annotated[Encoded | str, Described(lambda: Vector | str)]


class Embeddings(TypedDict):
    """Vectors, as OpenAI gives them."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: TokenUsage
    embed_dtype: NotRequired[Encoding | None]
    """Where one is asked for: what a vector's numbers are."""
    dims: NotRequired[int | None]
    """And how many dimensions it has."""


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
            instruction=body.instruction,
            normalize=body.normalize,
            truncate=body.truncate,
            side=body.truncation_direction,
            dimensions=body.dimensions,
        )
        with services.metrics.stage(result.model, "serialize"):
            rows = await encode_vectors(result, encoding)
            if body.encoding_format == "bytes":
                return _bytes_reply(result, rows, encoding)
            within: Embeddings = {
                "object": "list",
                "data": [],
                "model": result.model,
                "usage": TokenUsage(result.tokens),
            }
            if body.embed_dtype is not None:
                within["embed_dtype"] = encoding
                within["dims"] = result.vectors.shape[1]
            vectors = map(encode_base64, rows) if body.encoding_format == "base64" else rows
            return await write_list(
                (
                    Embedding(object="embedding", index=place, embedding=vector)
                    for place, vector in enumerate(vectors)
                ),
                vectors_per_piece(result),
                within=within,
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


def vectors_per_piece(result: Embedded) -> int:
    """Return the number of vectors in a piece of the reply."""
    dims: int = result.vectors.shape[1]
    return max(1, PIECE_NUMBERS // dims)


def encode_base64(row: Encoded) -> str:
    """Return the base64 of a vector's bytes, which are little-endian."""
    return binascii.b2a_base64(row.data, newline=False).decode("ascii")
