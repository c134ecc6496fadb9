import pytest

from condensery.runtime.scheduler import StepTimeModel


def test_nothing_is_expected_before_it_is_known() -> None:
    times = StepTimeModel()
    assert times.upper_estimate(1, 0) == times.upper_estimate(1, 100) == 0
    times.record(1, 0, 0.01)
    assert times.upper_estimate(1, 0) == 0.01
    assert times.upper_estimate(1, 100) == 0, "of prompts nothing is known"
    times.record(1, 100, 0.21)
    assert times.upper_estimate(1, 50) == pytest.approx(0.01 + 50 * 0.002)


def test_a_step_of_single_tokens_is_not_judged_by_how_fast_prompts_are_read() -> None:
    times = StepTimeModel()
    times.record(1, 0, 2.0)  # a large model on a slow machine: all weights, for one token
    times.record(1, 512, 10.0)
    assert times.upper_estimate(1, 0) == 2.0
    assert times.upper_estimate(0, 512) == pytest.approx(10.0)


def test_room_drains_as_fast_as_it_came_back_while_something_ran() -> None:
    times = StepTimeModel()
    assert times.drain_rate == 0
    for start in (0.0, 100.0):  # two seconds' work each, and a long rest between
        times.note_start(start)
        times.note_start(start + 0.5)
        times.note_end(300, start + 1.0, idle=False)
        times.note_end(100, start + 2.0, idle=True)
    assert times.drain_rate == pytest.approx(200, rel=0.1)


def test_the_drain_follows_what_is_new() -> None:
    times = StepTimeModel()
    now = 0.0
    for step, count in ((1.0, 20), (0.1, 60)):
        for _ in range(count):
            times.note_start(now)
            now += step
            times.note_end(100, now, idle=False)
    assert times.drain_rate == pytest.approx(1000, rel=0.1)


def test_a_step_may_take_as_many_times_longer_as_it_has_more_tokens() -> None:
    times = StepTimeModel()
    times.record(2, 0, 1.0)
    assert [times.upper_estimate(tokens, 0) for tokens in (1, 2, 32)] == [1.0, 1.0, 16.0]


def test_what_is_likely_lies_on_a_line_through_the_steps_that_were() -> None:
    times = StepTimeModel()
    assert times.estimate(8, 0) == 0
    for count in (4, 16) * 30:  # 4 ms, and half a millisecond a token
        times.record(count, 0, 0.004 + count * 0.0005)
    assert times.estimate(8, 0) == pytest.approx(0.008, rel=0.01)
    assert times.estimate(32, 0) == pytest.approx(0.020, rel=0.01)
    times.record(1, 100, times.estimate(1, 0) + 0.1)
    assert times.estimate(8, 50) > times.estimate(8, 0) + 0.02
    assert StepTimeModel().estimate(8, 50) == 0


def test_of_equal_steps_half_is_taken_for_their_tokens() -> None:
    times = StepTimeModel()
    for _ in range(10):
        times.record(4, 0, 0.008)
    assert times.estimate(4, 0) == pytest.approx(0.008)
    assert times.estimate(8, 0) == pytest.approx(0.012)
