"""Clients that dawdle, take nothing, or hang up, against a real server in this loop."""

import asyncio
import contextlib
import json
import socket
import time

import numpy as np
import pytest
import uvicorn
from tests.unit.api.rest.wire import EMBED, LIVEZ, asked, connected, post, read_reply, stingy, until
from uvicorn.server import ServerState

from condensery.api.rest import middleware
from condensery.api.rest.app import build_app
from condensery.api.rest.connections import BoundedProtocol, ConnectionBounds, make_protocol
from condensery.api.rest.http import RestServer
from condensery.values import Embedded


@pytest.mark.parametrize("first", [b"", b"GET /livez HT", b"\r\n", LIVEZ + b"GET /li"], ids=repr)
async def test_a_head_that_never_ends_ends_the_connection(server, quick, first):
    started = time.monotonic()
    async with asyncio.timeout(60), connected(server) as (reader, writer):
        writer.write(first)

        async def trickle():
            while True:
                await asyncio.sleep(0.05)
                writer.write(b"\r\n" if first == b"\r\n" else b"a" if first else b"")

        task = asyncio.create_task(trickle())
        rest = b""
        with contextlib.suppress(ConnectionError):  # what it had not read of us
            while data := await reader.read(1000):
                rest += data
        task.cancel()
    assert rest.count(b"HTTP/1.1 200") == first.count(b"\r\n\r\n")
    assert 0.25 < time.monotonic() - started < 30


async def test_a_slow_reply_is_not_cut_though_the_next_request_has_begun(
    server, monkeypatch, registry
):
    overdue, times = BoundedProtocol._on_read_timeout, []
    begun, go_on = asyncio.Event(), asyncio.Event()
    embed = registry.encoders["words"].embed

    def counted(self):
        times.append(self.head_seconds)
        overdue(self)

    async def slow(texts, **options):
        begun.set()
        await go_on.wait()
        return await embed(texts, **options)

    monkeypatch.setattr(BoundedProtocol, "_on_read_timeout", counted)
    registry.encoders["words"].embed = slow
    async with asyncio.timeout(60), connected(server) as (reader, writer):
        writer.write(post("/embed"))
        await begun.wait()
        monkeypatch.setattr(BoundedProtocol, "head_seconds", 0.05)
        writer.write(b"GET /livez HTTP/1.1\r\n")
        await until(lambda: len(times) > 2)
        monkeypatch.setattr(BoundedProtocol, "head_seconds", 60)
        await until(lambda: times[-1] == 60)
        go_on.set()
        assert (await read_reply(reader))[0] == 200
        writer.write(b"host: localhost\r\n\r\n")
        assert (await read_reply(reader))[0] == 200


async def test_a_connection_that_is_kept_is_not_ended_by_the_time_of_a_head(server, quick):
    async with asyncio.timeout(60), connected(server) as (reader, writer):
        for _ in range(3):
            writer.write(LIVEZ)
            assert (await read_reply(reader))[0] == 200
            await asyncio.sleep(0.4)


async def test_the_rest_of_a_refused_body_is_not_waited_for_long(server, quick):
    async with asyncio.timeout(60), connected(server) as (reader, writer):
        started = time.monotonic()
        writer.write(b"PATCH /embed HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n")
        assert (await read_reply(reader))[0] == 405

        async def dribble():
            while True:
                await asyncio.sleep(0.05)
                writer.write(b"a")

        task = asyncio.create_task(dribble())
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        task.cancel()
    assert 0.2 < time.monotonic() - started < 30


async def test_heads_without_bodies_keep_others_out_for_a_while_only(server, services, monkeypatch):
    monkeypatch.setattr(middleware, "BODY_PIECE_SECONDS", 0.3)
    services.admission.max_bytes = 4000
    head = b"POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n"
    async with asyncio.timeout(60), contextlib.AsyncExitStack() as stack:
        silent = [await stack.enter_async_context(connected(server)) for _ in range(4)]
        for _, writer in silent:
            writer.write(head)
        await until(lambda: services.admission.bytes == 4000)
        assert (await asked(server, post("/embed")))[0] == 429
        for reader, _ in silent:
            status, _, body = await read_reply(reader)
            assert (status, "body: " in body["error"]) == (408, True)
        assert (services.admission.requests, services.admission.bytes) == (0, 0)
        assert (await asked(server, post("/embed")))[0] == 200
        # The rest may still come: the connection is as good as before.
        reader, writer = silent[0]
        writer.write(b"a" * 1000 + post("/embed"))
        assert (await read_reply(reader))[0] == 200


@pytest.fixture
def big(registry):
    """Let a reply have 8 MB."""

    async def embed(texts, **options):
        return Embedded("words", "f", np.ones((50, 40_000), np.float32), tokens=1)

    registry.encoders["words"].embed = embed


async def test_a_client_that_takes_nothing_is_dropped_and_its_place_is_free(
    server, quick, services, big
):
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(60):
        with stingy() as sock:
            started = time.monotonic()
            await loop.sock_connect(sock, ("127.0.0.1", server))
            await loop.sock_sendall(sock, post("/embed", b'{"inputs": ["a"]}'))
            await until(lambda: services.admission.requests)
            await until(lambda: not services.admission.requests)
            assert time.monotonic() - started > 0.2


class Slow(asyncio.Transport):
    """A transport whose client takes a little at a time, then nothing."""

    def __init__(self, sizes):
        super().__init__()
        self.sizes = sizes
        self.aborted = asyncio.Event()

    def get_write_buffer_size(self):
        return self.sizes.pop(0) if len(self.sizes) > 1 else self.sizes[0]

    def abort(self):
        self.aborted.set()


async def test_a_client_is_dropped_only_once_it_takes_nothing_at_all(monkeypatch, services):
    monkeypatch.setattr(BoundedProtocol, "take_seconds", 0.05)
    family = build_app(services).family_of
    made = make_protocol(family, ConnectionBounds(), services.metrics)
    config = uvicorn.Config(
        build_app(services), http=made, lifespan="off", ws="none", log_config=None
    )
    protocol = made(config=config, server_state=ServerState(), app_state={})
    transport = Slow([50, 40, 30, 20, 20])
    protocol.connection_made(transport)
    protocol.pause_writing()
    await asyncio.sleep(0.12)
    assert not transport.aborted.is_set()
    await asyncio.wait_for(transport.aborted.wait(), 30)
    protocol.connection_lost(ConnectionAbortedError())


async def test_a_slow_client_that_takes_something_is_served_to_the_end(server, monkeypatch, big):
    monkeypatch.setattr(BoundedProtocol, "take_seconds", 3.0)
    loop = asyncio.get_running_loop()
    started, left = time.monotonic(), 8_000_000
    async with asyncio.timeout(60):
        with stingy() as sock:
            await loop.sock_connect(sock, ("127.0.0.1", server))
            await loop.sock_sendall(sock, post("/embed", b'{"inputs": ["a"]}'))
            while left > 0:
                data = await loop.sock_recv(sock, 100_000)
                assert data, f"{left} bytes are missing"
                left -= len(data)
                await asyncio.sleep(0.05)
    assert time.monotonic() - started > 3.5


@pytest.mark.parametrize("path", ["/embed", "/v1/indexes/kb/query"])
async def test_a_client_that_hangs_up_is_dropped_from_the_queue(server, registry, services, path):
    await asked(server, b"PUT" + post("/v1/indexes/kb", b"{}")[4:])
    encoder = registry.encoders["words"]
    encoder.delay = 60
    body = EMBED if path == "/embed" else b'{"query": "a"}'
    async with asyncio.timeout(60):
        async with connected(server) as (_, writer):
            writer.write(post(path, body))
            await until(lambda: encoder.waiting)
        await until(lambda: not encoder.waiting and not services.admission.requests)


async def test_a_client_that_hangs_up_amid_its_answer_stops_the_generator(server, registry):
    reader_of_passages = registry.pairs["pair"]
    say = reader_of_passages._say

    async def slow(words, most):
        async for token in say(words, most):
            yield token
            await asyncio.sleep(60)

    reader_of_passages._say = slow
    body = b'{"query": "q", "documents": ["gold"], "stream": true}'
    async with asyncio.timeout(60):
        async with connected(server) as (reader, writer):
            writer.write(post("/v1/rag/answer", body))
            await reader.readuntil(b"event: message")
            assert reader_of_passages.closed == 0
        await until(lambda: reader_of_passages.closed)


async def test_who_comes_after_the_last_call_reads_why_and_the_connection_ends(server, services):
    services.health.drain()
    services.health.refusing = True
    late = post("/embed", b'{"inputs": "' + b"a" * 15_000 + b'"}')
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(60):
        with stingy() as sock:
            await loop.sock_connect(sock, ("127.0.0.1", server))
            # Who is cut off while they send never read why: what has come by then is lost.
            for piece in (late[:200], late[200:8000], late[8000:]):
                await loop.sock_sendall(sock, piece)
                await asyncio.sleep(0.05)
            reply = b""
            while data := await loop.sock_recv(sock, 10_000):
                reply += data
    head, _, body = reply.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"connection: close" in head
    assert json.loads(body)["error_type"] == "Unhealthy"


async def test_when_the_grace_is_over_callers_who_still_wait_get_an_error(services, registry):
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    rest = RestServer(services, listener)
    await rest.started()
    encoder = registry.encoders["words"]
    encoder.delay = 60
    async with (
        asyncio.timeout(60),
        connected(listener.getsockname()[1]) as (reader, writer),
    ):
        writer.write(post("/embed"))
        await until(lambda: encoder.waiting)
        await rest.stop(0)
        status, _, body = await read_reply(reader)
        assert (status, body["error_type"]) == (503, "Unhealthy")
