"""OpenAI's responses: its newer API, text in and text out, whole or as its typed events.

A conversation is read as in chat completions; nothing is stored, so that each comes whole.
"""

import time
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import orjson
from starlette.requests import Request
from starlette.responses import Response

from condensery.api.rest.chat import (
    ChatExtras,
    ChatQuestion,
    answer_chat,
    list_snippets,
    make_extras,
    openai_finish_reason,
)
from condensery.api.rest.errors import ErrorDetail
from condensery.api.rest.ignored_fields import find_ignored_fields
from condensery.api.rest.io import read_as
from condensery.api.rest.messages import (
    NeutralValues,
    RefusedFields,
    Unheeded,
    clamp_tokens,
    find_question,
    make_question,
    refuse_fields,
    without_neutral,
)
from condensery.api.rest.schemas.rag import ResponseRequest
from condensery.api.rest.validation import validate_body
from condensery.errors import InputError, shorten
from condensery.jobs.services import RequestLimits, Services
from condensery.question import Answer, AnswerEvent, Delta, Retrieved

REFUSED_FIELDS: RefusedFields = {
    "tool_choice": (("none", "auto"), "a pair calls no tools"),
    "background": ((False,), "an answer comes with its reply"),
}
NEUTRAL_VALUES: NeutralValues = {
    "include": ([],),
    "parallel_tool_calls": (True, False),  # there are none
    "service_tier": ("auto", "default"),
    "store": (False,),
    "stream_options": ({}, {"include_obfuscation": False}),
    "tools": ([],),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}
PLAIN_TEXT = {"type": "text"}

Status = Literal["in_progress", "completed", "incomplete"]


@dataclass(frozen=True, slots=True)
class OutputText:
    """The answer's text, as OpenAI gives it."""

    type: Literal["output_text"] = field(init=False, default="output_text")
    text: str
    annotations: list[Any] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class OutputMessage:
    """The answer, as OpenAI gives it."""

    id: str
    type: Literal["message"] = field(init=False, default="message")
    role: Literal["assistant"] = field(init=False, default="assistant")
    status: Status
    content: list[OutputText]


@dataclass(frozen=True, slots=True)
class CachedTokens:
    """Of the tokens read: none are kept for another question."""

    cached_tokens: int = 0
    cache_write_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ReasoningTokens:
    """Of the tokens written: a pair does not reason first."""

    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ResponseUsage:
    """Tokens that one answer took, as OpenAI counts them."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: CachedTokens = field(default_factory=CachedTokens)
    output_tokens_details: ReasoningTokens = field(default_factory=ReasoningTokens)


@dataclass(frozen=True, slots=True)
class IncompleteDetails:
    """Why an answer is not whole."""

    reason: Literal["max_output_tokens"] = "max_output_tokens"


@dataclass(frozen=True, slots=True)
class ResponseText:
    """What form the text has."""

    format: dict[str, str] = field(default_factory=lambda: dict(PLAIN_TEXT))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelResponse:
    """An answer, as OpenAI's responses give it, and what it was read from."""

    id: str
    object: Literal["response"] = field(init=False, default="response")
    created_at: int
    status: Status
    model: str
    output: list[OutputMessage]
    usage: ResponseUsage | None
    """null while it is written."""
    incomplete_details: IncompleteDetails | None
    metadata: dict[str, Any]
    temperature: float
    top_p: float
    max_output_tokens: int
    condensery: ChatExtras | None
    """null while it is written."""
    error: None = None
    instructions: None = None
    previous_response_id: None = None
    parallel_tool_calls: bool = False
    tool_choice: Literal["none"] = "none"
    tools: list[Any] = field(default_factory=list)
    text: ResponseText = field(default_factory=ResponseText)
    truncation: Literal["disabled"] = "disabled"
    store: Literal[False] = False


async def create_response(request: Request, services: Services) -> Response:
    """Answer a conversation's last question, as OpenAI's responses do."""
    limits = services.limits
    chat, metadata = await read_as(request, services, lambda data: read_response(data, limits))
    return await answer_chat(request, services, chat, _ResponseWriter(chat, metadata))


def read_response(data: Any, limits: RequestLimits) -> tuple[ChatQuestion, dict[str, Any]]:
    """Read a parsed body; returns the metadata that comes back, too.

    Raises:
        InputError: A field is wrong, or asks for what can't be had.
    """
    refuse_fields(data, REFUSED_FIELDS)
    body = validate_body(data, ResponseRequest)
    if body.text is not None and body.text.format not in (None, PLAIN_TEXT):
        wrong = body.text.format
        raise InputError.at("text.format", f"{shorten(wrong)}: an answer is plain text.", wrong)
    asked = find_question(body.input, "input")
    limit = limits.max_answer_tokens
    max_tokens, clamped = clamp_tokens("max_output_tokens", body.max_output_tokens, limit)
    ignored = without_neutral(
        find_ignored_fields(data, ResponseRequest), data, REFUSED_FIELDS, NEUTRAL_VALUES
    )
    chat = ChatQuestion(
        question=make_question(body, asked.text, max_tokens),
        path="input" if isinstance(data["input"], str) else asked.path,
        unheeded=Unheeded(ignored, asked.unread, clamped),
        stream=bool(body.stream),
        usage=True,
    )
    return chat, body.metadata or {}


class _ResponseWriter:
    """Writes one answer, whole or as events, which are numbered."""

    def __init__(self, chat: ChatQuestion, metadata: dict[str, Any]) -> None:
        self._chat = chat
        self._metadata = metadata
        self._created = int(time.time())
        self._number = 0
        self._message = ""

    def whole(self, answer: Answer) -> ModelResponse:
        """Return a whole answer."""
        done = openai_finish_reason(answer) == "stop"
        usage = answer.usage
        return self._response(
            answer,
            "completed" if done else "incomplete",
            text=answer.answer + list_snippets(answer.snippets),
            incomplete_details=None if done else IncompleteDetails(),
            usage=ResponseUsage(usage.prompt_tokens, usage.completion_tokens, usage.total_tokens),
            condensery=make_extras(answer, self._chat),
        )

    def event(self, event: AnswerEvent) -> bytes:
        """Write one event of the answer as those that OpenAI has for it."""
        if isinstance(event, Retrieved):
            begun = self._response(event, "in_progress")
            item = OutputMessage(self._message, "in_progress", [])
            return b"".join(
                [
                    self._event("response.created", response=begun),
                    self._event("response.in_progress", response=begun),
                    self._event("response.output_item.added", output_index=0, item=item),
                    self._part("response.content_part.added", part=OutputText("")),
                ]
            )
        if isinstance(event, Delta):
            return self._delta(event.text)
        nearest = list_snippets(event.snippets)
        done = self.whole(event)
        (item,) = done.output
        (part,) = item.content
        return b"".join(
            [
                self._delta(nearest) if nearest else b"",
                self._part("response.output_text.done", text=part.text, logprobs=[]),
                self._part("response.content_part.done", part=part),
                self._event("response.output_item.done", output_index=0, item=item),
                self._event(f"response.{done.status}", response=done),
            ]
        )

    def failure(self, error: ErrorDetail) -> bytes:
        """Write a failure: flat, as OpenAI has it, and as an object, which its clients raise."""
        return self._event("error", **{**asdict(error), "type": "error"}, error=error)

    def end(self) -> bytes:
        """Write nothing: the last event says that it is the last."""
        return b""

    def _response(
        self, event: Retrieved | Answer, status: Status, text: str | None = None, **more: Any
    ) -> ModelResponse:
        identity = event.id.rpartition("_")[2]
        self._message = f"msg_{identity}"
        question = self._chat.question
        output = [] if text is None else [OutputMessage(self._message, status, [OutputText(text)])]
        missing = {"usage": None, "incomplete_details": None, "condensery": None}
        return ModelResponse(
            id=f"resp_{identity}",
            created_at=self._created,
            status=status,
            model=event.model,
            output=output,
            metadata=self._metadata,
            temperature=question.temperature,
            top_p=question.top_p,
            max_output_tokens=question.max_tokens,
            **{**missing, **more},
        )

    def _delta(self, text: str) -> bytes:
        return self._part("response.output_text.delta", delta=text, logprobs=[])

    def _part(self, kind: str, **fields: Any) -> bytes:
        place = {"item_id": self._message, "output_index": 0, "content_index": 0}
        return self._event(kind, **place, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = {**fields, "type": kind, "sequence_number": self._number}
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps(data))
