"""What a caller may send, and how many may come: what is over it is refused by us, by name."""

import asyncio
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import grpc
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from grpc import StatusCode

from condensery.api.grpc.server import CALLS_PER_CONNECTION, SPARE_CALLS, GrpcServer, start_server
from condensery.jobs.services import Admission, Services
from condensery.question import GeneratedToken
from condensery.stubs import condensery_v1_pb2 as pb
from condensery.stubs import condensery_v1_pb2_grpc as stubs

Until = Callable[[Callable[[], Any]], Awaitable[None]]


@pytest.fixture
async def narrow(services: Services) -> AsyncIterator[tuple[Services, grpc.aio.Channel]]:
    """A server with room for two requests, or 10,000 bytes of them."""
    admission = Admission(2, 10_000, services.metrics)
    services = replace(services, admission=admission)
    server = await start_server(services, "127.0.0.1", 0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield services, channel
    await server.stop(0)


def embed(channel: grpc.aio.Channel, text: str = "a", **how: Any) -> Any:
    return stubs.EmbeddingStub(channel).EmbedBatch(pb.EmbedBatchRequest(texts=[text]), **how)


async def refused(call: Awaitable[Any]) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


def trailer(error: grpc.aio.AioRpcError, name: str) -> Any:
    return dict(error.trailing_metadata() or ()).get(name)


def counted(services: Services, code: str, task: str = "embed") -> float:
    labels = {"model": "unknown", "task": task, "protocol": "grpc", "code": code}
    return services.metrics.registry.get_sample_value("condensery_requests_total", labels) or 0.0


async def test_a_full_server_says_when_to_come_back(
    narrow: tuple[Services, grpc.aio.Channel], registry: Any, until: Until
) -> None:
    services, channel = narrow
    encoder = registry.encoders["words"]
    encoder.delay = 60
    inside = [embed(channel) for _ in range(2)]
    await until(lambda: encoder.waiting == 2)
    error = await refused(embed(channel))
    assert error.code() is StatusCode.RESOURCE_EXHAUSTED
    assert trailer(error, "x-error") == "Overloaded"
    assert "max_requests" in (error.details() or "")
    milliseconds = int(trailer(error, "grpc-retry-pushback-ms"))
    assert 100 <= milliseconds <= 60_000
    info = RetryInfo()
    Status.FromString(trailer(error, "grpc-status-details-bin")).details[0].Unpack(info)
    assert info.retry_delay.ToMilliseconds() == milliseconds
    assert counted(services, "Overloaded") == 1
    inside[0].cancel()
    await until(lambda: services.admission.requests == 1)
    encoder.delay = 0
    assert (await embed(channel)).dims == 8
    inside[1].cancel()


async def test_bytes_in_flight_are_bounded_too(
    narrow: tuple[Services, grpc.aio.Channel], registry: Any, until: Until
) -> None:
    services, channel = narrow
    encoder = registry.encoders["words"]
    encoder.delay = 60
    inside = embed(channel, "a" * 3_500)
    await until(lambda: services.admission.bytes > 3_500)
    error = await refused(embed(channel, "a" * 7_000))
    assert error.code() is StatusCode.RESOURCE_EXHAUSTED
    assert "max_inflight_bytes" in (error.details() or "")
    inside.cancel()
    await until(lambda: services.admission.bytes == 0)


async def test_a_stream_holds_its_place_until_it_ends(
    narrow: tuple[Services, grpc.aio.Channel], registry: Any, until: Until
) -> None:
    services, channel = narrow
    go_on = asyncio.Event()

    async def waiting(words: Sequence[str], max_tokens: int) -> AsyncIterator[GeneratedToken]:
        await go_on.wait()
        yield GeneratedToken("word", 1, "stop")

    registry.pairs["pair"]._say = waiting
    request = pb.AnswerRequest(query="why", documents=[pb.Document(text="gold")])
    call = stubs.RagStub(channel).AnswerStream(request)
    events = aiter(call)
    assert (await anext(events)).WhichOneof("event") == "retrieved"
    assert services.admission.requests == 1
    go_on.set()
    assert [event.WhichOneof("event") async for event in events] == ["delta", "final"]
    await until(lambda: services.admission.requests == 0)


async def test_more_calls_than_fit_are_refused_at_once(
    narrow: tuple[Services, grpc.aio.Channel], monkeypatch: pytest.MonkeyPatch, until: Until
) -> None:
    services, _ = narrow
    monkeypatch.setattr("condensery.api.grpc.health.HEALTH_CALLS", 0)
    server = await start_server(services, "127.0.0.1", 0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        # They send no message, so that those who have room keep it; once those over it have been
        # refused, all others have come.
        path = "/condensery.v1.Embedding/EmbedBatch"
        surplus = 2
        silent = [channel.stream_unary(path)() for _ in range(2 + SPARE_CALLS + surplus)]
        await until(lambda: sum(call.done() for call in silent) == surplus)
        assert await embed(channel).code() is StatusCode.RESOURCE_EXHAUSTED
        for call in silent:
            call.cancel()
        # Until the server has heard that they left.
        async with asyncio.timeout(60):
            while await embed(channel).code() is StatusCode.RESOURCE_EXHAUSTED:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert (await embed(channel)).dims == 8
    await server.stop(0)


async def test_a_connection_may_have_so_many_calls_at_once(server: GrpcServer) -> None:
    """gRPC's clients keep to what the server says as a connection begins."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    async with asyncio.timeout(30):
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, b""))
        head = await reader.readexactly(9)
        assert head[3] == 4, "a server begins with its settings"
        payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
    writer.close()
    most_streams = 3
    settings = dict(struct.iter_unpack(">HI", payload))
    assert settings[most_streams] == CALLS_PER_CONNECTION


async def test_a_message_over_the_limit_is_refused_as_that_and_not_for_want_of_room(
    narrow: tuple[Services, grpc.aio.Channel], registry: Any, until: Until
) -> None:
    services, channel = narrow
    registry.encoders["words"].delay = 60
    inside = embed(channel)
    await until(lambda: registry.encoders["words"].waiting)
    error = await refused(embed(channel, "a" * 30_000))
    assert trailer(error, "x-error") == "PayloadTooLarge"
    assert counted(services, "PayloadTooLarge") == 1
    inside.cancel()


async def test_a_small_message_that_unpacks_to_a_huge_one_is_not_unpacked(
    server: GrpcServer,
) -> None:
    packed = grpc.Compression.Gzip
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", compression=packed) as channel:
        assert (await embed(channel, "a" * 3_500)).dims == 8
        error = await refused(embed(channel, "a" * 30_000_000))
        assert error.code() is StatusCode.RESOURCE_EXHAUSTED
        assert trailer(error, "x-error") is None, "it came to us"
        assert (await embed(channel)).dims == 8


async def test_malformed_messages_count_for_no_model(
    channel: grpc.aio.Channel, services: Services
) -> None:
    for method, task in (("Embedding/EmbedBatch", "embed"), ("Rerank/Rerank", "rerank")):
        await refused(channel.unary_unary(f"/condensery.v1.{method}")(b"\xff\xff"))
        assert counted(services, "InputError", task) == 1


async def test_metadata_over_the_limit_is_refused_by_its_size(
    channel: grpc.aio.Channel, services: Services
) -> None:
    most = services.limits.max_header_bytes
    assert (await embed(channel, metadata=(("x-padding", "x" * (most - 1000)),))).dims == 8
    for size in (most, 3 * most):
        error = await refused(embed(channel, metadata=(("x-padding", "x" * size),)))
        assert error.code() is StatusCode.INVALID_ARGUMENT
        assert trailer(error, "x-error") == "HeadersTooLarge"
        assert str(most) in (error.details() or "")
    assert counted(services, "HeadersTooLarge") == 2


async def test_metadata_far_over_the_limit_is_the_transports_to_refuse_and_it_goes_on(
    channel: grpc.aio.Channel, services: Services
) -> None:
    def padded(factor: float) -> Any:
        size = round(factor * services.limits.max_header_bytes)
        return refused(embed(channel, metadata=(("x-padding", "x" * size),)))

    for _ in range(10):  # of two limits that differ, gRPC refuses at random between them
        assert trailer(await padded(3.8), "x-error") == "HeadersTooLarge"
        assert (await padded(4.2)).code() is StatusCode.RESOURCE_EXHAUSTED
    assert (await padded(20)).code() is StatusCode.RESOURCE_EXHAUSTED
    assert (await embed(channel)).dims == 8


def nested(levels: int, *, lists: bool) -> dict[str, Any]:
    value: Any = 1
    for _ in range(levels - 1):
        value = [value] if lists else {"in": value}
    return {"in": value}


@pytest.mark.parametrize("lists", [False, True], ids=["objects", "lists"])
async def test_metadata_that_lies_too_deep_is_refused_by_its_path(
    services: Services, lists: bool
) -> None:
    shallow = replace(services, limits=replace(services.limits, max_json_depth=8))
    server = await start_server(shallow, "127.0.0.1", 0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        rag = stubs.RagStub(channel)

        def answer(levels: int) -> Any:
            document = pb.Document(text="gold")
            document.metadata.update(nested(levels, lists=lists))
            return rag.Answer(pb.AnswerRequest(query="q", documents=[document]))

        # Over the metadata lie the document, the list of documents and the request.
        assert (await answer(5)).citations[0].metadata == nested(5, lists=lists)
        error = await refused(answer(6))
    await server.stop(0)
    assert error.code() is StatusCode.INVALID_ARGUMENT
    path = "in" + ("[0]" * 4 if lists else ".in" * 4)
    assert trailer(error, "x-field") == f"documents[0].metadata.{path}"
    assert "max_json_depth" in (error.details() or "")


async def test_a_message_nested_over_protobufs_own_limit_is_malformed(
    channel: grpc.aio.Channel,
) -> None:
    data = b""
    for _ in range(100):  # a value that is a list of a value that is a list ...
        data = _field(6, _field(1, data))
    data = _field(3, _field(3, _field(1, _field(1, b"k") + _field(2, data))))
    error = await refused(channel.unary_unary("/condensery.v1.Rag/Answer")(data))
    assert error.code() is StatusCode.INVALID_ARGUMENT
    assert "nested too deep" in (error.details() or "")


async def test_too_many_documents_are_counted_before_they_are_read(
    channel: grpc.aio.Channel, services: Services
) -> None:
    first = pb.Document(id="a")
    first.metadata["x"] = float("nan")  # what reading them would stumble over
    limits = services.limits
    await stubs.IndexStub(channel).Create(pb.CreateIndexRequest(name="kb"))
    writing = [first, *(pb.Document() for _ in range(limits.max_items))]
    reading = [first, *(pb.Document() for _ in range(limits.max_answer_documents))]
    for call in (
        stubs.IndexStub(channel).Upsert(pb.UpsertRequest(index="kb", documents=writing)),
        stubs.RagStub(channel).Answer(pb.AnswerRequest(query="q", documents=reading)),
    ):
        error = await refused(call)
        assert trailer(error, "x-error") == "PayloadTooLarge"
        assert trailer(error, "x-field") == "documents"


@pytest.mark.parametrize("te", [True, False], ids=["with te", "without"])
async def test_a_call_such_as_a_web_page_can_send_is_not_served(
    server: GrpcServer, registry: Any, te: bool
) -> None:
    """Browsers let no page set ``te``; all else of a call a page of any origin can send."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":authority": "localhost",
        ":path": "/condensery.v1.Embedding/EmbedBatch",
        "content-type": "text/plain",
        "origin": "http://evil.example",
    }
    fields |= {"te": "trailers"} if te else {}
    packed = b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in fields.items()
    )
    message = pb.EmbedBatchRequest(texts=["a"]).SerializeToString()
    body = b"\0" + len(message).to_bytes(4, "big") + message
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, b""))
    writer.write(_frame(1, packed, 4, 1) + _frame(0, body, 1, 1))
    ended = False  # the call, by its trailers or a reset
    async with asyncio.timeout(30):
        while not ended:
            head = await reader.readexactly(9)
            await reader.readexactly(int.from_bytes(head[:3], "big"))
            stream = int.from_bytes(head[5:], "big")
            ended = stream == 1 and (head[3] == 3 or (head[3] == 1 and bool(head[4] & 1)))
    writer.close()
    assert len(registry.encoders["words"].asked) == te


@pytest.mark.parametrize(("pause", "cut"), [(0.0, True), (0.3, False)], ids=["often", "seldom"])
async def test_a_client_that_pings_too_often_is_cut_off(
    services: Services, monkeypatch: pytest.MonkeyPatch, pause: float, cut: bool
) -> None:
    monkeypatch.setattr("condensery.api.grpc.server.MIN_PING_SECONDS", 0.2)
    server = await start_server(services, "127.0.0.1", 0)
    end = await asyncio.to_thread(ping, server.port, 8, pause, 30 if cut else 1)
    await server.stop(0)
    enhance_your_calm = 11
    assert end == (enhance_your_calm if cut else None)


async def test_a_connection_without_a_call_is_ended_and_one_with_a_call_is_not(
    services: Services, monkeypatch: pytest.MonkeyPatch, registry: Any, until: Until
) -> None:
    monkeypatch.setattr("condensery.api.grpc.server.IDLE_SECONDS", 1.0)
    server = await start_server(services, "127.0.0.1", 0)
    encoder = registry.encoders["words"]
    encoder.delay = 3
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        call = embed(channel)
        await until(lambda: encoder.waiting)
        ended = asyncio.to_thread(ping, server.port, 1, 0.0, patience=30)
        assert await ended is not None, "it was given up"
        assert (await call).dims == 8
    await server.stop(0)


def ping(port: int, times: int, pause: float, patience: float = 1) -> int | None:
    """Speak HTTP/2, and nothing but pings; returns the code of the GOAWAY that ends it, if any.

    Where there is a pause, it is between a ping's being answered and the next one, so that they
    are never closer when they are read, however late that is.
    """
    received = b""
    with socket.create_connection(("127.0.0.1", port), patience) as connection:
        with suppress(OSError):
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, b""))
            if not pause:
                connection.sendall(_frame(6, b"12345678") * times)
            for done in range(times if pause else 0):
                connection.sendall(_frame(6, b"12345678"))
                connection.settimeout(30)
                while received.count(b"12345678") <= done and (chunk := connection.recv(65536)):
                    received += chunk
                time.sleep(pause)
            connection.settimeout(patience)
        with suppress(OSError):
            while chunk := connection.recv(65536):
                received += chunk
    while received:
        size = int.from_bytes(received[:3], "big")
        kind, payload = received[3], received[9 : 9 + size]
        received = received[9 + size :]
        if kind == 7:
            return int(struct.unpack(">I", payload[4:8])[0])
    return None


def _frame(kind: int, payload: bytes, flags: int = 0, stream: int = 0) -> bytes:
    head = len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big")
    return head + payload


def _field(number: int, payload: bytes) -> bytes:
    """Write a length-delimited field."""
    size, left = b"", len(payload)
    while left > 127:
        size, left = size + bytes([left & 127 | 128]), left >> 7
    return bytes([number << 3 | 2]) + size + bytes([left]) + payload
