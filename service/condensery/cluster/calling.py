"""Calls to a model that runs in another process: once more where that was lost and it is safe.

How the process is reached is ``Replicas``' matter. No torch: a process of doors alone needs none.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Protocol

from condensery.cluster.messages import Call, Caller, ModelId, Rates, Reply
from condensery.errors import Unavailable
from condensery.request_context import RequestContext, current_request, loop_deadline

# A replica answers a caller whose time is over by itself, and knows whether work had begun. One
# that has not done so after this much more is silent.
SILENT_SECONDS = 0.5


class ReplicaLost(Exception):
    """The replica that had a call is gone, and what it did of it with it; safe to say why."""


class Replicas(Protocol):
    """A group's replicas: some process that is up gets each call."""

    def check(self) -> None:
        """Raise Unavailable, with the reason, while none is up."""
        ...

    async def call(self, call: Call) -> Reply:
        """Have a call served. Cancelled, it cancels what it began. Raises ReplicaLost."""
        ...

    def stream(self, call: Call) -> AsyncGenerator[Reply, None]:
        """Have a call served that replies several times; as ``call``."""
        ...

    def close(self, model: ModelId) -> None:
        """Let a model's replicas go, once no model of theirs is needed."""
        ...


class Remote:
    """One model in its replicas: calls it, once more where a replica was lost and that is safe."""

    def __init__(self, model: ModelId, replicas: Replicas) -> None:
        self.model = model
        self.rates = Rates()
        self.running = 0  # calls
        self._replicas = replicas
        self._closed = False

    async def call(self, method: str, *args: Any, tokens: int, **options: Any) -> Any:
        """Call a method that changes nothing, and can therefore be asked twice.

        Raises:
            DeadlineExceeded: The caller's time ran out.
            Unavailable: No replica is up, or the second was lost too; or closed.
            CondenseryError: As the method.
        """
        request = current_request()
        self.running += 1
        try:
            for last in (False, True):
                self._check()
                call = Call(self.model, method, args, options, Caller.of(request), tokens)
                try:
                    async with asyncio.timeout_at(_silent_at(request)):
                        return self._read(await self._replicas.call(call), request)
                except TimeoutError:
                    request.work_begun = True  # it was sent: what became of it is not known
                    raise request.expired() from None
                except ReplicaLost as lost:
                    if last:
                        raise self._lost(lost) from lost
        finally:
            self.running -= 1
        raise AssertionError("unreachable")

    async def stream(
        self, method: str, *args: Any, tokens: int, **options: Any
    ) -> AsyncGenerator[Any, None]:
        """Call a method that yields; it is asked twice only while nothing has come of it.

        Raises:
            Unavailable: The replica was lost after that: what came is true, and not whole.
            CondenseryError: As ``call``.
        """
        request, begun = current_request(), False
        self.running += 1
        try:
            for last in (False, True):
                self._check()
                call = Call(self.model, method, args, options, Caller.of(request), tokens)
                try:
                    async with aclosing(self._replicas.stream(call)) as replies:
                        while True:
                            try:
                                async with asyncio.timeout_at(_silent_at(request)):
                                    reply = await anext(replies)
                            except StopAsyncIteration:
                                return
                            value = self._read(reply, request)
                            if value is not None:
                                begun = True
                                yield value
                except TimeoutError:
                    request.work_begun = True  # it was sent: what became of it is not known
                    raise request.expired() from None
                except ReplicaLost as lost:
                    if last or begun:
                        raise self._lost(lost) from lost
        finally:
            self.running -= 1

    def check(self) -> None:
        """Raise Unavailable, with the reason, while no replica is up."""
        self._replicas.check()

    @property
    def busy(self) -> bool:
        """Whether calls are under way."""
        return self.running > 0

    @property
    def unready(self) -> str | None:
        """Why no replica can serve a call now; None: one can."""
        try:
            self._replicas.check()
        except Unavailable as error:
            return f"{self.model.name}: {error.message}"
        return None

    def close(self) -> None:
        """Refuse new calls; the replicas finish those under way."""
        if not self._closed:
            self._closed = True
            self._replicas.close(self.model)

    def _check(self) -> None:
        if self._closed:
            raise Unavailable(f"{self.model.name}: it is being unloaded.", retry_after_seconds=1.0)
        self._replicas.check()

    def _read(self, reply: Reply, request: RequestContext) -> Any:
        request.work_begun = request.work_begun or reply.work_begun
        reply.timing.add_to(request, self.model.name)
        if reply.rates is not None:
            self.rates = reply.rates
        if reply.error is not None:
            raise reply.error
        return reply.value

    def _lost(self, lost: ReplicaLost) -> Unavailable:
        return Unavailable(
            f"{self.model.name}: the replica that served this was lost ({lost}); try again.",
            retry_after_seconds=1.0,
        )


def _silent_at(request: RequestContext) -> float | None:
    """Return when, by the loop's clock, a replica that has not answered is silent."""
    at = loop_deadline(request)
    return None if at is None else at + SILENT_SECONDS
