"""Passages that an answer may read, and compressed ones held for later answers.

A candidate is a passage with what became of its compression; a retrieved context is all of them
for one question. A compressed context is held on the server: memory vectors never leave it. What a
client gets is a handle, and it serves only the caller who compressed, that question, and the pair
that made the vectors (another could not read them).
"""

import asyncio
import hashlib
import math
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from condensery.errors import (
    CondenseryError,
    ContextExpired,
    ContextLost,
    ContextMismatch,
    ContextNotFound,
    DeadlineExceeded,
    InputError,
    Overloaded,
    PayloadTooLarge,
    Unavailable,
)
from condensery.metrics import FallbackReason, Metrics
from condensery.question import CompressedPassage
from condensery.values import Document, Floats, ModelInfo, Passage

# No fault of the compressor's: raised to the caller, since reading text would not help.
PASSED_ON = (Overloaded, Unavailable, DeadlineExceeded)


@dataclass(frozen=True, slots=True)
class PassageFailure:
    """Why a passage could not be compressed.

    Attributes:
        cause: As the metrics name it.
        reason: A few words that hold nothing of the caller's.
        message: What the caller may be shown besides.
        error: What was raised, where it is still at hand.
    """

    cause: FallbackReason
    reason: str
    message: str = ""
    error: Exception | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, error: Exception) -> "PassageFailure":
        """Make a failure of an error.

        Raises:
            Overloaded, Unavailable, DeadlineExceeded: The error itself; no failure.
        """
        if isinstance(error, PASSED_ON):
            raise error
        message = error.message if isinstance(error, CondenseryError) else ""
        return cls("fault", type(error).__name__, message, error)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A passage that an answer may read.

    Attributes:
        place: Among the request's documents, or the passages retrieved.
        score: Its relevance, 0 to 1, if the model scored it; else retrieval's; None without either.
        compressed: Its vectors; None if it can only be read as text.
        failure: Why it has none, where it should.
    """

    place: int
    passage: Passage
    score: float | None = None
    compressed: CompressedPassage | None = None
    failure: PassageFailure | None = None

    @property
    def logit(self) -> float | None:
        """The rerank head's score; None if the passage has none."""
        return None if self.compressed is None else self.compressed.relevance

    @property
    def span(self) -> tuple[int, int]:
        """The characters of the passage that are read: of several scored windows, the best."""
        window, above = self.compressed, len(self.passage.above)
        if window is not None and window.windows > 1:
            return max(0, window.start - above), max(0, window.end - above)
        return 0, len(self.passage.text)

    @property
    def pointer(self) -> tuple[int, int] | None:
        """The characters of ``text`` that its memory points at; None where it points at none."""
        above, (start, end) = len(self.passage.above), self.span
        return self._pointed(above + start, above + end)

    @property
    def heading(self) -> str:
        """What its passage stands under, as it is read; "" is nothing."""
        return self.passage.heading.lstrip()

    @property
    def heading_pointer(self) -> tuple[int, int] | None:
        """The characters of ``heading`` that its memory points at; None where at none."""
        return self._pointed(0, len(self.heading))

    def _pointed(self, start: int, end: int) -> tuple[int, int] | None:
        """Return what of the characters that the compressor read its memory points at, if any."""
        pointed = None if self.compressed is None else self.compressed.pointer
        if pointed is None or pointed[1] <= start or pointed[0] >= end:
            return None
        return max(pointed[0], start) - start, min(pointed[1], end) - start

    @property
    def memories(self) -> tuple[Floats, ...]:
        """Its vectors, a window's each; none if it can only be read as text."""
        return () if self.compressed is None else self.compressed.memories

    def first(self, windows: int) -> "Candidate":
        """Return it cut to its first windows, where nothing scores them."""
        if self.compressed is None:
            return self
        return replace(self, compressed=self.compressed.first(windows))

    @property
    def text(self) -> str:
        """Its words as far as they are read."""
        start, end = self.span
        return self.passage.text[start:end]

    @property
    def headed_text(self) -> str:
        """The same under its heading: what is read of it as text."""
        return self.passage.above + self.text


@dataclass(frozen=True, slots=True)
class RetrievedContext:
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
        return tuple(candidate for candidate in self.candidates if candidate.failure is not None)


def passages_phrase(count: int) -> str:
    """Return ``1 passage is``, ``2 passages are``."""
    return f"{count} passage is" if count == 1 else f"{count} passages are"


def blank_reasons(blank: Sequence[int]) -> tuple[str, ...]:
    """Say how many passages are not read because they are blank, if any."""
    return (f"{passages_phrase(len(blank))} left out, for want of text",) if blank else ()


def failure_reasons(failures: Iterable[PassageFailure | None]) -> str:
    """List why passages could not be compressed, each reason once."""
    return ", ".join(sorted({failure.reason for failure in failures if failure is not None}))


# Contexts held for later answers

LEAST_SECONDS, MOST_SECONDS = 1.0, 3600.0
MAX_CONTEXT_BYTES = 256 * 2**20
SHARES = 4  # a caller holds at most this part of all
REMEMBERED = 10_000  # expired ones, so that their callers get ContextExpired
EXPIRY_TIMER_SECONDS = 0.01
# Counted for each context and document beside vectors and texts. Python takes less for a context;
# so much keeps their number in the thousands, and a look at all of them under a millisecond or so.
CONTEXT_BYTES, DOCUMENT_BYTES = 16_384, 1024


@dataclass(frozen=True, slots=True)
class CompressedContext:
    """Passages that were compressed for a question.

    Attributes:
        model: Name of the OSCAR model that made the vectors.
        fingerprint: The model's, when it made them.
        question: What they were compressed for.
        documents: As they were sent.
        passages: What became of each of them; None is a blank one, which is not read.
        vectors: That a window of a passage became at most.
        text_bytes: What it takes beside the vectors (``count_text_bytes``).
    """

    model: str
    fingerprint: str
    question: str
    documents: tuple[Document, ...]
    passages: tuple[CompressedPassage | PassageFailure | None, ...]
    vectors: int
    text_bytes: int

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return self.text_bytes + sum(
            memory.nbytes
            for passage in self.passages
            if isinstance(passage, CompressedPassage)
            for memory in passage.memories
        )

    def check(self, info: ModelInfo, question: str) -> None:
        """Refuse another question, or a model that can't read these vectors.

        Raises:
            ContextMismatch: Which of the two it is.
        """
        if question != self.question:
            raise ContextMismatch.at("context", "it was compressed for another question.")
        if info.name != self.model:
            raise ContextMismatch.at(
                "context",
                f"it was compressed by {self.model}, and {info.name} can't read it.",
                info.name,
            )
        if info.fingerprint != self.fingerprint:
            raise ContextMismatch.at(
                "context",
                f"it was compressed by {self.model} with fingerprint {self.fingerprint}; "
                f"the one that runs has {info.fingerprint}. Compress again.",
                info.fingerprint,
            )


def count_text_bytes(question: str, documents: Sequence[Document]) -> int:
    """Return about how many bytes a context takes without its vectors."""
    return (
        CONTEXT_BYTES
        + len(question.encode())
        + sum(
            DOCUMENT_BYTES + len(f"{document.id}{document.text}{dict(document.metadata)}".encode())
            for document in documents
        )
    )


@dataclass(frozen=True, slots=True)
class _StoredContext:
    context: CompressedContext
    caller: str
    size: int
    ends: float
    timer: asyncio.TimerHandle


class ContextStore:
    """Holds contexts for their time, and no more bytes than it may. For the event loop's thread.

    A live one is never dropped for another: where there is no space, Overloaded says when there
    will be some.

    Args:
        max_bytes: Of all of them; one caller gets a quarter of it.
        clock: Seconds that only go forward.
    """

    def __init__(
        self,
        max_bytes: int = MAX_CONTEXT_BYTES,
        metrics: Metrics | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_bytes = max_bytes
        self._metrics = metrics or Metrics(tei=False)
        self._clock = clock
        # By the handle's hash: how far a guessed handle agrees with a real one takes no time.
        self._held: dict[bytes, _StoredContext] = {}
        self._expired: OrderedDict[bytes, str] = OrderedDict()  # and whose it was
        self._lost: OrderedDict[bytes, tuple[str, str]] = OrderedDict()  # and by which model
        self._bytes = 0
        self._shares: Counter[str] = Counter()  # bytes by caller

    def check_room(self, caller: str, size: int) -> None:
        """Refuse what does not fit, before work on it begins.

        Raises:
            PayloadTooLarge: It never fits.
            Overloaded: It does not fit until another context's time is over.
        """
        share = self._max_bytes // SHARES
        if size > share:
            raise PayloadTooLarge.at(
                "documents",
                f"a context of {size} bytes, vectors included, is over a caller's share "
                f"of {share} (max_context_bytes).",
                size,
            )
        if self._exceeds(caller, size):
            self._expire()
        if self._exceeds(caller, size):
            own = self._shares[caller] + size > share
            # Of the one that ends next, though it may free too little: then the caller waits again.
            ends = min(
                stored.ends for stored in self._held.values() if stored.caller == caller or not own
            )
            self._metrics.rejected.labels("context_bytes").inc()
            what = f"{share} bytes for one caller" if own else f"{self._max_bytes} bytes"
            raise Overloaded(
                f"Contexts take all of their {what} (max_context_bytes): release one, or come back "
                "when the next one's time is over.",
                retry_after_seconds=max(0.1, ends - self._clock()),
            )

    def put(self, caller: str, context: CompressedContext, ttl_s: float) -> str:
        """Hold a context for ``ttl_s``; returns its handle.

        Raises:
            PayloadTooLarge, Overloaded: As for ``check_room``.
        """
        size = context.size
        self.check_room(caller, size)
        handle = f"ctx_{secrets.token_hex(16)}"
        key = _hash_handle(handle)
        # The clock says whether it is over; the timer only frees memory, and comes a bit late.
        timer = asyncio.get_running_loop().call_later(ttl_s + EXPIRY_TIMER_SECONDS, self._end, key)
        self._held[key] = _StoredContext(context, caller, size, self._clock() + ttl_s, timer)
        self._bytes += size
        self._shares[caller] += size
        self._count()
        return handle

    def get(self, caller: str, handle: str) -> CompressedContext:
        """Return a context of this caller's.

        Raises:
            ContextExpired: Its time is over.
            ContextLost: The model that made it was unloaded or replaced.
            ContextNotFound: There is none; another caller's is none.
        """
        return self._find(caller, handle)[1].context

    def release(self, caller: str, handle: str) -> None:
        """Release a context of this caller's.

        Raises:
            ContextExpired, ContextNotFound: As for ``get``.
        """
        self._drop(self._find(caller, handle)[0])

    def keep_only(self, serving: Mapping[str, str]) -> None:
        """Drop the contexts of models that serve no more.

        Args:
            serving: Fingerprints of those that do, by name; each reads what it made itself.
        """
        gone = [
            key
            for key, stored in self._held.items()
            if serving.get(stored.context.model) != stored.context.fingerprint
        ]
        for key in gone:
            stored = self._drop(key)
            self._lost[key] = stored.caller, stored.context.model
        while len(self._lost) > REMEMBERED:
            self._lost.popitem(last=False)

    def _find(self, caller: str, handle: str) -> tuple[bytes, _StoredContext]:
        key = _hash_handle(handle)
        stored = self._held.get(key)
        if stored is not None and stored.ends <= self._clock():
            self._end(key)
            stored = None
        if stored is not None and stored.caller == caller:
            return key, stored
        if self._expired.get(key) == caller:
            raise ContextExpired.at("context", "its time is over; compress the documents again.")
        owner, model = self._lost.get(key, ("", ""))
        if model and owner == caller:
            raise ContextLost.at(
                "context",
                f"the pair {model} that made it was unloaded or replaced since; compress "
                "the documents again.",
                model,
            )
        raise ContextNotFound.at("context", "there is no such handle.")

    def _expire(self) -> None:
        now = self._clock()
        for key in [key for key, stored in self._held.items() if stored.ends <= now]:
            self._end(key)

    def _end(self, key: bytes) -> None:
        """Drop a context whose time is over, and remember whose it was."""
        self._expired[key] = self._drop(key).caller
        while len(self._expired) > REMEMBERED:
            self._expired.popitem(last=False)

    def _drop(self, key: bytes) -> _StoredContext:
        stored = self._held.pop(key)
        stored.timer.cancel()
        self._bytes -= stored.size
        self._shares[stored.caller] -= stored.size
        if not self._shares[stored.caller]:
            del self._shares[stored.caller]
        self._count()
        return stored

    def _exceeds(self, caller: str, size: int) -> bool:
        share = self._max_bytes // SHARES
        over = self._bytes + size > self._max_bytes
        return over or self._shares[caller] + size > share

    def _count(self) -> None:
        self._metrics.contexts.set(len(self._held))
        self._metrics.context_bytes.set(self._bytes)


def check_lifetime(ttl_s: float) -> None:
    """Refuse a lifetime that a context can't have."""
    if not (math.isfinite(ttl_s) and LEAST_SECONDS <= ttl_s <= MOST_SECONDS):
        raise InputError.at(
            "ttl_s", f"{ttl_s} is not {LEAST_SECONDS:g} to {MOST_SECONDS:g} seconds.", ttl_s
        )


def _hash_handle(handle: str) -> bytes:
    return hashlib.sha256(handle.encode(errors="replace")).digest()
