"""Which worker runs which step, and with how many threads."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable

import pytest
import torch
from tests.unit.runtime.engines import (
    ANSWER,
    WAIT,
    Served,
    prompt_of,
)
from torch import Tensor

from condensery.runtime.sequence import send_events
from condensery.runtime.workers import Workers


async def test_one_worker_takes_the_tokens_and_others_the_prompts(served: Served) -> None:
    sizes: list[int] = []

    def steps(*idle: int) -> list[int]:
        """Take steps with so many idle workers each, then run them; returns their rows."""
        taken = [served.engine.take(count, express=False) for count in idle]
        sizes.clear()
        for job in taken:
            if job is not None:
                job.run()
        return list(sizes)

    with (
        served.before_each_step(lambda rows: sizes.append(len(rows))),
        served.workers.changed,  # no worker takes them meanwhile
    ):
        for i in range(9):
            served.begin(prompt_of(i, 10), 20)
        assert steps(2, 1) == [50, 40], "prompts"
        assert steps(2, 1) == [9]
        served.begin(prompt_of(9, 10), 20)
        assert steps(2, 1, 1) == [9, 10]
        served.begin(prompt_of(10, 10), 20)
        assert steps(1, 1) == [20], "the other one is busy elsewhere"


async def test_an_idle_worker_is_woken_for_what_the_first_one_leaves(
    asleep: Callable[[Workers], Awaitable[None]],
) -> None:
    served = Served(workers=2)
    both = threading.Barrier(2)
    try:
        with served.workers.changed:
            asked = [served.begin(prompt_of(i), 2) for i in range(8)]
            prompts = served.engine.take(1, express=False)
        assert prompts is not None
        await asleep(served.workers)
        prompts.run()
        with served.before_each_step(lambda _: both.wait(WAIT)):
            with served.workers.changed:
                asked.append(served.begin(prompt_of(8), 1))  # which wakes one of them
            await asyncio.gather(*map(served.rest, asked))
    finally:
        both.abort()
        served.close()


async def test_a_step_is_one_threads_where_it_was_to_be_however_many_torch_has_there(
    served: Served,
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)  # as in a worker of a GPU
    try:
        with served.workers.changed:
            served.begin(prompt_of(0, 10), 5)
            for _ in range(3):
                job = served.engine.take(1, express=False)
                assert job is not None
                job.run()
    finally:
        torch.set_num_threads(before)
    assert served.engine._step_times.estimate(1, 0) > 0


async def test_a_long_step_beside_idle_workers_has_their_threads_and_says_the_same() -> None:
    served = Served(workers=2)
    threads: list[int] = []

    def slow(_: Tensor) -> None:
        threads.append(torch.get_num_threads())
        time.sleep(0.04 if threads[-1] == 1 else 0.01)

    try:
        with served.before_each_step(slow):
            answer = await served.answer(prompt_of(1, 20), 12)
        assert answer == ANSWER(prompt_of(1, 20), 12)
        assert 2 in threads  # at least tried, however busy the other core is
        await asyncio.to_thread(lambda: threads.append(torch.get_num_threads()))
        assert threads[-1] == 1, "no other thread has got more"
    finally:
        served.close()


async def test_tokens_come_in_order_however_quick_another_worker_is_with_the_next_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served = Served(workers=2)
    overtaken, homes = threading.Event(), 0

    def late(news: list[object]) -> None:
        nonlocal homes
        homes += 1
        if homes > 1:
            send_events(news)
            overtaken.set()
            return
        with served.workers.changed:
            served.workers.changed.notify_all()
        overtaken.wait(0.2)  # the other worker has the time for the next step, if it may take it
        send_events(news)

    monkeypatch.setattr("condensery.runtime.engine.send_events", late)
    try:
        assert await served.answer(prompt_of(0), 6) == ANSWER(prompt_of(0), 6)
    finally:
        served.close()


async def test_while_all_workers_are_busy_the_express_worker_goes_on_with_streams(
    served: Served,
) -> None:
    engine = served.engine
    with served.workers.changed:  # nobody else takes them meanwhile
        served.begin(prompt_of(0), 5)
        assert engine.take(0, express=True) is None, "a prompt is not short"
        step = engine.take(1, express=False)
        assert step is not None
        assert engine.take(1, express=False) is None, "one step at a time for a sequence"
        step.run()
        tokens = engine.take(0, express=True)
        assert tokens is not None
        assert not tokens.long
        tokens.run()
