"""What a gRPC server says only when it is in trouble, told by one that says what a test wants."""

import random
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from condensery import errors
from condensery.client.grpc import AsyncGrpcClient
from condensery.client.transports import Retries
from condensery.errors import CondenseryError, Overloaded, Unavailable
from condensery.stubs import condensery_v1_pb2 as pb

Metadata = tuple[tuple[str, str], ...]


class ScriptedServer:
    """A gRPC server that gives its scripted refusals in turn, and then lists no models."""

    def __init__(self) -> None:
        self.refusals: list[tuple[StatusCode, str, Metadata]] = []
        self.metadata: list[dict[str, Any]] = []
        self.seconds: list[float] = []
        self.address = ""

    async def answer(self, data: bytes, context: Any) -> bytes:
        self.metadata.append(dict(context.invocation_metadata()))
        self.seconds.append(context.time_remaining())
        if self.refusals:
            code, details, trailing = self.refusals.pop(0)
            await context.abort(code, details, trailing)
        return pb.ListModelsResponse().SerializeToString()


@pytest.fixture
async def scripted() -> AsyncIterator[ScriptedServer]:
    scripted_server = ScriptedServer()
    server = grpc.aio.server()
    methods = {"List": grpc.unary_unary_rpc_method_handler(scripted_server.answer)}
    handler = grpc.method_handlers_generic_handler("condensery.v1.Models", methods)
    server.add_generic_rpc_handlers((handler,))
    scripted_server.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    yield scripted_server
    await server.stop(0)


@pytest.mark.parametrize(
    ("code", "name", "kind"),
    [
        (StatusCode.UNAUTHENTICATED, "Unauthenticated", errors.Unauthenticated),
        (StatusCode.UNAUTHENTICATED, None, errors.Unauthenticated),
        (StatusCode.PERMISSION_DENIED, "Forbidden", errors.Forbidden),
        (StatusCode.PERMISSION_DENIED, None, errors.Forbidden),
        (StatusCode.DEADLINE_EXCEEDED, "ExpiredInQueue", errors.ExpiredInQueue),
        (StatusCode.DEADLINE_EXCEEDED, None, errors.DeadlineExceeded),
        (StatusCode.RESOURCE_EXHAUSTED, None, errors.Overloaded),
        (StatusCode.UNAVAILABLE, None, errors.Unavailable),
        (StatusCode.INTERNAL, "ModelFault", errors.ModelFault),
        (StatusCode.DATA_LOSS, None, CondenseryError),
    ],
)
async def test_a_refusal_comes_back_as_the_error_it_was(
    scripted: ScriptedServer, code: StatusCode, name: str | None, kind: type[CondenseryError]
) -> None:
    scripted.refusals.append((code, "no", () if name is None else (("x-error", name),)))
    async with AsyncGrpcClient(scripted.address) as client:
        with pytest.raises(CondenseryError) as caught:
            await client.models()
    assert type(caught.value) is kind
    assert caught.value.message.endswith("no")
    assert len(scripted.metadata) == 1


FULL = (
    StatusCode.RESOURCE_EXHAUSTED,
    "full",
    (("x-error", "Overloaded"), ("grpc-retry-pushback-ms", "30")),
)
UNREADY = (StatusCode.UNAVAILABLE, "soon", (("grpc-retry-pushback-ms", "30"),))


@pytest.mark.parametrize("refusal", [FULL, UNREADY], ids=["full", "not ready"])
async def test_a_server_that_says_when_is_asked_again(
    scripted: ScriptedServer, refusal: Any
) -> None:
    scripted.refusals += [refusal, refusal]
    async with AsyncGrpcClient(scripted.address) as client:
        assert await client.models() == []
    assert len(scripted.metadata) == 3


async def test_it_waits_before_asking_again_as_long_as_was_drawn(scripted: ScriptedServer) -> None:
    class Later(random.Random):
        def uniform(self, a: float, b: float) -> float:
            return a + b

    scripted.refusals += [FULL]
    started = time.perf_counter()
    async with AsyncGrpcClient(scripted.address, retries=Retries(chance=Later())) as client:
        assert await client.models() == []
    assert time.perf_counter() - started >= 0.13  # 30 ms, and a tenth of a second


async def test_it_is_asked_no_more_often_than_retries_allow(scripted: ScriptedServer) -> None:
    scripted.refusals += [FULL] * 5
    async with AsyncGrpcClient(scripted.address, retries=1) as client:
        with pytest.raises(Overloaded) as caught:
            await client.models()
    assert caught.value.retry_after_seconds == 0.03
    assert len(scripted.metadata) == 2
    scripted.refusals[:] = [(StatusCode.UNAVAILABLE, "gone", ())]
    async with AsyncGrpcClient(scripted.address) as client:
        with pytest.raises(Unavailable):
            await client.models()
    assert len(scripted.metadata) == 3


async def test_the_key_and_the_time_go_with_each_call(scripted: ScriptedServer) -> None:
    async with AsyncGrpcClient(scripted.address, api_key="secret", timeout=25) as client:
        await client.models()
    async with AsyncGrpcClient(scripted.address) as client:
        await client.models()
    assert scripted.metadata[0]["authorization"] == "Bearer secret"
    assert "authorization" not in scripted.metadata[1]
    assert scripted.seconds == [pytest.approx(25, abs=20), pytest.approx(120, abs=20)]
