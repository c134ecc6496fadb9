"""How many connections there may be, and whom the server takes to be at their other end."""

import asyncio
import contextlib
import socket

import pytest
from tests.unit.api.rest.wire import LIVEZ, connected, post, read_reply, until

from condensery.api.rest import connections, http
from condensery.request_context import current_request


def count(services, name, **labels):
    return services.metrics.registry.get_sample_value(f"condensery_{name}", labels)


async def test_one_connection_too_many_is_refused_and_ended(serve, services):
    async with asyncio.timeout(20), serve(max_connections=2) as port:
        async with connected(port) as (reader, writer), connected(port) as second:
            for incoming, outgoing in ((reader, writer), second):
                outgoing.write(post("/embed"))
                assert (await read_reply(incoming))[0] == 200
            async with connected(port) as (late, asking):
                asking.write(post("/embed", x_request_id="mine-7"))
                status, headers, body = await read_reply(late)
                assert (status, headers["retry-after"]) == (429, "1")
                assert headers["x-request-id"] == "mine-7"
                assert body["error"].endswith("over the limit of 2 (max_connections).")
                assert await late.read() == b""
            assert count(services, "rejected_total", reason="connections") == 1
            writer.write(post("/embed"))
            assert (await read_reply(reader))[0] == 200, "one who was there before was disturbed"
            await until(lambda: count(services, "connections") == 2)
        await until(lambda: count(services, "connections") == 0)
        async with connected(port) as (reader, writer):
            writer.write(post("/embed"))
            assert (await read_reply(reader))[0] == 200


async def test_a_probe_is_answered_even_where_connections_are_too_many(serve):
    async with (
        asyncio.timeout(20),
        serve(max_connections=1) as port,
        connected(port),
        connected(port) as (reader, writer),
    ):
        writer.write(LIVEZ)
        status, headers, _ = await read_reply(reader)
        assert (status, headers["connection"]) == (200, "close")
        assert await reader.read() == b""


async def test_far_too_many_connections_are_ended_unheard(serve, services, monkeypatch):
    monkeypatch.setattr(connections, "SPARE_CONNECTIONS", 1)
    async with (
        asyncio.timeout(20),
        serve(max_connections=1) as port,
        connected(port) as (reader, writer),
        connected(port),
        connected(port) as (unheard, _),
    ):
        with contextlib.suppress(ConnectionError):
            assert await unheard.read() == b""
        writer.write(LIVEZ)
        assert (await read_reply(reader))[0] == 200
        assert count(services, "rejected_total", reason="connections") == 2


@pytest.mark.parametrize(("most", "roomy"), [(4096, 1), (2, 1000)])
async def test_a_connection_that_is_kept_and_idle_is_ended(serve, monkeypatch, most, roomy):
    """After long, or soon where over half of the connections are open."""
    monkeypatch.setattr(http, "IDLE_SECONDS", 1)
    monkeypatch.setattr(connections, "ROOMY_IDLE_SECONDS", roomy)
    async with (
        asyncio.timeout(20),
        serve(max_connections=most) as port,
        connected(port) as (reader, writer),
        connected(port),
    ):
        writer.write(LIVEZ)
        assert (await read_reply(reader))[0] == 200
        assert await reader.read() == b""


async def test_a_kept_connection_stays_while_there_is_room(serve, monkeypatch):
    looks = []
    monkeypatch.setattr(http, "IDLE_SECONDS", 0.05)
    monkeypatch.setattr(connections, "has_arrived", looks.append)
    async with asyncio.timeout(20), serve() as port, connected(port) as (reader, writer):
        for _ in range(2):
            writer.write(LIVEZ)
            assert (await read_reply(reader))[0] == 200
            looks.clear()
            await until(lambda: len(looks) > 3)


async def test_a_kept_connection_whose_next_request_has_arrived_is_not_ended(serve, monkeypatch):
    """A loop that is late runs its timers before it reads; what lies unread would be reset."""
    looks = []

    def arrived(sock: socket.socket) -> bool:
        looks.append(sock)
        return len(looks) == 1

    monkeypatch.setattr(http, "IDLE_SECONDS", 1)
    monkeypatch.setattr(connections, "ROOMY_IDLE_SECONDS", 1)
    monkeypatch.setattr(connections, "has_arrived", arrived)
    async with asyncio.timeout(20), serve() as port, connected(port) as (reader, writer):
        writer.write(LIVEZ)
        assert (await read_reply(reader))[0] == 200
        await until(lambda: looks)  # its time is over, and something has come
        writer.write(LIVEZ)
        assert (await read_reply(reader))[0] == 200
        assert await reader.read() == b"", "nothing has come, so it is ended"
        assert len(looks) >= 2


@pytest.mark.parametrize(
    ("trusted", "forwarded", "caller"),
    [
        (None, "203.0.113.9", "127.0.0.1"),
        ("10.0.0.0/8", "203.0.113.9", "127.0.0.1"),
        ("127.0.0.1", "203.0.113.9", "203.0.113.9"),
        ("127.0.0.0/8, 10.0.0.0/8", "198.51.100.1, 203.0.113.9, 10.1.2.3", "203.0.113.9"),
        ("127.0.0.1", "", "127.0.0.1"),
    ],
)
async def test_only_a_trusted_proxy_says_who_asks(serve, registry, trusted, forwarded, caller):
    """A local client that names another each time would else take many callers' turns."""
    seen = []
    embed = registry.encoders["words"].embed

    async def noting(texts, **options):
        seen.append(current_request().caller)
        return await embed(texts, **options)

    registry.encoders["words"].embed = noting
    async with (
        asyncio.timeout(20),
        serve(trusted_proxies=trusted) as port,
        connected(port) as (reader, writer),
    ):
        writer.write(post("/embed", x_forwarded_for=forwarded))
        assert (await read_reply(reader))[0] == 200
    assert seen == [caller]
