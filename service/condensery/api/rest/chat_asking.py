"""OpenAI's chat body as a question: what would be without effect is refused by name."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from condensery.api.rest.bodies import validate
from condensery.api.rest.questions import make_question
from condensery.errors import InputError, shorten
from condensery.questions import Question, Sampling
from condensery.schemas_rag import ANSWER_TOKENS, ChatMessage, ChatRequest

# Fields that would change the answer and can't be had: their harmless values, and why.
REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = {
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


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat's question.

    Attributes:
        question: To be answered.
        field: Where in the body it stands.
        ignored: Messages before it, which are not read.
        stream: Whether the answer is to come in chunks.
        usage: Whether one chunk more has the usage.
    """

    question: Question
    field: str
    ignored: int
    stream: bool
    usage: bool


def read_chat(data: Any) -> Chat:
    """Read a parsed body.

    Raises:
        InputError: A field is wrong, or would be without effect.
    """
    if isinstance(data, dict):
        _refuse(data)
    body = validate(data, ChatRequest)
    if body.documents is None and body.index is None and body.context is None:
        raise InputError(
            "documents: a pair answers from passages: give `documents`, `index` or `context` "
            "beside `messages` (of the openai client, in `extra_body`).",
            field="documents",
        )
    last = len(body.messages) - 1
    if last and body.history != "ignore":
        raise InputError(
            f"messages: {last + 1} of them, but a pair reads one question: leave out all but the "
            'last, or have the others ignored by `"history": "ignore"` (of the openai client, in '
            "`extra_body`).",
            field="messages",
            value=last + 1,
        )
    field = f"messages[{last}].content"
    text = _text(body.messages[last], last)
    return Chat(
        question=make_question(body, text, _max_tokens(body), _sampling(body)),
        field=field,
        ignored=last,
        stream=bool(body.stream),
        usage=_wants_usage(body),
    )


def _refuse(data: Mapping[str, Any]) -> None:
    for name, (harmless, why) in REFUSED.items():
        value = data.get(name)
        if value not in harmless:
            message = f"{name}: {shorten(value)}: {why}; leave this field out."
            raise InputError(message, field=name, value=value)


def _text(message: ChatMessage, place: int) -> str:
    if message.role != "user":
        field = f"messages[{place}].role"
        raise InputError(
            f"{field}: {shorten(message.role)}: the last message is the question, a user's.",
            field=field,
            value=message.role,
        )
    field = f"messages[{place}].content"
    content = message.content
    text = content if isinstance(content, str) else _join(content, field)
    if not text.strip():
        raise InputError(f"{field}: the question is empty.", field=field, value=content)
    return text


def _join(parts: Any, field: str) -> str:
    if not isinstance(parts, list):
        raise InputError(
            f"{field}: {shorten(parts)} is neither a string nor a list of text parts.",
            field=field,
            value=parts,
        )
    texts = []
    for place, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            where = f"{field}[{place}].type" if kind is not None else f"{field}[{place}]"
            wrong = part if kind is None else kind
            raise InputError(
                f"{where}: {shorten(wrong)}: a pair reads text, "
                'in parts `{"type": "text", "text": ...}`.',
                field=where,
                value=wrong,
            )
        if not isinstance(part.get("text"), str):
            where = f"{field}[{place}].text"
            wrong = part.get("text")
            raise InputError(f"{where}: {shorten(wrong)} is no string.", field=where, value=wrong)
        texts.append(part["text"])
    return "\n".join(texts)


def _max_tokens(body: ChatRequest) -> int:
    old, new = body.max_tokens, body.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise InputError(
            f"max_tokens: {old}, but max_completion_tokens, its new name, is {new}; give one.",
            field="max_tokens",
            value=old,
        )
    given = new if old is None else old
    return ANSWER_TOKENS if given is None else given


def _sampling(body: ChatRequest) -> Sampling:
    if body.top_logprobs and not body.logprobs:
        raise InputError(
            f"top_logprobs: {body.top_logprobs}, but only with `logprobs` true.",
            field="top_logprobs",
            value=body.top_logprobs,
        )
    return Sampling(
        temperature=body.temperature or 0.0,
        top_p=1.0 if body.top_p is None else body.top_p,
        seed=body.seed,
        logprobs=body.top_logprobs or 0 if body.logprobs else None,
    )


def _wants_usage(body: ChatRequest) -> bool:
    if body.stream_options is None:
        return False
    if not body.stream:
        raise InputError(
            "stream_options: only with `stream` true.", field="stream_options", value={}
        )
    return bool(body.stream_options.include_usage)
