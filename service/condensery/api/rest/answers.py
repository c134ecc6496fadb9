"""Answers to questions, whole or as server-sent events; comparisons; compressed contexts.

Memory vectors neither leave the server nor come in: a handle stands for them.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import orjson
from starlette.requests import Request
from starlette.responses import Response

from condensery.api.rest.errors import ErrorDetail
from condensery.api.rest.io import END_OF_EVENTS, read_body, stream_events, write_json
from condensery.api.rest.schemas.rag import AnswerRequest, CompareRequest, CompressRequest
from condensery.jobs import comparison as comparing
from condensery.jobs import compression as compressing
from condensery.jobs.accounting import count_request
from condensery.jobs.answer import answer, answer_whole
from condensery.jobs.services import Services
from condensery.question import (
    Answer,
    AnswerEvent,
    Delta,
    Likely,
    Question,
    Retrieved,
    TokenLogprob,
)
from condensery.wire import LEAST_LOGPROB

T = TypeVar("T", Answer, Delta)


@dataclass(frozen=True, slots=True)
class Released:
    """A context that is no more."""

    id: str
    object: Literal["context"] = field(init=False, default="context")
    deleted: Literal[True] = field(init=False, default=True)


async def answer_question(request: Request, services: Services) -> Response:
    """Answer a question from documents, an index or a context."""
    question = await read_body(request, services, AnswerRequest)
    if question.stream:
        return await stream_events(
            request, answer_events(services, question), _AnswerWriter(request.state.request_id)
        )
    with count_request(services, question.model, "answer", "rest") as counted:
        result = await answer_whole(services, question)
        counted.model = result.model  # of a context it is known only now
        with services.metrics.stage(result.model, "serialize"):
            return write_json(finite(result), headers={"x-model": result.model})


async def answer_events(
    services: Services, question: Question
) -> AsyncGenerator[AnswerEvent, None]:
    """Answer a question, and count it as one request."""
    with count_request(services, question.model, "answer", "rest") as counted:
        answering: Any = answer(services, question)
        async with aclosing(answering) as events:
            async for event in events:
                if isinstance(event, Retrieved):
                    counted.model = event.model  # of a context it is known only now
                yield event


async def compare_answers(request: Request, services: Services) -> Response:
    """Answer a question from vectors and from the passages' own text, and compare."""
    question = await read_body(request, services, CompareRequest)
    with count_request(services, question.model, "compare", "rest") as counted:
        comparison = await comparing.compare_answers(services, question)
        model = counted.model = comparison.compressed.model  # of a context it is known only now
        with services.metrics.stage(model, "serialize"):
            whole = replace(
                comparison,
                compressed=finite(comparison.compressed),
                plain=finite(comparison.plain),
            )
            return write_json(whole, headers={"x-model": model})


async def compress_documents(request: Request, services: Services) -> Response:
    """Compress and score documents for a question, in one pass; the vectors stay here."""
    body = await read_body(request, services, CompressRequest)
    with count_request(services, body.model, "compress", "rest"):
        result = await compressing.compress_documents(
            services,
            body.query,
            body.documents,
            model=body.model,
            ratio=body.ratio,
            keep=body.return_ == "handle",
            ttl_s=body.ttl_s,
        )
        with services.metrics.stage(result.model, "serialize"):
            headers = {"x-model": result.model, "x-model-revision": result.fingerprint}
            return write_json(result, headers=headers)


async def release_context(request: Request, services: Services) -> Response:
    """Release a context before its time is over."""
    context: str = request.path_params["name"]
    with count_request(services, None, "compress", "rest"):
        compressing.release_context(services, context)
        return write_json(Released(context))


# Answers as JSON


def finite(value: T) -> T:
    """Return an answer, or a part, whose log-probabilities are finite, as JSON wants them."""
    if value.logprobs is None:
        return value
    return replace(value, logprobs=tuple(map(_finite_token, value.logprobs)))


def clamp_logprob(logprob: float) -> float:
    """Return a log-probability that is finite."""
    return max(logprob, LEAST_LOGPROB)


def _finite_token(token: TokenLogprob) -> TokenLogprob:
    top = tuple(Likely(other.text, clamp_logprob(other.logprob)) for other in token.top)
    return TokenLogprob(token.text, clamp_logprob(token.logprob), top)


class _AnswerWriter:
    """Events named as R2R names them.

    Args:
        request_id: For the id of a failure.
    """

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id

    def event(self, event: AnswerEvent) -> bytes:
        """Write one event."""
        if isinstance(event, Retrieved):
            results = {
                "id": event.id,
                "object": "rag.search_results",
                "model": event.model,
                "data": {"citations": event.citations, "compression": event.compression},
                "generator": event.generator,
            }
            return _event_line("search_results", results)
        if isinstance(event, Delta):
            payload: dict[str, Any] = {"value": event.text, "annotations": []}
            if event.logprobs is not None:
                payload["logprobs"] = finite(event).logprobs
            part = {"type": "text", "payload": payload}
            delta = {"object": "agent.message.delta", "delta": {"content": [part]}}
            return _event_line("message", delta)
        final = {
            "id": event.id,
            "object": "rag.final_answer",
            "generated_answer": event.answer,
            "model": event.model,
            "finish_reason": event.finish_reason,
            "citations": event.citations,
            "compression": event.compression,
            "usage": event.usage,
            "timings": event.timings,
            "logprobs": finite(event).logprobs,
            "generator": event.generator,
            "grounded": event.grounded,
            "snippets": event.snippets,
        }
        return _event_line("compression", event.compression) + _event_line("final_answer", final)

    def failure(self, error: ErrorDetail) -> bytes:
        """Write a failure."""
        failure = {"id": f"err_{self._request_id}", "object": "agent.error", "error": error}
        return _event_line("error", failure)

    def end(self) -> bytes:
        """Write the last event."""
        return b"event: done\ndata: %b\n\n" % END_OF_EVENTS


def _event_line(name: str, data: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), orjson.dumps(data))
