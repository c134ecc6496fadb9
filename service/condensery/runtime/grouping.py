"""Which sequences go into the next step."""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from condensery.runtime.pace import Pace
from condensery.runtime.sequences import Generation, Member

# A step that has taken so many times what it should is not waited for: it may hang.
PATIENCE = 5


@dataclass(frozen=True, slots=True)
class Flight:
    """A step under way.

    Attributes:
        began: When, seconds of ``time.monotonic``.
        seconds: How long it should take; 0 if too little is known.
        tokens: Of its positions, those that are a sequence's newest token.
    """

    began: float
    seconds: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Ready:
    """What an engine has to choose from.

    Attributes:
        ready: Sequences that run, and are in no step at the moment.
        running: All that run.
        flights: The steps under way.
        pace: How long steps take.
    """

    ready: Sequence[Generation]
    running: int
    flights: Collection[Flight]
    pace: Pace


def gather(
    given: Ready, idle: int, step_tokens: int, batch_tokens: int, *, express: bool
) -> list[Member]:
    """Choose a step's members: those that wait for a token, then pieces of prompts.

    A step reads all weights, for one sequence or for ten. So one worker takes the single tokens,
    and what is ready while it is at it joins its next step; the others read prompts.

    Args:
        given: From what.
        idle: Workers that are free, the one that asks among them.
        step_tokens: Most positions of a step in which somebody waits for a token.
        batch_tokens: Of one in which nobody does.
        express: No prompts: it is there for what is short.

    Returns:
        None of them where all are to join the next step of a worker that is busy.
    """
    reading = [one for one in given.ready if one.reading]
    writing = [one for one in given.ready if not one.reading]
    if _lands_soon(given):
        writing = []
    members = [Member(one, 1) for one in writing]
    if express or (members and idle > 1):  # another one reads the prompts
        return members
    left = (step_tokens if members else batch_tokens) - len(members)
    for one in reading[: -(-len(reading) // max(1, idle))]:
        if left <= 0:
            break
        members.append(Member(one, min(one.size - one.done, left)))
        left -= members[-1].count
    return members


def _lands_soon(given: Ready) -> bool:
    """Tell whether a step with single tokens is under way that is worth waiting for."""
    now, own = time.monotonic(), given.pace.estimates(given.running, 0)
    return any(
        flight.tokens
        and flight.began + flight.seconds - now <= own
        and now - flight.began < PATIENCE * flight.seconds
        for flight in given.flights
    )
