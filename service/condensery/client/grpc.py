"""The service over gRPC: a blocking and an async client, with the methods of the REST ones.

from condensery.client.grpc import GrpcClient

with GrpcClient("127.0.0.1:8081") as client:
    vectors = client.embed(["a question", "a passage"])  # (2, dims), float32
    for event in client.answer_stream("Who discovered radium?", index="samples"):
        print(event)
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Self, TypeVar

import grpc
from google.protobuf.message import Message

from condensery.client import grpc_answers as answers
from condensery.client import grpc_calls as calls
from condensery.client import grpc_models as changes
from condensery.client import grpc_upkeep as upkeep
from condensery.client.access import headers_of, read_ca
from condensery.client.calls import awaiting, blocking, streaming, streaming_async
from condensery.client.faults import Retries
from condensery.client.grpc_calls import RpcCall
from condensery.client.grpc_faults import read_fault
from condensery.errors import Unavailable

T = TypeVar("T")
ADDRESS = "127.0.0.1:8081"
# The server has limits of its own, and names them where they are passed.
OPTIONS = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))


def _trust(ca: str | Path | None) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(None if ca is None else read_ca(ca))


def _write(message: Message) -> bytes:
    return message.SerializeToString()


class GrpcClient:
    """Blocking gRPC client, usable from several threads; ``close`` it, or use ``with``.

    Args:
        address: Where the service listens, host:port.
        timeout: Seconds a call may take. The server hears of them, and drops what comes too late.
        retries: How often to try again where the server is full or not ready, and says until when.
        api_key: A key, if the server wants one.
        tls: Whether the server shows a certificate.
        ca: PEM file with the certificates to trust instead of the usual ones; implies ``tls``.

    Raises:
        CondenseryError: By each method: the server's own error, by class and message.
            Unavailable also where nobody listens, DeadlineExceeded after ``timeout``.
    """

    def __init__(
        self,
        address: str = ADDRESS,
        *,
        timeout: float = 120.0,
        retries: int | Retries = 2,
        api_key: str | None = None,
        tls: bool = False,
        ca: str | Path | None = None,
    ) -> None:
        self.address = address
        self._timeout = timeout
        self._retries = Retries.of(retries)
        self._metadata = tuple(headers_of(api_key).items())
        if tls or ca is not None:
            self._channel = grpc.secure_channel(address, _trust(ca), options=OPTIONS)
        else:
            self._channel = grpc.insecure_channel(address, options=OPTIONS)

    embed = blocking(calls.embed)
    rerank = blocking(calls.rerank)
    answer = blocking(answers.answer)
    answer_stream = streaming(answers.answer_stream)
    compare = blocking(answers.compare)
    compress = blocking(answers.compress)
    release = blocking(answers.release)
    create_index = blocking(calls.create_index)
    list_indexes = blocking(calls.list_indexes)
    drop_index = blocking(calls.drop_index)
    aliases = blocking(upkeep.aliases)
    update_aliases = blocking(upkeep.update_aliases)
    create_snapshot = blocking(upkeep.create_snapshot)
    list_snapshots = blocking(upkeep.list_snapshots)
    delete_snapshot = blocking(upkeep.delete_snapshot)
    restore_snapshot = blocking(upkeep.restore_snapshot)
    rebuild_index = blocking(upkeep.rebuild_index)
    rebuild_status = blocking(upkeep.rebuild_status)
    cancel_rebuild = blocking(upkeep.cancel_rebuild)
    upsert = blocking(calls.upsert)
    delete = blocking(calls.delete)
    query = blocking(calls.query)
    count = blocking(calls.count)
    get = blocking(calls.get)
    scroll = blocking(calls.scroll)
    models = blocking(calls.models)
    report = blocking(calls.report)
    report_card = blocking(calls.report_card)
    report_plot = blocking(calls.report_plot)
    load_model = blocking(changes.load_model)
    unload_model = blocking(changes.unload_model)
    stored_models = blocking(changes.stored_models)
    set_aliases = blocking(changes.set_aliases)

    def ready(self) -> bool:
        """Tell whether the service is there and ready to serve."""
        try:
            check = self._channel.unary_unary(calls.HEALTH, bytes, bytes)
            return bool(check(b"", timeout=self._timeout, metadata=self._metadata) == calls.SERVING)
        except grpc.RpcError as error:
            fault = read_fault(error, self.address)
        if isinstance(fault.error, Unavailable):
            return False
        raise fault.error

    def send(self, call: RpcCall[T]) -> T:
        """Send ``call`` and read its reply."""
        method = self._channel.unary_unary(call.method, _write, call.reply_type.FromString)
        for attempt in itertools.count(1):
            try:
                reply = method(call.request, timeout=self._timeout, metadata=self._metadata)
                break
            except grpc.RpcError as error:
                fault = read_fault(error, self.address)
            time.sleep(self._retries.pause(attempt, fault))
        return call.read(reply)

    def stream(self, call: RpcCall[Iterable[T]]) -> Iterator[T]:
        """Send ``call`` and read each message of its reply as it comes."""
        method = self._channel.unary_stream(call.method, _write, call.reply_type.FromString)
        for attempt in itertools.count(1):
            replies = method(call.request, timeout=self._timeout, metadata=self._metadata)
            begun = False
            try:
                for reply in replies:
                    begun = True
                    yield from call.read(reply)
                return
            except grpc.RpcError as error:
                fault = read_fault(error, self.address)
            finally:
                replies.cancel()  # of no effect once it has ended
            if begun:
                raise fault.error
            time.sleep(self._retries.pause(attempt, fault))

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncGrpcClient:
    """Async gRPC client; otherwise as ``GrpcClient``. Make it where the event loop runs."""

    def __init__(
        self,
        address: str = ADDRESS,
        *,
        timeout: float = 120.0,
        retries: int | Retries = 2,
        api_key: str | None = None,
        tls: bool = False,
        ca: str | Path | None = None,
    ) -> None:
        self.address = address
        self._timeout = timeout
        self._retries = Retries.of(retries)
        self._metadata = tuple(headers_of(api_key).items())
        if tls or ca is not None:
            self._channel = grpc.aio.secure_channel(address, _trust(ca), options=OPTIONS)
        else:
            self._channel = grpc.aio.insecure_channel(address, options=OPTIONS)

    embed = awaiting(calls.embed)
    rerank = awaiting(calls.rerank)
    answer = awaiting(answers.answer)
    answer_stream = streaming_async(answers.answer_stream)
    compare = awaiting(answers.compare)
    compress = awaiting(answers.compress)
    release = awaiting(answers.release)
    create_index = awaiting(calls.create_index)
    list_indexes = awaiting(calls.list_indexes)
    drop_index = awaiting(calls.drop_index)
    aliases = awaiting(upkeep.aliases)
    update_aliases = awaiting(upkeep.update_aliases)
    create_snapshot = awaiting(upkeep.create_snapshot)
    list_snapshots = awaiting(upkeep.list_snapshots)
    delete_snapshot = awaiting(upkeep.delete_snapshot)
    restore_snapshot = awaiting(upkeep.restore_snapshot)
    rebuild_index = awaiting(upkeep.rebuild_index)
    rebuild_status = awaiting(upkeep.rebuild_status)
    cancel_rebuild = awaiting(upkeep.cancel_rebuild)
    upsert = awaiting(calls.upsert)
    delete = awaiting(calls.delete)
    query = awaiting(calls.query)
    count = awaiting(calls.count)
    get = awaiting(calls.get)
    scroll = awaiting(calls.scroll)
    models = awaiting(calls.models)
    report = awaiting(calls.report)
    report_card = awaiting(calls.report_card)
    report_plot = awaiting(calls.report_plot)
    load_model = awaiting(changes.load_model)
    unload_model = awaiting(changes.unload_model)
    stored_models = awaiting(changes.stored_models)
    set_aliases = awaiting(changes.set_aliases)

    async def ready(self) -> bool:
        """Tell whether the service is there and ready to serve."""
        try:
            check = self._channel.unary_unary(calls.HEALTH, bytes, bytes)
            return bool(
                await check(b"", timeout=self._timeout, metadata=self._metadata) == calls.SERVING
            )
        except grpc.aio.AioRpcError as error:
            fault = read_fault(error, self.address)
        if isinstance(fault.error, Unavailable):
            return False
        raise fault.error

    async def send(self, call: RpcCall[T]) -> T:
        """Send ``call`` and read its reply."""
        method = self._channel.unary_unary(call.method, _write, call.reply_type.FromString)
        for attempt in itertools.count(1):
            try:
                reply = await method(call.request, timeout=self._timeout, metadata=self._metadata)
                break
            except grpc.aio.AioRpcError as error:
                fault = read_fault(error, self.address)
            await asyncio.sleep(self._retries.pause(attempt, fault))
        return call.read(reply)

    async def stream(self, call: RpcCall[Iterable[T]]) -> AsyncIterator[T]:
        """Send ``call`` and read each message of its reply as it comes."""
        method = self._channel.unary_stream(call.method, _write, call.reply_type.FromString)
        for attempt in itertools.count(1):
            replies = method(call.request, timeout=self._timeout, metadata=self._metadata)
            begun = False
            try:
                async for reply in replies:
                    begun = True
                    for event in call.read(reply):
                        yield event
                return
            except grpc.aio.AioRpcError as error:
                fault = read_fault(error, self.address)
            finally:
                replies.cancel()  # of no effect once it has ended
            if begun:
                raise fault.error
            await asyncio.sleep(self._retries.pause(attempt, fault))

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
