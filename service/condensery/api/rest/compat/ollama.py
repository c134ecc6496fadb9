"""Ollama's routes that its clients need to embed: vectors, the models, the version."""

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

import condensery
from condensery.api.rest.embeddings import Vectors, vectors_per_piece
from condensery.api.rest.io import read_body, result_headers, write_json, write_list
from condensery.api.rest.models import Version
from condensery.api.rest.schemas.inference import OllamaEmbedRequest
from condensery.jobs import models
from condensery.jobs.accounting import count_request
from condensery.jobs.embed import embed
from condensery.jobs.services import Services
from condensery.values import ModelInfo

# What Ollama adds to a name that has no tag, and some of its clients do.
LATEST = ":latest"


@dataclass(frozen=True, slots=True)
class OllamaEmbeddings:
    """Vectors of length 1, as Ollama gives them."""

    model: str
    embeddings: Vectors = field(init=False, default_factory=list)
    total_duration: int
    """In nanoseconds."""
    load_duration: int = field(init=False, default=0)
    """0: models are loaded before they serve."""
    prompt_eval_count: int
    """Tokens read."""


@dataclass(frozen=True, slots=True)
class OllamaDetails:
    """What a model is."""

    format: str = field(init=False, default="safetensors")
    family: str
    parameter_size: str = field(init=False, default="")
    quantization_level: str
    """How its numbers are computed."""


@dataclass(frozen=True, slots=True)
class OllamaModel:
    """A model that serves, as Ollama lists it."""

    name: str
    model: str
    modified_at: str
    size: int = field(init=False, default=0)
    """Not known here."""
    digest: str
    details: OllamaDetails


@dataclass(frozen=True, slots=True)
class OllamaModels:
    """Every model that serves, and the aliases."""

    models: list[OllamaModel]


async def ollama_embed(request: Request, services: Services) -> Response:
    """Embed texts, as Ollama does: a list of vectors of length 1."""
    started = time.monotonic_ns()
    body = await read_body(request, services, OllamaEmbedRequest)
    named = body.model and body.model.removesuffix(LATEST)
    with count_request(services, named, "embed", "rest"):
        result = await embed(
            services,
            body.input,
            model=named,
            normalize=True,
            truncate=body.truncate is not False,
            dimensions=body.dimensions,
        )
        with services.metrics.stage(result.model, "serialize"):
            rows = list(np.ascontiguousarray(result.vectors, dtype=np.float32))
            within = OllamaEmbeddings(
                model=body.model or result.model,
                total_duration=time.monotonic_ns() - started,
                prompt_eval_count=result.tokens,
            )
            return await write_list(
                rows,
                vectors_per_piece(result),
                within=within,
                field="embeddings",
                headers=result_headers(result),
            )


async def ollama_tags(_request: Request, services: Services) -> Response:
    """List the models that serve and their aliases, as Ollama does."""
    infos = [info for info in models.list_models(services) if info.index is None]  # those chat
    return write_json(OllamaModels([_describe(info) for info in infos]))


async def ollama_version(_request: Request, _services: Services) -> Response:
    """Return this server's version, where Ollama's clients ask for theirs."""
    return write_json(Version(condensery.__version__))


def _describe(info: ModelInfo) -> OllamaModel:
    return OllamaModel(
        name=info.id,
        model=info.id,
        modified_at=datetime.fromtimestamp(info.created, UTC).isoformat(),
        digest=info.fingerprint,
        details=OllamaDetails(family=info.kind, quantization_level=info.dtype),
    )
