"""Who is let in: keys, scopes, a server about to end. A refusal comes before a message is read."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from grpc import StatusCode
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from condensery.api.grpc.server import ALL_METHODS, CONTRACTS
from condensery.auth import Key, KeyScope, hash_key
from condensery.jobs.services import Services
from condensery.request_context import RequestContext, current_request
from condensery.stubs import condensery_v1_pb2 as pb
from condensery.stubs import condensery_v1_pb2_grpc as stubs

KEYS: dict[str, set[KeyScope]] = {
    "reader": {"infer"},
    "writer": {"index-write"},
    "root": {"admin"},
}
WRITES = {"Index/Create", "Index/Drop", "Index/Upsert", "Index/Delete"} | {
    f"IndexUpkeep/{name}"
    for name in (
        *("UpdateAliases", "CreateSnapshot", "DeleteSnapshot", "RestoreSnapshot"),
        *("RebuildIndex", "CancelRebuild"),
    )
}

METHODS = [
    method
    for contract in CONTRACTS
    for service in contract.services_by_name.values()
    for method in service.methods
]


def key_of(name: str) -> str:
    return f"{name}-has-this-long-key"


def bearing(name: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {key_of(name)}"),)


@pytest.fixture
def keys(services: Services) -> None:
    services.keys.replace(
        Key(name, frozenset(scopes), hash_key(key_of(name))) for name, scopes in KEYS.items()
    )


@pytest.fixture
def calls(registry: Any) -> list[RequestContext]:
    """The calls that reach the encoder."""
    contexts: list[RequestContext] = []
    encoder = registry.encoders["words"]
    embed = encoder.embed

    async def watched(*args: Any, **kwargs: Any) -> Any:
        contexts.append(current_request())
        return await embed(*args, **kwargs)

    encoder.embed = watched
    return contexts


async def refused(call: Awaitable[Any]) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


def kind_of(error: grpc.aio.AioRpcError) -> str | None:
    return dict(error.trailing_metadata() or ()).get("x-error")


def counted(services: Services, **labels: str) -> float:
    labels = {"model": "unknown", "protocol": "grpc", **labels}
    return services.metrics.registry.get_sample_value("condensery_requests_total", labels) or 0.0


def path_of(method: MethodDescriptor) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


def invoke(channel: grpc.aio.Channel, path: str, metadata: Any) -> Any:
    """Call a method with an empty message."""
    if path.endswith("Stream"):
        return channel.unary_stream(path)(b"", metadata=metadata)
    return channel.unary_unary(path)(b"", metadata=metadata)


def embed(channel: grpc.aio.Channel, *metadata: tuple[str, str]) -> Any:
    request = pb.EmbedBatchRequest(texts=["a"])
    return stubs.EmbeddingStub(channel).EmbedBatch(request, metadata=metadata)


def scope_of(method: MethodDescriptor) -> str:
    if method.containing_service.name == "Admin":
        return "admin"
    writes = f"{method.containing_service.name}/{method.name}" in WRITES
    return "index-write" if writes else "infer"


def test_every_method_of_the_contract_is_served_and_has_its_scope() -> None:
    scopes = {call.path: call.scope for call in ALL_METHODS}
    assert scopes == {path_of(method): scope_of(method) for method in METHODS}


@pytest.mark.usefixtures("keys")
async def test_each_method_wants_a_key_that_may_use_it(
    channel: grpc.aio.Channel, subtests: pytest.Subtests
) -> None:
    for method in METHODS:
        with subtests.test(path_of(method)):
            await check_keys(channel, method)


async def check_keys(channel: grpc.aio.Channel, method: MethodDescriptor) -> None:
    path = path_of(method)
    for metadata in ((), (("authorization", "Bearer nobody-has-this-key"),)):
        call = invoke(channel, path, metadata)
        assert await call.code() is StatusCode.UNAUTHENTICATED
        assert dict(await call.trailing_metadata())["x-error"] == "Unauthenticated"
    lacking, having = {
        "infer": ("writer", "reader"),
        "index-write": ("reader", "writer"),
        "admin": ("writer", "root"),
    }[scope_of(method)]
    call = invoke(channel, path, bearing(lacking))
    assert await call.code() is StatusCode.PERMISSION_DENIED
    assert dict(await call.trailing_metadata())["x-error"] == "Forbidden"
    answers = (StatusCode.OK, StatusCode.INVALID_ARGUMENT, StatusCode.NOT_FOUND)
    if path.startswith("/tei.v1."):  # no model here classifies, or gives sparse vectors
        answers += (StatusCode.FAILED_PRECONDITION,)
    for name in (having, "root"):  # what they ask for, with an empty message, may not be there
        call = invoke(channel, path, bearing(name))
        if path.endswith("Stream"):  # whose end comes after its replies
            with suppress(grpc.aio.AioRpcError):
                assert [reply async for reply in call]
        assert await call.code() in answers


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize(
    "metadata",
    [
        bearing("reader"),
        (("authorization", f"bearer {key_of('reader')}"),),
        (("authorization", key_of("reader")),),
        (("x-api-key", key_of("reader")),),
    ],
    ids=["Bearer", "bearer", "bare", "x-api-key"],
)
async def test_a_key_may_come_in_four_ways_and_names_its_caller(
    channel: grpc.aio.Channel, calls: list[RequestContext], metadata: tuple[tuple[str, str], ...]
) -> None:
    assert (await embed(channel, *metadata)).dims == 8
    assert calls[0].caller == "reader"


async def test_without_keys_a_caller_is_an_address(
    channel: grpc.aio.Channel, calls: list[RequestContext]
) -> None:
    await embed(channel)
    await embed(channel, *bearing("reader"))
    assert [call.caller for call in calls] == ["127.0.0.1"] * 2


@pytest.mark.usefixtures("keys")
async def test_what_does_not_exist_wants_a_key_before_it_says_so(
    channel: grpc.aio.Channel,
) -> None:
    for path in ("/condensery.v1.Embedding/Nope", "/nobody.Knows/Me", "/", "/grpc.health.v1.X/Y"):
        error = await refused(channel.unary_unary(path)(b""))
        assert error.code() is StatusCode.UNAUTHENTICATED
        error = await refused(channel.unary_unary(path)(b"", metadata=bearing("writer")))
        assert error.code() is StatusCode.UNIMPLEMENTED


@pytest.mark.usefixtures("keys")
async def test_reflection_wants_a_key_of_any_kind(channel: grpc.aio.Channel) -> None:
    def ask(*metadata: tuple[str, str]) -> Any:
        requests = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        return reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
            requests, metadata=metadata
        )

    error = await refused(ask().read())
    assert error.code() is StatusCode.UNAUTHENTICATED
    reply = await ask(*bearing("writer")).read()
    assert len(reply.list_services_response.service) == 16


@pytest.mark.usefixtures("keys")
async def test_health_needs_no_key(channel: grpc.aio.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    serving = health_pb2.HealthCheckResponse.SERVING
    assert (await stub.Check(health_pb2.HealthCheckRequest())).status == serving
    watching = stub.Watch(health_pb2.HealthCheckRequest())
    assert (await watching.read()).status == serving
    watching.cancel()


@pytest.mark.usefixtures("keys")
async def test_refused_calls_count_for_no_model(
    channel: grpc.aio.Channel, services: Services
) -> None:
    await refused(embed(channel))
    await refused(embed(channel, *bearing("writer")))
    assert counted(services, task="embed", code="Unauthenticated") == 1
    assert counted(services, task="embed", code="Forbidden") == 1


@pytest.mark.usefixtures("keys")
async def test_a_refusal_says_no_key_and_carries_the_request_id(channel: grpc.aio.Channel) -> None:
    error = await refused(
        embed(channel, ("x-api-key", "a-wrong-key-of-somebody"), ("x-request-id", "mine"))
    )
    assert "a-wrong-key" not in (error.details() or "")
    assert dict(error.trailing_metadata() or ())["x-request-id"] == "mine"


@pytest.mark.usefixtures("keys")
async def test_who_has_no_key_is_refused_before_a_message_comes(
    channel: grpc.aio.Channel,
) -> None:
    silent = channel.stream_unary("/condensery.v1.Embedding/EmbedBatch")(timeout=30)
    assert await silent.code() is StatusCode.UNAUTHENTICATED


async def test_keys_that_change_hold_at_once(channel: grpc.aio.Channel, services: Services) -> None:
    assert (await embed(channel)).dims == 8
    services.keys.replace([Key("new", frozenset({"infer"}), hash_key(key_of("new")))])
    assert (await refused(embed(channel))).code() is StatusCode.UNAUTHENTICATED
    assert (await embed(channel, *bearing("new"))).dims == 8


async def test_a_server_about_to_end_takes_no_new_call_and_still_tells_its_health(
    channel: grpc.aio.Channel, services: Services, registry: Any, until: Callable[..., Any]
) -> None:
    encoder = registry.encoders["words"]
    encoder.delay = 0.3
    inside = embed(channel)
    await until(lambda: encoder.waiting)
    services.health.drain()
    encoder.delay = 0
    assert (await embed(channel)).dims == 8, "unready, and still serving"
    services.health.refusing = True
    error = await refused(embed(channel))
    assert (error.code(), kind_of(error)) == (StatusCode.UNAVAILABLE, "Unavailable")
    assert "draining" in (error.details() or "")
    assert counted(services, task="embed", code="Unavailable") == 1
    reply = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    assert reply.status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert (await inside).dims == 8, "what was inside is finished"
