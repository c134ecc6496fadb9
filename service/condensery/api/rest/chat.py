"""OpenAI's chat completions: its body as a question, the answer in its format, whole or in chunks.

Fields that would have no effect are refused by name.
"""

import re
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson
from starlette.requests import Request
from starlette.responses import Response

from condensery.api.rest.answers import answer_events, clamp_logprob
from condensery.api.rest.errors import ErrorDetail
from condensery.api.rest.ignored_fields import find_ignored_fields, report_ignored_fields
from condensery.api.rest.io import END_OF_EVENTS, read_as, stream_events, write_json
from condensery.api.rest.schemas.rag import ChatMessage, ChatRequest
from condensery.api.rest.validation import validate_body
from condensery.errors import InputError, rename_field, shorten
from condensery.jobs.accounting import count_request
from condensery.jobs.answer import answer_whole
from condensery.jobs.services import Services
from condensery.question import (
    ANSWER_TOKENS,
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

# Fields without effect here: the values that are allowed, and why others are refused.
REFUSED_FIELDS: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "n": ((None, 1), "a request has one answer"),
    "tools": ((None, []), "a pair calls no tools"),
    "tool_choice": ((None, "none"), "a pair calls no tools"),
    "functions": ((None, []), "a pair calls no functions"),
    "function_call": ((None, "none"), "a pair calls no functions"),
    "response_format": ((None, {"type": "text"}), "an answer is plain text"),
    "modalities": ((None, [], ["text"]), "an answer is plain text"),
    "audio": ((None,), "an answer is plain text"),
    "logit_bias": ((None, {}), "tokens are not biased"),
    "presence_penalty": ((None, 0), "repetition is not penalised"),
    "frequency_penalty": ((None, 0), "repetition is not penalised"),
    "repetition_penalty": ((None, 1), "repetition is not penalised"),
    "reasoning_effort": ((None, "none"), "a pair does not reason first"),
    "verbosity": ((None, "medium"), "`max_tokens` alone bounds an answer's length"),
    "web_search_options": ((None,), "passages come from `documents`, `index` or `context`"),
    "top_k": ((None,), "passages are counted by `index.top_k`, tokens are drawn by `top_p`"),
    "min_p": ((None, 0), "tokens are drawn by `top_p`"),
}

# What a sentence of a document must not do in a chat: its links, tables and code are not ours.
MARKDOWN_SIGNS = re.compile(r"([\\`*_\[\]<>|~])")

# Stands in the text of a token that is only part of a character.
REPLACEMENT_CHARACTER = "\ufffd"


@dataclass(frozen=True, slots=True)
class ChatQuestion:
    """A chat's question, and how its answer is sent.

    Attributes:
        question: The last message, with its passages and options.
        path: The question's, in the body.
        ignored: Number of messages before it.
        ignored_fields: Of the body, those without effect.
        usage: Whether another chunk has the usage.
    """

    question: Question
    path: str
    ignored: int
    ignored_fields: tuple[str, ...]
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
    """Earlier messages that `history` let pass unread."""
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
    """Answer a chat's last message from documents, an index or a context, as OpenAI does."""
    chat = await read_as(request, services, read_chat)
    report_ignored_fields(request, chat.ignored_fields)
    writer = _ChatWriter(services, chat)
    if chat.stream:
        return await stream_events(request, _chat_events(services, chat), writer)
    model = chat.question.model
    with (
        count_request(services, model, "answer", "rest") as counted,
        rename_field("query", chat.path),
    ):
        answer = await answer_whole(services, chat.question)
        counted.model = answer.model  # of a context it is known only now
        with services.metrics.stage(answer.model, "serialize"):
            return write_json(writer.completion(answer), headers={"x-model": answer.model})


async def _chat_events(services: Services, chat: ChatQuestion) -> AsyncGenerator[AnswerEvent, None]:
    with rename_field("query", chat.path):
        async with aclosing(answer_events(services, chat.question)) as events:
            async for event in events:
                yield event


def read_chat(data: Any) -> ChatQuestion:
    """Read a parsed body.

    Raises:
        InputError: A field is wrong, or would be without effect.
    """
    if isinstance(data, dict):
        _refuse_fields(data)
    body = validate_body(data, ChatRequest)
    if body.documents is None and body.index is None and body.context is None:
        raise InputError.at(
            "documents",
            "a pair answers from passages: give `documents`, `index` or `context` "
            "beside `messages` (of the openai client, in `extra_body`).",
        )
    last = len(body.messages) - 1
    if last and body.history != "ignore":
        raise InputError.at(
            "messages",
            f"{last + 1} of them, but a pair reads one question: leave out all but the "
            'last, or have the others ignored by `"history": "ignore"` (of the openai client, in '
            "`extra_body`).",
            last + 1,
        )
    return ChatQuestion(
        question=_make_question(body),
        path=f"messages[{last}].content",
        ignored=last,
        ignored_fields=tuple(
            # of those that may be refused, the values that are allowed are what happens anyway
            name
            for name in find_ignored_fields(data, ChatRequest)
            if name not in REFUSED_FIELDS
        ),
        stream=bool(body.stream),
        usage=_wants_usage(body),
    )


def _refuse_fields(data: Mapping[str, Any]) -> None:
    for name, (allowed, why) in REFUSED_FIELDS.items():
        value = data.get(name)
        if value not in allowed:
            message = f"{name}: {shorten(value)}: {why}; leave this field out."
            raise InputError(message, field=name, value=value)


def _make_question(body: ChatRequest) -> Question:
    last = len(body.messages) - 1
    return Question(
        _question_text(body.messages[last], last),
        documents=body.documents,
        index=body.index,
        context=body.context,
        rerank=body.rerank,
        compression=body.compression,
        min_relevance=body.min_relevance,
        model=body.model,
        max_tokens=_max_tokens(body),
        temperature=body.temperature or 0.0,
        top_p=1.0 if body.top_p is None else body.top_p,
        seed=body.seed,
        stop=body.stop,
        logprobs=_count_logprobs(body),
    )


def _question_text(message: ChatMessage, place: int) -> str:
    if message.role != "user":
        field = f"messages[{place}].role"
        raise InputError.at(
            field,
            f"{shorten(message.role)}: the last message is the question, a user's.",
            message.role,
        )
    field = f"messages[{place}].content"
    content = message.content
    text = content if isinstance(content, str) else _join_parts(content, field)
    if not text.strip():
        raise InputError.at(field, "the question is empty.", content)
    return text


def _join_parts(parts: Any, field: str) -> str:
    if not isinstance(parts, list):
        raise InputError.at(
            field, f"{shorten(parts)} is neither a string nor a list of text parts.", parts
        )
    texts = []
    for place, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            path = f"{field}[{place}].type" if kind is not None else f"{field}[{place}]"
            wrong = part if kind is None else kind
            raise InputError.at(
                path,
                f'{shorten(wrong)}: a pair reads text, in parts `{{"type": "text", "text": ...}}`.',
                wrong,
            )
        if not isinstance(part.get("text"), str):
            path = f"{field}[{place}].text"
            wrong = part.get("text")
            raise InputError.at(path, f"{shorten(wrong)} is no string.", wrong)
        texts.append(part["text"])
    return "\n".join(texts)


def _max_tokens(body: ChatRequest) -> int:
    old, new = body.max_tokens, body.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise InputError.at(
            "max_tokens",
            f"{old}, but max_completion_tokens, its new name, is {new}; give one.",
            old,
        )
    limit = new if old is None else old
    return ANSWER_TOKENS if limit is None else limit


def _count_logprobs(body: ChatRequest) -> int | None:
    if body.top_logprobs and not body.logprobs:
        raise InputError.at(
            "top_logprobs",
            f"{body.top_logprobs}, but only with `logprobs` true.",
            body.top_logprobs,
        )
    return body.top_logprobs or 0 if body.logprobs else None


def _wants_usage(body: ChatRequest) -> bool:
    if body.stream_options is None:
        return False
    if not body.stream:
        raise InputError.at("stream_options", "only with `stream` true.", {})
    return bool(body.stream_options.include_usage)


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

    def completion(self, answer: Answer) -> ChatCompletion:
        """Return a whole answer."""
        self._begin(answer)
        choice = ChatChoice(
            message=ChatAnswer(answer.answer + list_snippets(answer.snippets)),
            logprobs=_chat_logprobs(answer.logprobs),
            finish_reason=_finish_reason(answer),
        )
        return ChatCompletion(
            **self._common,
            choices=[choice],
            usage=_chat_usage(answer.usage),
            condensery=self._extras(answer),
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
        extras = {"condensery": self._extras(event)}
        last += self._chunk({}, finish=_finish_reason(event), extras=extras)
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

    def _extras(self, answer: Answer) -> ChatExtras:
        return ChatExtras(
            citations=answer.citations,
            compression=answer.compression,
            timings=answer.timings,
            finish_reason=answer.finish_reason,
            ignored_messages=self._chat.ignored,
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


def _finish_reason(answer: Answer) -> Literal["stop", "length"]:
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
