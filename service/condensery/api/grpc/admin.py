"""Models that come and go: the calls of ``Admin``."""

from condensery.api.grpc import messages
from condensery.errors import InputError
from condensery.jobs import models
from condensery.jobs.services import Services
from condensery.stubs import condensery_v1_pb2 as pb
from condensery.values import Revision


async def list_versions(
    services: Services, given: pb.StoredModelsRequest, model: str | None
) -> bytes:
    """List every stored version of every model, and which of them serve."""
    found = await models.list_versions(services)
    rows = [
        pb.StoredModel(name=one.name, version=one.version, state=one.state, reason=one.reason)
        for one in found
    ]
    return pb.StoredModelsResponse(models=rows).SerializeToString()


async def load(services: Services, given: pb.LoadModelRequest, model: str | None) -> bytes:
    """Load a stored model, and let it serve in place of the version that does."""
    loaded = await models.load_model(
        services, _needed(model), given.version or None, again=given.again
    )
    previous = loaded.previous
    reply = pb.LoadModelResponse(
        model=messages.model_info(loaded.info),
        previous=None if previous is None else _revision(previous),
        changed=loaded.changed,
        seconds=loaded.seconds,
        memory_bytes=loaded.memory_bytes,
        stranded_indexes=loaded.stranded_indexes,
    )
    return reply.SerializeToString()


async def unload(services: Services, given: pb.UnloadModelRequest, model: str | None) -> bytes:
    """Unload a model."""
    unloaded = await models.unload_model(services, _needed(model), force=given.force)
    reply = pb.UnloadModelResponse(
        revision=_revision(unloaded.revision),
        seconds=unloaded.seconds,
        stranded_indexes=unloaded.stranded_indexes,
    )
    return reply.SerializeToString()


async def set_aliases(services: Services, given: pb.SetAliasRequest, model: str | None) -> bytes:
    """Set aliases of models, or remove them."""
    changes = {alias: target or None for alias, target in given.aliases.items()}
    found = await models.set_aliases(services, changes)
    return pb.SetAliasResponse(aliases=found).SerializeToString()


def _revision(one: Revision) -> pb.Revision:
    return pb.Revision(version=one.version, fingerprint=one.fingerprint)


def _needed(model: str | None) -> str:
    if not model:
        raise InputError("model: it is missing; there is no default here.", field="model")
    return model
