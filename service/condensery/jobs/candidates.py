"""The passages that an answer may be read from, and what is known of them."""

from dataclasses import dataclass, replace

from condensery.answers import CompressedPassage
from condensery.jobs.failures import Failure
from condensery.values import Floats, Passage


@dataclass(frozen=True, slots=True)
class Candidate:
    """A passage that an answer may read.

    Attributes:
        place: Among the documents given, or the passages found.
        passage: As it was found.
        score: Its relevance, 0 to 1, if the pair scored it; else retrieval's; None without either.
        compressed: Its vectors; None if it can only be read as text.
        failure: Why it has none, where it should.
    """

    place: int
    passage: Passage
    score: float | None = None
    compressed: CompressedPassage | None = None
    failure: Failure | None = None

    @property
    def logit(self) -> float | None:
        """The rerank head's score; None if the passage has none."""
        return None if self.compressed is None else self.compressed.relevance

    @property
    def span(self) -> tuple[int, int]:
        """The characters of the passage that are read: of several scored windows, the best."""
        window = self.compressed
        if window is not None and window.windows > 1:
            return window.start, window.end
        return 0, len(self.passage.text)

    @property
    def memories(self) -> tuple[Floats, ...]:
        """Its vectors, a window's each; none if it can only be read as text."""
        return () if self.compressed is None else self.compressed.memories

    def first(self, windows: int) -> "Candidate":
        """Return it as far as the first so many windows, where nothing scores them, hold it."""
        if self.compressed is None:
            return self
        return replace(self, compressed=self.compressed.first(windows))

    @property
    def text(self) -> str:
        """As far as it is read."""
        start, end = self.span
        return self.passage.text[start:end]


@dataclass(frozen=True, slots=True)
class Gathered:
    """What there is to answer from.

    Attributes:
        candidates: In the order of retrieval; blank passages are left out.
        read: What the compressor read for this answer.
        left_out: Places of passages that were not even compressed.
        vectors: How many a passage may become, the most first.
        reasons: What the caller would not expect.
        retrieve_ms: What finding the passages took.
        compress_ms: What compressing them took.
        queue_ms: Of that, what they waited for the device.
        tokenize_ms: And what tokenising them took.
    """

    candidates: tuple[Candidate, ...]
    vectors: tuple[int, ...]
    read: tuple[CompressedPassage, ...] = ()
    left_out: tuple[int, ...] = ()
    reasons: tuple[str, ...] = ()
    retrieve_ms: float = 0.0
    compress_ms: float = 0.0
    queue_ms: float = 0.0
    tokenize_ms: float = 0.0

    @property
    def failed(self) -> tuple[Candidate, ...]:
        """Those that could not be compressed."""
        return tuple(one for one in self.candidates if one.failure is not None)


def count_of(count: int, what: str) -> str:
    """Return ``1 passage is``, ``2 passages are``."""
    return f"{count} {what} is" if count == 1 else f"{count} {what}s are"
