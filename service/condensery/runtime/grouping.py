"""Which sequences go into the next step, and whether a second worker takes a part of them."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from condensery.runtime.pace import Pace
from condensery.runtime.sequences import Generation, Member

# Fewer sequences than this are not worth a second worker: both would read all weights.
LEAST_GROUP = 4
# A step that is shorter is one worker's. Two workers that run short steps spend more on handing
# the interpreter to and fro than they gain: four tokens each of a small model took 9.8 ms side by
# side, eight on one worker 7.9 ms, and the other worker had its hands free.
LEAST_SPLIT_SECONDS = 0.012
# So short a step is waited for by what could join the next one; no longer, since it may hang.
PATIENCE = 5


@dataclass(frozen=True, slots=True)
class Ready:
    """What an engine has to choose from.

    Attributes:
        ready: Sequences that run, and are in no step at the moment.
        running: All that run.
        flights: When each step under way began, seconds of ``time.monotonic``.
        pace: How long steps take.
    """

    ready: Sequence[Generation]
    running: int
    flights: Mapping[int, float]
    pace: Pace


def gather(
    given: Ready, idle: int, step_tokens: int, batch_tokens: int, *, express: bool
) -> list[Member]:
    """Choose a step's members: those that wait for a token, then pieces of prompts.

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
    prompt = min(step_tokens, sum(one.size - one.done for one in reading))
    expected = given.pace.estimates(given.running, prompt)
    short = 0 < expected < LEAST_SPLIT_SECONDS
    now = time.monotonic()
    if short and any(now - began < PATIENCE * expected for began in given.flights.values()):
        return []
    teams = 1 if short else max(1, idle) + len(given.flights)
    teams = max(1, min(teams, given.running // LEAST_GROUP))
    most = -(-given.running // teams)
    members = [Member(one, 1) for one in given.ready if not one.reading][:most]
    if express:
        return members
    left = (step_tokens if members else batch_tokens) - len(members)
    for one in reading[: -(-len(reading) // max(1, idle))]:
        if left <= 0:
            break
        members.append(Member(one, min(one.size - one.done, left)))
        left -= members[-1].count
    return members
