"""What is asked of a pair: the question, where its passages are, and how to read them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from condensery.answers import CompressionMode
from condensery.errors import InputError
from condensery.values import Document, Metadata

# How an index is searched: by vectors, by words (BM25), or by both, their ranks fused.
SearchMode = Literal["dense", "bm25", "hybrid"]

MAX_TEMPERATURE = 2.0
MAX_LOGPROBS = 20
MAX_STOPS = 16
MAX_STOP_CHARS = 256


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
        most = f"0 to {MAX_TEMPERATURE:g}"
        self._check("temperature", most, 0 <= self.temperature <= MAX_TEMPERATURE)
        self._check("top_p", "over 0 and up to 1", 0 < self.top_p <= 1)
        wanted = self.logprobs is None or 0 <= self.logprobs <= MAX_LOGPROBS
        self._check("logprobs", f"0 to {MAX_LOGPROBS}", wanted)

    def _check(self, field: str, allowed: str, holds: bool) -> None:
        if not holds:
            value = getattr(self, field)
            raise InputError(f"{field}={value} is not {allowed}", field=field, value=value)


GREEDY = Sampling()


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and all that may be said of how it is to be answered.

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
