"""The bodies of requests and replies of compress, answer, compare and chat.

Ours refuse unknown fields. Chat's, which is OpenAI's, ignores them: those that would change the
answer and have no effect here are refused by ``condensery.api.rest.chat``.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, FiniteFloat, JsonValue, WithJsonSchema

from condensery.api.rest.schemas.index import FilterObject
from condensery.api.rest.schemas.inference import Lenient, Many, Ours, as_document
from condensery.api.rest.schemas.replies import Reply, TokenUsage
from condensery.question import (
    MAX_LOGPROBS,
    MAX_STOP_CHARS,
    MAX_STOPS,
    MAX_TEMPERATURE,
    CompressionMode,
    CompressionStatus,
    FinishReason,
    SearchMode,
)

# OpenAI's range: a signed integer of 64 bits.
Seed = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
ANSWER_TOKENS = 64
Probability = Annotated[FiniteFloat, Field(ge=0, le=1)]
Milliseconds = Annotated[FiniteFloat, Field(ge=1)]


class AnswerDocument(Ours):
    """A passage to read for an answer; ``id`` is by default its place."""

    id: str | None = None
    text: str
    metadata: dict[str, JsonValue] = Field(default_factory=dict)


AnswerDocuments = Many[
    Annotated[
        AnswerDocument, BeforeValidator(as_document, json_schema_input_type=str | AnswerDocument)
    ]
]
DOCUMENTS_DESCRIPTION = "Strings, or objects `{id, text, metadata}`."


class AnswerIndex(Ours):
    """Where to find the passages."""

    name: str
    top_k: int = Field(default=20, description="Passages to retrieve, and to compress.")
    mode: SearchMode | None = Field(
        default=None,
        description="By vectors, by words (BM25), or by both, their ranks fused. null: as the "
        "server is set.",
    )
    filter: FilterObject | None = None


class AnswerRerank(Ours):
    """How many of the passages, the most relevant, the answer is generated from."""

    top_n: int | None = Field(
        default=None, description="0: all. null: as many as the pair reads best."
    )


class AnswerCompression(Ours):
    """Whether passages are compressed, and how far."""

    mode: CompressionMode = Field(
        default="auto",
        description="`auto` falls back on text, reported; `required` fails instead; `off` reads "
        "the passages' own tokens.",
    )
    ratio: int | None = Field(
        default=None, ge=1, description="Tokens a memory vector, of the rates that the pair has."
    )
    max_context_vectors: int | None = Field(
        default=None,
        ge=1,
        description="Most memory vectors to read: the finest rate that keeps to it, then fewer "
        "passages.",
    )
    target_ms: Milliseconds | None = Field(
        default=None,
        description="About how long compression and the first token may take: likewise.",
    )
    timeout_ms: Milliseconds | None = Field(
        default=None, description="Longest compression; then it counts as failed."
    )


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


# The jobs check the same.
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
StopStrings = Annotated[list[StopString], Field(max_length=MAX_STOPS)]
Stop = Annotated[
    Many[str] | None,
    BeforeValidator(_as_list, json_schema_input_type=StopString | StopStrings | None),
]
STOP_DESCRIPTION = "A string that ends the answer, or several."
RELEVANCE_DESCRIPTION = (
    "Under this score of the best passage nothing is generated, and the answer says that the "
    "passages don't hold it; 0 always generates. null: as the pair declares."
)


class AnswerRequest(Ours):
    """``POST /v1/rag/answer``: a question with ``documents``, an ``index`` or a ``context``."""

    query: str
    documents: AnswerDocuments | None = Field(default=None, description=DOCUMENTS_DESCRIPTION)
    index: AnswerIndex | None = None
    context: str | None = Field(
        default=None, description="What `/v1/compress` gave for the same question, and to this key."
    )
    rerank: AnswerRerank = Field(default_factory=AnswerRerank)
    compression: AnswerCompression = Field(default_factory=AnswerCompression)
    min_relevance: Probability | None = Field(default=None, description=RELEVANCE_DESCRIPTION)
    model: str | None = Field(default=None, description="A pair; by default the default one.")
    max_tokens: int = ANSWER_TOKENS
    temperature: FiniteFloat = Field(
        default=0.0, ge=0, le=MAX_TEMPERATURE, description="0 takes the best token always."
    )
    top_p: FiniteFloat = Field(default=1.0, gt=0, le=1)
    seed: Seed | None = Field(
        default=None, description="The same one gives the same answer again; null draws anew."
    )
    stop: Stop = Field(default=None, description=STOP_DESCRIPTION)
    logprobs: int | None = Field(
        default=None,
        ge=0,
        le=MAX_LOGPROBS,
        description="Report each token's log-probability, and those of so many likeliest ones.",
    )
    stream: bool = False


class CompareRequest(AnswerRequest):
    """``POST /v1/rag/compare``: the body of ``/v1/rag/answer``; it is not streamed."""

    stream: Literal[False] = Field(default=False, description="A comparison comes whole.")


class CompressRequest(Ours):
    """``POST /v1/compress``: documents to compress for a question."""

    query: str
    documents: AnswerDocuments = Field(description=DOCUMENTS_DESCRIPTION)
    model: str | None = Field(default=None, description="A pair; by default the default one.")
    ratio: int | None = Field(
        default=None, ge=1, description="Tokens a memory vector; by default the pair's finest rate."
    )
    ttl_s: FiniteFloat = Field(
        default=600.0, description="How long the server holds the vectors, seconds."
    )
    returns: Literal["handle", "stats"] = Field(
        default="handle",
        alias="return",
        description="`handle`: the vectors are held, to answer from. `stats`: they are not.",
    )


def _as_index(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


TEXT_PARTS = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
        "required": ["type", "text"],
    },
}


class ChatMessage(Lenient):
    """A message. The last one is the question; earlier ones are not read."""

    role: str = Field(description="The last one's is `user`.")
    content: Annotated[
        Any, WithJsonSchema({"anyOf": [{"type": "string"}, TEXT_PARTS, {"type": "null"}]})
    ] = Field(default=None, description='The last one\'s: a string, or parts `{"type": "text"}`.')


class StreamOptions(Lenient):
    """How a chat is streamed."""

    include_usage: bool | None = Field(
        default=None, description="One chunk more, without choices, has the usage."
    )


class ChatRequest(Lenient):
    """``POST /v1/chat/completions``: OpenAI's body, and where the passages are.

    Of OpenAI's fields those that would change the answer and can't be had (tools, n over 1, images,
    penalties, ...) are refused by name.
    """

    messages: Many[ChatMessage] = Field(min_length=1)
    model: str | None = Field(default=None, description="A pair; by default the default one.")
    documents: AnswerDocuments | None = Field(default=None, description=DOCUMENTS_DESCRIPTION)
    index: (
        Annotated[
            AnswerIndex,
            BeforeValidator(_as_index, json_schema_input_type=str | AnswerIndex),
        ]
        | None
    ) = Field(default=None, description="An index's name, or an object.")
    context: str | None = Field(
        default=None, description="What `/v1/compress` gave for the same question, and to this key."
    )
    rerank: AnswerRerank = Field(default_factory=AnswerRerank)
    compression: AnswerCompression = Field(default_factory=AnswerCompression)
    min_relevance: Probability | None = Field(default=None, description=RELEVANCE_DESCRIPTION)
    history: Literal["ignore"] | None = Field(
        default=None,
        description="A pair reads one question: earlier messages are refused, or ignored.",
    )
    max_tokens: int | None = Field(default=None, description=f"By default {ANSWER_TOKENS}.")
    max_completion_tokens: int | None = Field(default=None, description="The same, OpenAI's way.")
    temperature: FiniteFloat | None = Field(
        default=None, ge=0, le=MAX_TEMPERATURE, description="By default 0, the best token always."
    )
    top_p: FiniteFloat | None = Field(default=None, gt=0, le=1)
    seed: Seed | None = None
    stop: Stop = Field(default=None, description=STOP_DESCRIPTION)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
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
