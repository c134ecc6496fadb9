"""Answers in OpenAI's chat format: whole, or in chunks."""

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from condensery.answers import Answer, AnswerEvent, Delta, Retrieved, TokenLogprob, Usage
from condensery.api.naming import renamed
from condensery.api.rest.answers import finite, write_block
from condensery.api.rest.bodies import read
from condensery.api.rest.chat_asking import Chat, read_chat
from condensery.api.rest.doors import reply
from condensery.api.rest.events import END, stream
from condensery.api.rest.rag import ask
from condensery.jobs.accounting import account
from condensery.jobs.answer import answered
from condensery.jobs.services import Services

# What a token's text holds where it is part of a character only.
BROKEN = "\ufffd"


async def chat_completions(request: Request, services: Services) -> Response:
    """Answer a chat's last message from documents, an index or a context, as OpenAI does."""
    chat = await read(request, services, read_chat)
    script = _Script(services, chat)
    if chat.stream:
        return await stream(request, _ask(services, chat), script)
    model = chat.question.model
    with account(services, model, "answer", "rest") as counted, renamed("query", chat.field):
        whole = await answered(services, chat.question)
        counted.model = whole.model  # a context names its pair
        with services.metrics.stage(whole.model, "serialize"):
            return reply(script.whole(whole), headers={"x-model": whole.model})


async def _ask(services: Services, chat: Chat) -> AsyncGenerator[AnswerEvent, None]:
    with renamed("query", chat.field):
        async with aclosing(ask(services, chat.question)) as events:
            async for event in events:
                yield event


class _Script:
    """One answer's chunks, or the whole of it.

    Args:
        services: Whose pair's fingerprint is told: the same seed gives the same answer as long as
            that is the same.
        chat: What was asked.
    """

    def __init__(self, services: Services, chat: Chat) -> None:
        self._services = services
        self._chat = chat
        self._about: dict[str, Any] = {}

    def whole(self, whole: Answer) -> dict[str, Any]:
        """Return a whole answer."""
        self._begin(whole)
        message = {"role": "assistant", "content": whole.text, "refusal": None}
        choice = {
            "index": 0,
            "message": message,
            "logprobs": _logprobs(whole.logprobs),
            "finish_reason": _finish(whole),
        }
        return {
            "object": "chat.completion",
            **self._about,
            "choices": [choice],
            "usage": _usage(whole.usage),
            "condensery": self._extras(whole),
        }

    def event(self, event: AnswerEvent) -> bytes:
        """Write one event; the last one is a chunk more where the usage is asked for."""
        if isinstance(event, Retrieved):
            self._begin(event)
            return self._chunk({"role": "assistant", "content": "", "refusal": None})
        if isinstance(event, Delta):
            return self._chunk({"content": event.text}, logprobs=event.logprobs)
        extras = {"condensery": self._extras(event)}
        last = self._chunk({}, finish=_finish(event), more=extras)
        if not self._chat.usage:
            return last
        return last + self._line([], {"usage": _usage(event.usage)})

    def failure(self, body: dict[str, Any]) -> bytes:
        """Write a failure."""
        return b"data: %b\n\n" % orjson.dumps(body)

    def end(self) -> bytes:
        """Write the last event."""
        return b"data: %b\n\n" % END

    def _begin(self, event: Retrieved | Answer) -> None:
        self._about = {
            # as OpenAI's begin
            "id": f"chatcmpl-{event.id.rpartition('_')[2]}",
            "created": int(time.time()),
            "model": event.model,
            "system_fingerprint": self._services.pool.reader(event.model).info.fingerprint,
        }

    def _chunk(
        self,
        delta: dict[str, Any],
        *,
        logprobs: Sequence[TokenLogprob] | None = None,
        finish: str | None = None,
        more: dict[str, Any] | None = None,
    ) -> bytes:
        choice = {
            "index": 0,
            "delta": delta,
            "logprobs": _logprobs(logprobs),
            "finish_reason": finish,
        }
        usage = {"usage": None} if self._chat.usage else {}
        return self._line([choice], {**usage, **(more or {})})

    def _line(self, choices: list[dict[str, Any]], more: dict[str, Any]) -> bytes:
        chunk = {
            "object": "chat.completion.chunk",
            **self._about,
            "choices": choices,
            **more,
        }
        return b"data: %b\n\n" % orjson.dumps(chunk)

    def _extras(self, whole: Answer) -> dict[str, Any]:
        return {
            "citations": whole.citations,
            "compression": write_block(whole.compression),
            "timings": whole.timings,
            "finish_reason": whole.finish_reason,
            "ignored_messages": self._chat.ignored,
        }


def _finish(whole: Answer) -> str:
    """Return why it ended, in OpenAI's words; our own stands beside."""
    return "stop" if whole.finish_reason in ("stop", "not_found") else "length"


def _usage(usage: Usage) -> dict[str, int]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
    }


def _logprobs(tokens: Sequence[TokenLogprob] | None) -> dict[str, Any] | None:
    if tokens is None:
        return None
    content = [
        {
            **_token(one.text, one.logprob),
            "top_logprobs": [_token(text, logprob) for text, logprob in one.top],
        }
        for one in tokens
    ]
    return {"content": content, "refusal": None}


def _token(text: str, logprob: float) -> dict[str, Any]:
    read = None if BROKEN in text else list(text.encode())
    return {"token": text, "logprob": finite(logprob), "bytes": read}
