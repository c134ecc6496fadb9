"""Continuous batching: sequences join and leave at every step.

Their keys and values lie in blocks of one cache. On CUDA, steps of single tokens run as captured
graphs once the first free worker has prepared them.
"""

import logging
import time
from collections import abc, deque
from typing import TYPE_CHECKING

import torch

from condensery.errors import CondenseryError, InputError, ModelFault, Unavailable
from condensery.networks.caching import BLOCK, Cache
from condensery.networks.decoding import Decoder
from condensery.networks.stepping import Stepper
from condensery.request_context import current_request
from condensery.runtime.batcher import run_in_halves
from condensery.runtime.queue import (
    NO_METRICS,
    SHORT_TOKENS,
    BatchLimits,
    FairQueue,
    QueueItem,
    QueueState,
    default_limits,
    refuse_if_overloaded,
)
from condensery.runtime.scheduler import (
    BlockAllocator,
    InFlightStep,
    KVCacheConfig,
    StepTimeModel,
    ThreadScaler,
    block_positions,
    blocks_for,
    default_kv_cache_config,
    schedule_step,
)
from condensery.runtime.sequence import (
    GenerationRequest,
    ScheduledChunk,
    Sequence,
    SequenceEvent,
    StepOutcome,
    run_step,
    send_events,
)
from condensery.runtime.workers import Workers, WorkItem, worker_count

if TYPE_CHECKING:
    from condensery.metrics import Metrics

LONG_SECONDS = 0.05  # a step that takes longer lets short requests overtake

_log = logging.getLogger(__name__)


class EngineMetrics:
    """What one engine counts, with its model's label looked up once.

    Args:
        positions: Of the cache.
    """

    def __init__(self, metrics: "Metrics", model: str, positions: int) -> None:
        metrics.cache_positions.labels(model, "limit").set(positions)
        self.used = metrics.cache_positions.labels(model, "used")
        self.running = metrics.sequences.labels(model, "running")
        self.waiting = metrics.sequences.labels(model, "waiting")
        self.queue_seconds = metrics.stage_seconds.labels(model, "queue")
        self.step_tokens = metrics.step_tokens.labels(model)
        self.inter_token_seconds = metrics.inter_token_seconds.labels(model)


class FixedShapeDecoder:
    """A decoder that the first free worker prepares; until then, and if it fails, there is none.

    Steps then run as they are, slower by what launching their kernels costs; it is logged and
    counted.

    Args:
        cache: The engine's.
        sequences: Most of them in a step.

    Attributes:
        decoder: What runs them, once it is ready.
    """

    def __init__(
        self,
        stepper: Stepper,
        cache: Cache,
        sequences: int,
        *,
        model: str,
        metrics: "Metrics" = NO_METRICS,
    ) -> None:
        self.decoder: Decoder | None = None
        self._stepper = stepper
        self._cache = cache
        self._sequences = sequences
        self._model = model
        self._metrics = metrics
        self._begun = False

    def work_item(self) -> WorkItem | None:
        """Return what prepares the decoder, the first time; the caller holds the workers' lock."""
        if self._begun:
            return None
        self._begun = True
        return WorkItem(run=self._prepare, fail=self._failed, long=True)

    def _prepare(self) -> None:
        try:
            decoder = self._stepper.decoder(self._cache, self._sequences)
            decoder.prepare()
        except Exception as error:  # capturing may raise anything, and serving goes on without
            self._failed(type(error).__name__, error)
            return
        self.decoder = decoder
        graphs = len(decoder.sizes) if self._cache.device.type == "cuda" else 0
        _log.info("decode_ready", extra={"model": self._model, "graphs": graphs})
        self._metrics.decode_graphs.labels(self._model).set(graphs)

    def _failed(self, reason: str, error: Exception | None = None) -> None:
        fields = {"model": self._model, "reason": reason}
        if error is not None:  # graphs are captured before any caller's text is read
            fields["detail"] = str(error)
        _log.warning("decode_graphs_failed", extra=fields, exc_info=error)
        self._metrics.decode_graph_failures.labels(self._model).inc()


class Engine:
    """Generates for many callers, a token of each at a step.

    A sequence reserves blocks for its prompt and all its tokens when it begins, so that nothing
    that has begun is ever sent back; until enough are free it waits its turn (``FairQueue``). One
    worker takes all sequences that wait for a token, the others read prompts; where these have
    nothing to do, it computes with their threads as well. A sequence that nobody waits for
    (``RequestContext.background``) goes on while no other is ready, in short steps on one thread,
    and is in no measurement that others are judged or refused by.

    Args:
        limits: Of the queue, and of steps in which nobody waits for a token.
        cache: What may run at the same time; by default what suits the device.
        prefix: Ids of tokens that prompts begin with: they are read here, and never again.
        fixed: Whether steps of single tokens run in fixed shapes, on CUDA as captured graphs; by
            default on CUDA only, since elsewhere padding costs and there is nothing to gain.
    """

    def __init__(
        self,
        stepper: Stepper,
        workers: Workers,
        *,
        model: str,
        limits: BatchLimits | None = None,
        cache: KVCacheConfig | None = None,
        prefix: abc.Sequence[int] = (),
        fixed: bool | None = None,
        metrics: "Metrics | None" = None,
    ) -> None:
        self._metrics: Metrics = metrics or NO_METRICS
        self._stepper = stepper
        self._prefix = stepper.prefix(prefix) if prefix else None
        self._workers = workers
        self._model = model
        self._limits = limits or default_limits(workers.device)
        self._cache_config = cache or default_kv_cache_config(stepper)
        self._blocks = BlockAllocator(self._cache_config.positions)
        self._cache = stepper.cache(self._blocks.count * BLOCK)
        self._queue: FairQueue[Sequence, None] = FairQueue()
        self._waiting: set[Sequence] = set()
        self._running: set[Sequence] = set()
        self._ready: deque[Sequence] = deque()  # running, and in no step at the moment
        # The steps under way, by the identity of their chunks.
        self._in_flight: dict[int, InFlightStep] = {}
        self._step_times = StepTimeModel()
        self._thread_scaler = ThreadScaler(self._step_times)
        self._cores = worker_count(workers.device)
        self._fixed: FixedShapeDecoder | None = None
        if stepper.device.type == "cuda" if fixed is None else fixed:
            sequences = self._cache_config.sequences
            self._fixed = FixedShapeDecoder(
                stepper, self._cache, sequences, model=model, metrics=self._metrics
            )
        self._counts = EngineMetrics(self._metrics, model, self._cache.positions)
        self._closed = False
        workers.add(self)

    def begin(self, request: GenerationRequest) -> Sequence:
        """Queue a request of the current caller; what comes of it is put into ``Sequence.events``.

        Raises:
            InputError: It would not fit if nothing else ran.
            Overloaded: Too much waits before it.
            DeadlineExceeded: The caller's time is over.
            Unavailable: Closed.
        """
        call = current_request()
        call.check()
        sequence = Sequence.of(request, call)
        cost = blocks_for(sequence.reserve) * BLOCK
        if cost > self._cache.positions:
            raise InputError(
                f"max_tokens={request.max_tokens} and a prompt of {request.prompt_positions} "
                f"positions are more than {self._model} has room for: {self._cache.positions}",
                field="max_tokens",
                value=request.max_tokens,
            )
        with self._workers.changed:
            if self._closed:
                raise self._shutting_down()
            if not self._fits(cost):
                state = QueueState(
                    self._queue.tokens,
                    self._queue.tokens_ahead(call.caller, cost),
                    self._step_times.drain_rate,  # positions given back per second
                    waits="positions wait for room",
                    until="room",
                )
                refuse_if_overloaded(
                    state, cost, self._limits, model=self._model, metrics=self._metrics
                )
            self._queue.put(sequence.queued, [QueueItem(sequence.queued, 0, sequence, cost)])
            self._waiting.add(sequence)
            self._show()
            self._workers.wake(1, short=True)
        return sequence

    def _fits(self, cost: int) -> bool:
        """Whether there is room for all that waits, and for so many positions more."""
        # What waits now waits for the step under way to end, not for blocks.
        some = len(self._running) + self._queue.items < self._cache_config.sequences
        return some and self._queue.tokens + cost <= self._blocks.free * BLOCK

    def leave(self, sequence: Sequence, cause: str | None = None) -> None:
        """Generate no more of it; ``cause`` says why it is cut off, if it is.

        Called in the caller's loop. A step under way with it ends, and what it gives is dropped.
        """
        with self._workers.changed:
            if sequence.ended:
                return
            sequence.queued.reply.cancel()
            if cause is not None:
                self._count_dropped(sequence, cause)
            self._end(sequence)
            self._show()

    def expected_seconds(self, positions: int) -> float:
        """Return about how many seconds a prompt of so many takes; 0 if too little has run yet."""
        return self._step_times.upper_estimate(0, positions)

    @property
    def busy(self) -> bool:
        """Whether sequences run or wait."""
        return bool(self._running or self._waiting)

    def close(self) -> None:
        """Refuse new requests, and end those that wait or run."""
        with self._workers.changed:
            if self._closed:
                return
            self._closed = True
            left = [*self._waiting, *self._running]
            for sequence in left:
                self._end(sequence)
            self._show()
        self._workers.remove(self)
        send_events([(sequence, self._shutting_down()) for sequence in left])

    def take(self, idle: int, *, express: bool) -> WorkItem | None:
        """Make a step of what is ready; called by a free worker (``WorkSource``)."""
        if (
            self._fixed is not None
            and not express
            and (first := self._fixed.work_item()) is not None
        ):
            return first  # before anything is served: nobody should wait for it later
        if not self._ready and not self._queue.items:
            return None
        self._drop_expired()
        self._admit()
        chunks = schedule_step(
            self._ready,
            idle,
            step_tokens=self._cache_config.step_tokens,
            batch_tokens=self._limits.batch_tokens,
            steps=self._in_flight.values(),
            own_seconds=self._step_times.estimate(len(self._running), 0),
            express=express,
            whole=self._stepper.whole_prompts,
        )
        if not chunks:  # nothing is ready; or all of it joins the step under way
            return None
        prompt = 0
        for chunk in chunks:
            self._ready.remove(chunk.sequence)
            chunk.sequence.in_step = True
            prompt += chunk.count if chunk.sequence.in_prompt else 0
        tokens = _count_token_rows(chunks)
        likely = self._step_times.estimate(tokens, prompt)
        background = _is_background(chunks)
        # Nobody's next token joins a step that nobody waits for.
        joins = 0 if background else tokens
        self._in_flight[id(chunks)] = InFlightStep(time.monotonic(), likely, joins)
        if self._ready and idle > 1:
            self._workers.changed.notify()  # another worker takes the rest
        # Beside what nobody waits for, the other workers stay idle for who comes meanwhile.
        alone = not (express or background or self._ready or self._queue.items)
        most = min(idle, self._cores) if alone else 1
        threads = self._thread_scaler.threads(most, tokens, prompt)
        seconds = self._step_times.upper_estimate(tokens, prompt)
        return WorkItem(
            run=lambda: self._run(chunks, threads),
            fail=lambda reason: self._abandon(chunks, reason),
            long=prompt > SHORT_TOKENS or seconds > LONG_SECONDS,
            seconds=seconds,
            threads=threads,
        )

    def _drop_expired(self) -> None:
        expired = [sequence for sequence in self._ready if not sequence.queued.wanted]
        for sequence in expired:
            self._count_dropped(sequence, "deadline")
            self._end(sequence)
            send_events([(sequence, sequence.queued.call.expired())])

    def _admit(self) -> None:
        """Begin sequences in the queue's order, as far as blocks are free."""
        while self._queue.items:
            most = self._cache_config.sequences - len(self._running)
            entries = self._queue.take(self._blocks.free * BLOCK, most, strict=True)
            for entry in entries:
                self._begin(entry.item, entry.tokens // BLOCK)
            # Who has left in mid-step runs no more, and keeps its blocks until the step ends.
            if self._running or self._in_flight or not self._queue.items:
                break
            # No step is under way, and still the first does not fit: a lost worker has its blocks.
            for entry in self._queue.take(self._cache.positions, 1):
                self._end(entry.item)
                send_events([(entry.item, self._fault("no room, since a worker was lost"))])
        self._show()

    def _begin(self, sequence: Sequence, blocks: int) -> None:
        self._waiting.discard(sequence)
        self._running.add(sequence)
        sequence.waited = time.perf_counter() - sequence.queued.arrived
        if not sequence.background:
            self._counts.queue_seconds.observe(sequence.waited)
            self._step_times.note_start(time.monotonic())
        sequence.blocks = self._blocks.take(blocks)
        sequence.positions = block_positions(sequence.blocks)
        self._ready.append(sequence)

    def _run(self, chunks: list[ScheduledChunk], threads: int) -> None:
        """Run a step in a worker's thread, and send its outcomes to the callers."""
        started = time.perf_counter()
        outcomes: list[StepOutcome] = []
        try:
            outcomes = self._outcomes(chunks)
        finally:  # a thread that dies here gives back what it held; the watchdog fails its batch
            seconds = time.perf_counter() - started
            threads = min(threads, torch.get_num_threads())  # or it did not get them
            with self._workers.changed:
                if not _is_background(chunks):
                    tokens = _count_token_rows(chunks)
                    # Less than was planned, where a prompt begins as others do.
                    prompt = sum(chunk.count for chunk in chunks) - tokens
                    self._thread_scaler.record(threads, tokens, prompt, seconds)
                self._finish_step(chunks, outcomes)

    def _finish_step(self, chunks: list[ScheduledChunk], outcomes: list[StepOutcome]) -> None:
        """Note a step's outcomes, and send them to the callers; the caller holds ``changed``."""
        events: list[tuple[Sequence, SequenceEvent]] = []
        self._in_flight.pop(id(chunks), None)
        for chunk in chunks:
            chunk.sequence.in_step = False
            if chunk.sequence.ended:  # it left meanwhile, or the step was given up
                self._release(chunk.sequence)
        for chunk, outcome in zip(chunks, outcomes, strict=False):
            sequence = chunk.sequence
            if sequence.ended:
                continue
            sequence.note_step(chunk.count, len(chunks))
            its = chunk.apply(outcome)
            events += [(sequence, event) for event in its]
            # Of several that come at once, the first is waited for.
            seconds = sequence.seconds_since_last() if its else None
            if seconds is not None and not sequence.background:
                self._counts.inter_token_seconds.observe(seconds)
            if its and (isinstance(its[-1], CondenseryError) or its[-1].finish):
                self._end(sequence)
            else:
                self._ready.append(sequence)
        if not _is_background(chunks):
            self._counts.step_tokens.observe(sum(chunk.count for chunk in chunks))
        self._show()
        # Before another worker can take the next step, whose tokens would else overtake these.
        send_events(events)

    def _abandon(self, chunks: list[ScheduledChunk], reason: str) -> None:
        """Fail a step whose worker is lost. It may write on: it keeps its blocks until it ends."""
        with self._workers.changed:
            self._in_flight.pop(id(chunks), None)
            left = [chunk.sequence for chunk in chunks if not chunk.sequence.ended]
            for sequence in left:
                self._end(sequence)
            self._show()
            # The worker in place of the lost one may have looked before, and let others wait.
            self._workers.changed.notify()
        send_events([(sequence, self._fault(reason)) for sequence in left])

    def _end(self, sequence: Sequence) -> None:
        sequence.ended = True
        self._queue.drop(sequence.queued)
        self._waiting.discard(sequence)
        self._running.discard(sequence)
        if sequence in self._ready:
            self._ready.remove(sequence)
        if not sequence.in_step:
            self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        if not sequence.blocks:
            return
        self._blocks.give_back(sequence.blocks)
        if not sequence.background:
            self._step_times.note_end(
                len(sequence.blocks) * BLOCK,
                time.monotonic(),
                idle=all(other.background for other in self._running),
            )
        sequence.blocks = []

    def _outcomes(self, chunks: list[ScheduledChunk]) -> list[StepOutcome]:
        decoder = None if self._fixed is None else self._fixed.decoder
        return run_in_halves(
            lambda part: run_step(
                self._stepper, self._cache, part, self._model, decoder, self._prefix
            ),
            chunks,
            model=self._model,
            metrics=self._metrics,
            describe=lambda _: "a step failed",
        )

    def _fault(self, reason: str) -> ModelFault:
        return ModelFault(f"{self._model}: {reason}")

    def _shutting_down(self) -> Unavailable:
        return Unavailable(f"{self._model}: shutting down")

    def _count_dropped(self, sequence: Sequence, cause: str) -> None:
        if sequence.background:  # no caller has left, nor run out of time
            return
        stage = "generate" if sequence.queued.begun else "queue"
        self._metrics.cancelled.labels(self._model, stage, cause).inc()

    def _show(self) -> None:
        self._counts.running.set(len(self._running))
        self._counts.waiting.set(self._queue.items)
        self._counts.used.set(self._blocks.used * BLOCK)


def _is_background(chunks: list[ScheduledChunk]) -> bool:
    """Whether nobody waits for any of a step's chunks; others are never in one step with those."""
    return all(chunk.sequence.background for chunk in chunks)


def _count_token_rows(chunks: list[ScheduledChunk]) -> int:
    """Return how many rows are tokens of answers, not parts of prompts."""
    return sum(chunk.count for chunk in chunks if chunk.start >= chunk.sequence.size)
