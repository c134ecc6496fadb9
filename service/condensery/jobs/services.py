"""What every job and endpoint gets: the running parts, their limits, health, admission.

Admission bounds how many requests, and bytes of their bodies, are inside at once; tokens are
bounded where they queue. ``Rebuilds`` is what this process knows of the rebuilds of its indexes.
``Uploads`` bounds files that are uploaded, which lie on the disk.
"""

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

from condensery.auth import Keys
from condensery.errors import Overloaded
from condensery.jobs.contexts import ContextStore
from condensery.jobs.interfaces import AnswerServer, ModelRegistry, VectorStore
from condensery.logs import SlowRequests
from condensery.metrics import Metrics
from condensery.request_context import Tracer
from condensery.settings import Settings
from condensery.values import Rebuild, RebuildPlan, RebuildState, SearchMode

if TYPE_CHECKING:  # else describing the REST API would load faiss
    from condensery.index.rebuilding import Rebuilding
    from condensery.jobs.shadows import Shadows

T = TypeVar("T")


class NotHere(BaseException):
    """What a process that serves a part of requests raises for the rest: another one serves it.

    No error of a request, so no Exception: nothing counts or answers it on its way.
    """


RATE_MEMORY = 0.95  # weight of the past in the drain rate, per request that leaves


class Permit:
    """A request's share of the limits, which grows with a body of unknown length."""

    __slots__ = ("_admission", "size")

    def __init__(self, admission: "Admission", size: int) -> None:
        self._admission = admission
        self.size = size

    def grow(self, size: int) -> None:
        """Hold ``size`` bytes more.

        Raises:
            Overloaded: They are over the limit.
        """
        self._admission.check_bytes(size, alone=self._admission.requests == 1)
        self._admission.bytes += size
        self.size += size


class Admission:
    """Counts the requests inside and their bytes.

    Args:
        max_requests: Requests inside at once.
        max_bytes: Bytes of their bodies; a request that comes when there is no other always fits.
    """

    def __init__(
        self,
        max_requests: int = 4096,
        max_bytes: int = 64 * 2**20,
        metrics: Metrics | None = None,
    ) -> None:
        self._metrics = metrics or Metrics(tei=False)
        self.max_requests = max_requests
        self.max_bytes = max_bytes
        self.requests = 0
        self.bytes = 0
        self._seconds_each = 0.0  # between two requests that leave
        self._last_left = math.nan
        self._watchers: list[Callable[[], None]] = []

    def watch(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when a request comes in to none, and when the last one has left."""
        self._watchers.append(callback)

    @contextmanager
    def admit(self, size: int) -> Iterator[Permit]:
        """Admit a request with a body of ``size`` bytes, as far as that is known.

        Raises:
            Overloaded: There are too many; ``retry_after_seconds`` is when there should be.
        """
        if self.requests >= self.max_requests:
            raise self._refusal(
                "requests",
                f"{self.requests} requests are being served, the limit (max_requests).",
                1 + self.requests - self.max_requests,
            )
        self.check_bytes(size, alone=not self.requests)
        permit = Permit(self, size)
        self.requests += 1
        self.bytes += size
        try:
            if self.requests == 1:
                self._notify()
            yield permit
        finally:
            self.requests -= 1
            self.bytes -= permit.size
            self._left()
            if not self.requests:
                self._notify()

    def check_bytes(self, size: int, *, alone: bool) -> None:
        """Raise Overloaded if ``size`` bytes more are over the limit; ``alone``, they never are."""
        if alone or self.bytes + size <= self.max_bytes:
            return
        mean = max(1.0, self.bytes / self.requests)
        raise self._refusal(
            "bytes",
            f"{self.bytes} bytes of requests are being served and {size} more are over the "
            f"limit of {self.max_bytes} (max_inflight_bytes).",
            (self.bytes + size - self.max_bytes) / mean,
        )

    def _notify(self) -> None:
        for callback in self._watchers:
            callback()

    def _left(self) -> None:
        now = time.monotonic()
        if not math.isnan(self._last_left):
            gap = min(now - self._last_left, 60.0)
            past = self._seconds_each or gap
            self._seconds_each = RATE_MEMORY * past + (1 - RATE_MEMORY) * gap
        # With no request left, the time to the next says nothing of how fast a full service drains.
        self._last_left = now if self.requests else math.nan

    def _refusal(self, reason: str, message: str, requests: float) -> Overloaded:
        self._metrics.rejected.labels(reason).inc()
        seconds = requests * (self._seconds_each or 1.0)
        return Overloaded(message, retry_after_seconds=min(60.0, max(0.1, seconds)))


@dataclass(slots=True)
class RebuildRun:
    """One rebuild, under way or over.

    Attributes:
        rebuilding: Does it; None where it could not go on after a start.
        code: The error's class, for the log: unlike the reason, it holds nothing of a document.
        writable: Cleared while writes to the index wait for the rebuild's end.
    """

    plan: RebuildPlan
    rebuilding: "Rebuilding | None" = None
    task: "asyncio.Task[None] | None" = None
    state: RebuildState = "running"
    pending: int = 0
    ended: float | None = None
    reason: str | None = None
    code: str | None = None
    overlap: float | None = None
    writable: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self, state: RebuildState) -> None:
        """Note that it is over."""
        self.state, self.ended = state, round(time.time(), 3)
        self.writable.set()

    def fail(self, reason: str, code: str) -> None:
        """Note that it failed: the old index goes on."""
        self.reason, self.code = reason, code
        self.end("failed")

    def report(self) -> Rebuild:
        """Return how far it has come."""
        plan = self.plan
        return Rebuild(
            index=plan.index,
            encoder=plan.encoder,
            fingerprint=plan.fingerprint,
            kind=plan.kind,
            metric=plan.metric,
            documents=plan.documents,
            began=plan.began,
            state=self.state,
            pending=self.pending,
            ended=self.ended,
            reason=self.reason,
            overlap=self.overlap,
        )


class Rebuilds:
    """What is rebuilt in this process.

    Attributes:
        runs: The last one of each index.
        lock: Held to begin one, or to cancel one.
    """

    def __init__(self) -> None:
        self.runs: dict[str, RebuildRun] = {}
        self.lock = asyncio.Lock()
        self._changes: set[asyncio.Task[Any]] = set()

    async def run_to_end(self, change: Coroutine[Any, Any, T]) -> T:
        """Begin or cancel a rebuild, or drop an index, to the end even if the caller leaves.

        Its threads go on in any case: cut short here, a rebuild could be listed and never worked
        on, or worked on and not listed.
        """
        task = asyncio.create_task(change)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        # Fetched, so that asyncio does not log an error of a task that nobody awaits any more.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(task)

    def indexes_for_encoder(self, name: str) -> tuple[str, ...]:
        """Name the indexes that are being rebuilt for an encoder."""
        running = [run.plan for run in self.runs.values() if run.state == "running"]
        return tuple(sorted(plan.index for plan in running if plan.encoder == name))

    async def wait_for_last_steps(self, index: str) -> None:
        """Wait while an index's rebuild takes its last steps.

        Without that, steady writes could keep it from ever ending; no write would be lost.
        """
        run = self.runs.get(index)
        if run is not None:
            await run.writable.wait()

    async def stop(self, index: str) -> None:
        """Stop working on an index's rebuild, if there is one; it can go on another time."""
        run = self.runs.pop(index, None)
        if run is not None and run.task is not None:
            run.task.cancel()
            await asyncio.wait({run.task})
        if run is not None:
            run.writable.set()

    async def close(self) -> None:
        """Stop all; they go on at the next start."""
        if self._changes:
            await asyncio.wait(self._changes)
        for index in list(self.runs):
            await self.stop(index)


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What one request may ask for; ``Settings`` says what those are that have its names.

    Attributes:
        request_seconds: A request's time, where the caller names none or a longer one.
        chars_per_token: An input over ``max_tokens`` of its model times this many characters is
            refused; a shorter one that is too long in tokens is truncated and reported.
        passage_tokens: Tokens of a passage that a long document is split into, special ones
            counted.
        passage_overlap: Tokens that a passage repeats of the one before it.
    """

    max_items: int = 2048
    max_body_bytes: int = 8 * 2**20
    max_upload_bytes: int = 256 * 2**20
    max_header_bytes: int = 16 * 2**10
    max_json_depth: int = 64
    request_seconds: float = 300.0
    max_queue_tokens: int = 1_000_000
    open_metrics: bool = False
    chars_per_token: int = 250
    max_top_k: int = 100
    max_answer_documents: int = 100
    max_answer_tokens: int = 512
    passage_tokens: int = 128
    passage_overlap: int = 16

    @classmethod
    def of(cls, settings: Settings) -> "RequestLimits":
        """Return the settings of the same names, and the time of a request."""
        names = Settings.model_fields.keys() & {field.name for field in fields(cls)}
        limits = {name: getattr(settings, name) for name in names}
        return cls(**limits, request_seconds=settings.request_timeout_seconds)


class Uploads:
    """Bounds what uploads take of the disk, of the memory and of the threads.

    Args:
        folder: Where what is uploaded lies until it is read; None is the system's.

    Attributes:
        receiving: Held from an upload's first byte to its reply.
        reading: Held while files are read and written.
        threads: That do that; of their own, since what they wait for needs the event loop's.
    """

    AT_ONCE = 8
    READ_AT_ONCE = 2  # a file of 64 MiB can take ten times that of memory while it is parsed

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.receiving = asyncio.Semaphore(self.AT_ONCE)
        self.reading = asyncio.Semaphore(self.READ_AT_ONCE)
        self.threads = ThreadPoolExecutor(self.READ_AT_ONCE, "condensery-files")
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def lock(self, index: str) -> asyncio.Lock:
        """Return what keeps two writers of the same files apart: each would keep its own half."""
        return self._locks.setdefault(index, asyncio.Lock())


class Health:
    """Whether requests should come, whether the process is worth keeping, and why not.

    Attributes:
        live: False once nothing but a new process helps.
        reason: For people: "starting", "ready", "draining", "a device worker hangs", ...
        draining: The server is about to end.
        refusing: And takes no new requests any more; those begun are finished.
    """

    def __init__(self) -> None:
        self.live = True
        self.draining = False
        self.refusing = False
        self._started = False
        self._faults: dict[str, str] = {}
        self._missing: str | None = None
        self._unreachable: str | None = None
        self._watchers: list[Callable[[bool], None]] = []

    @property
    def started(self) -> bool:
        """Whether all was loaded and warm once, whatever came later."""
        return self._started

    @property
    def ready(self) -> bool:
        """Whether the default models are loaded, all is well and the server is not draining."""
        well = not self._faults and self._missing is None and self._unreachable is None
        return self.live and self._started and not self.draining and well

    @property
    def reason(self) -> str:
        """Why ``ready`` is what it is, in a few words."""
        if self._faults:
            return next(iter(self._faults.values()))
        if self.draining:
            return "draining"
        if self._missing is not None:
            return self._missing
        if self._unreachable is not None:
            return self._unreachable
        return "ready" if self._started else "starting"

    def start(self) -> None:
        """Note that all is loaded and warm."""
        self._started = True
        self._notify()

    def drain(self) -> None:
        """Note that the server is about to end, and no requests should come."""
        self.draining = True
        self._notify()

    def fault(
        self, reason: str | None, *, fatal: bool = False, source: str = "devices here"
    ) -> None:
        """Note what broke, or (None) is mended; ``fatal``: only a new process mends it.

        Args:
            source: What broke; each is mended by itself.
        """
        if reason is None:
            self._faults.pop(source, None)
        else:
            self._faults[source] = reason
        self.live = self.live and not fatal
        self._notify()

    def set_missing(self, reason: str | None) -> None:
        """Note that a default is missing or can't do its work, or (None) that all are well."""
        self._missing = reason
        self._notify()

    def set_unreachable(self, reason: str | None) -> None:
        """Note that an index's vectors can't be had, or (None) that all can."""
        self._unreachable = reason
        self._notify()

    def watch(self, callback: Callable[[bool], None]) -> None:
        """Call ``callback(ready)`` at each change, in the event loop's thread."""
        self._watchers.append(callback)

    def _notify(self) -> None:
        for callback in self._watchers:
            callback(self.ready)


@dataclass(frozen=True, slots=True)
class Services:
    """The parts that jobs use.

    ``search_mode`` is how an index is searched where a request does not say; ``slow`` logs requests
    that took long; ``answer_server`` writes answers in place of the pairs' own generators;
    ``tracer`` makes spans of requests, where they are traced; ``shadows`` computes a share of
    answers a second time, if one is set.
    """

    registry: ModelRegistry
    indexes: VectorStore
    metrics: Metrics
    limits: RequestLimits = field(default_factory=RequestLimits)
    health: Health = field(default_factory=Health)
    admission: Admission = field(default_factory=Admission)
    keys: Keys = field(default_factory=Keys)
    contexts: ContextStore = field(default_factory=ContextStore)
    rebuilds: Rebuilds = field(default_factory=Rebuilds)
    uploads: Uploads = field(default_factory=Uploads)
    search_mode: SearchMode = "dense"
    slow: SlowRequests = field(default_factory=SlowRequests)
    answer_server: AnswerServer | None = None
    tracer: Tracer | None = None
    shadows: "Shadows | None" = None
