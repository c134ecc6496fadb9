"""Streams of requests: order, room, faults, who leaves and when the server ends."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from condensery.api.grpc import streaming
from condensery.api.grpc.condensery_v1 import MESSAGES_AT_ONCE
from condensery.api.grpc.server import start_server
from condensery.auth import Key, KeyScope, hash_key
from condensery.errors import InputError, Overloaded
from condensery.jobs.services import Admission, Services
from condensery.request_context import current_request
from condensery.stubs import tei_v1_pb2 as pb
from condensery.stubs import tei_v1_pb2_grpc as stubs

Until = Callable[[Callable[[], Any]], Awaitable[None]]


@asynccontextmanager
async def serving(services: Services) -> AsyncIterator[tuple[Any, grpc.aio.Channel]]:
    server = await start_server(services, "127.0.0.1", 0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield server, channel
    await server.stop(0)


def embed(channel: grpc.aio.Channel, texts: Iterable[str] | None = None, **how: Any) -> Any:
    """Open a stream; without texts the caller writes."""
    requests = None if texts is None else (pb.EmbedRequest(inputs=text) for text in texts)
    return stubs.EmbedStub(channel).EmbedStream(requests, **how)


async def refused(call: Awaitable[Any]) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def broken_off(call: Any) -> tuple[int, grpc.aio.AioRpcError]:
    """Read a stream until it fails; returns how many replies came before, and the failure."""
    replies = 0
    try:
        while await call.read() is not grpc.aio.EOF:
            replies += 1
    except grpc.aio.AioRpcError as error:
        return replies, error
    raise AssertionError("it did not fail")


@pytest.fixture
def slow(registry: Any) -> Any:
    """An encoder in which a text that begins with a waits for another one, and a while longer."""
    encoder = registry.encoders["words"]
    embed, others = encoder.embed, asyncio.Event()

    async def slowly(texts: Any, **how: Any) -> Any:
        if texts[0] < "b":
            await others.wait()
            await asyncio.sleep(0.2)
        try:
            return await embed(texts, **how)
        finally:
            others.set()

    encoder.embed = slowly
    return encoder


async def test_replies_come_in_the_order_of_the_messages(
    channel: grpc.aio.Channel, services: Services, slow: Any
) -> None:
    texts = ["a slow one", "b", "a slow two", "c", "d"]
    replies = [reply async for reply in embed(channel, texts)]
    assert slow.asked[0][0] == "b", "the slow one held up the others"
    for text, reply in zip(texts, replies, strict=True):
        wanted = await services.registry.encoder().embed([text])
        assert list(reply.embeddings) == wanted.vectors[0].tolist()
        assert reply.metadata.compute_tokens == len(text.split())


async def test_a_callers_streams_take_turns_with_its_single_calls(
    channel: grpc.aio.Channel, registry: Any
) -> None:
    encoder = registry.encoders["words"]
    embed_one, callers = encoder.embed, []

    async def watched(texts: Any, **how: Any) -> Any:
        callers.append(current_request().caller)
        return await embed_one(texts, **how)

    encoder.embed = watched
    assert len([reply async for reply in embed(channel, ["a", "b"])]) == 2
    await stubs.EmbedStub(channel).Embed(pb.EmbedRequest(inputs="a"))
    assert callers == ["127.0.0.1 (streams)", "127.0.0.1 (streams)", "127.0.0.1"]


async def test_each_message_is_timed_by_itself(channel: grpc.aio.Channel, slow: Any) -> None:
    fast, slowly = [reply async for reply in embed(channel, ["b", "a"])]
    assert slowly.metadata.total_time_ns > 0.15e9
    assert slowly.metadata.total_time_ns > fast.metadata.total_time_ns


async def test_an_empty_stream_has_no_replies(channel: grpc.aio.Channel) -> None:
    assert [reply async for reply in embed(channel, [])] == []


async def test_so_many_messages_of_a_stream_are_in_work_at_once(
    channel: grpc.aio.Channel, services: Services, registry: Any, until: Until
) -> None:
    encoder = registry.encoders["words"]
    encoder.delay = 60
    call = embed(channel, (f"text {n}" for n in range(2 * MESSAGES_AT_ONCE)))
    await until(lambda: encoder.waiting == MESSAGES_AT_ONCE)
    await asyncio.sleep(0.2)
    assert encoder.waiting == MESSAGES_AT_ONCE == services.admission.requests
    call.cancel()
    await until(lambda: not encoder.waiting)
    await until(lambda: not services.admission.requests and not services.admission.bytes)


async def test_who_cancels_a_stream_cancels_its_work(
    channel: grpc.aio.Channel, services: Services, registry: Any, until: Until
) -> None:
    encoder = registry.encoders["words"]
    encoder.delay = 60
    call = embed(channel)
    for _ in range(3):
        await call.write(pb.EmbedRequest(inputs="a"))
    await until(lambda: encoder.waiting == 3)
    call.cancel()
    await until(lambda: not encoder.waiting)
    labels = {"model": "words", "task": "embed", "protocol": "grpc", "code": "Cancelled"}
    value = services.metrics.registry.get_sample_value
    await until(lambda: value("condensery_requests_total", labels) == 3)


async def test_a_fault_ends_the_stream_in_its_place(
    channel: grpc.aio.Channel, services: Services, slow: Any, until: Until
) -> None:
    call = embed(channel, ["a", "b", "c " * 20, "d", "a"])
    replies, error = await broken_off(call)
    assert replies == 2, "the number of replies is the place of the fault"
    assert error.code() is StatusCode.INVALID_ARGUMENT
    assert "inputs has 20 tokens" in (error.details() or "")
    await until(lambda: not services.admission.requests)
    assert len([reply async for reply in embed(channel, ["still"])]) == 1


@pytest.mark.parametrize(
    ("bad", "says"),
    [(b"\xff\xff\xff", "malformed"), (b"\x0a" * 25_000, "over the limit of 20000")],
    ids=["malformed", "too large"],
)
async def test_a_message_that_is_none_ends_the_stream_in_its_place(
    channel: grpc.aio.Channel, bad: bytes, says: str
) -> None:
    good = pb.EmbedRequest(inputs="a").SerializeToString()
    call = channel.stream_stream("/tei.v1.Embed/EmbedStream")(iter([good, good, bad, good]))
    replies, error = await broken_off(call)
    assert replies == 2
    assert error.code() is StatusCode.INVALID_ARGUMENT
    assert says in (error.details() or "")


async def test_a_bug_ends_the_stream_as_one(channel: grpc.aio.Channel, registry: Any) -> None:
    registry.encoders["words"].fails = RuntimeError("secret")
    error = await refused(embed(channel, ["a"]).read())
    assert error.code() is StatusCode.INTERNAL
    assert "secret" not in (error.details() or "")


async def test_a_full_queue_is_waited_for(channel: grpc.aio.Channel, registry: Any) -> None:
    encoder = registry.encoders["words"]
    encoder.fails = Overloaded("full", retry_after_seconds=0.05)
    call = embed(channel, ["a", "b"])
    await asyncio.sleep(0.3)
    encoder.fails = None
    assert len([reply async for reply in call]) == 2


async def test_a_full_house_is_waited_for(services: Services, registry: Any, until: Until) -> None:
    small = Admission(2, 20_000, services.metrics)
    async with serving(replace(services, admission=small)) as (_, channel):
        registry.encoders["words"].delay = 0.2
        replies = [reply async for reply in embed(channel, "abcdefgh")]
    assert len(replies) == 8
    assert small.requests == 0


async def test_a_message_is_refused_where_the_server_stays_full(
    services: Services, registry: Any
) -> None:
    hasty = replace(services, limits=replace(services.limits, request_seconds=2.0))
    registry.encoders["words"].fails = Overloaded("full", retry_after_seconds=1.2)
    async with serving(hasty) as (_, channel):
        error = await refused(embed(channel, ["a"]).read())
    assert error.code() is StatusCode.RESOURCE_EXHAUSTED
    assert dict(error.trailing_metadata() or ())["grpc-retry-pushback-ms"] == "1200"


async def test_the_next_message_is_not_waited_for_without_end(services: Services) -> None:
    hasty = replace(services, limits=replace(services.limits, request_seconds=2.0))
    async with serving(hasty) as (_, channel):
        call = embed(channel)
        await call.write(pb.EmbedRequest(inputs="a"))
        assert len((await call.read()).embeddings) == 8
        error = await refused(call.read())
    assert error.code() is StatusCode.DEADLINE_EXCEEDED
    assert "2 s" in (error.details() or "")


async def test_a_stream_may_last_longer_than_a_request(services: Services) -> None:
    hasty = replace(services, limits=replace(services.limits, request_seconds=2.0))
    async with serving(hasty) as (_, channel):
        call = embed(channel)
        for _ in range(5):
            await asyncio.sleep(0.5)
            await call.write(pb.EmbedRequest(inputs="a"))
            assert len((await call.read()).embeddings) == 8
        await call.done_writing()
        assert await call.code() is StatusCode.OK


async def test_a_message_that_takes_too_long_ends_its_stream(
    services: Services, registry: Any, until: Until
) -> None:
    hasty = replace(services, limits=replace(services.limits, request_seconds=0.4))
    registry.encoders["words"].delay = 60
    async with serving(hasty) as (_, channel):
        error = await refused(embed(channel, ["a"]).read())
        assert error.code() is StatusCode.DEADLINE_EXCEEDED
        await until(lambda: not registry.encoders["words"].waiting)


async def test_the_clients_patience_is_the_whole_streams(
    channel: grpc.aio.Channel, registry: Any, until: Until
) -> None:
    call = embed(channel, metadata=(("x-request-timeout-ms", "2000"),))
    await call.write(pb.EmbedRequest(inputs="a"))
    assert len((await call.read()).embeddings) == 8
    error = await refused(call.read())
    assert error.code() is StatusCode.DEADLINE_EXCEEDED
    wrong = embed(channel, ["a"], metadata=(("x-request-timeout-ms", "soon"),))
    assert (await refused(wrong.read())).code() is StatusCode.INVALID_ARGUMENT


async def test_one_stream_too_many_is_refused_at_once(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    init = streaming.OpenStreams.__init__
    monkeypatch.setattr(streaming.OpenStreams, "__init__", lambda self, most: init(self, 2))
    async with serving(services) as (_, channel):
        first, second = embed(channel), embed(channel)
        for call in (first, second):
            await call.write(pb.EmbedRequest(inputs="a"))
            await call.read()
        error = await refused(embed(channel, ["a"]).read())
        assert error.code() is StatusCode.RESOURCE_EXHAUSTED
        await first.done_writing()
        assert await first.code() is StatusCode.OK
        assert len([reply async for reply in embed(channel, ["a"])]) == 1
        second.cancel()


async def test_one_callers_streams_leave_some_for_others(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    init = streaming.OpenStreams.__init__
    monkeypatch.setattr(streaming.OpenStreams, "__init__", lambda self, most: init(self, 4))
    keys = {name: f"{name}-has-a-long-key-of-its-own" for name in ("many", "other")}
    scopes: frozenset[KeyScope] = frozenset({"infer"})
    services.keys.replace(Key(name, scopes, hash_key(key)) for name, key in keys.items())
    many, other = ((("x-api-key", key),) for key in keys.values())
    async with serving(services) as (_, channel):
        calls = [embed(channel, metadata=many) for _ in range(3)]
        for call in calls:
            await call.write(pb.EmbedRequest(inputs="a"))
            await call.read()
        error = await refused(embed(channel, ["a"], metadata=many).read())
        assert error.code() is StatusCode.RESOURCE_EXHAUSTED
        assert "one caller" in (error.details() or "")
        assert len([reply async for reply in embed(channel, ["a"], metadata=other)]) == 1
        await calls[0].done_writing()
        assert await calls[0].code() is StatusCode.OK
        assert len([reply async for reply in embed(channel, ["a"], metadata=many)]) == 1
        for call in calls:
            call.cancel()


async def test_at_the_end_of_the_server_what_has_come_is_answered_and_no_more_read(
    services: Services, registry: Any, until: Until
) -> None:
    registry.encoders["words"].delay = 0.3
    async with serving(services) as (server, channel):
        call = embed(channel)
        await call.write(pb.EmbedRequest(inputs="a"))
        await until(lambda: registry.encoders["words"].waiting)
        stopping = asyncio.create_task(server.stop(60))
        assert len((await call.read()).embeddings) == 8
        error = await refused(call.read())
        assert error.code() is StatusCode.UNAVAILABLE
        await asyncio.wait_for(stopping, 30)


async def test_a_client_that_does_not_read_is_not_read_from(
    services: Services, channel: grpc.aio.Channel, registry: Any, until: Until
) -> None:
    encoder = registry.encoders["words"]

    def endless() -> Any:
        while True:
            yield pb.EmbedAllRequest(inputs="word " * 700, truncate=True)

    call = stubs.EmbedStub(channel).EmbedAllStream(endless())
    await until(lambda: encoder.asked)
    before, looks = 0, 0
    while looks < 2:  # until the connection's buffers are full
        looks = looks + 1 if len(encoder.asked) == before else 0
        before = len(encoder.asked)
        await asyncio.sleep(0.5)
    await until(lambda: services.admission.requests == 16)
    call.cancel()
    await until(lambda: not services.admission.requests)


async def test_a_fault_of_a_later_message_does_not_hide_a_reply(
    channel: grpc.aio.Channel, slow: Any
) -> None:
    embed_one = slow.embed

    async def faulty(texts: Any, **how: Any) -> Any:
        if texts[0] == "z":
            raise InputError("z is not allowed", field="inputs[0]")
        return await embed_one(texts, **how)

    slow.embed = faulty
    call = embed(channel, ["b", "a", "z"])
    for _ in "ba":
        assert len((await call.read()).embeddings) == 8
    error = await refused(call.read())
    assert dict(error.trailing_metadata() or ())["x-field"] == "inputs"
