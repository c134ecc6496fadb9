"""Continuous batching: sequences join and leave at every step, their keys and values in blocks."""

import time
from collections import deque
from typing import TYPE_CHECKING

import torch

from condensery.callers import current
from condensery.errors import CondenseryError, InputError, ModelFault, Unavailable
from condensery.networks.caching import BLOCK
from condensery.networks.stepping import Stepper
from condensery.runtime.blocks import Blocks, blocks_for, places_of
from condensery.runtime.engine_gauges import EngineGauges
from condensery.runtime.faults import run_in_halves
from condensery.runtime.fixed import FixedSteps
from condensery.runtime.grouping import Flight, Ready, gather
from condensery.runtime.lanes import Lane, Ticket
from condensery.runtime.limits import SHORT_TOKENS, Limits, default_limits
from condensery.runtime.pace import Pace
from condensery.runtime.refusing import refuse_overload
from condensery.runtime.room import Room, default_room
from condensery.runtime.sequences import Generation, Member, News, Order, send_home
from condensery.runtime.steps import Outcome, run_step
from condensery.runtime.widening import Width
from condensery.runtime.workers import Job, Workers, worker_count

if TYPE_CHECKING:
    from condensery.metrics import Metrics

LONG_SECONDS = 0.05  # a step that takes longer lets short requests overtake


class Engine:
    """Generates for many callers, a token of each at a step.

    A sequence reserves room for its prompt and all its tokens when it begins, so that nothing
    that has begun is ever sent back; until there is room it waits its turn (``Lane``). One worker
    takes all sequences that wait for a token, the others read prompts; where these have nothing
    to do, it computes with their threads as well.

    Args:
        stepper: The model.
        workers: Where steps run.
        model: Name in metrics and messages.
        limits: Of the queue, and of steps in which nobody waits for a token.
        room: What may run at the same time; by default what suits the device.
        fixed: Whether steps of single tokens run in fixed shapes, on CUDA as captured graphs; by
            default on CUDA only, since elsewhere padding costs and there is nothing to gain.
        metrics: Where to count.
    """

    def __init__(
        self,
        stepper: Stepper,
        workers: Workers,
        *,
        model: str,
        limits: Limits | None = None,
        room: Room | None = None,
        fixed: bool | None = None,
        metrics: "Metrics | None" = None,
    ) -> None:
        self._stepper = stepper
        self._workers = workers
        self._model = model
        self._limits = limits or default_limits(workers.device)
        self._room = room or default_room(stepper)
        self._blocks = Blocks(self._room.positions)
        self._cache = stepper.cache(self._blocks.count * BLOCK)
        self._lane: Lane[Generation, None] = Lane()
        self._waiting: set[Generation] = set()
        self._running: set[Generation] = set()
        self._ready: deque[Generation] = deque()  # running, and in no step at the moment
        # The steps under way, by the identity of their members.
        self._flights: dict[int, Flight] = {}
        self._pace = Pace()
        self._width = Width(self._pace)
        self._cores = worker_count(workers.device)
        self._fixed: FixedSteps | None = None
        if stepper.device.type == "cuda" if fixed is None else fixed:
            self._fixed = FixedSteps(
                *(stepper, self._cache, self._room.sequences), model=model, metrics=metrics
            )
        self._metrics = metrics
        self._gauges = EngineGauges(metrics, model, self._cache.positions)
        self._closed = False
        workers.add(self)

    def begin(self, order: Order) -> Generation:
        """Queue an order for the current caller; its news come to ``Generation.news``.

        Raises:
            InputError: It would not fit if nothing else ran.
            Overloaded: Too much waits before it.
            DeadlineExceeded: The caller's time is over.
            Unavailable: Closed.
        """
        call = current()
        call.check()
        generation = Generation.of(order, call)
        cost = blocks_for(generation.reserve) * BLOCK
        if cost > self._cache.positions:
            raise InputError(
                f"max_tokens={order.max_tokens} and a prompt of {order.prompt} positions are more "
                f"than {self._model} has room for: {self._cache.positions}",
                field="max_tokens",
                value=order.max_tokens,
            )
        with self._workers.changed:
            if self._closed:
                raise self._shutting_down()
            if not self._fits(cost):
                refuse_overload(
                    *(self._lane, call.caller, cost, self._pace.drain, self._limits),
                    model=self._model,
                    metrics=self._metrics,
                )
            self._lane.put(generation.request, [Ticket(generation.request, 0, generation, cost)])
            self._waiting.add(generation)
            self._tell()
            self._workers.wake(1, short=True)
        return generation

    def _fits(self, cost: int) -> bool:
        """Tell whether there is room for all that waits, and for so many positions more."""
        # They wait for the step under way to end, which is no waiting for room.
        some = len(self._running) + self._lane.items < self._room.sequences
        return some and self._lane.tokens + cost <= self._blocks.free * BLOCK

    def leave(self, generation: Generation, cause: str | None = None) -> None:
        """Generate no more of it; ``cause`` says why it is cut off, if it is.

        Called in the caller's loop. A step under way with it ends, and what it gives is dropped.
        """
        with self._workers.changed:
            if generation.over:
                return
            generation.request.reply.cancel()
            if cause is not None:
                self._count_dropped(generation, cause)
            self._end(generation)
            self._tell()

    def expects(self, positions: int) -> float:
        """Return about how many seconds a prompt of so many takes; 0 if too little has run yet."""
        return self._pace.expects(0, positions)

    @property
    def busy(self) -> bool:
        """Whether sequences run or wait."""
        return bool(self._running or self._waiting)

    def close(self) -> None:
        """Refuse new orders, and end those that wait or run."""
        with self._workers.changed:
            if self._closed:
                return
            self._closed = True
            left = [*self._waiting, *self._running]
            for generation in left:
                self._end(generation)
            self._tell()
        self._workers.remove(self)
        send_home([(generation, self._shutting_down()) for generation in left])

    def take(self, idle: int, *, express: bool) -> Job | None:
        """Make a step of what is ready; called by a free worker (``Source``)."""
        if self._fixed is not None and not express and (first := self._fixed.job()) is not None:
            return first  # before anything is served: nobody should wait for it later
        if not self._ready and not self._lane.items:
            return None
        self._drop_expired()
        self._admit()
        members = self._gather(idle, express=express)
        if not members:  # nothing is ready; or all of it joins the step under way
            return None
        prompt = 0
        for member in members:
            self._ready.remove(member.generation)
            member.generation.flying = True
            prompt += member.count if member.generation.reading else 0
        tokens = _tokens(members)
        likely = self._pace.estimates(tokens, prompt)
        self._flights[id(members)] = Flight(time.monotonic(), likely, tokens)
        if self._ready and idle > 1:
            self._workers.changed.notify()  # another worker takes the rest
        alone = not (express or self._ready or self._lane.items)
        most = min(idle, self._cores) if alone else 1
        threads = self._width.threads(most, tokens, prompt)
        seconds = self._pace.expects(tokens, prompt)
        return Job(
            run=lambda: self._run(members, prompt, threads),
            fail=lambda reason: self._abandon(members, reason),
            long=prompt > SHORT_TOKENS or seconds > LONG_SECONDS,
            seconds=seconds,
            threads=threads,
        )

    def _drop_expired(self) -> None:
        for generation in [one for one in self._ready if not one.request.wanted]:
            self._count_dropped(generation, "deadline")
            self._end(generation)
            send_home([(generation, generation.request.call.expired())])

    def _admit(self) -> None:
        """Begin with what has waited longest, as far as there is room."""
        while self._lane.items:
            most = self._room.sequences - len(self._running)
            tickets = self._lane.take(self._blocks.free * BLOCK, most, strict=True)
            for ticket in tickets:
                self._begin(ticket.item, ticket.tokens // BLOCK)
            if self._running or not self._lane.items:
                break
            # Nothing runs, and still the first does not fit: a lost worker has its room.
            for ticket in self._lane.take(self._cache.positions, 1):
                self._end(ticket.item)
                send_home([(ticket.item, self._fault("no room, since a worker was lost"))])
        self._tell()

    def _begin(self, generation: Generation, blocks: int) -> None:
        self._waiting.discard(generation)
        self._running.add(generation)
        generation.waited = time.perf_counter() - generation.request.arrived
        self._gauges.began(generation.waited)
        generation.blocks = self._blocks.take(blocks)
        generation.places = places_of(generation.blocks)
        self._ready.append(generation)
        self._pace.began(time.monotonic())

    def _gather(self, idle: int, *, express: bool) -> list[Member]:
        return gather(
            Ready(self._ready, len(self._running), self._flights.values(), self._pace),
            *(idle, self._room.step_tokens, self._limits.batch_tokens),
            express=express,
        )

    def _run(self, members: list[Member], prompt: int, threads: int) -> None:
        """Run a step in a worker's thread and send what it gives home."""
        started = time.perf_counter()
        outcomes: list[Outcome] = []
        try:
            outcomes = self._outcomes(members)
        finally:  # a thread that dies here gives back what it held; its watchdog tells the callers
            seconds = time.perf_counter() - started
            threads = min(threads, torch.get_num_threads())  # or it did not get them
            with self._workers.changed:
                self._width.ran(threads, _tokens(members), prompt, seconds)
                self._land(members, outcomes)

    def _land(self, members: list[Member], outcomes: list[Outcome]) -> None:
        """Note what a step has given, and send it home; the caller holds ``changed``."""
        news: list[tuple[Generation, News]] = []
        self._flights.pop(id(members), None)
        for member in members:
            member.generation.flying = False
            if member.generation.over:  # it left meanwhile, or the step was given up
                self._release(member.generation)
        for member, outcome in zip(members, outcomes, strict=False):
            generation = member.generation
            if generation.over:
                continue
            told = member.settle(outcome)
            if told is not None:
                news.append((generation, told))
                self._gauges.chosen(generation)
            if isinstance(told, CondenseryError) or (told is not None and told.finish):
                self._end(generation)
            else:
                self._ready.append(generation)
        self._gauges.ran(sum(member.count for member in members))
        self._tell()
        # Before another worker can take the next step, whose tokens would else overtake these.
        send_home(news)

    def _abandon(self, members: list[Member], reason: str) -> None:
        """Fail a step whose worker is lost. It may write on: it keeps its room until it lands."""
        with self._workers.changed:
            self._flights.pop(id(members), None)
            left = [one.generation for one in members if not one.generation.over]
            for generation in left:
                self._end(generation)
            self._tell()
        send_home([(generation, self._fault(reason)) for generation in left])

    def _end(self, generation: Generation) -> None:
        generation.over = True
        self._lane.forget(generation.request)
        self._waiting.discard(generation)
        self._running.discard(generation)
        if generation in self._ready:
            self._ready.remove(generation)
        if not generation.flying:
            self._release(generation)

    def _release(self, generation: Generation) -> None:
        if not generation.blocks:
            return
        self._blocks.give_back(generation.blocks)
        self._pace.ended(len(generation.blocks) * BLOCK, time.monotonic(), idle=not self._running)
        generation.blocks = []

    def _outcomes(self, members: list[Member]) -> list[Outcome]:
        decoder = None if self._fixed is None else self._fixed.decoder
        return run_in_halves(
            lambda part: run_step(self._stepper, self._cache, part, self._model, decoder),
            members,
            model=self._model,
            metrics=self._metrics,
            said=lambda _: "a step failed",
        )

    def _fault(self, reason: str) -> ModelFault:
        return ModelFault(f"{self._model}: {reason}")

    def _shutting_down(self) -> Unavailable:
        return Unavailable(f"{self._model}: shutting down")

    def _count_dropped(self, generation: Generation, cause: str) -> None:
        if self._metrics is not None:
            stage = "generate" if generation.request.begun else "queue"
            self._metrics.cancelled.labels(self._model, stage, cause).inc()

    def _tell(self) -> None:
        self._gauges.tell(len(self._running), self._lane.items, self._blocks.used * BLOCK)


def _tokens(members: list[Member]) -> int:
    """Return how many members read the token that they have chosen."""
    return sum(member.start >= member.generation.size for member in members)
