"""Answers as server-sent events, whatever their family: begun, written, failed and ended."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from condensery.answers import AnswerEvent, Retrieved
from condensery.api.rest.doors import in_time
from condensery.api.rest.errors import error_body
from condensery.errors import CondenseryError, Unavailable, code_of

Events = AsyncGenerator[AnswerEvent, None]

END = b"[DONE]"

_log = logging.getLogger(__name__)


class Script(Protocol):
    """How a family's events are written."""

    def event(self, event: AnswerEvent) -> bytes:
        """Write one event; it may become several, or none."""
        ...

    def failure(self, body: dict[str, Any]) -> bytes:
        """Write a failure once the stream has begun; ``body`` is OpenAI's."""
        ...

    def end(self) -> bytes:
        """Write what comes last, whatever came before."""
        ...


async def stream(request: Request, events: Events, script: Script) -> "EventStream":
    """Return the reply that sends events as they come.

    Bad requests fail here, with a status of their own, before the stream begins.
    """
    first = await anext(events)
    model = first.model if isinstance(first, Retrieved) else ""
    headers = {"x-model": model, "cache-control": "no-cache"}
    return EventStream(_written(first, events, script, request), headers, events)


class EventStream(StreamingResponse):
    """A stream that closes its events' generator as soon as its task is cancelled.

    The front does that when the client leaves, so that nothing here looks for it.
    """

    def __init__(
        self, written: AsyncGenerator[bytes, None], headers: dict[str, str], events: Events
    ) -> None:
        super().__init__(written, headers=headers, media_type="text/event-stream")
        self._written = written
        self._events = events  # begun before `written`, which closes it only once it has begun too

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until they end."""
        async with aclosing(self._events), aclosing(self._written):
            await self.stream_response(send)


async def _written(
    first: AnswerEvent, events: Events, script: Script, request: Request
) -> AsyncGenerator[bytes, None]:
    """Write events; a failure in the middle is written too."""
    async with aclosing(events):
        try:
            yield script.event(first)
            while (event := await in_time(anext(events, None))) is not None:
                yield script.event(event)
        except CondenseryError as error:
            yield script.failure(_failed(request, error))
        except asyncio.CancelledError:  # nobody reads it, or the server ends and its grace is over
            ended = Unavailable("The server ended before this was done.")
            yield script.failure(_failed(request, ended))
        # The status is long sent: a bug too can only be told as an event.
        except Exception:
            identity = request.state.request_id
            _log.exception("internal_error", extra={"request_id": identity})
            message = f"Internal error; the server's log has it under request id {identity}."
            yield script.failure(_failed(request, CondenseryError(message), "internal_error"))
        yield script.end()


def _failed(request: Request, error: CondenseryError, code: str | None = None) -> dict[str, Any]:
    request.state.code = code = code or code_of(type(error))
    body = error_body(error, "openai")
    body["error"]["code"] = code
    return body
