"""Models that come and go, over gRPC."""

from typing import Any

import grpc
import pytest

from condensery.auth import Key, hash_key
from condensery.errors import ModelNotLoaded
from condensery.jobs.services import Services
from condensery.stubs import condensery_v1_pb2 as pb
from condensery.stubs import condensery_v1_pb2_grpc as stubs


@pytest.fixture
def admin(channel: grpc.aio.Channel) -> Any:
    return stubs.AdminStub(channel)


async def test_models_are_listed_loaded_and_unloaded(admin: Any, registry: Any) -> None:
    listed = (await admin.ListModels(pb.StoredModelsRequest())).models
    assert [(item.name, item.state) for item in listed][-1] == ("broken", "UNAVAILABLE")
    loaded = await admin.LoadModel(pb.LoadModelRequest(model="other", version="7", again=True))
    assert (loaded.model.name, loaded.model.version, loaded.changed) == ("other", "7", True)
    assert (loaded.previous.version, loaded.memory_bytes) == ("1", 1024)
    gone = await admin.UnloadModel(pb.UnloadModelRequest(model="other"))
    assert (gone.revision.fingerprint, gone.seconds) == ("sha256:other", 0.25)
    assert registry.lifecycle.asked == [("other", "7", True), ("other",)]


async def test_an_alias_is_set_used_listed_and_removed(admin: Any, channel: Any) -> None:
    reply = await admin.SetAlias(pb.SetAliasRequest(aliases={"best": "other", "b": "words"}))
    assert dict(reply.aliases) == {"best": "other", "b": "words"}
    embedded = await stubs.EmbeddingStub(channel).EmbedBatch(
        pb.EmbedBatchRequest(model="best", texts=["a"])
    )
    assert embedded.model == "other"
    listed = (await stubs.ModelsStub(channel).List(pb.ListModelsRequest())).models
    assert {item.name: item.alias_of for item in listed}["best"] == "other"
    reply = await admin.SetAlias(pb.SetAliasRequest(aliases={"best": ""}))
    assert dict(reply.aliases) == {"b": "words"}


async def test_bad_requests_have_statuses_of_their_own(admin: Any, registry: Any) -> None:
    def alias(**aliases: str) -> Any:
        return admin.SetAlias(pb.SetAliasRequest(aliases=aliases))

    registry.lifecycle.fails = ModelNotLoaded("model 'other' was not loaded: it is broken")
    code = grpc.StatusCode
    for call, status, says in (
        (admin.LoadModel(pb.LoadModelRequest()), code.INVALID_ARGUMENT, "model: it is missing"),
        (admin.UnloadModel(pb.UnloadModelRequest()), code.INVALID_ARGUMENT, "model"),
        (admin.LoadModel(pb.LoadModelRequest(model="other")), code.FAILED_PRECONDITION, "broken"),
        (
            admin.UnloadModel(pb.UnloadModelRequest(model="words")),
            *(code.FAILED_PRECONDITION, "it is the default encoder"),
        ),
        (alias(), code.INVALID_ARGUMENT, "nothing to change"),
        (alias(a="b", b="a"), code.FAILED_PRECONDITION, "leads in a circle"),
        (alias(a="nobody"), code.NOT_FOUND, "neither a running model"),
        (alias(words="other"), code.FAILED_PRECONDITION, "is a model's name"),
    ):
        with pytest.raises(grpc.aio.AioRpcError, match=says) as caught:
            await call
        assert caught.value.code() is status


async def test_only_an_admins_key_changes_models(admin: Any, services: Services) -> None:
    scopes = {"infer-key-of-16-bytes": "infer", "admin-key-of-16-bytes": "admin"}
    services.keys.replace(
        Key(scope, frozenset([scope]), hash_key(key)) for key, scope in scopes.items()
    )
    for key, scope in scopes.items():
        call = admin.LoadModel(pb.LoadModelRequest(model="other"), metadata=(("x-api-key", key),))
        if scope == "admin":
            assert (await call).changed
            continue
        with pytest.raises(grpc.aio.AioRpcError, match="this needs admin"):
            await call
