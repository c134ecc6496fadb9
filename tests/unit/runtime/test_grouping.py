from types import SimpleNamespace
from typing import Any, cast

import pytest

from condensery.runtime import grouping
from condensery.runtime.grouping import PATIENCE, Flight, Ready, gather
from condensery.runtime.pace import Pace

STEP, BATCH = 256, 2048
NOW = 100.0


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


def flight(ago: float, seconds: float, tokens: int = 1) -> Flight:
    return Flight(NOW - ago, seconds, tokens)


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping, "time", SimpleNamespace(monotonic=lambda: NOW))


def test_one_worker_takes_all_single_tokens_and_leaves_prompts_to_one_that_is_free() -> None:
    ready = [sequence(200), *(sequence() for _ in range(8))]
    given = Ready(cast(Any, ready), 9, [], pace(0.05))
    assert counts(given, idle=2) == [1] * 8
    assert counts(given, idle=1) == [*[1] * 8, 200], "there is none"


def test_what_is_ready_while_single_tokens_are_read_joins_the_next_step() -> None:
    def found(*flights: Flight, known: Pace | None = None) -> list[int]:
        return counts(Ready(cast(Any, [sequence()]), 5, flights, known or pace(0.05)))

    assert found(flight(0.02, 0.05)) == []
    assert found(flight(0.02, 0.05), flight(0, 1.0, 0)) == []
    assert found(flight(0, 1.0)) == [1], "there is a long prompt in it"
    assert found(flight(0.96, 1.0)) == [], "and now it is nearly read"
    assert found(flight(0, 0.05, 0)) == [1], "it reads prompts alone"
    assert found(flight(PATIENCE * 0.05 + 0.01, 0.05)) == [1], "it may hang"
    assert found(flight(0, 0.0), known=Pace()) == [1], "nothing is known"


def test_a_prompt_does_not_wait_for_single_tokens() -> None:
    given = Ready(cast(Any, [sequence(200), sequence()]), 5, [flight(0, 0.05)], pace(0.05))
    assert counts(given) == [200]


@pytest.mark.parametrize(("writing", "most"), [(0, BATCH), (2, STEP - 2)])
def test_prompts_are_read_in_pieces_while_somebody_waits_for_a_token(
    writing: int, most: int
) -> None:
    ready = [sequence(3000), *(sequence() for _ in range(writing))]
    given = Ready(cast(Any, ready), len(ready), [], pace(1.0))
    assert counts(given) == [*[1] * writing, most]
    assert counts(given, express=True) == [1] * writing
