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
from typing import Any, Self, TypeVar

import grpc
from google.protobuf.message import Message

from condensery import errors
from condensery.client import grpc_calls as calls
from condensery.client.grpc_calls import RpcCall
from condensery.client.operations import awaiting, blocking, streaming, streaming_async
from condensery.client.transports import Refusal, Retries, make_auth_headers, make_refusal, read_ca
from condensery.errors import CondenseryError, Unavailable

# Where a reply names no class of ours, its code is all there is to go by.
ERRORS_BY_STATUS: dict[grpc.StatusCode, type[CondenseryError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: errors.InputError,
    grpc.StatusCode.UNAUTHENTICATED: errors.Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: errors.Forbidden,
    grpc.StatusCode.NOT_FOUND: errors.NotFound,
    grpc.StatusCode.ALREADY_EXISTS: errors.IndexExists,
    grpc.StatusCode.FAILED_PRECONDITION: errors.Conflict,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.Overloaded,
    grpc.StatusCode.UNAVAILABLE: errors.Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlineExceeded,
}


def read_refusal(error: Any, address: str) -> Refusal:
    """Read a refusal: ours by its trailing metadata, or the transport's own.

    Args:
        error: A ``grpc.RpcError`` of a call, which has the methods of a call.
        address: Of the server, to be named where the message is not the server's.
    """
    trailer = _text_metadata(error.trailing_metadata() or ())
    message, code = error.details() or "", error.code()
    name = trailer.get("x-error")
    if name is None:
        message = f"{address}: {message or code.name}"
    pushback = trailer.get("grpc-retry-pushback-ms", "")
    return make_refusal(
        name,
        ERRORS_BY_STATUS.get(code, CondenseryError),
        message,
        field=trailer.get("x-field"),
        retry_after_seconds=float(pushback) / 1000 if pushback.isdigit() else None,
    )


def _text_metadata(metadata: Iterable[tuple[str, str | bytes]]) -> dict[str, str]:
    return {name: value for name, value in metadata if isinstance(value, str)}


T = TypeVar("T")

DEFAULT_ADDRESS = "127.0.0.1:8081"

# The server has limits of its own, and names them where they are passed.
CHANNEL_OPTIONS = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))


def _make_credentials(ca: str | Path | None) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(None if ca is None else read_ca(ca))


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


class GrpcClient:
    """Blocking gRPC client, usable from several threads; ``close`` it, or use ``with``.

    Args:
        address: Where the service listens, host:port.
        timeout: Seconds a call may take. The server knows of it, and drops requests after that.
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
        address: str = DEFAULT_ADDRESS,
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
        self._metadata = tuple(make_auth_headers(api_key).items())
        if tls or ca is not None:
            self._channel = grpc.secure_channel(
                address, _make_credentials(ca), options=CHANNEL_OPTIONS
            )
        else:
            self._channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)

    embed = blocking(calls.embed)
    rerank = blocking(calls.rerank)
    answer = blocking(calls.answer)
    answer_stream = streaming(calls.answer_stream)
    compare = blocking(calls.compare)
    compress = blocking(calls.compress)
    release = blocking(calls.release)
    create_index = blocking(calls.create_index)
    list_indexes = blocking(calls.list_indexes)
    drop_index = blocking(calls.drop_index)
    aliases = blocking(calls.aliases)
    update_aliases = blocking(calls.update_aliases)
    create_snapshot = blocking(calls.create_snapshot)
    list_snapshots = blocking(calls.list_snapshots)
    delete_snapshot = blocking(calls.delete_snapshot)
    restore_snapshot = blocking(calls.restore_snapshot)
    rebuild_index = blocking(calls.rebuild_index)
    rebuild_status = blocking(calls.rebuild_status)
    cancel_rebuild = blocking(calls.cancel_rebuild)
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
    load_model = blocking(calls.load_model)
    unload_model = blocking(calls.unload_model)
    stored_models = blocking(calls.stored_models)
    set_aliases = blocking(calls.set_aliases)

    def ready(self) -> bool:
        """Return whether the service is there and ready to serve."""
        try:
            check = self._channel.unary_unary(calls.HEALTH, bytes, bytes)
            return bool(check(b"", timeout=self._timeout, metadata=self._metadata) == calls.SERVING)
        except grpc.RpcError as error:
            refusal = read_refusal(error, self.address)
        if isinstance(refusal.error, Unavailable):
            return False
        raise refusal.error

    def send(self, call: RpcCall[T]) -> T:
        """Send ``call`` and read its reply."""
        method = self._channel.unary_unary(call.method, _serialize, call.reply_type.FromString)
        for attempt in itertools.count(1):
            try:
                reply = method(call.request, timeout=self._timeout, metadata=self._metadata)
                break
            except grpc.RpcError as error:
                refusal = read_refusal(error, self.address)
            time.sleep(self._retries.pause(attempt, refusal))
        return call.read(reply)

    def stream(self, call: RpcCall[Iterable[T]]) -> Iterator[T]:
        """Send ``call`` and read each message of its reply as it comes."""
        method = self._channel.unary_stream(call.method, _serialize, call.reply_type.FromString)
        for attempt in itertools.count(1):
            replies = method(call.request, timeout=self._timeout, metadata=self._metadata)
            begun = False
            try:
                for reply in replies:
                    begun = True
                    yield from call.read(reply)
                return
            except grpc.RpcError as error:
                refusal = read_refusal(error, self.address)
            finally:
                replies.cancel()  # of no effect once it has ended
            if begun:
                raise refusal.error
            time.sleep(self._retries.pause(attempt, refusal))

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
        address: str = DEFAULT_ADDRESS,
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
        self._metadata = tuple(make_auth_headers(api_key).items())
        if tls or ca is not None:
            self._channel = grpc.aio.secure_channel(
                address, _make_credentials(ca), options=CHANNEL_OPTIONS
            )
        else:
            self._channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)

    embed = awaiting(calls.embed)
    rerank = awaiting(calls.rerank)
    answer = awaiting(calls.answer)
    answer_stream = streaming_async(calls.answer_stream)
    compare = awaiting(calls.compare)
    compress = awaiting(calls.compress)
    release = awaiting(calls.release)
    create_index = awaiting(calls.create_index)
    list_indexes = awaiting(calls.list_indexes)
    drop_index = awaiting(calls.drop_index)
    aliases = awaiting(calls.aliases)
    update_aliases = awaiting(calls.update_aliases)
    create_snapshot = awaiting(calls.create_snapshot)
    list_snapshots = awaiting(calls.list_snapshots)
    delete_snapshot = awaiting(calls.delete_snapshot)
    restore_snapshot = awaiting(calls.restore_snapshot)
    rebuild_index = awaiting(calls.rebuild_index)
    rebuild_status = awaiting(calls.rebuild_status)
    cancel_rebuild = awaiting(calls.cancel_rebuild)
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
    load_model = awaiting(calls.load_model)
    unload_model = awaiting(calls.unload_model)
    stored_models = awaiting(calls.stored_models)
    set_aliases = awaiting(calls.set_aliases)

    async def ready(self) -> bool:
        """Return whether the service is there and ready to serve."""
        try:
            check = self._channel.unary_unary(calls.HEALTH, bytes, bytes)
            return bool(
                await check(b"", timeout=self._timeout, metadata=self._metadata) == calls.SERVING
            )
        except grpc.aio.AioRpcError as error:
            refusal = read_refusal(error, self.address)
        if isinstance(refusal.error, Unavailable):
            return False
        raise refusal.error

    async def send(self, call: RpcCall[T]) -> T:
        """Send ``call`` and read its reply."""
        method = self._channel.unary_unary(call.method, _serialize, call.reply_type.FromString)
        for attempt in itertools.count(1):
            try:
                reply = await method(call.request, timeout=self._timeout, metadata=self._metadata)
                break
            except grpc.aio.AioRpcError as error:
                refusal = read_refusal(error, self.address)
            await asyncio.sleep(self._retries.pause(attempt, refusal))
        return call.read(reply)

    async def stream(self, call: RpcCall[Iterable[T]]) -> AsyncIterator[T]:
        """Send ``call`` and read each message of its reply as it comes."""
        method = self._channel.unary_stream(call.method, _serialize, call.reply_type.FromString)
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
                refusal = read_refusal(error, self.address)
            finally:
                replies.cancel()  # of no effect once it has ended
            if begun:
                raise refusal.error
            await asyncio.sleep(self._retries.pause(attempt, refusal))

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
