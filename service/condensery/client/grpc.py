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
from types import NoneType
from typing import Any, NamedTuple, ParamSpec, TypeVar, get_type_hints

import grpc
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from condensery import errors, protobuf
from condensery.client.operations import Operations
from condensery.client.transports import (
    Asynchronous,
    Blocking,
    Call,
    Operation,
    Refusal,
    Retries,
    Row,
    Stream,
    make_auth_headers,
    make_refusal,
    read_ca,
)
from condensery.errors import CondenseryError, InputError, Unavailable
from condensery.question import Answer, AnswerEvent, Delta, Retrieved
from condensery.stubs import condensery_v1_pb2 as pb

P = ParamSpec("P")
T = TypeVar("T")

# The health service's own messages are in a package that the client does without: the request for
# the whole server is empty, and the reply has one field, number 1, whose value 1 is SERVING.
HEALTH = "/grpc.health.v1.Health/Check"
SERVING = b"\x08\x01"

# Fields of requests that are refused where they are 0 or empty: in a message they look unset, and
# the server would take its default.
NEVER_EMPTY = {
    "AnswerRequest": ("index", "context", "top_k", "max_tokens"),
    "ScrollRequest": ("limit",),
}

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


class RpcRequest(NamedTuple):
    """What is sent to which method, and what its replies are parsed by."""

    method: str
    message: Message
    parse: Any


def write_request(operation: Row[Any, T], call: Call[T]) -> RpcRequest:
    """Write a call as a message.

    Raises:
        InputError: No message can hold it (a number too big, a lone surrogate), or it would look as
            if nothing was said.
    """
    service, _, method = operation.rpc.partition("/")
    described = pb.DESCRIPTOR.services_by_name[service].methods_by_name[method]
    kind = GetMessageClass(described.input_type)
    try:
        fields = protobuf.list_fields(
            kind, {**call.fields, **call.rpc} if call.rpc else call.fields
        )
        for name in NEVER_EMPTY.get(described.input_type.name, ()):
            value = fields.get(name)
            if value is not None and not value:
                raise InputError.at(name, f"{value!r} is not allowed.", value)
        message = kind(**fields)
    except ValueError as error:
        raise InputError(f"the request can't be written as a message: {error}") from error
    return RpcRequest(
        f"/condensery.v1.{operation.rpc}",
        message,
        GetMessageClass(described.output_type).FromString,
    )


def read_reply(operation: Row[Any, T], call: Call[T], reply: Any) -> T:
    """Read the result of a call out of its reply."""
    hint, within = operation.result_type, operation.within
    result: Any = None
    if call.read_rpc is not None:
        return call.read_rpc(reply)
    if isinstance(within, tuple):
        result = tuple(getattr(reply, name) for name in within)
    elif within is not None:
        result = protobuf.read_field(hint, reply, within)
    elif hint is not NoneType:
        result = protobuf.read(hint, reply, **call.known)
    return call.complete(result)


def read_event(reply: pb.AnswerEvent) -> list[AnswerEvent]:
    """Return what one message of a streamed answer says that is new."""
    match reply.WhichOneof("event"):
        case "retrieved":
            return [protobuf.read(Retrieved, reply.retrieved)]
        case "delta":
            return [Delta(reply.delta, protobuf.read_field(LOGPROBS, reply, "logprobs"))]
        case "final":
            return [protobuf.read(Answer, reply.final)]
        case _:
            return []  # what a newer server may add


LOGPROBS = get_type_hints(Delta)["logprobs"]
DEFAULT_ADDRESS = "127.0.0.1:8081"

# The server has limits of its own, and names them where they are passed.
CHANNEL_OPTIONS = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


class _RpcClient(Operations):
    """What both clients are made with; ``GrpcClient`` says what the arguments are."""

    _library: Any  # which makes the channel

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
            credentials = grpc.ssl_channel_credentials(None if ca is None else read_ca(ca))
            self._channel = self._library.secure_channel(
                address, credentials, options=CHANNEL_OPTIONS
            )
        else:
            self._channel = self._library.insecure_channel(address, options=CHANNEL_OPTIONS)


class GrpcClient(_RpcClient, Blocking):
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

    _library = grpc

    def ready(self) -> bool:
        """Return whether the service is there and ready to serve."""
        try:
            check = self._channel.unary_unary(HEALTH, bytes, bytes)
            return bool(check(b"", timeout=self._timeout, metadata=self._metadata) == SERVING)
        except grpc.RpcError as error:
            refusal = read_refusal(error, self.address)
        if isinstance(refusal.error, Unavailable):
            return False
        raise refusal.error

    def send(self, operation: Operation[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call an operation and read its reply."""
        call = operation.make(self, *args, **kwargs)
        path, message, parse = write_request(operation, call)
        method = self._channel.unary_unary(path, _serialize, parse)
        for attempt in itertools.count(1):
            try:
                reply = method(message, timeout=self._timeout, metadata=self._metadata)
                break
            except grpc.RpcError as error:
                refusal = read_refusal(error, self.address)
            time.sleep(self._retries.pause(attempt, refusal))
        return read_reply(operation, call, reply)

    def stream(
        self, operation: Stream[P, AnswerEvent], /, *args: P.args, **kwargs: P.kwargs
    ) -> Iterator[AnswerEvent]:
        """Call an operation and read each message of its reply as it comes."""
        return self._read_events(write_request(operation, operation.make(self, *args, **kwargs)))

    def _read_events(self, request: RpcRequest) -> Iterator[AnswerEvent]:
        path, message, parse = request
        method = self._channel.unary_stream(path, _serialize, parse)
        for attempt in itertools.count(1):
            replies = method(message, timeout=self._timeout, metadata=self._metadata)
            begun = False
            try:
                for reply in replies:
                    begun = True
                    yield from read_event(reply)
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


class AsyncGrpcClient(_RpcClient, Asynchronous):
    """Async gRPC client; otherwise as ``GrpcClient``. Make it where the event loop runs."""

    _library = grpc.aio

    async def ready(self) -> bool:
        """Return whether the service is there and ready to serve."""
        try:
            check = self._channel.unary_unary(HEALTH, bytes, bytes)
            return bool(await check(b"", timeout=self._timeout, metadata=self._metadata) == SERVING)
        except grpc.aio.AioRpcError as error:
            refusal = read_refusal(error, self.address)
        if isinstance(refusal.error, Unavailable):
            return False
        raise refusal.error

    async def send(self, operation: Operation[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call an operation and read its reply."""
        call = operation.make(self, *args, **kwargs)
        path, message, parse = write_request(operation, call)
        method = self._channel.unary_unary(path, _serialize, parse)
        for attempt in itertools.count(1):
            try:
                reply = await method(message, timeout=self._timeout, metadata=self._metadata)
                break
            except grpc.aio.AioRpcError as error:
                refusal = read_refusal(error, self.address)
            await asyncio.sleep(self._retries.pause(attempt, refusal))
        return read_reply(operation, call, reply)

    def stream(
        self, operation: Stream[P, AnswerEvent], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncIterator[AnswerEvent]:
        """Call an operation and read each message of its reply as it comes."""
        return self._read_events(write_request(operation, operation.make(self, *args, **kwargs)))

    async def _read_events(self, request: RpcRequest) -> AsyncIterator[AnswerEvent]:
        path, message, parse = request
        method = self._channel.unary_stream(path, _serialize, parse)
        for attempt in itertools.count(1):
            replies = method(message, timeout=self._timeout, metadata=self._metadata)
            begun = False
            try:
                async for reply in replies:
                    begun = True
                    for event in read_event(reply):
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
