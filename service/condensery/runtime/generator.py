"""A running generator: prompts to text, token by token."""

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from condensery.answers import FinishReason, TokenLogprob
from condensery.callers import Call, current
from condensery.errors import CondenseryError, DeadlineExceeded
from condensery.networks.caching import BLOCK
from condensery.networks.oscar_interface import Part
from condensery.networks.stepping import Network, Stepper
from condensery.questions import GREEDY, Sampling
from condensery.runtime.deltas import Deltas, StopStrings
from condensery.runtime.engine import Engine
from condensery.runtime.limits import Limits
from condensery.runtime.room import Bounds, Room, room_within
from condensery.runtime.sequences import Chosen, Generation, Order
from condensery.runtime.workers import Workers
from condensery.values import Floats

if TYPE_CHECKING:
    from condensery.metrics import Metrics


UNBOUNDED = Bounds()


@dataclass(frozen=True, slots=True)
class Token:
    """One step: the text it adds (may be empty), tokens so far, and why it was the last.

    Attributes:
        text: What may be shown now; a token that begins a stop string shows nothing yet.
        count: Tokens so far, one that stops left out.
        finish: Why it was the last.
        id: The token's; None where nothing was chosen.
        logprob: Its log-probability, if it was asked for, and the token is part of the answer.
        waited: Seconds that its answer waited until the generator had room for it.
    """

    text: str
    count: int
    finish: FinishReason | None = None
    id: int | None = None
    logprob: TokenLogprob | None = None
    waited: float = field(default=0.0, compare=False)


class Generator:
    """Streams answers; all that are under way share each step (``Engine``).

    Args:
        network: The pair's generator; its backbone's attention is replaced.
        deltas: Makes one answer's text of its tokens.
        stop_ids: Tokens that end an answer.
        workers: Where steps run.
        model: Name in metrics and messages.
        name: Text of one token, for reports of log-probabilities.
        limits: Of the queue and of steps.
        room: What may run at the same time; by default what suits, within ``bounds``.
        bounds: What the operator allows.
        metrics: Where to count.

    Raises:
        CorruptModel: The backbone does not run in steps.
        SettingError: The bounds leave no room.
    """

    def __init__(
        self,
        network: Network,
        deltas: Callable[[], Deltas],
        stop_ids: frozenset[int],
        workers: Workers,
        *,
        model: str,
        name: Callable[[int], str] = str,
        limits: Limits | None = None,
        room: Room | None = None,
        bounds: Bounds = UNBOUNDED,
        metrics: "Metrics | None" = None,
    ) -> None:
        self._deltas = deltas
        self._stop_ids = stop_ids
        self._name = name
        stepper = Stepper(network)
        room = room or room_within(stepper, bounds)
        self._longest = stepper.longest
        self._room = room.positions // BLOCK * BLOCK
        self._engine = Engine(
            stepper, workers, model=model, limits=limits, room=room, metrics=metrics
        )

    def spare(self, prompt: Sequence[Part], size: int, max_tokens: int) -> int:
        """Return the positions that a prompt and its answer leave free; negative: too long.

        Args:
            prompt: Its parts.
            size: Positions that it takes, separators included.
            max_tokens: Of the answer.
        """
        # The engine reserves one for a separator after each part; the last token is never read.
        reserved = Order(prompt, max_tokens).prompt + max_tokens - 1
        return min(self._longest - size - max_tokens, self._room - reserved)

    def expects(self, positions: int) -> float:
        """Return about how many seconds a prompt takes to its first token, at the pace so far.

        0 if too little has run yet. What waits before it is left out.
        """
        return self._engine.expects(positions)

    async def generate(
        self,
        prompt: Sequence[Floats | Part],
        *,
        max_tokens: int,
        sampling: Sampling = GREEDY,
        stop: Sequence[str] = (),
    ) -> AsyncGenerator[Token, None]:
        """Continue a prompt.

        Args:
            prompt: Parts in order: memory vectors (vectors, hidden), or token ids.
            max_tokens: Most tokens generated.
            sampling: How they are chosen.
            stop: Strings that end the answer; neither they nor what follows is shown.

        Raises:
            InputError: A stop string is empty, or the answer would not fit.
            Overloaded: Too much waits before it.
            DeadlineExceeded: The caller's time ran out, before or between steps.
            ModelFault: A step failed.
            Unavailable: Closed.
        """
        stops, deltas, call = StopStrings(stop), self._deltas(), current()
        parts = [torch.from_numpy(p) if isinstance(p, np.ndarray) else p for p in prompt]
        generation = self._engine.begin(Order(parts, max_tokens, self._stop_ids, sampling))
        try:
            while True:
                chosen = await _next(generation, call)
                token = self._show(chosen, deltas, stops, generation.waited)
                if token.finish is not None:  # by a stop string, perhaps: the engine knows of none
                    self._engine.leave(generation)
                yield token
                if token.finish is not None:
                    return
        except DeadlineExceeded:
            self._engine.leave(generation, "deadline")
            raise
        except (asyncio.CancelledError, GeneratorExit):
            self._engine.leave(generation, "deadline" if call.seconds_left <= 0 else "client")
            raise
        finally:
            self._engine.leave(generation)

    def _show(self, chosen: Chosen, deltas: Deltas, stops: StopStrings, waited: float) -> Token:
        """Turn a token into what may be shown once it is there."""
        finish, text, stopped, choice = chosen.finish, "", False, chosen.choice
        logprob = None
        if finish != "stop":  # what stops is no part of the answer
            text, stopped = stops.push(deltas.push(choice.id))
            if choice.logprob is not None:
                top = tuple((self._name(token), value) for token, value in choice.top)
                logprob = TokenLogprob(self._name(choice.id), choice.logprob, top)
        if finish is not None and not stopped:
            rest, stopped = stops.push(deltas.rest())
            text += rest if stopped else rest + stops.rest()
        ended = "stop" if stopped else finish
        return Token(text, chosen.count, ended, choice.id, logprob, waited)

    @property
    def busy(self) -> bool:
        """Whether answers are under way, or wait."""
        return self._engine.busy

    def close(self) -> None:
        """Refuse new answers, and end those under way."""
        self._engine.close()


async def _next(generation: Generation, call: Call) -> Chosen:
    """Wait for a sequence's next token, no longer than its caller has time."""
    loop = asyncio.get_running_loop()
    until = None if math.isinf(call.deadline) else loop.time() + call.seconds_left
    try:
        async with asyncio.timeout_at(until):
            told = await generation.news.get()
    except TimeoutError:
        raise call.expired() from None
    if isinstance(told, CondenseryError):
        raise told
    return told
