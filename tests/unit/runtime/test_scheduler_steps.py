from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from condensery.runtime import scheduler
from condensery.runtime.scheduler import (
    BACKGROUND_POSITIONS,
    HANG_FACTOR,
    InFlightStep,
    StepTimeModel,
    schedule_step,
)

STEP, BATCH = 256, 2048
NOW = 100.0


def sequence(left: int = 0, *, unread: int = 1, background: bool = False) -> Any:
    """A stand-in with what choosing reads of a sequence: ``left`` prompt positions to read."""
    return SimpleNamespace(
        background=background,
        in_prompt=left > 0,
        unread=[7] * unread,
        size=100 + left,
        done=100,
        rng=SimpleNamespace(random=lambda: 0.5),
    )


def step_times(seconds: float) -> StepTimeModel:
    times = StepTimeModel()
    for count in (1, 8) * 20:  # what a token adds is little
        times.record(count, 0, seconds)
    times.record(1, 10, seconds + 0.0001)
    return times


def counts(
    ready: list[Any],
    running: int,
    steps: Sequence[InFlightStep] = (),
    times: StepTimeModel | None = None,
    idle: int = 1,
    *,
    express: bool = False,
    whole: bool = False,
) -> list[int]:
    chunks = schedule_step(
        ready,
        idle,
        step_tokens=STEP,
        batch_tokens=BATCH,
        steps=steps,
        own_seconds=(times or step_times(0.05)).estimate(running, 0),
        express=express,
        whole=whole,
    )
    return [chunk.count for chunk in chunks]


def step(ago: float, seconds: float, tokens: int = 1) -> InFlightStep:
    return InFlightStep(NOW - ago, seconds, tokens)


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "time", SimpleNamespace(monotonic=lambda: NOW))


def test_one_worker_takes_all_single_tokens_and_leaves_prompts_to_one_that_is_free() -> None:
    ready = [sequence(200), *(sequence() for _ in range(8))]
    assert counts(ready, 9, idle=2) == [1] * 8
    assert counts(ready, 9, idle=1) == [*[1] * 8, 200], "there is none"


def test_what_is_ready_while_single_tokens_are_read_joins_the_next_step() -> None:
    def chosen(*steps: InFlightStep, times: StepTimeModel | None = None) -> list[int]:
        return counts([sequence()], 5, steps, times)

    assert chosen(step(0.02, 0.05)) == []
    assert chosen(step(0.02, 0.05), step(0, 1.0, 0)) == []
    assert chosen(step(0, 1.0)) == [1], "there is a long prompt in it"
    assert chosen(step(0.96, 1.0)) == [], "and now it is nearly read"
    assert chosen(step(0, 0.05, 0)) == [1], "it reads prompts alone"
    assert chosen(step(HANG_FACTOR * 0.05 + 0.01, 0.05)) == [1], "it may hang"
    assert chosen(step(0, 0.0), times=StepTimeModel()) == [1], "nothing is known"


def test_a_prompt_does_not_wait_for_single_tokens() -> None:
    assert counts([sequence(200), sequence()], 5, [step(0, 0.05)]) == [200]


@pytest.mark.parametrize(("writing", "most"), [(0, BATCH), (2, STEP - 2)])
def test_prompts_are_read_in_pieces_while_somebody_waits_for_a_token(
    writing: int, most: int
) -> None:
    ready = [sequence(3000), *(sequence() for _ in range(writing))]
    times = step_times(1.0)
    assert counts(ready, len(ready), times=times) == [*[1] * writing, most]
    assert counts(ready, len(ready), times=times, express=True) == [1] * writing


def test_what_nobody_waits_for_runs_by_itself_in_short_pieces() -> None:
    shadow, token = sequence(1000, background=True), sequence(background=True)
    assert counts([shadow], 1) == [BACKGROUND_POSITIONS]
    assert counts([token], 1) == [1]
    assert counts([shadow, sequence(30), token], 3) == [30]
    assert counts([shadow, sequence(), token], 3) == [1]


def test_where_prompts_have_to_be_read_whole_a_step_takes_as_many_as_begin_within_it() -> None:
    ready, times = [sequence(3000), sequence(40), sequence()], step_times(1.0)
    assert counts(ready, 3, times=times, whole=True) == [1, 3000]
    assert counts([sequence(1500), sequence(1500), sequence(9)], 3, whole=True) == [1500, 1500]
    assert counts([sequence(1000, background=True)], 1, whole=True) == [1000]


def test_tokens_that_were_certain_are_read_together_and_leave_less_room() -> None:
    ready = [sequence(3000), sequence(unread=5), sequence()]
    assert counts(ready, 3, times=step_times(1.0)) == [5, 1, STEP - 6]
