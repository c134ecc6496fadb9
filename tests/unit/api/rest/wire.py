"""Requests over real sockets, as clients good and bad send them."""

import asyncio
import contextlib
import json
import socket

EMBED = b'{"inputs": "a"}'
LIVEZ = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"


@contextlib.asynccontextmanager
async def connected(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def post(path, body=EMBED, **headers):
    named = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n{named}\r\n"
    return head.encode() + body


async def until(so):
    while not so():  # noqa: ASYNC110 - what is waited for has no event
        await asyncio.sleep(0.001)


async def read_reply(reader):
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    status = int(head[0].split()[1])
    headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
    body = await reader.readexactly(int(headers["content-length"]))
    return status, headers, json.loads(body)


async def asked(port, *pieces):
    """Send pieces; return the reply and whether the connection then ended."""
    async with asyncio.timeout(30), connected(port) as (reader, writer):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.02)
        reply = await read_reply(reader)
        ended = reply[1].get("connection") == "close" and await reader.read() == b""
        return *reply, ended


def stingy():
    """Return a client's socket that holds little for it."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    sock.setblocking(False)
    return sock
