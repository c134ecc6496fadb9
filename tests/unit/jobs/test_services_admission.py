import contextlib
import time
from types import SimpleNamespace

import pytest

from condensery.errors import Overloaded
from condensery.jobs.services import Admission
from condensery.metrics import Metrics


def rejected(metrics: Metrics, reason: str) -> float | None:
    return metrics.registry.get_sample_value("condensery_rejected_total", {"reason": reason})


def test_so_many_requests_fit_and_one_that_leaves_makes_room() -> None:
    metrics = Metrics()
    admission = Admission(max_requests=2, metrics=metrics)
    with admission.admit(10):
        with admission.admit(10):
            with (
                pytest.raises(Overloaded, match="2 requests are being served"),
                admission.admit(10),
            ):
                pass
            assert admission.bytes == 20, "who is refused leaves nothing behind"
        with admission.admit(10):
            pass
    assert (admission.requests, admission.bytes) == (0, 0)
    assert rejected(metrics, "requests") == 1


def test_so_many_bytes_fit() -> None:
    metrics = Metrics()
    admission = Admission(max_bytes=100, metrics=metrics)
    message = r"100 bytes .* and 1 more are over the limit of 100"
    with (
        admission.admit(60),
        admission.admit(40),
        pytest.raises(Overloaded, match=message),
        admission.admit(1),
    ):
        pass
    assert rejected(metrics, "bytes") == 1
    with admission.admit(1):
        pass


def test_a_large_request_that_is_alone_always_fits() -> None:
    admission = Admission(max_bytes=100)
    with admission.admit(1000), pytest.raises(Overloaded), admission.admit(1):
        pass


def test_a_body_of_unknown_length_is_counted_as_it_grows() -> None:
    admission = Admission(max_bytes=100)
    with admission.admit(50), admission.admit(0) as place:
        place.grow(50)
        with pytest.raises(Overloaded):
            place.grow(1)
        assert admission.bytes == 100
    assert admission.bytes == 0


def test_a_request_that_fails_leaves_all_the_same() -> None:
    admission = Admission()
    with contextlib.suppress(KeyError), admission.admit(10):
        raise KeyError
    assert (admission.requests, admission.bytes) == (0, 0)


def test_when_to_come_back_follows_how_fast_the_house_drains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr("condensery.jobs.services.time", SimpleNamespace(monotonic=lambda: now))

    def refused(pause: float) -> float:
        """Let five leave, a pause apart, fill up again; returns when the next should come back."""
        nonlocal now
        admission = Admission(max_requests=9)
        leave = [contextlib.ExitStack() for _ in range(14)]
        for stack in leave[:9]:
            stack.enter_context(admission.admit(1))
        for stack in leave[:5]:
            now += pause
            stack.close()
        for stack in leave[9:]:
            stack.enter_context(admission.admit(1))
        with pytest.raises(Overloaded) as caught, admission.admit(1):
            pass
        return caught.value.retry_after_seconds

    assert refused(0.3) > 0.25
    assert refused(0.001) < 0.2


def test_nobody_is_told_to_come_back_at_once_or_in_more_than_a_minute() -> None:
    for rate, seconds in ((1e-6, 0.1), (1e6, 60)):
        admission = Admission(max_requests=1)
        admission._seconds_each = rate
        with admission.admit(1), pytest.raises(Overloaded) as caught, admission.admit(1):
            pass
        assert caught.value.retry_after_seconds == seconds


def test_an_idle_hour_does_not_count_as_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    admission = Admission(max_requests=1)
    now = time.monotonic()
    for hour in range(3):
        monkeypatch.setattr(time, "monotonic", lambda hour=hour: now + 3600 * hour)
        with admission.admit(1):
            pass
    with admission.admit(1), pytest.raises(Overloaded) as caught, admission.admit(1):
        pass
    assert caught.value.retry_after_seconds <= 1
