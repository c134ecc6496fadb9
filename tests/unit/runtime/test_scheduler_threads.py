from condensery.runtime.scheduler import (
    MIN_STEP_SECONDS,
    TRIAL_PERIOD,
    TRIAL_STEPS,
    StepTimeModel,
    ThreadScaler,
)

SLOW = 10 * MIN_STEP_SECONDS


def width(narrow: float) -> ThreadScaler:
    """One that has seen steps on one thread."""
    scaler = ThreadScaler(StepTimeModel())
    for _ in range(20):
        scaler.record(1, 8, 0, narrow)
    return scaler


def run(scaler: ThreadScaler, steps: int, wide: float, narrow: float = SLOW) -> list[int]:
    """Run steps of 8 tokens, which take so long on several threads or on one."""
    chosen = []
    for _ in range(steps):
        chosen.append(scaler.threads(2, 8, 0))
        scaler.record(chosen[-1], 8, 0, wide if chosen[-1] > 1 else narrow)
    return chosen


def test_what_is_faster_is_taken_and_the_other_tried_now_and_then() -> None:
    faster = run(width(SLOW), 10 * TRIAL_PERIOD, wide=SLOW / 2)
    assert 10 * (TRIAL_STEPS - 1) <= faster.count(1) <= 10 * TRIAL_STEPS
    slower = run(width(SLOW), 10 * TRIAL_PERIOD, wide=SLOW * 2)
    assert 10 * (TRIAL_STEPS - 1) <= slower.count(2) <= 10 * TRIAL_STEPS
    assert slower[0] == 2, "nothing is known of it before"


def test_a_little_faster_is_not_worth_it() -> None:
    assert run(width(SLOW), 4 * TRIAL_PERIOD, wide=SLOW * 0.97).count(2) <= 4 * TRIAL_STEPS


def test_it_follows_what_the_machine_does() -> None:
    scaler = width(SLOW)
    assert run(scaler, TRIAL_PERIOD, wide=SLOW / 2).count(2) > TRIAL_PERIOD / 2
    assert run(scaler, TRIAL_PERIOD, wide=SLOW * 5).count(2) < TRIAL_PERIOD / 4, (
        "a neighbour has the other core"
    )
    run(scaler, 8 * TRIAL_PERIOD, wide=SLOW / 2)
    assert run(scaler, TRIAL_PERIOD, wide=SLOW / 2).count(2) > TRIAL_PERIOD / 2, "and gives it back"


def test_it_is_all_there_are_or_one() -> None:
    assert width(SLOW).threads(5, 8, 0) == 5
    assert width(SLOW).threads(1, 8, 0) == 1


def test_short_steps_and_what_nothing_is_known_of_have_one() -> None:
    assert (
        run(
            width(MIN_STEP_SECONDS / 2), 2 * TRIAL_PERIOD, wide=0, narrow=MIN_STEP_SECONDS / 2
        ).count(2)
        == 0
    )
    assert ThreadScaler(StepTimeModel()).threads(2, 8, 0) == 1


def test_prompts_are_told_apart_from_single_tokens() -> None:
    scaler = width(SLOW)
    run(scaler, TRIAL_PERIOD, wide=SLOW * 2)
    for _ in range(20):
        scaler.record(1, 0, 100, SLOW + 1.0)
        scaler.record(2, 0, 100, SLOW + 0.5)
    scaler._steps = TRIAL_STEPS
    assert scaler.threads(2, 0, 100) == 2
    assert scaler.threads(2, 8, 0) == 1
