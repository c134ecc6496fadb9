"""KServe's v2 health, metadata (Open Inference Protocol) and repository; it infers elsewhere."""

from dataclasses import dataclass, field
from typing import Literal

from starlette.requests import Request
from starlette.responses import Response

import condensery
from condensery.api.rest.io import read_body, write_json
from condensery.api.rest.models import check_live, check_ready, find_model
from condensery.api.rest.schemas.service import (
    KServeIndexRequest,
    KServeLoadRequest,
    KServeUnloadRequest,
)
from condensery.jobs import models as jobs
from condensery.jobs.services import Services
from condensery.values import ModelInfo, ModelState, ModelVersion


@dataclass(frozen=True, slots=True)
class KServeLive:
    """All is well, as KServe says it."""

    live: Literal[True] = field(init=False, default=True)


@dataclass(frozen=True, slots=True)
class KServeReady:
    """All is well, as KServe says it."""

    ready: Literal[True] = field(init=False, default=True)


@dataclass(frozen=True, slots=True)
class KServeModelReady(KServeReady):
    """A model serves, as KServe says it."""

    name: str


@dataclass(frozen=True, slots=True)
class KServeServer:
    """The server, as KServe describes it."""

    name: str = "condensery"
    version: str = condensery.__version__
    extensions: tuple[str, ...] = ("model_repository",)


@dataclass(frozen=True, slots=True)
class KServeTensor:
    """What a model takes or gives; -1 is any number."""

    name: str
    datatype: str
    shape: list[int]


@dataclass(frozen=True, slots=True)
class KServeModel:
    """A model, as KServe describes it."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[KServeTensor]
    outputs: list[KServeTensor]


async def kserve_live(_request: Request, services: Services) -> Response:
    """Whether the process is alive, as KServe asks."""
    check_live(services)
    return write_json(KServeLive())


async def kserve_ready(_request: Request, services: Services) -> Response:
    """Whether the server is ready for requests, as KServe asks."""
    check_ready(services)
    return write_json(KServeReady())


async def kserve_server(_request: Request, _services: Services) -> Response:
    """Describe the server, as KServe asks."""
    return write_json(KServeServer())


async def kserve_model(request: Request, services: Services) -> Response:
    """Describe one model, as KServe asks; its version is the store's."""
    info = find_model(services, request.path_params["name"])
    inputs, outputs = _tensors(info)
    return write_json(
        KServeModel(
            name=info.id,
            versions=[info.version or info.fingerprint],
            platform=f"condensery_{info.kind}",
            inputs=inputs,
            outputs=outputs,
        )
    )


async def kserve_model_ready(request: Request, services: Services) -> Response:
    """Whether one model serves, as KServe asks."""
    info = find_model(services, request.path_params["name"])
    check_ready(services)
    return write_json(KServeModelReady(info.id))


async def kserve_index(request: Request, services: Services) -> Response:
    """List every stored version of every model, and which of them serve, as KServe asks."""
    body = await read_body(request, services, KServeIndexRequest, optional=True)
    versions = await jobs.list_versions(services)
    return write_json([item for item in versions if item.state == "READY" or not body.ready])


async def kserve_load(request: Request, services: Services) -> Response:
    """Load a model, as KServe asks."""
    body = await read_body(request, services, KServeLoadRequest, optional=True)
    loaded = await jobs.load_model(services, request.path_params["name"], body.parameters.version)
    return write_json(
        _kserve_version(loaded.model.id, loaded.model.version, "READY", loaded.stranded_indexes)
    )


async def kserve_unload(request: Request, services: Services) -> Response:
    """Unload a model, as KServe asks."""
    body = await read_body(request, services, KServeUnloadRequest, optional=True)
    unloaded = await jobs.unload_model(
        services, request.path_params["name"], force=body.parameters.force
    )
    return write_json(
        _kserve_version(unloaded.id, unloaded.version, "UNAVAILABLE", unloaded.stranded_indexes)
    )


def _kserve_version(
    name: str, version: str, state: ModelState, stranded: tuple[str, ...]
) -> ModelVersion:
    reason = ""
    if stranded:
        reason = f"indexes of another fingerprint refuse to be used: {', '.join(stranded)}"
    return ModelVersion(name, version, state, reason)


def _tensors(info: ModelInfo) -> tuple[list[KServeTensor], list[KServeTensor]]:
    """Return what the model takes and gives."""
    if info.dims is not None:  # it gives vectors
        vectors = KServeTensor("embedding", "FP32", [-1, info.dims])
        return [KServeTensor("input", "BYTES", [-1])], [vectors]
    return (
        [KServeTensor("query", "BYTES", [1]), KServeTensor("documents", "BYTES", [-1])],
        [KServeTensor("relevance_score", "FP32", [-1]), KServeTensor("answer", "BYTES", [1])],
    )
