"""What an answer is made of, and what is said of it: frozen, plain, no torch."""

from dataclasses import dataclass, field
from typing import Literal

from condensery.values import Floats, Metadata

CompressionMode = Literal["auto", "required", "off"]
CompressionStatus = Literal["applied", "partial", "fallback", "off"]
# not_found: the passages don't hold the answer, so nothing was generated.
FinishReason = Literal["stop", "length", "timeout", "not_found"]


@dataclass(frozen=True, slots=True)
class CompressedPassage:
    """A passage after the compressor's one forward pass.

    ``memory`` is (vectors, generator hidden size); ``relevance`` the rerank head's raw score, None
    where the pair has none. A passage longer than the compressor's window was read in ``windows``
    windows; memory and relevance are those of the best one (of the first, where nothing is
    scored), which spans ``start:end`` (characters).
    """

    memory: Floats
    relevance: float | None
    tokens_in: int
    windows: int = 1
    start: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True)
class Compression:
    """What compression did for one answer. FLOPs are analytic, from the config's dimensions.

    Attributes:
        status: ``applied``; ``partial`` if a passage could not be compressed, or one that should
            have been read did not fit the generator; ``fallback`` if all in context were read as
            text for it; ``off`` if none was to be compressed, or there was none.
        docs: Passages that were read as vectors (or would have been, in an answer not found).
        tokens_in: Their tokens.
        vectors_out: What they became.
        fallback: Places (``Citation.index``) of those in context that were read as text
            because their compression failed.
        left_out: Places of those that were to be read and did not fit.
        reason: What the caller would not expect; None if there is nothing.
    """

    mode: CompressionMode
    status: CompressionStatus
    docs: int
    tokens_in: int
    vectors_out: int
    flops_plain: int
    flops_used: int
    compress_ms: float
    reason: str | None = None
    fallback: tuple[int, ...] = ()
    left_out: tuple[int, ...] = ()

    @property
    def ratio(self) -> float:
        """Tokens read for each vector that the generator got; 0 when there are no vectors."""
        return self.tokens_in / self.vectors_out if self.vectors_out else 0.0

    @property
    def flops_saved(self) -> int:
        """Plain minus used; negative when compression cost more than it saved."""
        return self.flops_plain - self.flops_used


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token of an answer, its log-probability, and the likeliest in its place, best first."""

    text: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Citation:
    """A passage that was in the generator's context. Not a claim that the answer is grounded."""

    index: int
    id: str
    document_id: str
    text: str
    start: int
    end: int
    relevance_score: float
    metadata: Metadata = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens and vectors that one answer took."""

    prompt_tokens: int
    context_vectors: int
    completion_tokens: int

    @property
    def total_tokens(self) -> int:
        """Prompt and completion tokens together; memory vectors are counted apart."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Timings:
    """Where one answer's time went, milliseconds."""

    retrieve_ms: float
    compress_ms: float
    generate_ms: float
    ttft_ms: float
    total_ms: float


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer; what a stream's deltas join to is ``text``."""

    id: str
    model: str
    text: str
    finish_reason: FinishReason
    citations: tuple[Citation, ...]
    compression: Compression
    usage: Usage
    timings: Timings
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, slots=True)
class Retrieved:
    """First event of a streamed answer: the passages in context, best first."""

    id: str
    model: str
    citations: tuple[Citation, ...]
    compression: Compression


@dataclass(frozen=True, slots=True)
class Delta:
    """A stretch of the answer's text."""

    text: str
    logprobs: tuple[TokenLogprob, ...] | None = None


AnswerEvent = Retrieved | Delta | Answer


@dataclass(frozen=True, slots=True)
class CompressedDocument:
    """What became of one document of a ``Compressed``; ``status`` is ``applied`` or ``failed``."""

    index: int
    id: str
    relevance_score: float | None
    tokens_in: int
    vectors_out: int
    windows: int
    status: Literal["applied", "failed"] = "applied"
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Compressed:
    """Documents compressed for a question, in the request's order and number.

    Attributes:
        context: Handle of the vectors, which the server holds; None if none was asked for.
        expires_at: When it lets go of them, Unix seconds.
    """

    id: str
    model: str
    fingerprint: str
    context: str | None
    expires_at: float | None
    documents: tuple[CompressedDocument, ...]
    compression: Compression
    tokens: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same question answered from vectors and from the passages' own text.

    Attributes:
        exact: Whether both answers are the same but for case, articles and punctuation.
        f1: Of their words (SQuAD's).
        cosine: Of their vectors by the default encoder; None if there is none.
        speedup: Plain's time over compressed's, retrieval left out.
    """

    compressed: Answer
    plain: Answer
    exact: bool
    f1: float
    cosine: float | None
    speedup: float

    @property
    def flops_saved(self) -> int:
        """FLOPs of reading the passages plain, less those of the compressed way."""
        return self.compressed.compression.flops_saved
