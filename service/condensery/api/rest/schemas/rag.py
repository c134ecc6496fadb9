"""The bodies of requests and replies of compress, answer, compare and chat.

Ours refuse unknown fields. Chat's, which is OpenAI's, ignores them: those that would change the
answer and have no effect here are refused by ``condensery.api.rest.chat``.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, JsonValue, WithJsonSchema

from condensery import question
from condensery.api.rest.schemas.index import FilterObject
from condensery.api.rest.schemas.inference import as_document, refuse_many_fields
from condensery.api.rest.schemas.replies import Reply, TokenUsage
from condensery.question import (
    MAX_STOP_CHARS,
    MAX_STOPS,
    AnswerCompression,
    AnswerRerank,
    AtLeastOne,
    CompressionMode,
    CompressionStatus,
    FinishReason,
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
    """A message. The last one is the question; earlier ones are not read."""

    __pydantic_config__ = ConfigDict(extra="ignore")

    role: str
    """The last one's is ``user``."""
    content: Annotated[
        Any, WithJsonSchema({"anyOf": [{"type": "string"}, TEXT_PARTS, {"type": "null"}]})
    ] = None
    """The last one's: a string, or parts ``{"type": "text"}``."""


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """How a chat is streamed."""

    __pydantic_config__ = ConfigDict(extra="ignore")

    include_usage: bool | None = None
    """One chunk more, without choices, has the usage."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """``POST /v1/chat/completions``: OpenAI's body, and where the passages are.

    Of OpenAI's fields those that would change the answer and can't be had (tools, n over 1, images,
    penalties, ...) are refused by name.
    """

    __pydantic_config__ = ConfigDict(extra="ignore")

    messages: Annotated[tuple[ChatMessage, ...], Field(min_length=1)]
    model: str | None = None
    """A pair; by default the default one."""
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
    history: Literal["ignore"] | None = None
    """A pair reads one question: earlier messages are refused, or ignored."""
    max_tokens: int | None = None
    """By default 64."""
    max_completion_tokens: int | None = None
    """The same, OpenAI's way."""
    temperature: Temperature | None = None
    """By default 0, the best token always."""
    top_p: TopP | None = None
    seed: Seed | None = None
    stop: Stop = ()
    """A string that ends the answer, or several."""
    logprobs: bool | None = None
    top_logprobs: LogprobCount | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


# Replies


class Citation(Reply):
    """A passage that was in the generator's context; no claim that the answer is grounded."""

    index: int
    id: str
    document_id: str
    text: str
    start: int
    end: int
    relevance_score: float | None = Field(description="null where nothing scored the passage.")
    metadata: dict[str, JsonValue]


class CompressionBlock(Reply):
    """What compression did for one answer."""

    mode: CompressionMode
    status: CompressionStatus
    reason: str | None
    docs: int
    tokens_in: int
    vectors_out: int
    ratio: float
    flops_plain: int
    flops_used: int
    flops_saved: int
    compress_ms: float
    fallback_docs: list[int] = Field(
        description="Places of those in context that were read as text, since compression failed."
    )
    left_out: list[int] = Field(description="Places of those that did not fit.")


class AnswerUsage(TokenUsage):
    """Tokens and vectors that one answer took."""

    context_vectors: int
    completion_tokens: int


class AnswerTimings(Reply):
    """Where one answer's time went."""

    retrieve_ms: float
    compress_ms: float
    generate_ms: float
    ttft_ms: float
    total_ms: float
    queue_ms: float = Field(
        description="Waiting: for a device, and for room among the generator's keys and values."
    )
    tokenize_ms: float = Field(description="Making tokens of question, passages and context.")


class Likely(Reply):
    """A token that could have stood in another's place."""

    text: str
    logprob: float


class TokenLogprob(Likely):
    """A token of an answer, as the model saw it."""

    top: list[Likely] = Field(description="The likeliest ones in its place, best first.")


class WholeAnswer(Reply):
    """An answer and what it was read from."""

    id: str
    object: Literal["rag.answer"]
    answer: str
    model: str
    finish_reason: FinishReason
    citations: list[Citation]
    compression: CompressionBlock
    usage: AnswerUsage
    timings: AnswerTimings
    logprobs: list[TokenLogprob] | None = Field(description="null unless asked for.")


class Agreement(Reply):
    """How far two answers say the same."""

    exact: bool = Field(description="The same but for case, articles and punctuation.")
    f1: float = Field(description="Of their words.")
    cosine: float | None = Field(
        description="Of their vectors by the default encoder; null if there is none."
    )


class Comparison(Reply):
    """The same question answered from vectors and from the passages' own text."""

    object: Literal["rag.comparison"]
    compressed: WholeAnswer
    plain: WholeAnswer
    agreement: Agreement
    speedup: float = Field(
        description="Plain's time over compressed's, retrieval and waiting left out."
    )
    flops_saved: int


class CompressedDocument(Reply):
    """What became of one document; ``relevance_score`` is null if it failed, or nothing scores."""

    index: int
    id: str
    relevance_score: float | None
    tokens_in: int
    vectors_out: int
    windows: int
    status: Literal["applied", "failed"]
    reason: str | None


class Compressed(Reply):
    """Documents after compression, in the request's order and number."""

    id: str
    object: Literal["rag.compression"]
    model: str
    fingerprint: str
    context: str | None = Field(description="Handle of the vectors; null if none are held.")
    expires_at: float | None = Field(description="When they are let go of, Unix seconds.")
    results: list[CompressedDocument]
    compression: CompressionBlock
    usage: TokenUsage


class Released(Reply):
    """A context that is no more."""

    id: str
    object: Literal["context"]
    deleted: Literal[True]


class ChatTop(Reply):
    """A token that could have stood in another's place, as OpenAI gives it."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatToken(ChatTop):
    """A token of an answer, as OpenAI gives it."""

    top_logprobs: list[ChatTop]


class ChatLogprobs(Reply):
    """An answer's tokens, as OpenAI gives them."""

    content: list[ChatToken]
    refusal: None


class ChatAnswer(Reply):
    """The answer's text, as OpenAI gives it."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(Reply):
    """The answer; there is one."""

    index: Literal[0]
    message: ChatAnswer
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"]


class ChatUsage(TokenUsage):
    """Tokens that one answer took, as OpenAI counts them."""

    completion_tokens: int


class ChatExtras(Reply):
    """What OpenAI's reply has no place for."""

    citations: list[Citation]
    compression: CompressionBlock
    timings: AnswerTimings
    finish_reason: FinishReason
    ignored_messages: int = Field(description="Earlier messages that `history` let pass unread.")


class ChatCompletion(Reply):
    """An answer, as OpenAI gives it, and what it was read from."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: ChatUsage
    condensery: ChatExtras
