"""Health, metrics and version; the models that serve, loading them, and their reports."""

from dataclasses import dataclass, field
from typing import Literal

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import Response

import condensery
from condensery.api.rest.io import job_endpoint, read_body, write_json
from condensery.api.rest.schemas.service import (
    LoadModelRequest,
    ModelAliasesRequest,
    UnloadModelRequest,
)
from condensery.errors import InputError, Unavailable, shorten
from condensery.jobs import models
from condensery.jobs.models import (
    read_model_card,
    read_model_plot,
    read_model_report,
)
from condensery.jobs.services import Services
from condensery.values import ModelInfo, ModelLoad, ModelUnload

REPORT_FORMATS = ("json", "markdown")
MARKDOWN = "text/markdown"
# Content of a model's publisher: no browser may take it for a page of this server.
NO_SNIFF = {"x-content-type-options": "nosniff"}


@dataclass(frozen=True, slots=True)
class Models:
    """Every running model, defaults first."""

    object: Literal["list"] = field(init=False, default="list")
    data: list[ModelInfo]


@dataclass(frozen=True, slots=True)
class ModelAliases:
    """Every alias of a model, and what it leads to."""

    aliases: dict[str, str]


@dataclass(frozen=True, slots=True)
class Version:
    """This service's version."""

    version: str


@dataclass(frozen=True, slots=True)
class Status:
    """All is well."""

    status: Literal["live", "ready", "started"]


load_model = job_endpoint(models.load_model, ModelLoad, LoadModelRequest, optional=True)
unload_model = job_endpoint(models.unload_model, ModelUnload, UnloadModelRequest, optional=True)


async def livez(_request: Request, services: Services) -> Response:
    """Whether the process is alive; 503 with the reason once only a restart helps."""
    check_live(services)
    return write_json(Status("live"))


async def readyz(_request: Request, services: Services) -> Response:
    """Whether the server is ready for requests; 503 with the reason if not."""
    check_ready(services)
    return write_json(Status("ready"))


async def startupz(_request: Request, services: Services) -> Response:
    """Whether the start is complete: all models loaded and warm; 503 with the reason if not."""
    if not services.health.started:
        raise Unavailable(f"Not started: {services.health.reason}.")
    return write_json(Status("started"))


async def show_metrics(_request: Request, services: Services) -> Response:
    """Return the metrics, for Prometheus."""
    registry = services.metrics.registry
    if registry.refresh is not None:
        await registry.refresh()
    body = generate_latest(registry)
    return Response(body, headers={"content-type": CONTENT_TYPE_LATEST})


async def show_version(_request: Request, _services: Services) -> Response:
    """Return the version."""
    return write_json(Version(condensery.__version__))


def check_live(services: Services) -> None:
    """Raise Unavailable once only a restart helps."""
    if not services.health.live:
        raise Unavailable(f"Not live: {services.health.reason}.")


def check_ready(services: Services) -> None:
    """Raise Unavailable while no requests should come."""
    if not services.health.ready:
        raise Unavailable(f"Not ready: {services.health.reason}.")


def check_model_ready(services: Services, name: str) -> None:
    """Raise Unavailable while a model can't do all of its work."""
    if (reason := models.find_unready(services, name)) is not None:
        raise Unavailable(f"Not ready: {reason}")


async def list_models(_request: Request, services: Services) -> Response:
    """List the models that serve, defaults first, and their aliases."""
    return write_json(Models(models.list_models(services)))


async def list_rerankers(_request: Request, services: Services) -> Response:
    """List the models that rerank and their aliases, the default first."""
    return write_json(Models(models.list_rerankers(services)))


async def show_model(request: Request, services: Services) -> Response:
    """Return one model."""
    return write_json(models.find_model(services, request.path_params["name"]))


async def reload_model(request: Request, services: Services) -> Response:
    """Load a model again, from its files, though it serves already."""
    body = await read_body(request, services, LoadModelRequest, optional=True)
    loaded = await models.load_model(
        services, request.path_params["name"], body.version, again=True
    )
    return write_json(loaded)


async def set_model_aliases(request: Request, services: Services) -> Response:
    """Set aliases of models, or remove them, all at once; returns all that there are."""
    body = await read_body(request, services, ModelAliasesRequest)
    aliases = await models.set_model_aliases(services, body.aliases)
    return write_json(ModelAliases(dict(aliases)))


async def list_model_aliases(_request: Request, services: Services) -> Response:
    """List the aliases of models."""
    return write_json(ModelAliases(dict(services.registry.aliases.targets)))


async def show_report(request: Request, services: Services) -> Response:
    """Return what a model was measured at, or its card, where Markdown is asked for."""
    name = request.path_params["name"]
    headers = {**NO_SNIFF, "vary": "accept"}
    if _report_format(request) == "json":
        return write_json(await read_model_report(services, name), headers=headers)
    card = await read_model_card(services, name)
    return Response(card, headers=headers, media_type=MARKDOWN)


async def show_plot(request: Request, services: Services) -> Response:
    """Return a plot of a model's report; the report lists their names."""
    name, plot = request.path_params["name"], request.path_params["plot"]
    content = await read_model_plot(services, name, plot)
    return Response(content, headers=NO_SNIFF, media_type="image/png")


def _report_format(request: Request) -> str:
    """Return the format that the query names, or else the header ``accept``.

    Raises:
        InputError: The query names an unknown one.
    """
    name = request.query_params.get("format")
    if name is None:
        return "markdown" if _prefers_markdown(request.headers.get("accept", "")) else "json"
    if name not in REPORT_FORMATS:
        raise InputError.at(
            "format", f"{shorten(name)} is not one of {', '.join(REPORT_FORMATS)}.", name
        )
    return name


def _prefers_markdown(accept: str) -> bool:
    """Whether Markdown is named, with more weight than JSON; ``*/*`` is no preference."""
    weights = {MARKDOWN: 0.0, "application/json": 0.0}
    for part in accept.split(","):
        media, *parameters = (piece.strip().lower() for piece in part.split(";"))
        if media in weights:
            weights[media] = _quality_weight(parameters)
    return weights[MARKDOWN] > weights["application/json"]


def _quality_weight(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0
