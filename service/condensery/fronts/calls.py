"""gRPC calls that a front process passes on to the engine's, message by message.

One handler passes on every method that has none, health and reflection too: to gRPC a reply is a
stream of bytes, of one message or more. Where a request is one message it is sent with the call: a
stream's ``write`` that is under way when the engine refuses a call loses the refusal's status.
"""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import grpc

from condensery.api.grpc.condensery_v1 import RpcMethod
from condensery.api.grpc.errors import CallContext, abort_with_error
from condensery.api.grpc.health import HEALTH_PATHS
from condensery.api.grpc.server import (
    ALL_METHODS,
    REFLECTION_SERVICES,
    max_message_bytes,
)
from condensery.api.grpc.streaming import (
    FRONT_METADATA,
    HEALTH_READ_SECONDS,
    HEALTH_SHARE,
    READ_SECONDS,
    MessageReaders,
    Metadata,
    find_metadata,
    peer_host,
    write_message,
)
from condensery.auth import read_request_id
from condensery.errors import CondenseryError
from condensery.fronts.relay import OWN_TASKS
from condensery.jobs.services import Services

# Of a connection, not of a call; gRPC puts its own.
_OF_A_CONNECTION = frozenset({"user-agent", "te", "content-type", "grpc-accept-encoding"})
# Methods of these services turn texts to tokens and back, for which the engine has the tokenizers.
_ENGINE_SERVICES = frozenset({"tei.v1.Tokenize"})
_STREAMED = frozenset(
    {method.path for method in ALL_METHODS if method.streamed}
    | {f"/{service}/ServerReflectionInfo" for service in REFLECTION_SERVICES}
)
_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Metadata have passed the front process's own limit, which is below this.
    ("grpc.max_metadata_size", 2**22),
    ("grpc.absolute_max_metadata_size", 2**22),
    # A connection for each channel: watchers of health take none of the others' streams.
    ("grpc.use_local_subchannel_pool", 1),
]


class EngineCalls:
    """Passes calls on; made in a running loop.

    Args:
        engine: Path of the Unix socket on which the engine serves gRPC.
    """

    def __init__(self, engine: str, services: Services) -> None:
        self._channel, self._health_channel = (
            grpc.aio.insecure_channel(f"unix:{engine}", options=_OPTIONS) for _ in range(2)
        )
        sizes = services.admission.max_bytes, max_message_bytes(services.limits)
        self._readers = MessageReaders(*sizes, READ_SECONDS)
        self._health_readers = MessageReaders(*sizes, HEALTH_READ_SECONDS, share=HEALTH_SHARE)
        self._admission = services.admission
        self._ended = asyncio.Event()

    def leaves(self, method: RpcMethod[Any]) -> bool:
        """Whether a method needs models alone, and is served by the front process itself."""
        return method.task in OWN_TASKS and method.service_name not in _ENGINE_SERVICES

    def handler(self) -> grpc.GenericRpcHandler:
        """Return what passes on every path that has no handler of its own."""
        return _EveryPath(self._pass_on)

    def close(self) -> None:
        """Do nothing: the engine tells its watchers itself that it is ready no more."""

    def end(self) -> None:
        """End the calls that watch health, since the server stops."""
        self._ended.set()

    async def _pass_on(self, path: str, context: CallContext) -> None:
        metadata: Metadata = context.invocation_metadata() or ()
        vital = path in HEALTH_PATHS
        with ExitStack() as stack:
            try:
                if vital:
                    first = await self._health_readers.read(context)
                else:
                    first = await self._readers.read(context)
                    stack.enter_context(self._admission.admit(len(first)))
            except CondenseryError as error:
                request_id = read_request_id(find_metadata(metadata, "x-request-id"))
                await abort_with_error(context, error, request_id)
            await self._pass_first_on(path, context, first)

    async def _pass_first_on(self, path: str, context: CallContext, first: bytes) -> None:
        vital = path in HEALTH_PATHS
        channel: Any = self._health_channel if vital else self._channel
        options: Any = {"timeout": context.time_remaining(), "metadata": _metadata(context)}
        others: list[asyncio.Task[Any]] = []
        call: Any
        if path in _STREAMED:
            call = channel.stream_stream(path)(**options)
            others.append(asyncio.create_task(_send(call, context, first)))
        else:
            call = channel.unary_stream(path)(first, **options)
        replying = asyncio.create_task(_reply(call, context))
        ends: set[asyncio.Task[Any]] = {replying}
        if vital:
            others.append(asyncio.create_task(self._ended.wait()))
            ends.add(others[-1])
        try:
            # A stream may be answered to its end while its client still sends.
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not replying.done():
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the server is shutting down")
            replying.result()
        finally:
            for part in (replying, *others):
                part.cancel()
            call.cancel()
            await asyncio.gather(replying, *others, return_exceptions=True)
        code, details = await call.code(), await call.details()
        trailers = tuple(await call.trailing_metadata() or ())
        if code is grpc.StatusCode.OK:
            context.set_trailing_metadata(trailers)
        else:
            await context.abort(code, details or "", trailing_metadata=trailers)


class _EveryPath(grpc.GenericRpcHandler):
    def __init__(self, pass_on: Callable[[str, CallContext], Any]) -> None:
        self._pass_on = pass_on

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        path = handler_call_details.method

        async def handle(_: Any, context: CallContext) -> None:
            await self._pass_on(path, context)

        return grpc.stream_stream_rpc_method_handler(handle)


async def _send(call: Any, context: CallContext, first: bytes) -> None:
    try:
        await call.write(first)
        while isinstance(message := await context.read(), bytes):
            await call.write(message)
        await call.done_writing()
    except (asyncio.InvalidStateError, grpc.aio.AioRpcError, grpc.aio.InternalError):
        return  # it is over: the reply says how


async def _reply(call: Any, context: CallContext) -> None:
    try:
        async for message in call:
            await write_message(context, message)
    except grpc.aio.AioRpcError:
        return  # its code and trailers are passed on


def _metadata(context: CallContext) -> list[tuple[str, str | bytes]]:
    metadata: Metadata = context.invocation_metadata() or ()
    kept = [
        (key, value)
        for key, value in metadata
        if key not in _OF_A_CONNECTION and key != FRONT_METADATA
    ]
    return [*kept, (FRONT_METADATA, peer_host(context.peer()))]
