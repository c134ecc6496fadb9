"""What is being generated: each sequence, and its part in a step."""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from torch import Tensor

from condensery.answers import FinishReason
from condensery.callers import Call
from condensery.errors import CondenseryError
from condensery.networks.caching import Places, Span
from condensery.networks.oscar_interface import Part
from condensery.questions import GREEDY, Sampling
from condensery.runtime.delivering import send
from condensery.runtime.lanes import Request
from condensery.runtime.sampling import Choice

NOWHERE: Places = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Order:
    """What is asked of the engine.

    Attributes:
        parts: The prompt: token ids, or vectors in the place of some.
        max_tokens: Most tokens generated, at least 1.
        stop_ids: Tokens that end an answer, and are no part of it.
        sampling: How tokens are chosen.
    """

    parts: Sequence[Part]
    max_tokens: int
    stop_ids: frozenset[int] = frozenset()
    sampling: Sampling = GREEDY

    @property
    def prompt(self) -> int:
        """The most positions that the prompt takes, a separator after each part included."""
        return sum(len(part) + 1 for part in self.parts)


@dataclass(frozen=True, slots=True)
class Chosen:
    """A token as it goes home: how many there are, and why it was the last."""

    choice: Choice
    count: int
    finish: FinishReason | None = None


News: TypeAlias = Chosen | CondenseryError


@dataclass(slots=True, eq=False)
class Generation:
    """One order on its way.

    Attributes:
        order: What is asked.
        request: Its place among those that wait, and whether it is wanted still.
        news: What goes home.
        embeds: The prompt's embeddings (positions, hidden), from its first step to its last chunk.
        size: Positions of the prompt; the most there can be until it is embedded.
        done: Positions in the cache.
        count: Tokens chosen.
        last: The last one's id.
        blocks: Of the cache, its own; none before it is admitted and once it is over.
        places: The positions in them.
        flying: Whether a step is under way with it.
        over: Nothing more comes of it.
        told: When its last token was chosen, seconds of ``time.perf_counter``; 0 before.
        waited: Seconds until there was room for it.
    """

    order: Order
    request: "Request[Generation, None]"
    news: "asyncio.Queue[News]" = field(default_factory=asyncio.Queue)
    embeds: Tensor | None = None
    size: int = 0
    done: int = 0
    count: int = 0
    last: int = 0
    blocks: list[int] = field(default_factory=list)
    places: Places = field(default_factory=lambda: NOWHERE)
    flying: bool = False
    over: bool = False
    told: float = 0.0
    waited: float = 0.0
    draws: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.size = self.order.prompt
        self.draws = random.Random(self.order.sampling.seed)

    @classmethod
    def of(cls, order: Order, call: Call) -> "Generation":
        """Begin an order; called in the caller's loop."""
        reply: asyncio.Future[list[None]] = asyncio.get_running_loop().create_future()
        return cls(order, Request(reply, call, [None], 1))

    @property
    def reserve(self) -> int:
        """The most positions it takes; the last token is never read."""
        return self.order.prompt + self.order.max_tokens - 1

    @property
    def reading(self) -> bool:
        """Whether its prompt is not read to the end."""
        return self.done < self.size

    def told_after(self) -> float | None:
        """Note that a token goes home; returns the seconds since the one before, if any."""
        now = time.perf_counter()
        before, self.told = self.told, now
        return now - before if before else None


@dataclass(slots=True, eq=False)
class Member:
    """A sequence's part in one step: ``count`` positions from ``start``.

    ``draw`` is drawn once, so that a step that is tried again chooses the same.
    """

    generation: Generation
    count: int
    start: int = field(init=False)
    draw: float = field(init=False)

    def __post_init__(self) -> None:
        self.start = self.generation.done
        self.draw = self.generation.draws.random()

    @property
    def span(self) -> Span:
        """Its rows."""
        return Span(self.generation.places, self.start, self.count)

    @property
    def chooses(self) -> bool:
        """Whether a token is chosen after its last row."""
        return self.start + self.count >= self.generation.size

    def settle(self, outcome: "Choice | CondenseryError | None") -> News | None:
        """Note what the step has given; returns what goes home."""
        if isinstance(outcome, CondenseryError):
            return outcome
        generation, order = self.generation, self.generation.order
        generation.done += self.count
        if outcome is None:
            return None
        generation.embeds = None
        generation.last = outcome.id
        if outcome.id in order.stop_ids:
            return Chosen(outcome, generation.count, "stop")
        generation.count += 1
        return Chosen(
            outcome, generation.count, "length" if generation.count == order.max_tokens else None
        )


def send_home(news: Sequence[tuple[Generation, News]]) -> None:
    """Bring news to their callers, from any thread."""
    # One wake-up for each loop, not one a sequence (only tests have more than one loop).
    homes: dict[asyncio.AbstractEventLoop, list[tuple[Generation, News]]] = {}
    for one in news:
        homes.setdefault(one[0].request.reply.get_loop(), []).append(one)
    for loop, theirs in homes.items():
        send(loop, _deliver, theirs)


def _deliver(news: list[tuple[Generation, News]]) -> None:
    for generation, told in news:
        generation.news.put_nowait(told)
