"""Models that come and go, and their aliases, as gRPC calls; described in ``rest_models``."""

from collections.abc import Mapping
from typing import cast

from condensery.client.grpc_calls import RpcCall, checked, make_call
from condensery.client.grpc_replies import read_models
from condensery.stubs import condensery_v1_pb2 as pb
from condensery.values import ModelLoad, ModelState, ModelUnload, ModelVersion, Revision


@checked
def load_model(name: str, *, version: str | None = None, again: bool = False) -> RpcCall[ModelLoad]:
    """Load a stored model and let it serve, in place of the version that does."""
    request = pb.LoadModelRequest(model=name, version=version or "", again=again)
    return make_call("Admin/LoadModel", request, pb.LoadModelResponse, _read_load)


@checked
def unload_model(name: str, *, force: bool = False) -> RpcCall[ModelUnload]:
    """Unload a model; its last requests are finished when this returns, and its memory is free."""
    request = pb.UnloadModelRequest(model=name, force=force)
    return make_call(
        *("Admin/UnloadModel", request, pb.UnloadModelResponse),
        lambda reply: _read_unload(name, reply),
    )


def stored_models() -> RpcCall[list[ModelVersion]]:
    """List every stored version of every model, and which of them serve."""
    request = pb.StoredModelsRequest()
    return make_call("Admin/ListModels", request, pb.StoredModelsResponse, _read_versions)


@checked
def set_aliases(aliases: Mapping[str, str | None]) -> RpcCall[dict[str, str]]:
    """Set aliases of models, or remove them, all at once; returns all that there are."""
    given = {alias: target or "" for alias, target in aliases.items()}
    request = pb.SetAliasRequest(aliases=given)
    return make_call("Admin/SetAlias", request, pb.SetAliasResponse, lambda one: dict(one.aliases))


def _read_load(reply: pb.LoadModelResponse) -> ModelLoad:
    (info,) = read_models(pb.ListModelsResponse(models=[reply.model]))
    return ModelLoad(
        info=info,
        previous=_revision(reply.previous) if reply.HasField("previous") else None,
        changed=reply.changed,
        seconds=reply.seconds,
        memory_bytes=reply.memory_bytes,
        stranded_indexes=tuple(reply.stranded_indexes),
    )


def _read_unload(name: str, reply: pb.UnloadModelResponse) -> ModelUnload:
    indexes = tuple(reply.stranded_indexes)
    return ModelUnload(name, _revision(reply.revision), reply.seconds, indexes)


def _read_versions(reply: pb.StoredModelsResponse) -> list[ModelVersion]:
    return [
        ModelVersion(one.name, one.version, cast(ModelState, one.state), one.reason)
        for one in reply.models
    ]


def _revision(one: pb.Revision) -> Revision:
    return Revision(one.version, one.fingerprint)
