"""Requests at little cost: bytes made beforehand, replies that nobody parses.

The load generators run on the machine of the server that they load, so that what they use is taken
from it. httpx takes 1,000 us a request, this takes 40 over REST and 200 over gRPC.
"""

import asyncio
import json
import time
from typing import Any, NamedTuple

import grpc

from condensery.stubs import condensery_v1_pb2 as pb

HEAD_END = b"\r\n\r\n"
EMBED = "/condensery.v1.Embedding/EmbedBatch"
CHANNEL = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))


class Reply(NamedTuple):
    """What came back.

    Attributes:
        status: HTTP's number or gRPC's name; "lost" if there was no reply.
        seconds: From sending to the last byte.
        body: As it came.
        retries: Whether it says when to come back.
    """

    status: str
    seconds: float
    body: bytes
    retries: bool = False

    @property
    def accepted(self) -> bool:
        return self.status in ("200", "OK")

    @property
    def refused(self) -> bool:
        """Whether it was refused as promised: too much load, come back then and then."""
        return self.status in ("429", "RESOURCE_EXHAUSTED") and self.retries


class Connection(asyncio.Protocol):
    """One request at a time, over a connection that is kept."""

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.expected = -1  # bytes of the whole reply, once its head is here
        self.reply: asyncio.Future[bytes] | None = None
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    async def ask(self, request: bytes) -> bytes:
        self.reply = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await self.reply

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if self.expected < 0:
            end = self.buffer.find(HEAD_END)
            if end < 0:
                return
            head = bytes(self.buffer[:end]).lower()
            length = int(head.split(b"content-length:")[1].split(b"\r\n", 1)[0])
            self.expected = end + len(HEAD_END) + length
        if len(self.buffer) >= self.expected:
            whole, self.buffer, self.expected = bytes(self.buffer), bytearray(), -1
            if self.reply is not None and not self.reply.done():
                self.reply.set_result(whole)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        if self.reply is not None and not self.reply.done():
            self.reply.set_exception(exc or ConnectionError("closed by the server"))


class Rest:
    """REST, over as many connections as there are requests at once.

    Args:
        port: On 127.0.0.1.
        source: Address to come from: the server sees another caller in each.
    """

    name = "REST"

    def __init__(self, port: int, source: str = "127.0.0.1") -> None:
        self.port = port
        self.source = source
        self.idle: list[Connection] = []

    def embed(self, texts: list[str]) -> bytes:
        """Make a request to embed these texts."""
        return self.post("/embed", {"inputs": texts})

    def post(self, path: str, body: Any) -> bytes:
        data = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1:{self.port}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        )
        return head.encode() + data

    async def send(self, request: bytes) -> Reply:
        """Send a request and wait for its reply, however long it takes."""
        started = time.perf_counter()
        try:
            connection = await self._connection()
            whole = await connection.ask(request)
        except OSError as error:
            return Reply("lost", time.perf_counter() - started, str(error).encode())
        seconds = time.perf_counter() - started
        self.idle.append(connection)
        head, body = whole.split(HEAD_END, 1)
        return Reply(head[9:12].decode(), seconds, body, b"\r\nretry-after:" in head.lower())

    async def _connection(self) -> Connection:
        while self.idle:
            connection = self.idle.pop()
            if not connection.lost:
                return connection
        _, connection = await asyncio.get_running_loop().create_connection(
            Connection, "127.0.0.1", self.port, local_addr=(self.source, 0)
        )
        return connection

    async def close(self) -> None:
        for connection in self.idle:
            connection.transport.close()


class Grpc:
    """gRPC, over one connection."""

    name = "gRPC"

    def __init__(self, address: str) -> None:
        self.channel = grpc.aio.insecure_channel(address, options=CHANNEL)
        self.method = self.channel.unary_unary(EMBED)

    def embed(self, texts: list[str]) -> bytes:
        """Make a request to embed these texts."""
        return pb.EmbedBatchRequest(texts=texts).SerializeToString()

    async def send(self, request: bytes) -> Reply:
        """Send a request and wait for its reply, however long it takes."""
        started = time.perf_counter()
        call = self.method(request)
        try:
            body = await call
        except grpc.aio.AioRpcError as error:
            seconds = time.perf_counter() - started
            code = error.code().name
            trailers = {name for name, _ in error.trailing_metadata() or ()}
            # Said by gRPC itself, not by the server: nobody answered.
            if code == "UNAVAILABLE" and "x-error" not in trailers:
                code = "lost"
            detail = (error.details() or "").encode()
            return Reply(code, seconds, detail, "grpc-retry-pushback-ms" in trailers)
        return Reply("OK", time.perf_counter() - started, body)

    async def close(self) -> None:
        await self.channel.close()


def percentile(values: list[float], share: float) -> float:
    """Return the value below which ``share`` of them are; nan if there are none."""
    if not values:
        return float("nan")
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
