"""A question to a pair, and its answer: frozen, plain, no torch.

Where the passages are and how to read them (``Question``), what came of it (``Answer``, or event by
event), what compression did, and whether two answers say the same: SQuAD's measures
(Rajpurkar et al., 2016).
"""

import re
import string
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from condensery.errors import InputError
from condensery.values import Document, Floats, Metadata, TokenUsage, set_derived

CompressionMode = Literal["auto", "required", "off"]
CompressionStatus = Literal["applied", "partial", "fallback", "off"]
# not_found: the passages don't hold the answer, so nothing was generated.
FinishReason = Literal["stop", "length", "timeout", "not_found"]
# How an index is searched: by vectors, by words (BM25), or by both, their ranks fused.
SearchMode = Literal["dense", "bm25", "hybrid"]

MAX_TEMPERATURE = 2.0
MAX_LOGPROBS = 20
MAX_STOPS = 16
MAX_STOP_CHARS = 256

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen.

    Attributes:
        temperature: Scores are divided by it; 0 takes the best one always.
        top_p: Only the most likely tokens that have so much probability together, the one that
            reaches it included.
        seed: The same one gives the same answer again, whatever else runs; None draws anew.
        logprobs: Report the chosen token's log-probability, and those of so many likeliest
            ones, as the model gives them (temperature 1, no top_p); None reports none.

    Raises:
        InputError: A value is out of its range; names the field.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    logprobs: int | None = None

    def __post_init__(self) -> None:
        allowed = f"0 to {MAX_TEMPERATURE:g}"
        self._check("temperature", allowed, 0 <= self.temperature <= MAX_TEMPERATURE)
        self._check("top_p", "over 0 and up to 1", 0 < self.top_p <= 1)
        holds = self.logprobs is None or 0 <= self.logprobs <= MAX_LOGPROBS
        self._check("logprobs", f"0 to {MAX_LOGPROBS}", holds)

    def _check(self, field: str, allowed: str, holds: bool) -> None:
        if not holds:
            value = getattr(self, field)
            raise InputError(f"{field}={value} is not {allowed}", field=field, value=value)


GREEDY = Sampling()


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and how it is to be answered.

    Its passages are ``documents``, or are found in ``index``, or were compressed before
    (``context``): one of the three. What is None is the pair's own default.

    Attributes:
        text: What is asked.
        documents: Read whole; one passage each.
        index: Name of the index to find passages in.
        context: Handle of passages that were compressed for this question.
        model: A pair's name.
        top_k: Passages taken from the index.
        search: How they are found; None is the server's default.
        filter: Which documents of the index they may be of, as requests hold it.
        top_n: Passages that the generator reads, the most relevant; 0 reads all.
        mode: ``auto`` compresses and falls back on text, reported; ``required`` fails instead;
            ``off`` reads the passages' own tokens, in retrieval order and without scores.
        rate: Tokens a memory vector, of the rates that the pair has.
        max_context_vectors: Most memory vectors that the generator reads: the finest rate that
            keeps to it, then fewer passages.
        target_ms: About how long compression and the first token may take: likewise.
        compress_timeout_ms: Longest compression; then it counts as failed.
        min_relevance: Under this score of the best passage (0 to 1) nothing is generated, and the
            answer says that the passages don't hold it; 0 always generates.
        max_tokens: Most tokens of the answer.
        stop: Strings that end it.
        sampling: How its tokens are chosen.
    """

    text: str
    documents: Sequence[Document] | None = None
    index: str | None = None
    context: str | None = None
    model: str | None = None
    top_k: int = 20
    search: SearchMode | None = None
    filter: Metadata | None = None
    top_n: int | None = None
    mode: CompressionMode = "auto"
    rate: int | None = None
    max_context_vectors: int | None = None
    target_ms: float | None = None
    compress_timeout_ms: float | None = None
    min_relevance: float | None = None
    max_tokens: int = 64
    stop: Sequence[str] = ()
    sampling: Sampling = GREEDY


@dataclass(frozen=True, slots=True)
class MemoryWindow:
    """One window of a long passage.

    Attributes:
        memory: Its vectors, (vectors, generator hidden size).
        tokens: Of the passage up to the window's end.
        end: Characters of the passage up to there.
    """

    memory: Floats
    tokens: int
    end: int


@dataclass(frozen=True, slots=True)
class CompressedPassage:
    """A passage after the compressor's one forward pass.

    A passage longer than the compressor's window was read in ``windows`` windows. Where they are
    scored, the best one counts: memory, relevance and ``start:end`` are its own. Where nothing is
    scored none is the best, and the generator reads all of them (``parts``), or the first few.

    Attributes:
        memory: (vectors, generator hidden size); of the first window, where all are read.
        relevance: The rerank head's raw score; None where the pair has none.
        tokens_in: The passage's tokens, of all windows, or of those that ``first`` left.
        windows: That the compressor read.
        start: First character that the generator reads of.
        end: After the last one.
        parts: Where nothing is scored, the windows of a passage of several, in order.
    """

    memory: Floats
    relevance: float | None
    tokens_in: int
    windows: int = 1
    start: int = 0
    end: int = 0
    parts: tuple[MemoryWindow, ...] = ()

    @property
    def memories(self) -> tuple[Floats, ...]:
        """What the generator reads of it: a window's vectors each."""
        return tuple(part.memory for part in self.parts) or (self.memory,)

    def first(self, windows: int) -> "CompressedPassage":
        """Return the passage cut to its first ``windows`` parts."""
        if windows >= len(self.parts):
            return self
        kept = self.parts[:windows]
        return replace(self, parts=kept, tokens_in=kept[-1].tokens, end=kept[-1].end)

    def coarsened(self, vectors: int) -> "CompressedPassage":
        """Return a copy that holds the first ``vectors`` of each window, and nothing else."""
        parts = tuple(replace(part, memory=np.array(part.memory[:vectors])) for part in self.parts)
        memory = parts[0].memory if parts else np.array(self.memory[:vectors])
        return replace(self, memory=memory, parts=parts)


@dataclass(frozen=True, slots=True)
class Compression:
    """What compression did for one answer.

    It is ``applied``; ``partial`` if a passage could not be compressed, or one that should have
    been read did not fit the generator; ``fallback`` if all in context were read as text for it;
    ``off`` if none was to be compressed, or there was none. FLOPs are analytic, from the config's
    dimensions.
    """

    mode: CompressionMode
    status: CompressionStatus
    reason: str | None = field(default=None, kw_only=True)
    """What the caller would not expect; null if there is nothing."""
    docs: int
    """Passages that were read as vectors (or would have been, in an answer not found)."""
    tokens_in: int
    """Their tokens; of a long passage whose windows nothing scores, those of what is read."""
    vectors_out: int
    """What they became."""
    ratio: float = field(init=False, default=0.0)
    """Tokens read for each vector that the generator got; 0 when there are no vectors."""
    flops_plain: int
    flops_used: int
    flops_saved: int = field(init=False, default=0)
    """Plain minus used; negative when compression cost more than it saved."""
    compress_ms: float
    fallback_docs: tuple[int, ...] = ()
    """Places of those in context that were read as text, since compression failed."""
    left_out: tuple[int, ...] = ()
    """Places of those that did not fit."""

    def __post_init__(self) -> None:
        ratio = self.tokens_in / self.vectors_out if self.vectors_out else 0.0
        set_derived(self, ratio=ratio, flops_saved=self.flops_plain - self.flops_used)

    @property
    def fallback(self) -> tuple[int, ...]:
        """The places of ``fallback_docs``."""
        return self.fallback_docs


@dataclass(frozen=True, slots=True)
class Likely:
    """A token that could have stood in another's place."""

    text: str
    logprob: float

    def __iter__(self) -> Iterator[str | float]:
        """Yield the text and its log-probability: it was a pair of them once."""
        return iter((self.text, self.logprob))

    def __getitem__(self, place: int) -> str | float:
        """Return the text (0) or its log-probability (1)."""
        return (self.text, self.logprob)[place]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token of an answer, as the model saw it."""

    text: str
    logprob: float
    top: tuple[Likely, ...] = ()
    """The likeliest ones in its place, best first."""


@dataclass(frozen=True, slots=True)
class GeneratedToken:
    """One step: the text it adds (may be empty), tokens so far, and why it was the last.

    Attributes:
        text: What may be shown now; a token that begins a stop string shows nothing yet.
        count: Tokens so far, one that stops left out.
        finish: Why it was the last.
        id: The token's; None where nothing was chosen.
        logprob: Its log-probability, if it was asked for, and the token is part of the answer.
        waited: Seconds that its answer waited until the generator could begin with it.
    """

    text: str
    count: int
    finish: FinishReason | None = None
    id: int | None = None
    logprob: TokenLogprob | None = None
    waited: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class AnswerCost:
    """What one answer took: FLOPs from config dimensions, tokens as counted.

    Attributes:
        prompt_tokens: Tokens of the generator's prompt that are text, plain passages included.
        context_vectors: Memory vectors in it.
        positions: Positions that the prompt takes: both, and what stands between its parts.
        flops_used: Compression (of all that was read for it) and generation.
        flops_plain: Generation from the text of the passages in context.
        question_tokens: Tokens of the question as asked.
        question_limit: Tokens of it that the compressor reads at most; None if it cuts none.
    """

    prompt_tokens: int
    context_vectors: int
    positions: int
    flops_used: int
    flops_plain: int
    question_tokens: int
    question_limit: int | None


@dataclass(frozen=True, slots=True)
class Citation:
    """A passage that was in the generator's context; no claim that the answer is grounded."""

    index: int
    id: str
    document_id: str
    text: str
    start: int  # characters of its document
    end: int
    relevance_score: float | None
    """The rerank head's, 0 to 1; where that gave none, retrieval's; null where nothing scored the
    passage."""
    metadata: Metadata = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens and vectors that one answer took."""

    prompt_tokens: int
    total_tokens: int = field(init=False, default=0)
    """Prompt and completion tokens together; memory vectors are counted apart."""
    context_vectors: int
    completion_tokens: int

    def __post_init__(self) -> None:
        set_derived(self, total_tokens=self.prompt_tokens + self.completion_tokens)


@dataclass(frozen=True, slots=True)
class Timings:
    """Where one answer's time went, in milliseconds; all but the two sums are apart."""

    retrieve_ms: float
    """Finding passages in an index."""
    compress_ms: float
    """Compressing them, without what it waited and tokenised."""
    generate_ms: float
    """Generating, from when the generator's cache had space for the answer."""
    ttft_ms: float
    """From the question to the first token: a sum."""
    total_ms: float
    """Until the answer was whole: the other sum."""
    queue_ms: float = 0.0
    """Waiting: for the compressor's device, and for space in the generator's key/value cache."""
    tokenize_ms: float = 0.0
    """Making tokens of question, passages and context."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer and what it was read from."""

    id: str
    object: Literal["rag.answer"] = field(init=False, default="rag.answer")
    answer: str
    model: str
    finish_reason: FinishReason
    citations: tuple[Citation, ...]
    compression: Compression
    usage: Usage
    timings: Timings
    logprobs: tuple[TokenLogprob, ...] | None = None
    """null unless asked for."""

    @property
    def text(self) -> str:
        """What is answered, which a stream's deltas join to: ``answer``."""
        return self.answer


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
    """What became of one document; ``relevance_score`` is null if it failed, or nothing scores."""

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
    """Documents after compression, in the request's order and number."""

    id: str
    object: Literal["rag.compression"] = field(init=False, default="rag.compression")
    model: str
    fingerprint: str
    context: str | None
    """Handle of the vectors; null if none are held."""
    expires_at: float | None
    """When they are let go of, Unix seconds."""
    results: tuple[CompressedDocument, ...]
    compression: Compression
    usage: TokenUsage

    @property
    def documents(self) -> tuple[CompressedDocument, ...]:
        """What became of the documents: ``results``."""
        return self.results

    @property
    def tokens(self) -> int:
        """The documents' tokens: ``usage.prompt_tokens``."""
        return self.usage.prompt_tokens


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far two answers say the same."""

    exact: bool
    """The same but for case, articles and punctuation."""
    f1: float
    """Of their words (SQuAD's)."""
    cosine: float | None
    """Of their vectors by the default encoder; null if there is none."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same question answered from vectors and from the passages' own text."""

    object: Literal["rag.comparison"] = field(init=False, default="rag.comparison")
    compressed: Answer
    plain: Answer
    agreement: Agreement
    speedup: float
    """Plain's time over compressed's, retrieval and waiting left out."""
    flops_saved: int = field(init=False, default=0)
    """FLOPs of reading the passages plain, less those of the compressed way."""

    def __post_init__(self) -> None:
        set_derived(self, flops_saved=self.compressed.compression.flops_saved)

    @property
    def exact(self) -> bool:
        """Whether both answers are the same: ``agreement.exact``."""
        return self.agreement.exact

    @property
    def f1(self) -> float:
        """The F1 of their words: ``agreement.f1``."""
        return self.agreement.f1

    @property
    def cosine(self) -> float | None:
        """The cosine of their vectors: ``agreement.cosine``."""
        return self.agreement.cosine


def normalise_answer(text: str) -> str:
    """Lower-case, without punctuation, articles and extra blanks."""
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, golds: Sequence[str]) -> float:
    """Return 1.0 if the answer equals one of the gold answers when normalised, else 0.0."""
    return float(any(normalise_answer(answer) == normalise_answer(gold) for gold in golds))


def f1_score(answer: str, golds: Sequence[str]) -> float:
    """Return the best word-overlap F1 with a gold answer, 0..1."""
    return max(
        _word_overlap(normalise_answer(answer).split(), normalise_answer(gold).split())
        for gold in golds
    )


def _word_overlap(answer: list[str], gold: list[str]) -> float:
    if not answer or not gold:
        return float(answer == gold)
    same = sum((Counter(answer) & Counter(gold)).values())
    return 2 * same / (len(answer) + len(gold))
