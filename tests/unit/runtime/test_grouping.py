from types import SimpleNamespace
from typing import Any, cast

import pytest

from condensery.runtime import grouping
from condensery.runtime.grouping import LEAST_SPLIT_SECONDS, Ready, gather
from condensery.runtime.pace import Pace

STEP, BATCH = 256, 2048


def sequence(left: int = 0) -> Any:
    """A sequence with so many positions of its prompt to read; enough of one for choosing."""
    return SimpleNamespace(
        reading=left > 0,
        size=100 + left,
        done=100,
        draws=SimpleNamespace(random=lambda: 0.5),
    )


def pace(seconds: float) -> Pace:
    found = Pace()
    for count in (1, 8) * 20:  # what a token adds is little
        found.ran(count, 0, seconds)
    found.ran(1, 10, seconds + 0.0001)
    return found


def counts(given: Ready, idle: int = 1, *, express: bool = False) -> list[int]:
    return [one.count for one in gather(given, idle, STEP, BATCH, express=express)]


def test_long_steps_are_shared_by_workers_that_are_free() -> None:
    ready = [sequence() for _ in range(8)]
    given = Ready(cast(Any, ready), 8, {}, pace(4 * LEAST_SPLIT_SECONDS))
    assert counts(given, idle=2) == [1] * 4
    assert counts(given, idle=1) == [1] * 8


def test_short_steps_are_not() -> None:
    ready = [sequence() for _ in range(8)]
    given = Ready(cast(Any, ready), 8, {}, pace(LEAST_SPLIT_SECONDS / 4))
    assert counts(given, idle=2) == [1] * 8


def test_what_is_ready_while_a_short_step_is_under_way_joins_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short = pace(LEAST_SPLIT_SECONDS / 4)
    now = 100.0
    monkeypatch.setattr(grouping, "time", SimpleNamespace(monotonic=lambda: now))
    assert counts(Ready(cast(Any, [sequence()]), 5, {1: now}, short)) == []
    assert counts(Ready(cast(Any, [sequence()]), 5, {1: now}, pace(1.0))) == [1]
    assert counts(Ready(cast(Any, [sequence()]), 5, {1: now - 60}, short)) == [1], "it may hang"
    assert counts(Ready(cast(Any, [sequence()]), 5, {1: now}, Pace())) == [1], "nothing is known"


def test_a_long_prompt_does_not_wait_for_a_short_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping, "time", SimpleNamespace(monotonic=lambda: 100.0))
    found = pace(LEAST_SPLIT_SECONDS / 4)
    for _ in range(20):
        found.ran(1, 100, 0.2)
    flights = {1: 100.0}
    assert counts(Ready(cast(Any, [sequence(200)]), 5, flights, found)) == [200]


@pytest.mark.parametrize(("writing", "most"), [(0, BATCH), (2, STEP - 2)])
def test_prompts_are_read_in_pieces_while_somebody_waits_for_a_token(
    writing: int, most: int
) -> None:
    ready = [sequence(3000), *(sequence() for _ in range(writing))]
    given = Ready(cast(Any, ready), len(ready), {}, pace(1.0))
    assert counts(given) == [*[1] * writing, most]
    assert counts(given, express=True) == [1] * writing
