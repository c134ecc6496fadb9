"""What operators and clients ask about the service itself."""

from dataclasses import asdict
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import Response

import condensery
from condensery.api.rest.doors import reply
from condensery.errors import ModelNotFound, Unavailable, shorten
from condensery.jobs import models
from condensery.jobs.describe import capabilities, describe
from condensery.jobs.services import Services
from condensery.values import ModelInfo


async def livez(request: Request, services: Services) -> Response:
    """Say whether the process is worth keeping; 503 with the reason once only a new one helps."""
    del request
    check_live(services)
    return reply({"status": "live"})


async def readyz(request: Request, services: Services) -> Response:
    """Say whether requests should come; 503 with the reason if not."""
    del request
    check_ready(services)
    return reply({"status": "ready"})


async def startupz(request: Request, services: Services) -> Response:
    """Say whether all was loaded and warm once; what comes later is readiness."""
    del request
    if not services.health.started:
        raise Unavailable(f"Not started: {services.health.reason}.")
    return reply({"status": "started"})


async def metrics(request: Request, services: Services) -> Response:
    """Return the metrics, for Prometheus."""
    del request
    body = generate_latest(services.metrics.registry)
    return Response(body, headers={"content-type": CONTENT_TYPE_LATEST})


async def version(request: Request, services: Services) -> Response:
    """Return the version."""
    del request, services
    return reply({"version": condensery.__version__})


def check_live(services: Services) -> None:
    """Raise Unavailable once only a new process helps."""
    if not services.health.live:
        raise Unavailable(f"Not live: {services.health.reason}.")


def check_ready(services: Services) -> None:
    """Raise Unavailable while nobody should come."""
    if not services.health.ready:
        raise Unavailable(f"Not ready: {services.health.reason}.")


async def list_models(request: Request, services: Services) -> Response:
    """List the models that serve, defaults first, and their aliases."""
    del request
    data = [write_model(info) for info in models.list_models(services)]
    return reply({"object": "list", "data": data})


async def show_model(request: Request, services: Services) -> Response:
    """Return one model."""
    return reply(write_model(find_model(services, request.path_params["name"])))


def find_model(services: Services, name: str) -> ModelInfo:
    """Return a running model by its name or an alias.

    Raises:
        ModelNotFound: It does not run; the message says why, and names those that do.
    """
    found = models.list_models(services)
    for info in found:
        if info.name == name:
            return info
    reason = services.pool.refused().get(services.pool.aliases.resolve(name))
    why = f"was refused: {reason}" if reason else "does not exist"
    raise ModelNotFound(
        f"model {shorten(name)} {why}; there are: {', '.join(info.name for info in found)}.",
        field="model",
        value=name,
    )


async def tei_info(request: Request, services: Services) -> Response:
    """Describe the default model as TEI does, and beside it all that this service can do."""
    del request
    found = describe(services)
    default = found.model
    return reply(
        {
            "model_id": default.name,
            "model_sha": default.fingerprint,
            "model_dtype": default.dtype,
            "served_model_name": default.name,
            "model_type": _model_type(default),
            "max_concurrent_requests": found.max_concurrent_requests,
            "max_input_length": default.max_tokens,
            "max_batch_tokens": found.max_batch_tokens,
            "max_batch_requests": None,
            "max_client_batch_size": found.max_client_batch_size,
            "auto_truncate": True,
            "tokenization_workers": found.tokenization_workers,
            "version": condensery.__version__,
            "sha": None,
            "docker_label": None,
            "capabilities": {
                task: [info.name for info in models]
                for task, models in capabilities(services).items()
            },
            "refused": dict(services.pool.refused()),
        }
    )


def write_model(info: ModelInfo) -> dict[str, Any]:
    """Return a model as OpenAI's clients read it, with all that we know of it."""
    fields = asdict(info)
    return {"id": fields.pop("name"), "object": "model", "owned_by": "condensery", **fields}


def _model_type(info: ModelInfo) -> dict[str, Any]:
    """Return TEI's dict of one key, which its clients take the first of."""
    if info.kind == "encoder":
        return {"embedding": {"pooling": info.pooling}}
    labels = info.labels or ("relevance",)
    named = {
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
    }
    return {"classifier" if info.kind == "classifier" else "reranker": named}
