import pytest

from condensery.runtime.pace import Pace


def test_nothing_is_expected_before_it_is_known() -> None:
    pace = Pace()
    assert pace.expects(1, 0) == pace.expects(1, 100) == 0
    pace.ran(1, 0, 0.01)
    assert pace.expects(1, 0) == 0.01
    assert pace.expects(1, 100) == 0, "of prompts nothing is known"
    pace.ran(1, 100, 0.21)
    assert pace.expects(1, 50) == pytest.approx(0.01 + 50 * 0.002)


def test_a_step_of_single_tokens_is_not_judged_by_how_fast_prompts_are_read() -> None:
    pace = Pace()
    pace.ran(1, 0, 2.0)  # a large model on a slow machine: all weights, for one token
    pace.ran(1, 512, 10.0)
    assert pace.expects(1, 0) == 2.0
    assert pace.expects(0, 512) == pytest.approx(10.0)


def test_room_drains_as_fast_as_it_came_back_while_something_ran() -> None:
    pace = Pace()
    assert pace.drain == 0
    for start in (0.0, 100.0):  # two seconds' work each, and a long rest between
        pace.began(start)
        pace.began(start + 0.5)
        pace.ended(300, start + 1.0, idle=False)
        pace.ended(100, start + 2.0, idle=True)
    assert pace.drain == pytest.approx(200, rel=0.1)


def test_the_drain_follows_what_is_new() -> None:
    pace = Pace()
    now = 0.0
    for step, count in ((1.0, 20), (0.1, 60)):
        for _ in range(count):
            pace.began(now)
            now += step
            pace.ended(100, now, idle=False)
    assert pace.drain == pytest.approx(1000, rel=0.1)


def test_a_step_may_take_as_many_times_longer_as_it_has_more_tokens() -> None:
    pace = Pace()
    pace.ran(2, 0, 1.0)
    assert [pace.expects(tokens, 0) for tokens in (1, 2, 32)] == [1.0, 1.0, 16.0]


def test_what_is_likely_lies_on_a_line_through_the_steps_that_were() -> None:
    pace = Pace()
    assert pace.estimates(8, 0) == 0
    for count in (4, 16) * 30:  # 4 ms, and half a millisecond a token
        pace.ran(count, 0, 0.004 + count * 0.0005)
    assert pace.estimates(8, 0) == pytest.approx(0.008, rel=0.01)
    assert pace.estimates(32, 0) == pytest.approx(0.020, rel=0.01)
    pace.ran(1, 100, pace.estimates(1, 0) + 0.1)
    assert pace.estimates(8, 50) > pace.estimates(8, 0) + 0.02
    assert Pace().estimates(8, 50) == 0


def test_of_equal_steps_half_is_taken_for_their_tokens() -> None:
    pace = Pace()
    for _ in range(10):
        pace.ran(4, 0, 0.008)
    assert pace.estimates(4, 0) == pytest.approx(0.008)
    assert pace.estimates(8, 0) == pytest.approx(0.012)
