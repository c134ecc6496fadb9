"""Texts to vectors, as Cohere's clients ask for them, in either version."""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from condensery.api.naming import renamed
from condensery.api.rest.bodies import read_body
from condensery.api.rest.doors import about
from condensery.api.rest.embeddings import in_base64
from condensery.api.rest.writing import NUMBERS, TEXTS, reply_lists
from condensery.encodings import Encoding
from condensery.errors import InputError
from condensery.jobs.accounting import account
from condensery.jobs.embed import embed, encoded
from condensery.jobs.services import Services
from condensery.schemas_cohere import CohereEmbedRequest, EmbeddingType
from condensery.values import Embedded, Side

# In which encoding a vector of each type is; base64 is of float32.
ENCODING: dict[EmbeddingType, Encoding] = {
    "float": "float32",
    "int8": "int8",
    "uint8": "uint8",
    "binary": "binary",
    "ubinary": "ubinary",
    "base64": "float32",
}
CUT: dict[str, Side] = {"START": "left", "END": "right", "NONE": "right"}


async def v1_embed(request: Request, services: Services) -> Response:
    """Embed texts, as the first version of Cohere's does: one list where no types are named."""
    body = await read_body(request, services, CohereEmbedRequest)
    return await _embed(body, services, version="1")


async def v2_embed(request: Request, services: Services) -> Response:
    """Embed texts, as the second version of Cohere's does: a list for each type."""
    body = await read_body(request, services, CohereEmbedRequest)
    return await _embed(body, services, version="2")


async def _embed(body: CohereEmbedRequest, services: Services, *, version: str) -> Response:
    with account(services, body.model, "embed", "rest"):
        _refuse_pictures(body)
        types: Sequence[EmbeddingType] = tuple(dict.fromkeys(body.embedding_types or ("float",)))
        with renamed("dimensions", "output_dimension"):
            result = await embed(
                services,
                body.texts or [],
                model=body.model,
                input_type=body.input_type,
                normalize=True,
                truncate=body.truncate != "NONE",
                side=CUT[body.truncate or "END"],
                dimensions=body.output_dimension,
                field="texts",
            )
        with services.metrics.stage(result.model, "serialize"):
            found = {one: await _written(result, one) for one in types}
            return await _reply(body, result, found, version)


def _refuse_pictures(body: CohereEmbedRequest) -> None:
    for field in ("images", "inputs"):
        if getattr(body, field):
            raise InputError(f"{field}: no model here reads pictures; send `texts`.", field=field)


async def _written(result: Embedded, kind: EmbeddingType) -> Iterable[Any]:
    rows = await encoded(result, ENCODING[kind], field="embedding_types")
    return map(in_base64, rows) if kind == "base64" else iter(rows)


async def _reply(
    body: CohereEmbedRequest,
    result: Embedded,
    found: Mapping[EmbeddingType, Iterable[Any]],
    version: str,
) -> Response:
    plain = version == "1" and body.embedding_types is None
    each = max(1, NUMBERS // result.vectors.shape[1])
    lists: dict[tuple[str, ...], tuple[Iterable[Any], int]] = {
        ("embeddings",) if plain else ("embeddings", kind): (rows, each)
        for kind, rows in found.items()
    }
    lists["texts",] = (body.texts or [], TEXTS)
    within = {
        "id": secrets.token_hex(16),
        "response_type": "embeddings_floats" if plain else "embeddings_by_type",
        "meta": {
            "api_version": {"version": version},
            "billed_units": {"input_tokens": result.tokens},
        },
    }
    return await reply_lists(within, lists, headers=about(result))
