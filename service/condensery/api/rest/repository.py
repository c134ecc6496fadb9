"""Models that come and go, as we, Triton's OpenAI front and KServe's repository ask for it."""

from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from condensery.api.rest.bodies import read_body
from condensery.api.rest.doors import reply
from condensery.api.rest.ops import write_model
from condensery.jobs import models
from condensery.jobs.services import Services
from condensery.schemas_models import (
    KServeIndexRequest,
    KServeLoadRequest,
    KServeUnloadRequest,
    LoadModelRequest,
    ModelAliasesRequest,
    UnloadModelRequest,
)
from condensery.values import ModelLoad


async def load(request: Request, services: Services) -> Response:
    """Load a stored model, and let it serve in place of the version that does."""
    body = await read_body(request, services, LoadModelRequest, optional=True)
    return reply(_loaded(await models.load_model(services, _name(request), body.version)))


async def reload(request: Request, services: Services) -> Response:
    """Load a model again, from its files, though it serves already."""
    body = await read_body(request, services, LoadModelRequest, optional=True)
    loaded = await models.load_model(services, _name(request), body.version, again=True)
    return reply(_loaded(loaded))


async def unload(request: Request, services: Services) -> Response:
    """Unload a model: its last requests are finished, and its memory is free then."""
    body = await read_body(request, services, UnloadModelRequest, optional=True)
    unloaded = await models.unload_model(services, _name(request), force=body.force)
    return reply(
        {
            "object": "model.unload",
            "id": unloaded.name,
            **asdict(unloaded.revision),
            "seconds": unloaded.seconds,
            "stranded_indexes": unloaded.stranded_indexes,
        }
    )


async def set_aliases(request: Request, services: Services) -> Response:
    """Set aliases of models, or remove them, all at once; returns all that there are."""
    body = await read_body(request, services, ModelAliasesRequest)
    return reply({"aliases": dict(await models.set_aliases(services, body.aliases))})


async def list_aliases(request: Request, services: Services) -> Response:
    """List the aliases of models."""
    del request
    return reply({"aliases": dict(services.pool.aliases.targets)})


async def kserve_index(request: Request, services: Services) -> Response:
    """List every stored version of every model, and which of them serve, as KServe asks."""
    body = await read_body(request, services, KServeIndexRequest, optional=True)
    found = await models.list_versions(services)
    return reply([one for one in found if one.state == "READY" or not body.ready])


async def kserve_load(request: Request, services: Services) -> Response:
    """Load a model, as KServe asks."""
    body = await read_body(request, services, KServeLoadRequest, optional=True)
    loaded = await models.load_model(services, _name(request), body.parameters.version)
    return reply(_row(loaded.info.name, loaded.info.version, "READY", loaded.stranded_indexes))


async def kserve_unload(request: Request, services: Services) -> Response:
    """Unload a model, as KServe asks."""
    body = await read_body(request, services, KServeUnloadRequest, optional=True)
    gone = await models.unload_model(services, _name(request), force=body.parameters.force)
    return reply(_row(gone.name, gone.revision.version, "UNAVAILABLE", gone.stranded_indexes))


def _name(request: Request) -> str:
    name: str = request.path_params["name"]
    return name


def _loaded(loaded: ModelLoad) -> dict[str, Any]:
    previous = loaded.previous
    return {
        "object": "model.load",
        "id": loaded.info.name,
        "model": write_model(loaded.info),
        "previous": None if previous is None else asdict(previous),
        "changed": loaded.changed,
        "seconds": loaded.seconds,
        "memory_bytes": loaded.memory_bytes,
        "stranded_indexes": loaded.stranded_indexes,
    }


def _row(name: str, version: str, state: str, stranded: tuple[str, ...]) -> dict[str, str]:
    reason = ""
    if stranded:
        reason = f"indexes of another fingerprint refuse to be used: {', '.join(stranded)}"
    return {"name": name, "version": version, "state": state, "reason": reason}
