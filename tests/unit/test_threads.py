import os
import sys
import threading

import pytest

from condensery.threads import NICENESS, do_aside, lower_priority

linux = pytest.mark.skipif(sys.platform != "linux", reason="priorities are a process's there")


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@linux
def test_what_is_done_aside_steps_back_and_its_caller_does_not() -> None:
    before = niceness()
    assert do_aside(niceness) == min(19, os.getpriority(os.PRIO_PROCESS, os.getpid()) + NICENESS)
    assert niceness() == before


@linux
def test_a_thread_that_another_one_aside_starts_steps_back_no_further() -> None:
    def twice() -> int:
        lower_priority()
        return do_aside(niceness)

    assert do_aside(twice) == do_aside(niceness)


def test_what_it_raises_its_caller_gets() -> None:
    with pytest.raises(ZeroDivisionError):
        do_aside(lambda: 1 // 0)


@linux
def test_where_priorities_are_refused_all_is_done_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    before = niceness()
    monkeypatch.setattr(os, "setpriority", refuse)
    assert do_aside(niceness) == before


def test_without_another_thread_it_is_done_in_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert do_aside(threading.get_ident) == threading.get_ident()
