"""Answers: `/v1/rag/answer`, whole or as server-sent events."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from condensery.answers import AnswerEvent, Delta, Retrieved
from condensery.api.rest.answers import write_answer, write_block, write_logprobs, write_rest
from condensery.api.rest.bodies import read_body
from condensery.api.rest.doors import reply
from condensery.api.rest.events import END, stream
from condensery.api.rest.questions import question_of
from condensery.jobs.accounting import account
from condensery.jobs.answer import answer, answered
from condensery.jobs.services import Services
from condensery.questions import Question
from condensery.schemas_rag import AnswerRequest


async def rag_answer(request: Request, services: Services) -> Response:
    """Answer a question from documents, an index or a context."""
    body = await read_body(request, services, AnswerRequest)
    question = question_of(body)
    if body.stream:
        return await stream(request, ask(services, question), _Script(request.state.request_id))
    with account(services, question.model, "answer", "rest") as counted:
        whole = await answered(services, question)
        counted.model = whole.model  # a context names its pair
        with services.metrics.stage(whole.model, "serialize"):
            return reply(write_answer(whole), headers={"x-model": whole.model})


async def ask(services: Services, question: Question) -> AsyncGenerator[AnswerEvent, None]:
    """Answer a question, and count it as one request."""
    with account(services, question.model, "answer", "rest") as counted:
        answering: Any = answer(services, question)
        async with aclosing(answering) as events:
            async for event in events:
                if isinstance(event, Retrieved):
                    counted.model = event.model  # a context names its pair
                yield event


class _Script:
    """Events named as R2R names them.

    Args:
        request_id: What a failure is named by.
    """

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id

    def event(self, event: AnswerEvent) -> bytes:
        """Write one event."""
        if isinstance(event, Retrieved):
            found = {
                "id": event.id,
                "object": "rag.search_results",
                "model": event.model,
                "data": {
                    "citations": event.citations,
                    "compression": write_block(event.compression),
                },
            }
            return _line("search_results", found)
        if isinstance(event, Delta):
            payload: dict[str, Any] = {"value": event.text, "annotations": []}
            if event.logprobs is not None:
                payload["logprobs"] = write_logprobs(event.logprobs)
            part = {"type": "text", "payload": payload}
            delta = {"object": "agent.message.delta", "delta": {"content": [part]}}
            return _line("message", delta)
        final = {
            "id": event.id,
            "object": "rag.final_answer",
            "generated_answer": event.text,
            **write_rest(event),
        }
        block = _line("compression", write_block(event.compression))
        return block + _line("final_answer", final)

    def failure(self, body: dict[str, Any]) -> bytes:
        """Write a failure."""
        return _line("error", {"id": f"err_{self._request_id}", "object": "agent.error", **body})

    def end(self) -> bytes:
        """Write the last event."""
        return b"event: done\ndata: %b\n\n" % END


def _line(name: str, data: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), orjson.dumps(data))
