import pytest

from condensery.errors import Overloaded
from condensery.metrics import Metrics
from condensery.runtime.queue import BatchLimits, QueueState, refuse_if_overloaded

LIMITS = BatchLimits(queue_tokens=100, queue_seconds=2.0)


def refused(queue: QueueState, cost: int) -> tuple[str, float] | None:
    """Return the limit that was reached and when to come back; None where there is room."""
    metrics = Metrics()
    try:
        refuse_if_overloaded(queue, cost, LIMITS, model="m", metrics=metrics)
    except Overloaded as error:
        for reason in ("queue_tokens", "queue_seconds"):
            labels = {"reason": reason}
            if metrics.registry.get_sample_value("condensery_rejected_total", labels):
                return reason, error.retry_after_seconds
        pytest.fail("it was not counted")
    return None


def test_what_just_fits_is_taken_and_one_more_is_not() -> None:
    assert refused(QueueState(90, 0, 10.0), 10) is None
    assert refused(QueueState(90, 0, 10.0), 11) == ("queue_tokens", 1)
    assert refused(QueueState(20, 20, 10.0), 1) is None, "it waits as long as it may"
    assert refused(QueueState(21, 21, 10.0), 1) == ("queue_seconds", 1)


def test_who_finds_nobody_waiting_is_taken_whatever_it_costs() -> None:
    assert refused(QueueState(0, 0, 1e-9), 10**9) is None


def test_nobody_is_told_to_come_back_at_once_or_in_more_than_a_minute() -> None:
    for drain, seconds in ((1e9, 1), (10.0, 9), (1e-9, 60), (0.0, 1)):
        # 90 tokens must go before 100 fit again; at no known rate it is worth a try in a second.
        assert refused(QueueState(100, 0, drain), 90) == ("queue_tokens", seconds), drain
    assert refused(QueueState(100, 100, 1.0), 1000) == ("queue_tokens", 60), (
        "no more can go than wait"
    )
    assert refused(QueueState(90, 90, 1.0), 1) == ("queue_seconds", 60)
    assert refused(QueueState(90, 90, 3.0), 1) == ("queue_seconds", 28)
