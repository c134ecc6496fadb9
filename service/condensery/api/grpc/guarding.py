"""Who is let in: decided before a call's message is read, whether or not its method exists."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Any

import grpc

from condensery.api.asking import key_name, request_id
from condensery.api.grpc.calls import Call
from condensery.api.grpc.errors import Context, refuse
from condensery.api.grpc.metadata import Metadata, find, key_of, size_of
from condensery.errors import CondenseryError, HeadersTooLarge, Unavailable
from condensery.jobs.accounting import counting_refusals
from condensery.jobs.services import Services

Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Any]]

# Each call has a task, and so a context, of its own.
_caller: ContextVar[str | None] = ContextVar("caller", default=None)


def caller() -> str | None:
    """Return the name of the key that this call came with, if keys are needed."""
    return _caller.get()


class Guard(grpc.aio.ServerInterceptor):
    """Refuses who has no key, or a wrong one, and who comes when the server is about to end.

    Once there are keys, whatever is not open needs one: methods that don't exist and reflection
    too. A call that is refused is not read: nobody without a key makes us hold their messages.

    Args:
        services: The running parts.
        calls: The methods that need a scope, by path; all others need any key.
        opened: Paths that need no key, ever, and answer to the end: health.
    """

    def __init__(
        self, services: Services, calls: Mapping[str, Call[Any]], opened: Iterable[str]
    ) -> None:
        self._services = services
        self._calls = calls
        self._opened = frozenset(opened)
        self._answering = asyncio.Event()
        self._answering.set()

    def hold_refusals(self) -> None:
        """Let who comes when the server is about to end wait for ``answer``."""
        self._answering.clear()

    def answer(self) -> None:
        """Send the refusals that were held."""
        self._answering.set()

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """Return the method's handler, or one that refuses."""
        path: str = handler_call_details.method
        metadata: Metadata = handler_call_details.invocation_metadata or ()
        call = self._calls.get(path)
        try:
            with counting_refusals(self._services, call.task if call else None, "grpc"):
                self._check_size(metadata)
                if path not in self._opened:
                    self._check_key(call, metadata)
                    await self._check_open()
        except CondenseryError as error:
            return _refusal(error, request_id(find(metadata, "x-request-id")))
        return await continuation(handler_call_details)

    def _check_size(self, metadata: Metadata) -> None:
        size, most = size_of(metadata), self._services.limits.max_header_bytes
        if size > most:
            raise HeadersTooLarge(
                f"The metadata has {size} bytes, over the limit of {most} (max_header_bytes).",
                value=size,
            )

    def _check_key(self, call: Call[Any] | None, metadata: Metadata) -> None:
        keys = self._services.keys
        if not keys.open:
            _caller.set(key_name(keys, key_of(metadata), call.scope if call else None))

    async def _check_open(self) -> None:
        health = self._services.health
        if health.refusing:
            await self._answering.wait()
            raise Unavailable(f"The server takes no new requests: {health.reason}.")


def _refusal(error: CondenseryError, request_id: str) -> Any:
    async def handle(_: Any, context: Context) -> None:
        await refuse(context, error, request_id)

    # A stream's handler begins before any message is read.
    return grpc.stream_stream_rpc_method_handler(handle)
