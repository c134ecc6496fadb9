"""Texts to vectors, as OpenAI's clients ask for it."""

import binascii
from typing import Annotated, Literal, NotRequired

from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import TypedDict

from condensery.api.rest.io import PIECE_NUMBERS, read_body, result_headers, write_list
from condensery.api.rest.schemas.inference import OpenAIEmbedRequest, given_once
from condensery.encodings import Encoded, Encoding
from condensery.errors import InputError, rename_field
from condensery.jobs.accounting import count_request
from condensery.jobs.embed import check_scaled, embed, encode_vectors
from condensery.jobs.services import Services
from condensery.values import Described, Embedded, TokenUsage, TruncationDirection

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
    with count_request(services, body.model, "embed", "rest"):
        form, dtype = _read_form(body)
        encoding = dtype or "float32"
        normalize = given_once(body, "normalize", "normalized")
        truncate, side = _read_truncation(body)
        check_scaled(normalize, encoding)
        dimensions = given_once(body, "dimensions", "output_dimension")
        with rename_field(
            "dimensions", "output_dimension" if body.output_dimension else "dimensions"
        ):
            result = await embed(
                services,
                body.input,
                model=body.model,
                prompt_name=body.prompt_name,
                input_type=body.input_type,
                instruction=body.instruction,
                normalize=normalize,
                truncate=truncate,
                side=side,
                dimensions=dimensions,
            )
        with services.metrics.stage(result.model, "serialize"):
            rows = await encode_vectors(result, encoding)
            if form == "bytes":
                return _bytes_reply(result, rows, encoding)
            within: Embeddings = {
                "object": "list",
                "data": [],
                "model": result.model,
                "usage": TokenUsage(result.tokens),
            }
            if dtype is not None:
                within["embed_dtype"] = dtype
                within["dims"] = result.vectors.shape[1]
            vectors = map(encode_base64, rows) if form == "base64" else rows
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


def _read_form(body: OpenAIEmbedRequest) -> tuple[str, Encoding | None]:
    """Return how vectors are written, and what their numbers are where that is asked for.

    Jina's ``embedding_type`` is either; Voyage's ``float`` and Jina's are the default.
    """
    jina = body.embedding_type
    if jina == "base64":
        form = given_once(body, "encoding_format", "embedding_type")
        dtype = given_once(body, "embed_dtype", "output_dtype")
    else:
        form = body.encoding_format or "float"
        dtype = given_once(body, "embed_dtype", "embedding_type", "output_dtype")
    return form, None if dtype == "float" else dtype


def _read_truncation(body: OpenAIEmbedRequest) -> tuple[bool, TruncationDirection]:
    """Return whether too long a text is cut, and where: NIM says both in one field."""
    wanted = given_once(body, "truncate", "truncation")
    if isinstance(wanted, str):
        side: TruncationDirection = "left" if wanted == "START" else "right"
        if "truncation_direction" in body.model_fields_set and side != body.truncation_direction:
            where = f"{wanted} cuts at the other end than truncation_direction."
            raise InputError.at("truncate", where, wanted)
        return wanted != "NONE", side
    return wanted is not False, body.truncation_direction


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
