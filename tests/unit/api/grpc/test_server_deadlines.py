"""Callers whose time runs out, and callers who leave."""

import asyncio
import itertools
import logging
import math
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from condensery.api.grpc.server import start_server
from condensery.jobs.services import Services
from condensery.question import GeneratedToken
from condensery.request_context import RequestContext, current_request
from condensery.stubs import condensery_v1_pb2 as pb
from condensery.stubs import condensery_v1_pb2_grpc as stubs

Until = Callable[[Callable[[], Any]], Awaitable[None]]
TIMEOUT = "x-request-timeout-ms"


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


def embed(channel: grpc.aio.Channel, timeout: float | None = None, **metadata: str) -> Any:
    pairs = tuple((name.replace("_", "-"), value) for name, value in metadata.items())
    request = pb.EmbedBatchRequest(texts=["a"])
    return stubs.EmbeddingStub(channel).EmbedBatch(request, timeout=timeout, metadata=pairs)


def answer(channel: grpc.aio.Channel, **how: Any) -> Any:
    request = pb.AnswerRequest(query="why", documents=[pb.Document(text="gold")])
    return stubs.RagStub(channel).AnswerStream(request, **how)


async def refused(call: Awaitable[Any]) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


def trailer(error: grpc.aio.AioRpcError, name: str) -> str | None:
    return dict(error.trailing_metadata() or ()).get(name)


def counted(services: Services, task: str, *codes: str) -> float:
    model = "pair" if task == "answer" else "words"
    labels = {"model": model, "task": task, "protocol": "grpc"}
    value = services.metrics.registry.get_sample_value
    return sum(value("condensery_requests_total", {**labels, "code": item}) or 0 for item in codes)


@pytest.mark.parametrize(
    ("timeout", "metadata", "seconds"),
    [
        (None, {}, 300),
        (200, {}, 200),
        (None, {TIMEOUT: "150000"}, 150),
        (200, {TIMEOUT: "150000"}, 150),
        (100, {TIMEOUT: "150000"}, 100),
        (10_000, {TIMEOUT: "15000000"}, 300),
    ],
    ids=["the server's", "gRPC's", "the metadata's", "the shorter", "the shorter too", "no longer"],
)
async def test_a_call_has_until_the_shortest_of_three_times(
    channel: grpc.aio.Channel,
    calls: list[RequestContext],
    timeout: float | None,
    metadata: dict[str, str],
    seconds: float,
) -> None:
    await embed(channel, timeout, x_request_id="mine", **metadata)
    (call,) = calls
    assert call.deadline - time.monotonic() == pytest.approx(seconds, abs=20)
    assert (call.request_id, call.caller) == ("mine", "127.0.0.1")


@pytest.mark.parametrize("value", ["", "0", "-5", "soon"])
async def test_an_invalid_timeout_is_refused_by_name(
    channel: grpc.aio.Channel, services: Services, calls: list[RequestContext], value: str
) -> None:
    error = await refused(embed(channel, **{TIMEOUT: value}))
    assert error.code() is StatusCode.INVALID_ARGUMENT
    assert trailer(error, "x-field") == TIMEOUT
    assert not calls
    labels = {"model": "unknown", "task": "embed", "protocol": "grpc", "code": "InputError"}
    assert services.metrics.registry.get_sample_value("condensery_requests_total", labels) == 1


@pytest.mark.parametrize(("began", "kind"), [(False, "ExpiredInQueue"), (True, "DeadlineExceeded")])
async def test_work_whose_time_runs_out_is_dropped(
    channel: grpc.aio.Channel,
    services: Services,
    registry: Any,
    calls: list[RequestContext],
    until: Until,
    began: bool,
    kind: str,
) -> None:
    encoder = registry.encoders["words"]
    encoder.delay = 60
    call = embed(channel, **{TIMEOUT: "2000"})
    await until(lambda: calls)
    calls[0].work_begun = began  # as the batcher says when a forward pass begins
    error = await refused(call)
    assert error.code() is StatusCode.DEADLINE_EXCEEDED
    assert trailer(error, "x-error") == kind
    assert not encoder.waiting
    await until(lambda: counted(services, "embed", kind) and not services.admission.requests)
    assert counted(services, "embed", kind) == 1


async def test_a_call_that_comes_too_late_is_not_begun(
    services: Services, calls: list[RequestContext]
) -> None:
    hurried = replace(services, limits=replace(services.limits, request_seconds=0.0))
    server = await start_server(hurried, "127.0.0.1", 0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        error = await refused(embed(channel))
    await server.stop(0)
    assert error.code() is StatusCode.DEADLINE_EXCEEDED
    assert trailer(error, "x-error") == "ExpiredInQueue"
    assert not calls


async def test_a_timeout_of_somebody_else_is_a_bug_and_no_deadline(
    channel: grpc.aio.Channel, registry: Any
) -> None:
    registry.encoders["words"].fails = TimeoutError("secret")
    error = await refused(embed(channel))
    assert error.code() is StatusCode.INTERNAL
    assert "secret" not in (error.details() or "")


async def test_a_stream_that_hangs_is_cut_soon_after_its_time(
    channel: grpc.aio.Channel, services: Services, registry: Any, until: Until
) -> None:
    closed = False

    async def hanging(words: Sequence[str], max_tokens: int) -> AsyncIterator[GeneratedToken]:
        nonlocal closed
        try:
            yield GeneratedToken("word ", 1)
            await asyncio.sleep(60)
        finally:
            closed = True

    registry.pairs["pair"]._say = hanging
    call = answer(channel, metadata=((TIMEOUT, "2000"),))
    for kind in ("retrieved", "delta"):
        assert (await call.read()).WhichOneof("event") == kind
    started = time.monotonic()
    error = await refused(call.read())
    assert error.code() is StatusCode.DEADLINE_EXCEEDED
    assert time.monotonic() - started < 30
    await until(lambda: closed)
    await until(lambda: counted(services, "answer", "ExpiredInQueue", "DeadlineExceeded") == 1)


async def test_a_stream_whose_client_stopped_reading_ends_at_its_time(
    channel: grpc.aio.Channel, services: Services, registry: Any, until: Until
) -> None:
    closed = False

    async def endless(words: Sequence[str], max_tokens: int) -> AsyncIterator[GeneratedToken]:
        nonlocal closed
        try:
            for count in itertools.count(1):
                yield GeneratedToken("word " * 2000, count)
        finally:
            closed = True

    registry.pairs["pair"]._say = endless
    call = answer(channel, metadata=((TIMEOUT, "2000"),))
    await call.read()
    await until(lambda: closed)
    await until(lambda: not services.admission.requests)
    call.cancel()


async def test_a_client_that_leaves_takes_its_work_along_and_nobody_is_alarmed(
    channel: grpc.aio.Channel,
    services: Services,
    registry: Any,
    until: Until,
    caplog: pytest.LogCaptureFixture,
) -> None:
    encoder = registry.encoders["words"]
    encoder.delay = 60
    call = embed(channel)
    await until(lambda: encoder.waiting)
    call.cancel()
    await until(lambda: counted(services, "embed", "Cancelled"))
    assert not encoder.waiting
    await until(lambda: not services.admission.requests)
    assert [item for item in caplog.records if item.levelno >= logging.WARNING] == []


async def test_a_clients_own_deadline_drops_its_work(
    channel: grpc.aio.Channel, services: Services, registry: Any, until: Until
) -> None:
    encoder = registry.encoders["words"]
    encoder.delay = 60
    error = await refused(embed(channel, 2))
    assert error.code() is StatusCode.DEADLINE_EXCEEDED
    await until(lambda: counted(services, "embed", "Cancelled", "ExpiredInQueue"))
    assert not encoder.waiting


async def test_a_stream_whose_client_leaves_is_closed_at_the_next_step(
    channel: grpc.aio.Channel, services: Services, registry: Any, until: Until
) -> None:
    steps = 0
    closed_after = math.inf

    async def stepping(words: Sequence[str], max_tokens: int) -> AsyncIterator[GeneratedToken]:
        nonlocal steps, closed_after
        try:
            for steps in itertools.count(1):
                await asyncio.sleep(0.1)
                yield GeneratedToken("word ", steps)
        finally:
            closed_after = steps

    registry.pairs["pair"]._say = stepping
    call = answer(channel)
    for _ in range(4):
        await call.read()
    call.cancel()
    await until(lambda: closed_after < math.inf)
    assert closed_after < 100  # ten seconds' worth
    await until(lambda: counted(services, "answer", "Cancelled"))
    await until(lambda: not services.admission.requests)


async def test_clients_that_leave_at_any_moment_leave_nothing_behind(
    channel: grpc.aio.Channel,
    services: Services,
    registry: Any,
    until: Until,
    caplog: pytest.LogCaptureFixture,
) -> None:
    chance = random.Random(7)
    encoder = registry.encoders["words"]

    async def leave(number: int) -> None:
        call = answer(channel) if number % 2 else embed(channel)
        await asyncio.sleep(chance.random() * 0.02)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call.code() if call.cancelled() else call.result()

    encoder.delay = 0.005
    for _ in range(20):
        await asyncio.gather(*(leave(number) for number in range(20)), return_exceptions=True)
    encoder.delay = 0
    assert (await embed(channel)).dims == 8
    await until(lambda: not services.admission.requests)
    assert services.admission.bytes == 0
    assert [item.getMessage() for item in caplog.records if item.levelno >= logging.WARNING] == []
