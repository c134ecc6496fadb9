"""TLS connections count from when they are accepted, and have so long to shake hands."""

import asyncio
import contextlib
import socket
import ssl
import time

import pytest
import trustme
import uvloop
from tests.unit.api.rest.wire import LIVEZ, connected, post, read_reply, until

from condensery.api.ports import Tls
from condensery.api.rest import connections, http

AUTHORITY = trustme.CA()


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request):
    """Both event loops that the server may run in shake hands by code of their own."""

    def running(test):
        async def in_time():
            async with asyncio.timeout(60):
                await test()

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(in_time())

    return running


@pytest.fixture
def tls(tmp_path):
    issued = AUTHORITY.issue_cert("127.0.0.1")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    key.write_bytes(issued.private_key_pem.bytes())
    return Tls(cert, key)


@contextlib.asynccontextmanager
async def secured(port):
    context = ssl.create_default_context()
    AUTHORITY.configure_trust(context)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def open_ones(services):
    return services.metrics.registry.get_sample_value("condensery_connections")


async def ended(reader):
    with contextlib.suppress(OSError):
        assert await reader.read() == b""


def test_silent_handshakes_are_as_few_as_connections_may_be(run, serve, services, tls, monkeypatch):
    async def test():
        monkeypatch.setattr(connections, "SPARE_CONNECTIONS", 1)
        async with serve(tls=tls, max_connections=2) as port:
            async with contextlib.AsyncExitStack() as stack:
                silent = [await stack.enter_async_context(connected(port)) for _ in range(30)]
                await asyncio.gather(*(ended(reader) for reader, _ in silent[3:]))
                assert open_ones(services) == 3
                refused = services.metrics.rejected.labels("connections")._value.get()
                assert refused == 27
                assert not any(reader.at_eof() for reader, _ in silent[:3])
            await until(lambda: open_ones(services) == 0)
            async with secured(port) as (reader, writer):
                writer.write(post("/embed"))
                assert (await read_reply(reader))[0] == 200
                assert open_ones(services) == 1
            await until(lambda: open_ones(services) == 0)

    run(test)


def test_who_is_one_too_many_beside_silent_ones_is_told_so(run, serve, tls):
    async def test():
        async with (
            serve(tls=tls, max_connections=1) as port,
            connected(port),
            secured(port) as (reader, writer),
        ):
            writer.write(post("/embed"))
            status, _, body = await read_reply(reader)
            assert status == 429
            assert "max_connections" in body["error"]

    run(test)


def test_who_does_not_hear_of_a_connections_end_holds_no_place(
    run, serve, services, tls, monkeypatch
):
    """Its place is free soon after the server has ended it, not when it says so."""

    def shake(port):
        context = ssl.create_default_context()
        AUTHORITY.configure_trust(context)
        plain = socket.create_connection(("127.0.0.1", port))
        return context.wrap_socket(plain, server_hostname="127.0.0.1")  # and reads nothing more

    async def test():
        monkeypatch.setattr(http, "TLS_CLOSE_SECONDS", 0.1)
        monkeypatch.setattr(connections.BoundedProtocol, "head_seconds", 0.1)
        async with serve(tls=tls) as port:
            held = await asyncio.to_thread(shake, port)
            with held:
                began = time.monotonic()
                await until(lambda: open_ones(services) == 0)
                assert time.monotonic() - began < 20  # it would be 30 by itself

    run(test)


def test_a_handshake_has_its_time_and_what_is_none_ends_at_once(
    run, serve, services, tls, monkeypatch
):
    async def test():
        async with serve(tls=tls) as port:
            async with connected(port) as (reader, writer):
                writer.write(LIVEZ)  # plain HTTP
                await writer.drain()
                with contextlib.suppress(OSError):
                    await reader.read()
                await until(lambda: open_ones(services) == 0)
            monkeypatch.setattr(http, "HANDSHAKE_SECONDS", 0.3)
            async with connected(port) as (reader, _):
                await ended(reader)
                await until(lambda: open_ones(services) == 0)
            monkeypatch.setattr(http, "HANDSHAKE_SECONDS", 10.0)
            async with secured(port) as (reader, writer):
                writer.write(post("/embed"))
                assert (await read_reply(reader))[0] == 200

    run(test)


def test_a_server_that_ends_does_not_wait_for_handshakes(run, serve, tls, monkeypatch):
    monkeypatch.setattr(http, "HANDSHAKE_SECONDS", 600.0)

    async def test():
        async with contextlib.AsyncExitStack() as stack:
            async with serve(tls=tls) as port:
                reader, _ = await stack.enter_async_context(connected(port))
                async with secured(port) as (heard, writer):
                    writer.write(LIVEZ)
                    assert (await read_reply(heard))[0] == 200
            await ended(reader)

    run(test)
