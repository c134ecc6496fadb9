"""A conversation as one question: what OpenAI's chat completions and responses have in common.

A pair reads one question and passages. Of a conversation the last message of a user is asked; all
others, the system's and the developer's among them, are not read, and the reply says how many.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from condensery.api.rest.ignored_fields import add_reply_header, report_ignored_fields
from condensery.api.rest.schemas.rag import ChatMessage, ConversationRequest, ResponseItem
from condensery.errors import InputError, list_some, shorten
from condensery.jobs.services import Services
from condensery.jobs.validation import PASSAGE_SOURCES, check_range
from condensery.question import ANSWER_TOKENS, Question

IGNORED_MESSAGES_HEADER = "x-ignored-messages"
CLAMPED_FIELDS_HEADER = "x-clamped-fields"

TEXT_PARTS = ("text", "input_text")  # of chat completions, of responses

# By field that asks for what can't be had: the values that don't, and why.
RefusedFields = Mapping[str, tuple[tuple[Any, ...], str]]
# By field without effect: values that ask for what happens anyway.
NeutralValues = Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class AskedMessage:
    """The message of a conversation that is asked.

    Attributes:
        path: Its text's, in the body.
        unread: Number of all other messages.
    """

    text: str
    path: str
    unread: int


@dataclass(frozen=True, slots=True)
class Unheeded:
    """What of a request had no effect, or less than asked for: its reply's headers say so.

    Attributes:
        fields: Of the body, those without effect.
        messages: How many were not read.
        clamped: Fields that were over a limit, and the limit.
    """

    fields: tuple[str, ...]
    messages: int
    clamped: Mapping[str, int]

    def report(self, request: Request) -> None:
        """Add the headers to the request's reply."""
        report_ignored_fields(request, self.fields)
        if self.messages:
            add_reply_header(request, IGNORED_MESSAGES_HEADER, str(self.messages))
        if self.clamped:
            clamped = ", ".join(f"{name}={limit}" for name, limit in self.clamped.items())
            add_reply_header(request, CLAMPED_FIELDS_HEADER, clamped)


def find_question(messages: Sequence[ChatMessage | ResponseItem], field: str) -> AskedMessage:
    """Return the last message of a user.

    Raises:
        InputError: There is none, or it holds no text, or something else.
    """
    for place in reversed(range(len(messages))):
        if messages[place].role == "user":
            path = f"{field}[{place}].content"
            return AskedMessage(read_text(messages[place].content, path), path, len(messages) - 1)
    roles = list_some(dict.fromkeys(message.role for message in messages))
    raise InputError.at(
        field, f"the last message of role 'user' is the question, and there is none: {roles}."
    )


def read_text(content: Any, path: str) -> str:
    """Return a message's text: a string, or the texts of its parts, a line each.

    Raises:
        InputError: It is neither, or blank, or holds a part that is no text.
    """
    text = content if isinstance(content, str) else _join_parts(content, path)
    if not text.strip():
        raise InputError.at(path, "the question is empty.", content)
    return text


def _join_parts(parts: Any, field: str) -> str:
    if not isinstance(parts, list):
        raise InputError.at(
            field, f"{shorten(parts)} is neither a string nor a list of text parts.", parts
        )
    texts = []
    for place, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in TEXT_PARTS:
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


def refuse_fields(data: Any, refused: RefusedFields) -> None:
    """Refuse what would change the answer's form, and can't be had.

    Raises:
        InputError: Names the field.
    """
    for name, (allowed, why) in refused.items():
        value = data.get(name) if isinstance(data, dict) else None
        if value is not None and value not in allowed:
            message = f"{name}: {shorten(value)}: {why}; leave this field out."
            raise InputError(message, field=name, value=value)


def without_neutral(
    names: Iterable[str], data: Mapping[str, Any], refused: RefusedFields, neutral: NeutralValues
) -> tuple[str, ...]:
    """Return the ignored fields without those whose value asks for what happens anyway."""
    return tuple(
        name
        for name in names
        if name not in refused and data.get(name) not in neutral.get(name, ())
    )


def clamp_tokens(name: str, asked: int | None, limit: int) -> tuple[int, dict[str, int]]:
    """Return how long an answer may be, in tokens; and, where more was asked for, the limit.

    Raises:
        InputError: It would have none.
    """
    if asked is None:
        return ANSWER_TOKENS, {}
    check_range(min(asked, limit), name, 1, limit)
    return (asked, {}) if asked <= limit else (limit, {name: limit})


def make_question(
    body: ConversationRequest, query: str, max_tokens: int, logprobs: int | None = None
) -> Question:
    """Return the question of a conversation, with its passages and options."""
    return Question(
        query,
        documents=body.documents,
        index=body.index,
        context=body.context,
        rerank=body.rerank,
        compression=body.compression,
        min_relevance=body.min_relevance,
        model=body.model,
        max_tokens=max_tokens,
        temperature=body.temperature or 0.0,
        top_p=1.0 if body.top_p is None else body.top_p,
        seed=body.seed,
        stop=body.stop,
        logprobs=logprobs,
    )


def check_passages(services: Services, question: Question) -> None:
    """Refuse a question that says nowhere where its passages are.

    Raises:
        ModelNotFound: A model is named, and it is no pair that serves: an alias that is mistyped or
            gone is told by its name, and not by the passages that it would have carried.
        InputError: Says how to.
    """
    if any(getattr(question, source) is not None for source in PASSAGE_SOURCES):
        return
    aliases, name = services.registry.aliases, question.model
    if name is not None and aliases.index_of(name) is not None:
        return
    if name is not None:
        services.registry.pair(name)
    raise InputError.at(
        "documents",
        "a pair answers from passages: name an index with the model (`oscar-mini@INDEX`, or an "
        "alias of that), or give `documents`, `index` or `context` (of the openai client, in "
        "`extra_body`).",
    )
