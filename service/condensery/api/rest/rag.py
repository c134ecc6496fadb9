"""Answers: `/v1/rag/answer`, whole or as server-sent events."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from condensery.api.rest.bodies import read_body
from condensery.api.rest.doors import in_time, reply
from condensery.api.rest.errors import error_body
from condensery.errors import CondenseryError, Unavailable, code_of
from condensery.jobs.accounting import account
from condensery.jobs.answer import answer, answered
from condensery.jobs.services import Services
from condensery.schemas import AnswerRequest
from condensery.values import Answer, AnswerEvent, Compression, Delta, Document, Retrieved, Usage

_log = logging.getLogger(__name__)


async def rag_answer(request: Request, services: Services) -> Response:
    """Answer a question from documents or an index."""
    body = await read_body(request, services, AnswerRequest)
    if body.stream:
        events = _events(services, body)
        # Bad requests fail here, with a status of their own, before the stream begins.
        first = await anext(events)
        lines = _lines(first, events, request)
        headers = {"x-model": _model(first), "cache-control": "no-cache"}
        return EventStream(lines, headers, events)
    with account(services, body.model, "answer", "rest"):
        whole = await answered(services, **_arguments(body))
        with services.metrics.stage(whole.model, "serialize"):
            return reply(
                {"id": whole.id, "object": "rag.answer", "answer": whole.text, **_rest(whole)},
                headers={"x-model": whole.model},
            )


class EventStream(StreamingResponse):
    """A stream that closes its events' generator as soon as its task is cancelled.

    The front does that when the client leaves, so that nothing here looks for it.
    """

    def __init__(
        self,
        lines: AsyncGenerator[bytes, None],
        headers: dict[str, str],
        events: AsyncGenerator[AnswerEvent, None],
    ) -> None:
        super().__init__(lines, headers=headers, media_type="text/event-stream")
        self._lines = lines
        self._events = events  # begun before `lines`, which closes it only once it has begun too

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until they end."""
        async with aclosing(self._events), aclosing(self._lines):
            await self.stream_response(send)


async def _events(services: Services, body: AnswerRequest) -> AsyncGenerator[AnswerEvent, None]:
    with account(services, body.model, "answer", "rest"):
        stream: Any = answer(services, **_arguments(body))
        async with aclosing(stream) as events:
            async for event in events:
                yield event


async def _lines(
    first: AnswerEvent, events: AsyncGenerator[AnswerEvent, None], request: Request
) -> AsyncGenerator[bytes, None]:
    """Write events, named as R2R names them; a failure in the middle is an event too."""
    async with aclosing(events):
        try:
            for name, data in _named(first):
                yield _line(name, data)
            while (event := await in_time(anext(events, None))) is not None:
                for name, data in _named(event):
                    yield _line(name, data)
        except CondenseryError as error:
            yield _failed(request, error)
        except asyncio.CancelledError:  # nobody reads it, or the server ends and its grace is over
            yield _failed(request, Unavailable("The server ended before this was done."))
        # The status is long sent: a bug too can only be told as an event.
        except Exception:
            identity = request.state.request_id
            _log.exception("internal_error", extra={"request_id": identity})
            message = f"Internal error; the server's log has it under request id {identity}."
            yield _failed(request, CondenseryError(message), "internal_error")
        yield b"event: done\ndata: [DONE]\n\n"


def _failed(request: Request, error: CondenseryError, code: str | None = None) -> bytes:
    request.state.code = code = code or code_of(type(error))
    body = error_body(error, "openai")
    body["error"]["code"] = code
    identity = f"err_{request.state.request_id}"
    return _line("error", {"id": identity, "object": "agent.error", **body})


def _named(event: AnswerEvent) -> list[tuple[str, dict[str, Any]]]:
    if isinstance(event, Retrieved):
        found = {
            "id": event.id,
            "object": "rag.search_results",
            "model": event.model,
            "data": {"citations": event.citations, "compression": _block(event.compression)},
        }
        return [("search_results", found)]
    if isinstance(event, Delta):
        part = {"type": "text", "payload": {"value": event.text, "annotations": []}}
        delta = {"object": "agent.message.delta", "delta": {"content": [part]}}
        return [("message", delta)]
    final = {
        "id": event.id,
        "object": "rag.final_answer",
        "generated_answer": event.text,
        **_rest(event),
    }
    return [("compression", _block(event.compression)), ("final_answer", final)]


def _line(name: str, data: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), orjson.dumps(data))


def _rest(whole: Answer) -> dict[str, Any]:
    return {
        "model": whole.model,
        "finish_reason": whole.finish_reason,
        "citations": whole.citations,
        "compression": _block(whole.compression),
        "usage": _usage(whole.usage),
        "timings": whole.timings,
    }


def _block(block: Compression) -> dict[str, Any]:
    return {
        "mode": block.mode,
        "status": block.status,
        "reason": block.reason,
        "docs": block.docs,
        "tokens_in": block.tokens_in,
        "vectors_out": block.vectors_out,
        "ratio": block.ratio,
        "flops_plain": block.flops_plain,
        "flops_used": block.flops_used,
        "flops_saved": block.flops_saved,
        "compress_ms": block.compress_ms,
    }


def _usage(usage: Usage) -> dict[str, int]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "context_vectors": usage.context_vectors,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
    }


def _model(first: AnswerEvent) -> str:
    return first.model if isinstance(first, Retrieved) else ""


def _arguments(body: AnswerRequest) -> dict[str, Any]:
    documents = None
    if body.documents is not None:
        documents = [
            Document(one.id if one.id is not None else str(place), one.text, one.metadata)
            for place, one in enumerate(body.documents)
        ]
    return {
        "question": body.query,
        "documents": documents,
        "index": body.index.name if body.index else None,
        "top_k": body.index.top_k if body.index else 20,
        "top_n": body.rerank.top_n,
        "model": body.model,
        "mode": body.compression.mode,
        "max_tokens": body.max_tokens,
    }
