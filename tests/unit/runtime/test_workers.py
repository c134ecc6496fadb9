import asyncio
import os
import sys
import threading
import time
import weakref
from collections.abc import Awaitable, Callable

import pytest
import torch

from condensery.errors import SettingError
from condensery.runtime.workers import Workers, WorkItem
from condensery.threads import NICENESS

WAIT = 30.0  # for what must happen, however busy the machine is


class Queue:
    """A source that hands out the jobs it is given; short ones to the express worker too."""

    def __init__(self, jobs: list[WorkItem]) -> None:
        self.jobs = jobs

    def take(self, idle: int, *, express: bool) -> WorkItem | None:
        for place, job in enumerate(self.jobs):
            if not (express and job.long):
                return self.jobs.pop(place)
        return None


def job(run: Callable[[], object], *, long: bool = False, threads: int = 1) -> WorkItem:
    return WorkItem(
        run=lambda: run() and None, fail=lambda reason: None, long=long, threads=threads
    )


def test_every_worker_holds_one_thread() -> None:
    threads: list[int] = []
    done = threading.Barrier(3)

    def run() -> None:
        threads.append(torch.get_num_threads())
        done.wait(WAIT)

    workers = Workers(2)
    workers.add(Queue([job(run), job(run)]))
    done.wait(WAIT)
    workers.close()
    assert threads == [1, 1]


def test_closing_waits_for_the_work_in_hand() -> None:
    begun, finish, ended = threading.Event(), threading.Event(), threading.Event()

    def run() -> None:
        begun.set()
        finish.wait(WAIT)
        ended.set()

    workers = Workers(1)
    workers.add(Queue([job(run)]))
    assert begun.wait(WAIT)
    threading.Timer(0.05, finish.set).start()
    assert workers.close(WAIT)
    assert ended.is_set()


def test_closing_does_not_wait_for_ever() -> None:
    begun, finish = threading.Event(), threading.Event()
    workers = Workers(1)
    workers.add(Queue([job(lambda: (begun.set(), finish.wait(WAIT)))]))
    assert begun.wait(WAIT)
    started = time.monotonic()
    assert not workers.close(0.1)
    assert time.monotonic() - started < WAIT / 2
    finish.set()


def test_no_worker_is_an_error() -> None:
    with pytest.raises(SettingError, match="workers=0"):
        Workers(0)


async def test_a_source_that_was_removed_is_asked_no_more() -> None:
    workers = Workers(1)
    source = Queue([])
    workers.add(source)
    workers.remove(source)
    ran = asyncio.Event()
    loop = asyncio.get_running_loop()
    source.jobs.append(job(ran.set))
    workers.add(Queue([job(lambda: loop.call_soon_threadsafe(ran.set))]))
    await asyncio.wait_for(ran.wait(), WAIT)
    workers.close()
    assert len(source.jobs) == 1


def test_an_idle_worker_holds_no_source_that_was_removed() -> None:
    workers = Workers(2)
    source = Queue([])
    left = weakref.ref(source)
    ran = [threading.Event(), threading.Event()]
    source.jobs += [job(event.set) for event in ran]
    workers.add(source)
    assert all(event.wait(WAIT) for event in ran)
    workers.remove(source)
    del source
    deadline = time.monotonic() + WAIT
    while left() is not None and time.monotonic() < deadline:  # a worker has its job in hand still
        time.sleep(0.01)
    assert left() is None, "a model that was unloaded would stay in memory"
    workers.close()


def test_short_work_overtakes_long_work_that_runs_already() -> None:
    finish, ran = threading.Event(), threading.Event()
    begun = threading.Barrier(3)
    workers = Workers(2)
    source = Queue([])
    workers.add(source)
    hold = job(lambda: (begun.wait(WAIT), finish.wait(WAIT)), long=True)
    with workers.changed:
        source.jobs.extend([hold, hold, job(finish.wait, long=True)])
        workers.wake(3, short=False)
    begun.wait(WAIT)
    with workers.changed:
        source.jobs.append(job(ran.set))
        workers.wake(1, short=True)
    assert ran.wait(WAIT), "both workers are busy for long: the express one takes it"
    assert len(source.jobs) == 1, "it takes no long work"
    finish.set()
    workers.close()


def test_the_express_worker_keeps_off_while_another_is_free_soon() -> None:
    finish, begun, by = threading.Event(), threading.Event(), list[str]()
    workers = Workers(1)
    source = Queue([job(lambda: (begun.set(), finish.wait(WAIT)))])
    workers.add(source)
    assert begun.wait(WAIT)
    done = threading.Event()
    with workers.changed:
        source.jobs.append(job(lambda: (by.append(threading.current_thread().name), done.set())))
        workers.wake(1, short=True)
    assert not done.wait(0.1)
    finish.set()
    assert done.wait(WAIT)
    workers.close()
    assert by == ["device-worker-0"]


def test_what_the_express_worker_leaves_is_gone_on_with_by_one_that_waits_by_then() -> None:
    """Such as a generator's next step: ready when the last one ends, announced by no call."""
    long_ends, waits, gone_on = threading.Event(), threading.Event(), threading.Event()
    source = Queue([])

    class Watched(Queue):
        def take(self, idle: int, *, express: bool) -> WorkItem | None:
            batch = super().take(idle, express=express)
            if batch is None and not express and long_ends.is_set():
                waits.set()
            return batch

    def step() -> None:
        long_ends.set()
        assert waits.wait(WAIT)  # the other has looked, and found nothing
        source.jobs.append(job(gone_on.set))

    workers = Workers(1)
    watched = Watched([job(lambda: long_ends.wait(WAIT), long=True), job(step)])
    workers.add(watched)
    workers.add(source)
    assert gone_on.wait(WAIT)
    workers.close()


def test_a_worker_that_is_replaced_fails_its_batch_and_another_goes_on() -> None:
    finish, begun, after = threading.Event(), threading.Event(), threading.Event()
    failures: list[str] = []
    hung = WorkItem(run=lambda: begun.set() or (finish.wait(WAIT) and None), fail=failures.append)
    workers = Workers(1)
    source = Queue([hung])
    workers.add(source)
    assert begun.wait(WAIT)
    lost = next(worker for worker in workers.members() if worker.item is hung)
    workers.replace(lost, "it hung", of=job(after.set))
    assert lost in workers.members(), "it is at another by now"
    workers.replace(lost, "it hung", of=hung)
    with workers.changed:
        source.jobs.append(job(after.set))
        workers.wake(1, short=False)
    assert after.wait(WAIT)
    assert failures == ["it hung"]
    finish.set()
    assert lost.thread is not None
    lost.thread.join(WAIT)
    assert not lost.thread.is_alive(), "what was given up ends once it comes back"
    assert workers.close(WAIT)


@pytest.mark.skipif(sys.platform != "linux", reason="threads have a niceness of their own on Linux")
def test_who_runs_batches_lets_the_loop_and_the_express_worker_go_first() -> None:
    finish = threading.Event()
    niceness: dict[str, int] = {}
    barrier = threading.Barrier(3)

    def tell() -> None:
        niceness[threading.current_thread().name] = os.getpriority(os.PRIO_PROCESS, 0)
        barrier.wait(WAIT)
        finish.wait(WAIT)

    workers = Workers(1)
    source = Queue([job(tell, long=True)])
    workers.add(source)
    with workers.changed:
        source.jobs.append(job(tell))
        workers.wake(1, short=True)
    barrier.wait(WAIT)
    finish.set()
    workers.close()
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert niceness == {
        "device-worker-express": own,
        "device-worker-0": min(19, own + NICENESS),
    }


def test_a_wide_job_has_the_idle_workers_threads_and_they_wait_for_its_end() -> None:
    seen: list[tuple[str, int]] = []
    begun, finish, ended = threading.Event(), threading.Event(), threading.Event()

    def wide() -> None:
        begun.set()
        finish.wait(WAIT)
        seen.append(("wide", torch.get_num_threads()))

    def narrow() -> None:
        seen.append(("narrow", torch.get_num_threads()))
        ended.set()

    workers, queue = Workers(2), Queue([job(wide, threads=2)])
    workers.add(queue)
    assert begun.wait(WAIT)
    with workers.changed:
        queue.jobs.append(job(narrow, long=True))
        workers.wake(1, short=True)
    assert not ended.wait(0.1)
    finish.set()
    assert ended.wait(WAIT)
    workers.close()
    assert seen == [("wide", 2), ("narrow", 1)]


def test_short_work_overtakes_a_wide_job() -> None:
    begun, finish, ended = threading.Event(), threading.Event(), threading.Event()
    workers = Workers(2)
    queue = Queue([job(lambda: begun.set() or finish.wait(WAIT), threads=2)])
    workers.add(queue)
    try:
        assert begun.wait(WAIT)
        with workers.changed:
            queue.jobs.append(job(ended.set))
            workers.wake(1, short=True)
        assert ended.wait(WAIT)
    finally:
        finish.set()
        workers.close()


def test_a_wide_job_that_hangs_leaves_the_threads_to_others() -> None:
    begun, finish, ended = threading.Event(), threading.Event(), threading.Event()
    workers = Workers(2)
    queue = Queue([job(lambda: begun.set() or finish.wait(WAIT), long=True, threads=2)])
    workers.add(queue)
    try:
        assert begun.wait(WAIT)
        (stuck,) = [member for member in workers.members() if member.item is not None]
        workers.replace(stuck, "it hung")
        threads: list[int] = []

        def run() -> None:
            threads.append(torch.get_num_threads())
            ended.set()

        with workers.changed:
            queue.jobs.append(job(run, threads=2))
            workers.wake(1, short=False)
        assert ended.wait(WAIT)
        assert threads == [2]
    finally:
        finish.set()
        workers.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_wide_job_that_raises_ends_its_worker_as_any_other() -> None:
    def die() -> None:
        raise SystemExit

    workers, queue = Workers(2), Queue([job(die, threads=2)])
    workers.add(queue)
    until = time.monotonic() + WAIT
    while all(member.thread and member.thread.is_alive() for member in workers.members()):
        assert time.monotonic() < until, "the worker lives on"
        time.sleep(0.005)
    workers.close()


async def test_a_worker_that_goes_to_another_source_wakes_one_for_what_it_leaves(
    asleep: Callable[[Workers], Awaitable[None]],
) -> None:
    workers, both = Workers(2), threading.Barrier(3)
    sources = [Queue([]), Queue([])]
    for source in sources:
        workers.add(source)
    try:
        await asleep(workers)
        with workers.changed:
            for source in sources:
                source.jobs.append(job(lambda: both.wait(WAIT)))
            workers.changed.notify()  # one of them
        await asyncio.to_thread(both.wait, WAIT)
    except threading.BrokenBarrierError:
        both.abort()
        raise
    finally:
        workers.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the kernel does not tell")
def test_the_threads_that_a_wide_job_computes_with_are_known() -> None:
    begun, finish = threading.Event(), threading.Event()
    own: list[int] = []

    def compute() -> None:
        own.append(threading.get_native_id())
        square = torch.ones(512, 512)
        square @ square + square.exp()  # has OpenMP start its threads
        begun.set()
        finish.wait(WAIT)

    workers = Workers(2)
    workers.add(Queue([job(compute, threads=2)]))
    try:
        assert begun.wait(WAIT)
        (busy,) = [member for member in workers.members() if member.item is not None]
        assert busy.thread is not None
        threads = workers.threads(busy)
        assert {busy.thread.native_id, *own} < set(threads), "OpenMP's thread is not among them"
        idle = [item for item in workers.members() if item.item is None]
        assert [workers.threads(entry) for entry in idle] == [
            [worker.thread.native_id] for worker in idle if worker.thread is not None
        ]
    finally:
        finish.set()
        workers.close()
