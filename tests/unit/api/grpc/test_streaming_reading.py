"""How long a call's message may take to come, and how many may be read at once."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import grpc
import pytest
from grpc import StatusCode
from grpc_health.v1 import health_pb2, health_pb2_grpc

from condensery.api.grpc import health, streaming
from condensery.api.grpc.server import GrpcServer, start_server
from condensery.api.grpc.streaming import MIN_READERS, READ_FACTOR, MessageReaders
from condensery.auth import Key, KeyScope, hash_key
from condensery.jobs.services import Services
from condensery.stubs import condensery_v1_pb2 as pb
from condensery.stubs import condensery_v1_pb2_grpc as stubs

EMBED = "/condensery.v1.Embedding/EmbedBatch"
STREAM = "/condensery.v1.Rag/AnswerStream"
SCOPES: frozenset[KeyScope] = frozenset({"infer"})

Until = Callable[[Callable[[], Any]], Awaitable[None]]


async def nothing() -> AsyncIterator[bytes]:
    """Keep the call open, and send no message."""
    await asyncio.Event().wait()
    yield b""


def embed(channel: grpc.aio.Channel) -> Any:
    return stubs.EmbeddingStub(channel).EmbedBatch(pb.EmbedBatchRequest(texts=["a"]))


def silent(channel: grpc.aio.Channel, path: str = EMBED) -> Any:
    return channel.stream_unary(path)(nothing())


async def refused(call: Any) -> tuple[StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


@pytest.fixture
def readers() -> list[MessageReaders]:
    """Those of the server that reads one message at a time."""
    return []


@pytest.fixture
async def one_reader(
    services: Services, monkeypatch: pytest.MonkeyPatch, readers: list[MessageReaders]
) -> AsyncIterator[grpc.aio.Channel]:
    """A server that reads one message at a time."""

    def make(*args: Any, **options: Any) -> MessageReaders:
        readers.append(MessageReaders(*args, **options))
        return readers[-1]

    monkeypatch.setattr(streaming, "READ_FACTOR", 0)
    monkeypatch.setattr(streaming, "MIN_READERS", 1)
    monkeypatch.setattr("condensery.api.grpc.server.MessageReaders", make)
    server: GrpcServer = await start_server(services, "127.0.0.1", 0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield channel
    await server.stop(0)


@pytest.mark.parametrize("path", [EMBED, STREAM, *health.HEALTH_PATHS])
async def test_a_message_that_does_not_come_is_given_up(
    services: Services, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(streaming, "READ_SECONDS", 0.2)
    monkeypatch.setattr(streaming, "HEALTH_READ_SECONDS", 0.2)
    server = await start_server(services, "127.0.0.1", 0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        code, details = await asyncio.wait_for(refused(silent(channel, path)), 30)
    await server.stop(0)
    assert code is StatusCode.DEADLINE_EXCEEDED
    assert details == "The message did not come within 0.2 s."


async def test_health_is_told_though_others_are_being_read(
    one_reader: grpc.aio.Channel, readers: list[MessageReaders], until: Until
) -> None:
    first = silent(one_reader)
    await until(readers[0]._turns.locked)
    check = health_pb2_grpc.HealthStub(one_reader).Check
    status = await check(health_pb2.HealthCheckRequest(), timeout=20)
    assert status.status == health_pb2.HealthCheckResponse.SERVING
    first.cancel()


async def test_who_has_less_time_is_told_so_then(channel: grpc.aio.Channel) -> None:
    call = channel.stream_unary(EMBED)(nothing(), metadata=(("x-request-timeout-ms", "100"),))
    code, details = await asyncio.wait_for(refused(call), 20)
    assert code is StatusCode.DEADLINE_EXCEEDED
    assert "before work on it had begun" in details


async def test_a_call_that_ends_without_a_message_is_refused(channel: grpc.aio.Channel) -> None:
    def none() -> Iterator[bytes]:
        return iter(())

    code, details = await refused(channel.stream_unary(EMBED)(none()))
    assert (code, details) == (StatusCode.INVALID_ARGUMENT, "The call ended without a message.")


async def test_messages_are_read_so_many_at_a_time(
    one_reader: grpc.aio.Channel, readers: list[MessageReaders], until: Until
) -> None:
    first = silent(one_reader)
    await until(readers[0]._turns.locked)
    second = asyncio.ensure_future(embed(one_reader))
    done, _ = await asyncio.wait({second}, timeout=0.5)
    assert not done, "it was read beside the first"
    first.cancel()
    assert (await asyncio.wait_for(second, 20)).dims == 8, "the first one's turn is not over"


class Counting(MessageReaders):
    """Counts the calls that have come to be read."""

    calls = 0

    async def read(self, context: Any) -> bytes:
        self.calls += 1
        return await super().read(context)


@pytest.fixture
async def eight_readers(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Callable[[], grpc.aio.Channel], Counting]]:
    """What connects to a server that reads eight messages at a time and waits long for each."""
    readers: list[Counting] = []

    def make(*args: Any, **options: Any) -> MessageReaders:
        readers.append(Counting(*args, **options))
        return readers[-1]

    monkeypatch.setattr(streaming, "READ_FACTOR", 0)
    monkeypatch.setattr(streaming, "MIN_READERS", 8)
    monkeypatch.setattr(streaming, "READ_SECONDS", 600.0)
    monkeypatch.setattr("condensery.api.grpc.server.MessageReaders", make)
    server: GrpcServer = await start_server(services, "127.0.0.1", 0)
    channels: list[grpc.aio.Channel] = []

    def connect() -> grpc.aio.Channel:
        options = [("grpc.use_local_subchannel_pool", 1)]  # else they would share a connection
        channels.append(grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options=options))
        return channels[-1]

    yield connect, readers[0]
    for channel in channels:
        await channel.close()
    await server.stop(0)


async def test_who_sends_nothing_on_one_connection_holds_up_no_other_connection(
    eight_readers: tuple[Callable[[], grpc.aio.Channel], Counting], until: Until
) -> None:
    connect, readers = eight_readers
    connection = connect()
    calls = [silent(connection) for _ in range(20)]
    await until(lambda: readers.calls == 20)
    own = asyncio.ensure_future(embed(connection))
    await until(lambda: readers.calls == 21)
    assert (await asyncio.wait_for(embed(connect()), 30)).dims == 8
    assert not own.done(), "one connection has all turns"
    for call in calls:
        call.cancel()
    assert (await asyncio.wait_for(own, 30)).dims == 8


async def test_who_sends_nothing_on_many_connections_holds_up_no_other_caller(
    eight_readers: tuple[Callable[[], grpc.aio.Channel], Counting],
    services: Services,
    until: Until,
) -> None:
    connect, readers = eight_readers
    keys = {name: f"{name}-has-a-long-key-of-its-own" for name in ("silent", "other")}
    services.keys.replace(Key(name, SCOPES, hash_key(key)) for name, key in keys.items())
    asked = pb.EmbedBatchRequest(texts=["a"])

    def bearing(name: str) -> tuple[tuple[str, str], ...]:
        return (("x-api-key", keys[name]),)

    calls = [
        connect().stream_unary(EMBED)(nothing(), metadata=bearing("silent")) for _ in range(20)
    ]
    await until(lambda: readers.calls == 20)
    own = stubs.EmbeddingStub(connect()).EmbedBatch(asked, metadata=bearing("silent"))
    other = stubs.EmbeddingStub(connect()).EmbedBatch(asked, metadata=bearing("other"))
    assert (await asyncio.wait_for(other, 30)).dims == 8
    assert not own.done(), "one caller has all turns"
    for call in calls:
        call.cancel()
    assert (await asyncio.wait_for(own, 30)).dims == 8


async def test_being_served_takes_no_turn_of_reading(
    one_reader: grpc.aio.Channel, registry: Any, until: Until
) -> None:
    encoder = registry.encoders["words"]
    encoder.delay = 60
    calls = [embed(one_reader) for _ in range(3)]
    await until(lambda: encoder.waiting == 3)
    for call in calls:
        call.cancel()


def test_larger_messages_are_read_fewer_at_a_time() -> None:
    assert MessageReaders(2**26, 2**20, 1).limit == 2**6 * READ_FACTOR
    assert MessageReaders(2**26, 2**24, 1).limit == 2**2 * READ_FACTOR
    assert MessageReaders(2**26, 2**31, 1).limit == MIN_READERS
