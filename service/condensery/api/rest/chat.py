"""OpenAI's chat completions: its body as a question, the answer in its format, whole or in chunks.

What would change the answer's form and can't be had (a call of a tool, several answers, JSON) is
refused by name; all else without effect is taken, and the reply's headers say so. So are tools that
a model may call or not: chat interfaces offer some with every question.
"""

import re
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import orjson
from starlette.requests import Request
from starlette.responses import Response

from condensery.api.rest.answers import answer_events, clamp_logprob
from condensery.api.rest.errors import ErrorDetail
from condensery.api.rest.ignored_fields import find_ignored_fields
from condensery.api.rest.io import END_OF_EVENTS, EventWriter, read_as, stream_events, write_json
from condensery.api.rest.messages import (
    NeutralValues,
    RefusedFields,
    Unheeded,
    check_passages,
    clamp_tokens,
    find_question,
    make_question,
    refuse_fields,
    without_neutral,
)
from condensery.api.rest.schemas.rag import ChatRequest
from condensery.api.rest.validation import validate_body
from condensery.errors import InputError, rename_field
from condensery.jobs.accounting import count_request
from condensery.jobs.answer import answer_whole
from condensery.jobs.services import RequestLimits, Services
from condensery.question import (
    Answer,
    AnswerEvent,
    Citation,
    Compression,
    Delta,
    FinishReason,
    Likely,
    Question,
    Retrieved,
    Snippet,
    Timings,
    TokenLogprob,
    Usage,
)

REFUSED_FIELDS: RefusedFields = {
    "n": ((1,), "a request has one answer"),
    "tool_choice": (("none", "auto"), "a pair calls no tools"),
    "function_call": (("none", "auto"), "a pair calls no functions"),
    "response_format": (({"type": "text"},), "an answer is plain text"),
    "modalities": (([], ["text"]), "an answer is plain text"),
    "audio": ((), "an answer is plain text"),
}
NEUTRAL_VALUES: NeutralValues = {
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "reasoning_effort": ("none",),
    "min_p": (0,),
    "store": (False,),
    "tools": ([],),
    "functions": ([],),
    "parallel_tool_calls": (True, False),  # there are none
}

# What a sentence of a document must not do in a chat: its links, tables and code are not ours.
MARKDOWN_SIGNS = re.compile(r"([\\`*_\[\]<>|~])")

# Stands in the text of a token that is only part of a character.
REPLACEMENT_CHARACTER = "\ufffd"


@dataclass(frozen=True, slots=True)
class ChatQuestion:
    """A chat's question, and how its answer is sent.

    Attributes:
        question: The last message of a user, with its passages and options.
        path: The question's, in the body.
        usage: Whether another chunk has the usage.
    """

    question: Question
    path: str
    unheeded: Unheeded
    stream: bool
    usage: bool


@dataclass(frozen=True, slots=True)
class ChatTop:
    """A token that could have stood in another's place, as OpenAI gives it."""

    token: str
    logprob: float
    bytes: list[int] | None


@dataclass(frozen=True, slots=True)
class ChatToken(ChatTop):
    """A token of an answer, as OpenAI gives it."""

    top_logprobs: list[ChatTop]


@dataclass(frozen=True, slots=True)
class ChatLogprobs:
    """An answer's tokens, as OpenAI gives them."""

    content: list[ChatToken]
    refusal: None = None


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """The answer's text, as OpenAI gives it."""

    role: Literal["assistant"] = field(init=False, default="assistant")
    content: str
    refusal: None = None


@dataclass(frozen=True, slots=True)
class ChatChoice:
    """The answer; there is one."""

    index: Literal[0] = field(init=False, default=0)
    message: ChatAnswer
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class ChatUsage:
    """Tokens that one answer took, as OpenAI counts them."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class ChatExtras:
    """What OpenAI's reply has no place for."""

    citations: tuple[Citation, ...]
    compression: Compression
    timings: Timings
    finish_reason: FinishReason
    ignored_messages: int
    """Messages that were not read: all but the last of a user."""
    generator: str | None
    """The model of another server that was asked to write the text; null: the pair's own wrote it,
    or nothing was generated."""
    grounded: bool | None
    """Whether the answer's words stand together in a passage that was read; null where no answer
    was found."""
    snippets: tuple[Snippet, ...]
    """Where no answer was found: a sentence of each of the best three passages."""


@dataclass(frozen=True, slots=True)
class ChatCompletion:
    """An answer, as OpenAI gives it, and what it was read from."""

    id: str
    object: Literal["chat.completion"] = field(init=False, default="chat.completion")
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: ChatUsage
    condensery: ChatExtras


async def chat_completions(request: Request, services: Services) -> Response:
    """Answer a chat's last question from documents, an index or a context, as OpenAI does."""
    limits = services.limits
    chat = await read_as(request, services, lambda data: read_chat(data, limits))
    return await answer_chat(request, services, chat, _ChatWriter(services, chat))


async def answer_chat(
    request: Request, services: Services, chat: ChatQuestion, writer: "ConversationWriter"
) -> Response:
    """Answer a conversation's question in the form that a writer gives it, whole or streamed."""
    chat.unheeded.report(request)
    check_passages(services, chat.question)
    if chat.stream:
        return await stream_events(request, chat_events(services, chat), writer)
    model = chat.question.model
    with (
        count_request(services, model, "answer", "rest") as counted,
        rename_field("query", chat.path),
    ):
        answer = await answer_whole(services, chat.question)
        counted.model = answer.model  # of a context it is known only now
        with services.metrics.stage(answer.model, "serialize"):
            return write_json(writer.whole(answer), headers={"x-model": answer.model})


async def chat_events(services: Services, chat: ChatQuestion) -> AsyncGenerator[AnswerEvent, None]:
    """Answer a conversation's question, and count it as one request."""
    with rename_field("query", chat.path):
        async with aclosing(answer_events(services, chat.question)) as events:
            async for event in events:
                yield event


def read_chat(data: Any, limits: RequestLimits) -> ChatQuestion:
    """Read a parsed body.

    Raises:
        InputError: A field is wrong, or asks for what can't be had.
    """
    refuse_fields(data, REFUSED_FIELDS)
    body = validate_body(data, ChatRequest)
    asked = find_question(body.messages, "messages")
    max_tokens, clamped = _max_tokens(body, limits)
    ignored = without_neutral(
        find_ignored_fields(data, ChatRequest), data, REFUSED_FIELDS, NEUTRAL_VALUES
    )
    if body.stream_options is not None and not body.stream:
        ignored += ("stream_options",)
    return ChatQuestion(
        question=make_question(body, asked.text, max_tokens, _count_logprobs(body)),
        path=asked.path,
        unheeded=Unheeded(ignored, asked.unread, clamped),
        stream=bool(body.stream),
        usage=bool(body.stream and body.stream_options and body.stream_options.include_usage),
    )


def _max_tokens(body: ChatRequest, limits: RequestLimits) -> tuple[int, dict[str, int]]:
    old, new = body.max_tokens, body.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise InputError.at(
            "max_tokens",
            f"{old}, but max_completion_tokens, its new name, is {new}; give one.",
            old,
        )
    name = "max_tokens" if new is None else "max_completion_tokens"
    return clamp_tokens(name, old if new is None else new, limits.max_answer_tokens)


def _count_logprobs(body: ChatRequest) -> int | None:
    if body.top_logprobs and not body.logprobs:
        raise InputError.at(
            "top_logprobs",
            f"{body.top_logprobs}, but only with `logprobs` true.",
            body.top_logprobs,
        )
    return body.top_logprobs or 0 if body.logprobs else None


class ConversationWriter(EventWriter, Protocol):
    """Writes answers in one of OpenAI's formats."""

    def whole(self, answer: Answer) -> Any:
        """Return a whole answer, to be written as JSON."""
        ...


class _ChatWriter:
    """Writes one answer, whole or in chunks.

    Args:
        services: For the model's fingerprint: as long as that is the same, the same seed gives the
            same answer.
    """

    def __init__(self, services: Services, chat: ChatQuestion) -> None:
        self._services = services
        self._chat = chat
        self._common: dict[str, Any] = {}

    def whole(self, answer: Answer) -> ChatCompletion:
        """Return a whole answer."""
        self._begin(answer)
        choice = ChatChoice(
            message=ChatAnswer(answer.answer + list_snippets(answer.snippets)),
            logprobs=_chat_logprobs(answer.logprobs),
            finish_reason=openai_finish_reason(answer),
        )
        return ChatCompletion(
            **self._common,
            choices=[choice],
            usage=_chat_usage(answer.usage),
            condensery=make_extras(answer, self._chat),
        )

    def event(self, event: AnswerEvent) -> bytes:
        """Write one event; after the last one comes the usage, where it is asked for."""
        if isinstance(event, Retrieved):
            self._begin(event)
            return self._chunk({"role": "assistant", "content": "", "refusal": None})
        if isinstance(event, Delta):
            return self._chunk({"content": event.text}, logprobs=event.logprobs)
        nearest = list_snippets(event.snippets)
        last = self._chunk({"content": nearest}) if nearest else b""
        extras = {"condensery": make_extras(event, self._chat)}
        last += self._chunk({}, finish=openai_finish_reason(event), extras=extras)
        if not self._chat.usage:
            return last
        return last + self._line([], {"usage": _chat_usage(event.usage)})

    def failure(self, error: ErrorDetail) -> bytes:
        """Write a failure."""
        return b"data: %b\n\n" % orjson.dumps({"error": error})

    def end(self) -> bytes:
        """Write the last event."""
        return b"data: %b\n\n" % END_OF_EVENTS

    def _begin(self, event: Retrieved | Answer) -> None:
        self._common = {
            "id": f"chatcmpl-{event.id.rpartition('_')[2]}",  # OpenAI's prefix
            "created": int(time.time()),
            "model": event.model,
            "system_fingerprint": self._services.registry.pair(event.model).info.fingerprint,
        }

    def _chunk(
        self,
        delta: dict[str, Any],
        *,
        logprobs: Sequence[TokenLogprob] | None = None,
        finish: str | None = None,
        extras: dict[str, Any] | None = None,
    ) -> bytes:
        choice = {
            "index": 0,
            "delta": delta,
            "logprobs": _chat_logprobs(logprobs),
            "finish_reason": finish,
        }
        usage = {"usage": None} if self._chat.usage else {}
        return self._line([choice], {**usage, **(extras or {})})

    def _line(self, choices: list[dict[str, Any]], extras: dict[str, Any]) -> bytes:
        chunk = {
            "object": "chat.completion.chunk",
            **self._common,
            "choices": choices,
            **extras,
        }
        return b"data: %b\n\n" % orjson.dumps(chunk)


def make_extras(answer: Answer, chat: ChatQuestion) -> ChatExtras:
    """Return what OpenAI's reply has no place for."""
    return ChatExtras(
        citations=answer.citations,
        compression=answer.compression,
        timings=answer.timings,
        finish_reason=answer.finish_reason,
        ignored_messages=chat.unheeded.messages,
        generator=answer.generator,
        grounded=answer.grounded,
        snippets=answer.snippets,
    )


def list_snippets(snippets: Sequence[Snippet]) -> str:
    """Return what follows the sentence that no answer was found: Markdown, as chats show it."""
    lines = (f"- **{_as_text(near.document_id)}**: {_as_text(near.text)}" for near in snippets)
    return "\n".join(["\n\nThe nearest sentences:\n", *lines]) if snippets else ""


def _as_text(text: str) -> str:
    """Return a text on one line that Markdown shows as it is."""
    return MARKDOWN_SIGNS.sub(r"\\\1", " ".join(text.split()))


def openai_finish_reason(answer: Answer) -> Literal["stop", "length"]:
    """Return OpenAI's word for why the answer ended; our own is in the extras."""
    return "stop" if answer.finish_reason in ("stop", "not_found") else "length"


def _chat_usage(usage: Usage) -> ChatUsage:
    return ChatUsage(usage.prompt_tokens, usage.total_tokens, usage.completion_tokens)


def _chat_logprobs(tokens: Sequence[TokenLogprob] | None) -> ChatLogprobs | None:
    if tokens is None:
        return None
    return ChatLogprobs(
        [
            ChatToken(*_token_parts(token), [ChatTop(*_token_parts(other)) for other in token.top])
            for token in tokens
        ]
    )


def _token_parts(token: TokenLogprob | Likely) -> tuple[str, float, list[int] | None]:
    """Return a token's text, log-probability and bytes."""
    content = None if REPLACEMENT_CHARACTER in token.text else list(token.text.encode())
    return token.text, clamp_logprob(token.logprob), content
