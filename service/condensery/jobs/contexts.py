"""Passages that were compressed for a question and are held for answers to it.

Memory vectors never leave the server: what a client gets is a handle, and it serves only the caller
who compressed, that question, and the pair that made the vectors (another could not read them).
"""

import asyncio
import hashlib
import math
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from condensery.answers import CompressedPassage
from condensery.errors import (
    ContextExpired,
    ContextLost,
    ContextMismatch,
    ContextNotFound,
    InputError,
    Overloaded,
    PayloadTooLarge,
)
from condensery.jobs.failures import Failure
from condensery.metrics import Metrics
from condensery.values import Document, ModelInfo

LEAST_SECONDS, MOST_SECONDS = 1.0, 3600.0
MAX_BYTES = 256 * 2**20
SHARES = 4  # a caller holds at most this part of all
REMEMBERED = 10_000  # expired ones, so that their callers are told so
TIMER_SECONDS = 0.01
# Counted for each context and document beside vectors and texts. Python takes less for a context;
# so much keeps their number in the thousands, and a look at all of them under a millisecond or so.
CONTEXT_BYTES, DOCUMENT_BYTES = 16_384, 1024


@dataclass(frozen=True, slots=True)
class Context:
    """Passages that were compressed for a question.

    Attributes:
        pair: Whose vectors they are.
        fingerprint: The pair's, when it made them.
        question: What they were compressed for.
        documents: As they were given.
        passages: What became of each of them; None is a blank one, which is not read.
        vectors: That a window of a passage became at most.
        text_bytes: What it takes beside the vectors (``text_bytes``).
    """

    pair: str
    fingerprint: str
    question: str
    documents: tuple[Document, ...]
    passages: tuple[CompressedPassage | Failure | None, ...]
    vectors: int
    text_bytes: int

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return self.text_bytes + sum(
            memory.nbytes
            for one in self.passages
            if isinstance(one, CompressedPassage)
            for memory in one.memories
        )

    def check(self, info: ModelInfo, question: str) -> None:
        """Refuse another question, or a pair that can't read these vectors.

        Raises:
            ContextMismatch: Which of the two it is.
        """
        if question != self.question:
            raise ContextMismatch(
                "context: it was compressed for another question.", field="context"
            )
        if info.name != self.pair:
            raise ContextMismatch(
                f"context: it was compressed by {self.pair}, and {info.name} can't read it.",
                field="context",
                value=info.name,
            )
        if info.fingerprint != self.fingerprint:
            raise ContextMismatch(
                f"context: it was compressed by {self.pair} with fingerprint {self.fingerprint}; "
                f"the one that runs has {info.fingerprint}. Compress again.",
                field="context",
                value=info.fingerprint,
            )


def text_bytes(question: str, documents: Sequence[Document]) -> int:
    """Return about how many bytes a context takes without its vectors."""
    return (
        CONTEXT_BYTES
        + len(question.encode())
        + sum(
            DOCUMENT_BYTES + len(f"{one.id}{one.text}{dict(one.metadata)}".encode())
            for one in documents
        )
    )


@dataclass(frozen=True, slots=True)
class _Held:
    context: Context
    caller: str
    size: int
    ends: float
    timer: asyncio.TimerHandle


class Contexts:
    """Holds contexts for their time, and no more bytes than it may. For the event loop's thread.

    A live one is never dropped for another: who finds no room is told when there will be some.

    Args:
        max_bytes: Of all of them; one caller gets a quarter of it.
        metrics: Where to tell how many there are.
        clock: Seconds that only go forward.
    """

    def __init__(
        self,
        max_bytes: int = MAX_BYTES,
        metrics: Metrics | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_bytes = max_bytes
        self._metrics = metrics
        self._clock = clock
        # By the handle's hash: how far a guessed handle agrees with a real one takes no time.
        self._held: dict[bytes, _Held] = {}
        self._expired: OrderedDict[bytes, str] = OrderedDict()  # and whose it was
        self._lost: OrderedDict[bytes, tuple[str, str]] = OrderedDict()  # and by which pair
        self._bytes = 0
        self._shares: Counter[str] = Counter()  # bytes by caller

    def check_room(self, caller: str, size: int) -> None:
        """Refuse what has no room, before work on it begins.

        Raises:
            PayloadTooLarge: It never has.
            Overloaded: There is none until another context's time is over.
        """
        share = self._max_bytes // SHARES
        if size > share:
            raise PayloadTooLarge(
                f"documents: a context of {size} bytes, vectors included, is over a caller's share "
                f"of {share} (max_context_bytes).",
                field="documents",
                value=size,
            )
        if self._lacks_room(caller, size):
            self._expire()
        if self._lacks_room(caller, size):
            own = self._shares[caller] + size > share
            # Whoever ends next, though it may free too little: then its caller is told again.
            ends = min(
                held.ends for held in self._held.values() if held.caller == caller or not own
            )
            if self._metrics is not None:
                self._metrics.rejected.labels("context_bytes").inc()
            what = f"{share} bytes for one caller" if own else f"{self._max_bytes} bytes"
            raise Overloaded(
                f"Contexts take all of their {what} (max_context_bytes): release one, or come back "
                "when the next one's time is over.",
                retry_after_seconds=max(0.1, ends - self._clock()),
            )

    def put(self, caller: str, context: Context, ttl_seconds: float) -> str:
        """Hold a context for ``ttl_seconds``; returns its handle.

        Raises:
            PayloadTooLarge, Overloaded: As for ``check_room``.
        """
        size = context.size
        self.check_room(caller, size)
        handle = f"ctx_{secrets.token_hex(16)}"
        key = _key(handle)
        # The clock says whether it is over; the timer only frees memory, and comes a bit late.
        timer = asyncio.get_running_loop().call_later(ttl_seconds + TIMER_SECONDS, self._end, key)
        self._held[key] = _Held(context, caller, size, self._clock() + ttl_seconds, timer)
        self._bytes += size
        self._shares[caller] += size
        self._tell()
        return handle

    def get(self, caller: str, handle: str) -> Context:
        """Return a context of this caller's.

        Raises:
            ContextExpired: Its time is over.
            ContextLost: The pair that made it was unloaded or replaced.
            ContextNotFound: There is none; another caller's is none.
        """
        return self._find(caller, handle)[1].context

    def release(self, caller: str, handle: str) -> None:
        """Let go of a context of this caller's.

        Raises:
            ContextExpired, ContextNotFound: As for ``get``.
        """
        self._drop(self._find(caller, handle)[0])

    def keep_only(self, serving: Mapping[str, str]) -> None:
        """Let go of what was made by pairs that serve no more.

        Args:
            serving: Fingerprints of those that do, by name; each reads what it made itself.
        """
        gone = [
            key
            for key, held in self._held.items()
            if serving.get(held.context.pair) != held.context.fingerprint
        ]
        for key in gone:
            held = self._drop(key)
            self._lost[key] = held.caller, held.context.pair
        while len(self._lost) > REMEMBERED:
            self._lost.popitem(last=False)

    def _find(self, caller: str, handle: str) -> tuple[bytes, _Held]:
        key = _key(handle)
        held = self._held.get(key)
        if held is not None and held.ends <= self._clock():
            self._end(key)
            held = None
        if held is not None and held.caller == caller:
            return key, held
        if self._expired.get(key) == caller:
            raise ContextExpired(
                "context: its time is over; compress the documents again.", field="context"
            )
        owner, pair = self._lost.get(key, ("", ""))
        if pair and owner == caller:
            raise ContextLost(
                f"context: the pair {pair} that made it was unloaded or replaced since; compress "
                "the documents again.",
                field="context",
                value=pair,
            )
        raise ContextNotFound("context: there is no such handle.", field="context")

    def _expire(self) -> None:
        now = self._clock()
        for key in [key for key, held in self._held.items() if held.ends <= now]:
            self._end(key)

    def _end(self, key: bytes) -> None:
        """Let go of a context whose time is over, and remember whose it was."""
        self._expired[key] = self._drop(key).caller
        while len(self._expired) > REMEMBERED:
            self._expired.popitem(last=False)

    def _drop(self, key: bytes) -> _Held:
        held = self._held.pop(key)
        held.timer.cancel()
        self._bytes -= held.size
        self._shares[held.caller] -= held.size
        if not self._shares[held.caller]:
            del self._shares[held.caller]
        self._tell()
        return held

    def _lacks_room(self, caller: str, size: int) -> bool:
        share = self._max_bytes // SHARES
        over = self._bytes + size > self._max_bytes
        return over or self._shares[caller] + size > share

    def _tell(self) -> None:
        if self._metrics is not None:
            self._metrics.contexts.set(len(self._held))
            self._metrics.context_bytes.set(self._bytes)


def check_lifetime(ttl_seconds: float) -> None:
    """Refuse a lifetime that a context can't have."""
    if not (math.isfinite(ttl_seconds) and LEAST_SECONDS <= ttl_seconds <= MOST_SECONDS):
        raise InputError(
            f"ttl_s: {ttl_seconds} is not {LEAST_SECONDS:g} to {MOST_SECONDS:g} seconds.",
            field="ttl_s",
            value=ttl_seconds,
        )


def _key(handle: str) -> bytes:
    return hashlib.sha256(handle.encode(errors="replace")).digest()
