"""A running generator: prompts to text, token by token."""

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from condensery.callers import Call, current
from condensery.errors import CondenseryError, DeadlineExceeded
from condensery.networks.oscar_interface import Part
from condensery.networks.stepping import Network, Stepper
from condensery.questions import GREEDY, Sampling
from condensery.runtime.batcher import Limits
from condensery.runtime.deltas import Deltas, StopStrings
from condensery.runtime.engine import Engine
from condensery.runtime.room import Room
from condensery.runtime.sequences import Chosen, Generation, Order
from condensery.runtime.workers import Workers
from condensery.values import FinishReason, Floats

if TYPE_CHECKING:
    from condensery.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Token:
    """One step: the text it adds (may be empty), tokens so far, and why it was the last.

    Attributes:
        text: What may be shown now; a token that begins a stop string shows nothing yet.
        count: Tokens so far, one that stops left out.
        finish: Why it was the last.
        id: The token's; None where nothing was chosen.
        logprob: Its log-probability, if it was asked for.
        top: The likeliest tokens' ids and log-probabilities, best first.
    """

    text: str
    count: int
    finish: FinishReason | None = None
    id: int | None = None
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Generator:
    """Streams answers; all that are under way share each step (``Engine``).

    Args:
        network: The pair's generator; its backbone's attention is replaced.
        deltas: Makes one answer's text of its tokens.
        stop_ids: Tokens that end an answer.
        workers: Where steps run.
        model: Name in metrics and messages.
        limits: Of the queue and of steps.
        room: What may run at the same time.
        metrics: Where to count.

    Raises:
        CorruptModel: The backbone does not run in steps.
    """

    def __init__(
        self,
        network: Network,
        deltas: Callable[[], Deltas],
        stop_ids: frozenset[int],
        workers: Workers,
        *,
        model: str,
        limits: Limits | None = None,
        room: Room | None = None,
        metrics: "Metrics | None" = None,
    ) -> None:
        self._deltas = deltas
        self._stop_ids = stop_ids
        self._engine = Engine(
            *(Stepper(network), workers), model=model, limits=limits, room=room, metrics=metrics
        )

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
                token = _show(await _next(generation, call), deltas, stops)
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


def _show(chosen: Chosen, deltas: Deltas, stops: StopStrings) -> Token:
    """Turn a token into what may be shown once it is there."""
    finish, text, stopped = chosen.finish, "", False
    if finish != "stop":  # what stops is no part of the answer
        text, stopped = stops.push(deltas.push(chosen.choice.id))
    if finish is not None and not stopped:
        rest, stopped = stops.push(deltas.rest())
        text += rest if stopped else rest + stops.rest()
    choice = chosen.choice
    return Token(
        *(text, chosen.count, "stop" if stopped else finish),
        *(choice.id, choice.logprob, choice.top),
    )
