"""Embeddings, as both versions of Cohere's API have them."""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from condensery.api.rest.embeddings import encode_base64
from condensery.api.rest.io import (
    PIECE_NUMBERS,
    PIECE_TEXTS,
    read_body,
    result_headers,
    write_lists,
)
from condensery.api.rest.schemas.inference import Lenient, Many
from condensery.encodings import Encoding
from condensery.errors import InputError, rename_field
from condensery.jobs.accounting import count_request
from condensery.jobs.embed import embed, encode_vectors
from condensery.jobs.services import Services
from condensery.values import Embedded, TruncationDirection

EmbeddingType = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]

# The encoding of each type; base64 is of float32.
ENCODING_OF_TYPE: dict[EmbeddingType, Encoding] = {
    "float": "float32",
    "int8": "int8",
    "uint8": "uint8",
    "binary": "binary",
    "ubinary": "ubinary",
    "base64": "float32",
}
TRUNCATION_DIRECTIONS: dict[str, TruncationDirection] = {
    "START": "left",
    "END": "right",
    "NONE": "right",
}


class CohereEmbedRequest(Lenient):
    """``POST /v1/embed`` and ``/v2/embed``."""

    texts: Many[str] | None = Field(default=None, examples=[["What is a near twin?"]])
    model: str | None = Field(default=None, description="An encoder; by default the default one.")
    input_type: str | None = Field(
        default=None,
        description="`search_query`, `search_document`, `classification` or `clustering`: the "
        "model's prompt for it goes before each text, if it has one.",
    )
    embedding_types: Annotated[list[EmbeddingType], Field(min_length=1)] | None = Field(
        default=None, description="null: float; of `/v1/embed` then one list."
    )
    output_dimension: int | None = Field(
        default=None, ge=1, description="One of the model's `dims` and `dimensions`."
    )
    truncate: Literal["NONE", "START", "END"] | None = Field(
        default=None,
        description="Which end of too long a text is cut; NONE: it is an error; null: END.",
    )
    images: list[Any] | None = Field(default=None, description="Refused: no model reads pictures.")
    inputs: list[Any] | None = Field(default=None, description="Refused, as `images`.")


async def cohere_v1_embed(request: Request, services: Services) -> Response:
    """Embed texts, as the first version of Cohere's does: one list where no types are named."""
    body = await read_body(request, services, CohereEmbedRequest)
    return await _embed_texts(body, services, version="1")


async def cohere_v2_embed(request: Request, services: Services) -> Response:
    """Embed texts, as the second version of Cohere's does: a list for each type."""
    body = await read_body(request, services, CohereEmbedRequest)
    return await _embed_texts(body, services, version="2")


async def _embed_texts(body: CohereEmbedRequest, services: Services, *, version: str) -> Response:
    with count_request(services, body.model, "embed", "rest"):
        _refuse_images(body)
        types: Sequence[EmbeddingType] = tuple(dict.fromkeys(body.embedding_types or ("float",)))
        with rename_field("dimensions", "output_dimension"):
            result = await embed(
                services,
                body.texts or [],
                model=body.model,
                input_type=body.input_type,
                normalize=True,
                truncate=body.truncate != "NONE",
                side=TRUNCATION_DIRECTIONS[body.truncate or "END"],
                dimensions=body.output_dimension,
                field="texts",
            )
        with services.metrics.stage(result.model, "serialize"):
            rows = {kind: await _encode_rows(result, kind) for kind in types}
            return await _write_embeddings(body, result, rows, version)


def _refuse_images(body: CohereEmbedRequest) -> None:
    for field in ("images", "inputs"):
        if getattr(body, field):
            raise InputError(f"{field}: no model here reads pictures; send `texts`.", field=field)


async def _encode_rows(result: Embedded, kind: EmbeddingType) -> Iterable[Any]:
    rows = await encode_vectors(result, ENCODING_OF_TYPE[kind], field="embedding_types")
    return map(encode_base64, rows) if kind == "base64" else iter(rows)


async def _write_embeddings(
    body: CohereEmbedRequest,
    result: Embedded,
    rows_by_type: Mapping[EmbeddingType, Iterable[Any]],
    version: str,
) -> Response:
    plain = version == "1" and body.embedding_types is None
    piece_rows = max(1, PIECE_NUMBERS // result.vectors.shape[1])
    lists: dict[tuple[str, ...], tuple[Iterable[Any], int]] = {
        ("embeddings",) if plain else ("embeddings", kind): (rows, piece_rows)
        for kind, rows in rows_by_type.items()
    }
    lists["texts",] = (body.texts or [], PIECE_TEXTS)
    within = {
        "id": secrets.token_hex(16),
        "response_type": "embeddings_floats" if plain else "embeddings_by_type",
        "meta": {
            "api_version": {"version": version},
            "billed_units": {"input_tokens": result.tokens},
        },
    }
    return await write_lists(within, lists, headers=result_headers(result))
