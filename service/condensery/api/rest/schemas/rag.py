"""The bodies of requests that compress, answer, compare and chat.

Ours refuse unknown fields. Chat's, which is OpenAI's, ignores them, and says so in its reply's
headers; those that ask for an answer of another form are refused by ``condensery.api.rest.chat``.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, JsonValue, WithJsonSchema

from condensery import question
from condensery.api.rest.schemas.index import FilterObject
from condensery.api.rest.schemas.inference import as_document, refuse_many_fields
from condensery.question import (
    MAX_STOP_CHARS,
    MAX_STOPS,
    AnswerCompression,
    AnswerRerank,
    AtLeastOne,
    LogprobCount,
    Probability,
    Question,
    Seed,
    Temperature,
    TopP,
)
from condensery.values import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerDocument:
    """A passage to read for an answer; ``id`` is by default its place."""

    id: str | None = None
    text: str
    metadata: dict[str, JsonValue] = field(default_factory=dict)


def _number_documents(value: Any) -> Any:
    """Make objects of texts, and give those without an id their place."""
    if not isinstance(value, list):
        return value
    documents = [refuse_many_fields(as_document(item)) for item in value]
    return [
        {**item, "id": str(place)} if isinstance(item, dict) and item.get("id") is None else item
        for place, item in enumerate(documents)
    ]


def _as_tuple(value: Any) -> Any:
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else value


def _as_index(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


# Read as the jobs take them; described as bodies hold them.
Documents = Annotated[
    tuple[Document, ...],
    BeforeValidator(_number_documents, json_schema_input_type=list[str | AnswerDocument]),
]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
StopStrings = Annotated[list[StopString], Field(max_length=MAX_STOPS)]
Stop = Annotated[
    tuple[str, ...],  # whose lengths the jobs check
    BeforeValidator(_as_tuple, json_schema_input_type=StopString | StopStrings | None),
    Field(json_schema_extra={"default": None}),
]


@dataclass(frozen=True, slots=True)
class AnswerIndex(question.AnswerIndex):
    """Where to find the passages."""

    filter: FilterObject | None = None


@dataclass(frozen=True, slots=True)
class AnswerRequest(Question):
    """``POST /v1/rag/answer``: a question with ``documents``, an ``index`` or a ``context``."""

    documents: Documents | None = None
    """Strings, or objects ``{id, text, metadata}``."""
    index: AnswerIndex | None = None
    stop: Stop = ()
    """A string that ends the answer, or several."""
    stream: bool = False


@dataclass(frozen=True, slots=True)
class CompareRequest(AnswerRequest):
    """``POST /v1/rag/compare``: the body of ``/v1/rag/answer``; it is not streamed."""

    stream: Literal[False] = False
    """A comparison comes whole."""


@dataclass(frozen=True, slots=True)
class CompressRequest:
    """``POST /v1/compress``: documents to compress for a question."""

    __pydantic_config__ = ConfigDict(alias_generator=lambda name: name.rstrip("_"))

    query: str
    documents: Documents
    """Strings, or objects ``{id, text, metadata}``."""
    model: str | None = None
    """A pair; by default the default one."""
    ratio: AtLeastOne | None = None
    """Tokens a memory vector; by default the pair's finest rate."""
    ttl_s: float = 600.0
    """How long the server holds the vectors, seconds."""
    return_: Literal["handle", "stats"] = "handle"
    """``handle``: the vectors are held, to answer from. ``stats``: they are not."""


TEXT_PARTS = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
        "required": ["type", "text"],
    },
}


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A message. The last one of role ``user`` is the question; no other is read."""

    __pydantic_config__ = ConfigDict(extra="ignore")

    role: str
    """Of the question ``user``."""
    content: Annotated[
        Any, WithJsonSchema({"anyOf": [{"type": "string"}, TEXT_PARTS, {"type": "null"}]})
    ] = None
    """The question's: a string, or parts ``{"type": "text"}``."""


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """How a chat is streamed."""

    __pydantic_config__ = ConfigDict(extra="ignore")

    include_usage: bool | None = None
    """One chunk more, without choices, has the usage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationRequest:
    """What chats and responses have in common: OpenAI's fields, and where the passages are."""

    __pydantic_config__ = ConfigDict(extra="ignore")

    model: str | None = None
    """A pair, perhaps with an index (`pair@index`, or an alias of that); by default the default
    one."""
    documents: Documents | None = None
    """Strings, or objects ``{id, text, metadata}``."""
    index: (
        Annotated[AnswerIndex, BeforeValidator(_as_index, json_schema_input_type=str | AnswerIndex)]
        | None
    ) = None
    """An index's name, or an object."""
    context: str | None = None
    """What ``/v1/compress`` gave for the same question, and to this key."""
    rerank: AnswerRerank = field(default_factory=AnswerRerank)
    compression: AnswerCompression = field(default_factory=AnswerCompression)
    min_relevance: Probability | None = None
    """Under this score of the best passage nothing is generated, and the answer says that the
    passages don't hold it; 0 always generates. null: as the pair declares."""
    temperature: Temperature | None = None
    """By default 0, the best token always."""
    top_p: TopP | None = None
    seed: Seed | None = None
    stop: Stop = ()
    """A string that ends the answer, or several."""
    stream: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest(ConversationRequest):
    """``POST /v1/chat/completions``: OpenAI's body, and where the passages are.

    Of OpenAI's fields those that ask for an answer of another form (a tool that must be called, n
    over 1, JSON, images) are refused by name; all others that have no effect, offered tools among
    them, are listed in ``x-ignored-fields``.
    """

    messages: Annotated[tuple[ChatMessage, ...], Field(min_length=1)]
    history: Literal["ignore"] | None = None
    """Nothing else can be asked for: other messages are not read (``x-ignored-messages``)."""
    max_tokens: int | None = None
    """By default 64; of more than the server gives, as many as it does (``x-clamped-fields``)."""
    max_completion_tokens: int | None = None
    """The same, OpenAI's way."""
    logprobs: bool | None = None
    top_logprobs: LogprobCount | None = None
    stream_options: StreamOptions | None = None


@dataclass(frozen=True, slots=True)
class ResponseItem:
    """A message, or another item of a conversation. The last of role ``user`` is the question."""

    __pydantic_config__ = ConfigDict(extra="ignore")

    type: str | None = None
    role: str | None = None
    content: Annotated[
        Any, WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array"}, {"type": "null"}]})
    ] = None
    """The question's: a string, or parts ``{"type": "input_text"}``."""


def _as_items(value: Any) -> Any:
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class ResponseTextOptions:
    """What form the text has."""

    __pydantic_config__ = ConfigDict(extra="ignore")

    format: dict[str, JsonValue] | None = None
    """``{"type": "text"}``; there is no other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseRequest(ConversationRequest):
    """``POST /v1/responses``: OpenAI's body, and where the passages are; as ``ChatRequest``."""

    input: Annotated[
        tuple[ResponseItem, ...],
        Field(min_length=1),
        BeforeValidator(_as_items, json_schema_input_type=str | list[ResponseItem]),
    ]
    """The question, or a conversation that it is in."""
    max_output_tokens: int | None = None
    """By default 64; of more than the server gives, as many as it does (``x-clamped-fields``)."""
    text: ResponseTextOptions | None = None
    metadata: dict[str, JsonValue] | None = None
    """Comes back as it is."""
