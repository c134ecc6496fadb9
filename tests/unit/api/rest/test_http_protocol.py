"""What comes over a connection that no good client sends, against a real server in this loop."""

import asyncio
import json
import logging
import socket

import pytest
import uvicorn
from tests.unit.api.rest.wire import LIVEZ, asked, connected, post, read_reply
from uvicorn.server import ServerState

from condensery.api.rest.connections import ConnectionBounds, make_protocol
from condensery.metrics import Metrics

MANY = b"".join(b"x-h%d: %s\r\n" % (place, b"v" * 100) for place in range(400))


@pytest.mark.parametrize(
    "pieces",
    [
        [b"GET /livez HTTP/1.1\r\nhost: localhost\r\nx-long: " + b"a" * 20_000 + b"\r\n\r\n"],
        [b"GET /livez HTTP/1.1\r\nhost: localhost\r\n" + MANY + b"\r\n"],
        [b"GET /livez?" + b"a" * 20_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n"],
        # Neither of these ever ends.
        [b"GET /livez HTTP/1.1\r\nhost: localhost\r\nx-long: ", *[b"a" * 3000] * 7],
        [b"GET /livez HTTP/1.1\r\nhost: localhost\r\nx-" + b"a" * 3000, *[b"a" * 3000] * 7],
        [b"GET /livez?", *[b"a" * 3000] * 7],
        # Much more than the kernel holds.
        [b"GET /livez HTTP/1.1\r\nhost: localhost\r\nx-long: " + b"a" * 4_000_000],
    ],
    ids=["one", "many", "target", "endless value", "endless name", "endless target", "4 MB"],
)
async def test_a_head_over_the_limit_is_refused_and_the_connection_ended(server, pieces):
    status, headers, body, ended = await asked(server, *pieces)
    assert status == 431
    assert body["error"]["code"] == "headers_too_large"
    assert "16384" in body["error"]["message"]
    assert len(headers["x-request-id"]) == 32
    assert ended


async def test_a_head_within_the_limit_is_served_however_it_is_cut(server):
    head = b"GET /livez HTTP/1.1\r\nhost: localhost\r\nx-long: " + b"a" * 15_000 + b"\r\n\r\n"
    pieces = [head[start : start + 1000] for start in range(0, len(head), 1000)]
    status, _, _, ended = await asked(server, *pieces)
    assert (status, ended) == (200, False)


class Wire(asyncio.Transport):
    """A connection that notes whether it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.read = True

    def get_extra_info(self, name, default=None):
        return default

    def is_closing(self):
        return False

    def pause_reading(self):
        self.read = False

    def resume_reading(self):
        self.read = True

    def set_protocol(self, protocol):
        pass

    def write(self, data):
        pass

    def close(self):
        pass


async def test_a_connection_is_read_again_once_a_long_body_is_whole():
    """Else nobody would see its client leave: uvicorn stops reading it at 64 KiB."""
    read: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    over = asyncio.Event()

    async def app(scope, receive, send):
        body = b""
        more = True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        read.set_result(len(body))
        await over.wait()

    kind = make_protocol(lambda path: "openai", ConnectionBounds(), Metrics(tei=False))
    config = uvicorn.Config(app, http=kind, lifespan="off", log_config=None)
    config.load()
    protocol = kind(config=config, server_state=ServerState(), app_state={})
    wire = Wire()
    protocol.connection_made(wire)
    request = post("/embed", b"x" * 200_000)
    protocol.data_received(request[:-100_000])
    assert not wire.read
    protocol.data_received(request[-100_000:])
    async with asyncio.timeout(30):
        assert await read == 200_000
    assert wire.read
    over.set()
    protocol.connection_lost(None)


async def test_long_bodies_count_for_no_head(server):
    body = json.dumps({"inputs": ["a " * 9000]}).encode()
    async with connected(server) as (reader, writer):
        writer.write((post("/embed", body) * 2) + post("/embed")[:20])
        await writer.drain()
        for _ in range(2):
            status, _, _ = await asyncio.wait_for(read_reply(reader), 30)
            assert status != 431
        writer.write(post("/embed")[20:])
        assert (await asyncio.wait_for(read_reply(reader), 30))[0] == 200


async def test_the_refusal_has_the_paths_body_and_the_callers_id(server, brief, caplog):
    caplog.set_level(logging.INFO, "condensery")
    long = "a" * 20_000
    pieces = post("/embed", x_request_id="mine-7", x_long=long)
    status, headers, body, _ = await asked(server, pieces)
    assert (status, headers["x-request-id"]) == (431, "mine-7")
    assert body.keys() == {"error", "error_type"}
    (event,) = caplog.records
    assert (event.status, event.request_id, event.code) == (431, "mine-7", "headers_too_large")


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"hello\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /nothing\r\n\r\n" * 3,
        b"GET / HTTP/1.1\r\nhost: localhost\r\ncontent-length: x\r\n\r\n",
        b"POST /embed HTTP/1.1\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\nabc",
        b"GET /livez HTTP/1.1\r\nbad header\r\n\r\n",
        b"CONNECT elsewhere:443 HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET \xff\xfe HTTP/1.1\r\nhost: localhost\r\n\r\n",
    ],
    ids=repr,
)
async def test_what_is_not_http_is_refused_in_our_body(server, brief, data):
    status, _, body, ended = await asked(server, data)
    assert status in (400, 404, 405)
    message = body["error"] if isinstance(body["error"], str) else body["error"]["message"]
    assert message
    if status == 400:
        assert ended
        assert "HTTP" in message


async def test_broken_chunks_of_a_body_are_told_so(server, brief):
    head = b"POST /embed HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    status, _, body, ended = await asked(server, head + b"3\r\nabc\r\n", b"zz\r\n")
    assert (status, body["error_type"], ended) == (400, "Validation", True)


async def test_garbage_after_a_good_request_is_not_taken_for_its_reply(server, brief, registry):
    registry.encoders["words"].delay = 0.2
    async with asyncio.timeout(30), connected(server) as (reader, writer):
        writer.write(post("/embed") * 2)
        await asyncio.sleep(0.05)
        writer.write(b"\x00garbage\r\n\r\n")
        for _ in range(2):
            assert (await read_reply(reader))[0] == 200
        assert await reader.read() == b""


@pytest.mark.parametrize("name", ["upgrade", "Upgrade"])
async def test_an_upgrade_that_we_do_not_speak_is_served_as_it_is(server, caplog, name):
    """Java's client offers HTTP/2 with its first request, which has a body."""
    offer = {"connection": "Upgrade, HTTP2-Settings", name: "h2c", "http2-settings": "AAEAAEAA"}
    async with asyncio.timeout(30), connected(server) as (reader, writer):
        for _ in range(2):
            writer.write(post("/embed", b'{"inputs": "\\r\\nupgrade: it"}', **offer))
            status, _, body = await read_reply(reader)
            assert (status, len(body)) == (200, 1)
        writer.write(LIVEZ.replace(b"\r\n\r\n", b"\r\nupgrade: websocket\r\n\r\n"))
        assert (await read_reply(reader))[0] == 200
    assert caplog.records == []


OFFER = (
    b"POST /embed HTTP/1.1\r\nhost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\n"
    b"UPGRADE: h2c\r\nhttp2-settings: AAEAAEAA\r\n"
)
BODY = b'{"inputs": "\\r\\nupgrade: it"}'
SIZED = OFFER + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
CHUNKED = OFFER + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)


@pytest.mark.parametrize("request_", [SIZED, CHUNKED], ids=["sized", "chunked"])
@pytest.mark.parametrize(
    "after", ["host: localhost\r\n", "\r\nUPG", "\r\n\r\n", '{"inp', "nowhere"]
)
async def test_a_body_after_an_upgrade_is_read_however_the_request_is_cut(server, request_, after):
    """And so are the requests after it that came in one packet with it."""
    place = request_.find(after.encode()) + len(after)
    first, second = request_[:place], request_[place:]
    async with asyncio.timeout(30), connected(server) as (reader, writer):
        writer.write(first)
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.write(second + request_ + LIVEZ)
        for _ in range(2):
            status, _, body = await read_reply(reader)
            assert (status, len(body)) == (200, 1)
        assert (await read_reply(reader))[0] == 200


async def test_a_body_after_an_upgrade_is_read_byte_by_byte(server):
    async with asyncio.timeout(60), connected(server) as (reader, writer):
        writer.transport.get_extra_info("socket").setsockopt(
            socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
        )
        for place in range(len(CHUNKED)):
            writer.write(CHUNKED[place : place + 1])
            await asyncio.sleep(0.001)
        assert (await read_reply(reader))[0] == 200
        writer.write(LIVEZ)
        assert (await read_reply(reader))[0] == 200


async def test_an_upgrade_whose_body_is_empty_is_told_so_as_ever(server):
    async with asyncio.timeout(30), connected(server) as (reader, writer):
        writer.write(OFFER + b"content-length: 0\r\n\r\n" + LIVEZ)
        assert (await read_reply(reader))[0] == 422
        assert (await read_reply(reader))[0] == 200


async def test_broken_chunks_after_an_upgrade_are_told_so(server, brief):
    status, _, body, ended = await asked(server, CHUNKED.removesuffix(b"0\r\n\r\n"), b"zz\r\n")
    assert (status, body["error_type"], ended) == (400, "Validation", True)
