"""Embeddings, as both versions of Cohere's API have them."""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, cast

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import TypedDict

from condensery.api.rest.embeddings import Vectors, encode_base64
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

Version = Literal["1", "2"]
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


@dataclass(frozen=True, slots=True)
class CohereUnits:
    """What Cohere would bill."""

    input_tokens: int


@dataclass(frozen=True, slots=True)
class CohereVersion:
    """Of Cohere's API."""

    version: Version


@dataclass(frozen=True, slots=True)
class CohereMeta:
    """What a request took."""

    api_version: CohereVersion
    billed_units: CohereUnits


@dataclass(frozen=True, slots=True)
class CohereFloats:
    """Vectors, as Cohere's first version gives them where no types are named."""

    id: str
    response_type: Literal["embeddings_floats"] = field(init=False, default="embeddings_floats")
    meta: CohereMeta
    embeddings: Vectors = field(init=False, default_factory=list)
    texts: list[str] = field(init=False, default_factory=list)


class CohereTypes(TypedDict, total=False):
    """Vectors in each of the types that were asked for."""

    float: Vectors | None
    int8: list[list[int]] | None
    uint8: list[list[int]] | None
    binary: list[list[int]] | None
    ubinary: list[list[int]] | None
    base64: list[str] | None


@dataclass(frozen=True, slots=True)
class CohereByType:
    """Vectors, as Cohere gives them by type."""

    id: str
    response_type: Literal["embeddings_by_type"] = field(init=False, default="embeddings_by_type")
    meta: CohereMeta
    embeddings: CohereTypes
    texts: list[str] = field(init=False, default_factory=list)


CohereEmbeddings = CohereFloats | CohereByType


async def cohere_v1_embed(request: Request, services: Services) -> Response:
    """Embed texts, as the first version of Cohere's does: one list where no types are named."""
    body = await read_body(request, services, CohereEmbedRequest)
    return await _embed_texts(body, services, version="1")


async def cohere_v2_embed(request: Request, services: Services) -> Response:
    """Embed texts, as the second version of Cohere's does: a list for each type."""
    body = await read_body(request, services, CohereEmbedRequest)
    return await _embed_texts(body, services, version="2")


async def _embed_texts(
    body: CohereEmbedRequest, services: Services, *, version: Version
) -> Response:
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
    for name in ("images", "inputs"):
        if getattr(body, name):
            raise InputError.at(name, "no model here reads pictures; send `texts`.")


async def _encode_rows(result: Embedded, kind: EmbeddingType) -> Iterable[Any]:
    rows = await encode_vectors(result, ENCODING_OF_TYPE[kind], field="embedding_types")
    return map(encode_base64, rows) if kind == "base64" else iter(rows)


async def _write_embeddings(
    body: CohereEmbedRequest,
    result: Embedded,
    rows_by_type: Mapping[EmbeddingType, Iterable[Any]],
    version: Version,
) -> Response:
    meta = CohereMeta(CohereVersion(version), CohereUnits(result.tokens))
    identity, plain = secrets.token_hex(16), version == "1" and body.embedding_types is None
    piece_rows = max(1, PIECE_NUMBERS // result.vectors.shape[1])
    lists: dict[str, tuple[Iterable[Any], int]] = {
        "embeddings" if plain else kind: (rows, piece_rows) for kind, rows in rows_by_type.items()
    }
    lists["texts"] = (body.texts or [], PIECE_TEXTS)
    by_type = cast(CohereTypes, {kind: [] for kind in rows_by_type})
    within = CohereFloats(identity, meta) if plain else CohereByType(identity, meta, by_type)
    return await write_lists(within, lists, headers=result_headers(result))
