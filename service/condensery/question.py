"""A question to a pair, and its answer: frozen, plain, no torch.

Where the passages are and how to read them (``Question``), what came of it (``Answer``, or event by
event), and what compression did.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import numpy as np

from condensery.errors import InputError
from condensery.values import Document, Floats, Metadata, SearchMode, TokenUsage, set_derived

CompressionMode = Literal["auto", "required", "off"]
CompressionStatus = Literal["applied", "partial", "fallback", "off"]
# not_found: the passages don't hold the answer, so nothing was generated.
FinishReason = Literal["stop", "length", "not_found"]

# The answer where the best passage is under the threshold: nothing is generated then.
NOT_FOUND = "The passages do not hold the answer."
ANSWER_TOKENS = 64  # of an answer at most, where nobody says
MAX_TEMPERATURE = 2.0
MAX_LOGPROBS = 20
MAX_STOPS = 16
MAX_STOP_CHARS = 256


def says_not_found(text: str) -> bool:
    """Whether a text is the sentence by which an answer says that there is none."""
    return text.strip(' \t\r\n."').casefold() == NOT_FOUND.rstrip(".").casefold()


@dataclass(frozen=True, slots=True)
class Range:
    """Bounds of a number, by themselves or in the annotation of a field, where pydantic finds them.

    Attributes:
        ge: The least.
        gt: Over this, instead.
        le: The most.
    """

    ge: float | None = None
    gt: float | None = None
    le: float | None = None

    def check(self, field: str, value: float | None) -> None:
        """Refuse a number out of these bounds; None is allowed.

        Raises:
            InputError: Names the field.
        """
        if value is None:
            return
        above = self.ge is None or value >= self.ge
        above = above and (self.gt is None or value > self.gt)
        if not above or (self.le is not None and not value <= self.le):
            raise InputError(f"{field}={value} is not {self}", field=field, value=value)

    def __str__(self) -> str:
        low = f"{self.ge:g}" if self.ge is not None else f"over {self.gt:g}"
        return low if self.le is None else f"{low} to {self.le:g}"

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        bounds = {"ge": self.ge, "gt": self.gt, "le": self.le}
        return {**handler(source), **{key: at for key, at in bounds.items() if at is not None}}


TEMPERATURES = Range(ge=0, le=MAX_TEMPERATURE)
TOP_PS = Range(gt=0, le=1)
LOGPROB_COUNTS = Range(ge=0, le=MAX_LOGPROBS)
Temperature = Annotated[float, TEMPERATURES]
TopP = Annotated[float, TOP_PS]
LogprobCount = Annotated[int, LOGPROB_COUNTS]
# OpenAI's range: a signed integer of 64 bits.
Seed = Annotated[int, Range(ge=-(2**63), le=2**63 - 1)]
Probability = Annotated[float, Range(ge=0, le=1)]
AtLeastOne = Annotated[int, Range(ge=1)]
Milliseconds = Annotated[float, Range(ge=1)]


def _check_sampling(values: "Sampling | Question") -> None:
    TEMPERATURES.check("temperature", values.temperature)
    TOP_PS.check("top_p", values.top_p)
    LOGPROB_COUNTS.check("logprobs", values.logprobs)


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

    temperature: Temperature = 0.0
    top_p: TopP = 1.0
    seed: Seed | None = None
    logprobs: LogprobCount | None = None

    def __post_init__(self) -> None:
        _check_sampling(self)


GREEDY = Sampling()


# The question. Fields have the names and places that they have in a REST body, which is read into
# these classes; what stands below a field describes it in docs/openapi.json.


@dataclass(frozen=True, slots=True)
class AnswerIndex:
    """Where to find the passages."""

    name: str
    top_k: int = 20
    """Passages to retrieve, and to compress."""
    mode: SearchMode | None = None
    """By vectors, by words (BM25), or by both, their ranks fused. null: as the server is set."""
    filter: Metadata | None = None


@dataclass(frozen=True, slots=True)
class AnswerRerank:
    """How many of the passages, the most relevant, the answer is generated from."""

    top_n: int | None = None
    """0: all. null: as many as the pair reads best."""


@dataclass(frozen=True, slots=True)
class AnswerCompression:
    """Whether passages are compressed, and how far."""

    mode: CompressionMode = "auto"
    """``auto`` falls back on text, reported; ``required`` fails instead; ``off`` reads the
    passages' own tokens."""
    ratio: AtLeastOne | None = None
    """Tokens a memory vector, of the rates that the pair has."""
    max_context_vectors: AtLeastOne | None = None
    """Most memory vectors to read: the finest rate that keeps to it, then fewer passages."""
    target_ms: Milliseconds | None = None
    """About how long compression and the first token may take: likewise."""
    timeout_ms: Milliseconds | None = None
    """Longest compression; then it counts as failed."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question with ``documents``, an ``index`` or a ``context``: one of the three.

    Raises:
        InputError: A field of ``Sampling`` is out of its range.
    """

    query: str
    documents: Sequence[Document] | None = None
    """Read whole; one passage each."""
    index: AnswerIndex | None = None
    context: str | None = None
    """What ``/v1/compress`` gave for the same question, and to this key."""
    rerank: AnswerRerank = field(default_factory=AnswerRerank)
    compression: AnswerCompression = field(default_factory=AnswerCompression)
    min_relevance: Probability | None = None
    """Under this score of the best passage nothing is generated, and the answer says that the
    passages don't hold it; 0 always generates. null: as the pair declares."""
    model: str | None = None
    """A pair; by default the default one."""
    max_tokens: int = ANSWER_TOKENS
    temperature: Temperature = 0.0
    """0 takes the best token always."""
    top_p: TopP = 1.0
    seed: Seed | None = None
    """The same one gives the same answer again; null draws anew."""
    stop: Sequence[str] = ()
    """Strings that end the answer."""
    logprobs: LogprobCount | None = None
    """Report each token's log-probability, and those of so many likeliest ones."""

    def __post_init__(self) -> None:
        _check_sampling(self)

    @property
    def sampling(self) -> Sampling:
        """How the answer's tokens are chosen."""
        return Sampling(self.temperature, self.top_p, self.seed, self.logprobs)


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
        pointer: Characters that the memory points at for the answer; None where it does not point.
    """

    memory: Floats
    relevance: float | None
    tokens_in: int
    windows: int = 1
    start: int = 0
    end: int = 0
    parts: tuple[MemoryWindow, ...] = ()
    pointer: tuple[int, int] | None = None

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
    ``off`` if none was to be compressed, or there was none, or another server wrote the answer,
    which reads text: compression only ranks then. FLOPs are analytic, from the config's
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
        prompt_tokens: Tokens that were read for the answer, where only the generator knows them.
    """

    text: str
    count: int
    finish: FinishReason | None = None
    id: int | None = None
    logprob: TokenLogprob | None = None
    waited: float = field(default=0.0, compare=False)
    prompt_tokens: int | None = None


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
    """A passage that was in the generator's context, and where in it the answer stands, if it does.

    Places are characters (code points) of the document.
    """

    index: int
    id: str
    document_id: str
    text: str
    start: int
    end: int
    relevance_score: float | None
    """The rerank head's, 0 to 1; where that gave none, retrieval's; null where nothing scored the
    passage."""
    metadata: Metadata = field(default_factory=dict)
    answer_start: int | None = None
    """Where the answer's words stand, perhaps in other letters; null where they do not, and before
    the answer is there."""
    answer_end: int | None = None


@dataclass(frozen=True, slots=True)
class Snippet:
    """A sentence of a passage that may be near what was asked for, where no answer was found.

    Places are characters (code points) of the document.
    """

    index: int
    id: str
    document_id: str
    text: str
    start: int
    end: int
    relevance_score: float | None
    """The passage's."""


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
    generator: str | None = None
    """The model of another server that was asked to write the text (``--answer-with``, or
    ``--generator-servers``, whose name is the pair's); null: this server's own wrote it, or nothing
    was generated."""
    grounded: bool | None = None
    """Whether the answer's words stand together in a passage that was read: then it has them as
    they stand there. null where none was found."""
    snippets: tuple[Snippet, ...] = ()
    """Where no answer was found: of the best three passages the sentence that the pair points at,
    or that shares most with the question."""

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
    generator: str | None = None
    """As an ``Answer``'s."""


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
    """When they are dropped, Unix seconds."""
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
    generator_speedup: float = 1.0
    """The same of the generator alone: the compressor's time, too, is left out."""
    flops_saved: int = field(init=False, default=0)
    """FLOPs of reading the passages plain, less those of the compressed way."""
    pays: bool = field(init=False, default=False)
    """Whether the compressed way took less time."""
    why: str = ""
    """In words: where the time went and, where compression does not pay, what it would take."""

    def __post_init__(self) -> None:
        saved = self.compressed.compression.flops_saved
        set_derived(self, flops_saved=saved, pays=self.speedup > 1)

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
