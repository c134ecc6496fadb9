"""What a pair's replies look like, for the description: as in ``replies``."""

from typing import Literal

from pydantic import Field, JsonValue

from condensery.answers import CompressionMode, CompressionStatus, FinishReason
from condensery.api.rest.replies import Reply, TokenUsage


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
