"""Callers that leave or expire and steps that fail: others go on, and all blocks come back."""

import asyncio
import threading
import time
from dataclasses import replace

import pytest
import torch
from tests.unit.runtime.engines import (
    ANSWER,
    WAIT,
    Gate,
    Served,
    prompt_of,
)
from torch import Tensor

from condensery.errors import (
    DeadlineExceeded,
    ModelFault,
)
from condensery.networks.caching import BLOCK
from condensery.request_context import RequestContext, serving_request
from condensery.runtime.scheduler import KVCacheConfig
from condensery.runtime.sequence import GenerationRequest
from condensery.runtime.workers import WorkItem


async def test_who_leaves_frees_its_room_wherever_it_is(served: Served) -> None:
    gate, later = Gate(), Gate(passing=3)
    served.engine._cache_config = KVCacheConfig(2, 4096, 256)
    with served.before_each_step(gate), served.before_each_step(later):
        stays = served.begin(prompt_of(0), 6)
        await gate.wait()  # flying
        flies = served.begin(prompt_of(1), 200)
        waits = served.begin(prompt_of(2), 200)
        served.engine.leave(waits, "client")
        assert served.running("waiting") == 1, "flies: it joins at the next step"
        served.engine.leave(waits, "client")  # twice is once
        gate.opened.set()
        await flies.events.get()
        await later.wait()  # else it might have come to its end by now
        served.engine.leave(flies, "deadline")
        later.opened.set()
        await served.rest(stays)
    await served.empty()
    assert (served.dropped("queue", "client"), served.dropped("generate", "deadline")) == (1, 1)
    assert served.sample("step_tokens_count", model="m") < 50


async def test_a_sequence_that_leaves_in_mid_step_keeps_its_room_until_the_step_ends(
    served: Served,
) -> None:
    gate = Gate()
    with served.before_each_step(gate):
        leaves = served.begin(prompt_of(0), 6)
        await gate.wait()
        served.engine.leave(leaves, "client")
        assert served.running() == 0
        assert served.used == BLOCK, "the step writes there"
        gate.opened.set()
        await served.empty()
    assert leaves.events.empty()


async def test_a_sequence_whose_time_is_over_leaves_at_the_next_step(served: Served) -> None:
    call, gate = RequestContext(), Gate(passing=2)
    with served.before_each_step(gate):
        with serving_request(call):
            late = served.begin(prompt_of(0), 200)
        await gate.wait()
        call.deadline = time.monotonic()
        gate.opened.set()
        with pytest.raises(DeadlineExceeded, match="while it was being served"):
            await served.rest(late)
        await served.empty()
    served.engine.leave(late, "deadline")  # its caller's own clock: counted already
    assert served.dropped("generate", "deadline") == 1
    assert served.sample("step_tokens_count", model="m") == 3
    with serving_request(call), pytest.raises(DeadlineExceeded):
        served.begin(prompt_of(0), 1)


async def test_a_step_that_fails_is_halved_until_the_one_at_fault_stands_alone(
    served: Served,
) -> None:
    bad = prompt_of(7, 13)
    marker = served.stepper.embed([bad[3:4]])[0]

    def fail(rows: Tensor) -> None:
        if (rows == marker).all(dim=-1).any():
            raise RuntimeError("a secret of the user's")

    good = [[t for t in prompt_of(i, 11) if t != bad[3]] for i in range(3)]
    gate = Gate()
    with served.before_each_step(gate):
        first = served.begin(good[0], 5)
        await gate.wait()
        with served.before_each_step(fail):
            asked = [first, *(served.begin(p, 5) for p in (good[1], bad, good[2]))]
            gate.opened.set()
            answers = await asyncio.gather(*map(served.rest, asked), return_exceptions=True)
    assert [answers[i] for i in (0, 1, 3)] == [ANSWER(p, 5) for p in good]
    assert isinstance(answers[2], ModelFault)
    assert answers[2].message == "m: a step failed (RuntimeError)"
    await served.empty()


async def test_memory_that_runs_out_is_counted_and_the_halves_are_tried(served: Served) -> None:
    def run_out(rows: Tensor) -> None:
        if len(rows) > 12:
            raise torch.OutOfMemoryError("CUDA out of memory")

    gate = Gate()
    with served.before_each_step(gate), served.before_each_step(run_out):
        first = served.begin(prompt_of(0), 3)
        await gate.wait()
        asked = [first, *(served.begin(prompt_of(i), 3) for i in (1, 2))]
        gate.opened.set()
        answers = await asyncio.gather(*map(served.rest, asked))
    assert answers == [ANSWER(prompt_of(i), 3) for i in range(3)]
    assert served.sample("oom_total", model="m", action="split") == 2  # 1 + 9 + 9, then 9 + 9
    assert served.sample("oom_total", model="m", action="failed") == 0


async def test_scores_that_are_nan_fail_their_own_sequence_only(served: Served) -> None:
    vectors = torch.full((3, 32), torch.nan)
    asked = [
        served.begin(prompt_of(0), 6),
        served.engine.begin(GenerationRequest([vectors, prompt_of(0)], 6)),
        served.begin(prompt_of(1), 6),
    ]
    answers = await asyncio.gather(*map(served.rest, asked), return_exceptions=True)
    assert isinstance(answers[1], ModelFault)
    assert "NaN or infinite" in answers[1].message
    assert [answers[0], answers[2]] == [ANSWER(prompt_of(i), 6) for i in (0, 1)]
    await served.empty()
    # The next ones are given the same blocks.
    assert await served.answer(prompt_of(2, 30), 6) == ANSWER(prompt_of(2, 30), 6)


async def test_a_lost_worker_fails_its_step_and_keeps_its_room_until_it_comes_back() -> None:
    served = Served(workers=2, cache=KVCacheConfig(64, 6 * BLOCK, 256))
    gate = Gate()
    try:
        with served.before_each_step(gate):
            lost = served.begin(prompt_of(0, 40), 8)
            await gate.wait()
            (worker,) = [member for member in served.workers.members() if member.item is not None]
            other = served.begin(prompt_of(1, 20), 8)
            served.workers.replace(worker, "it hung")
            with pytest.raises(ModelFault, match="m: it hung"):
                await served.rest(lost)
            assert await served.rest(other) == ANSWER(prompt_of(1, 20), 8), "it goes on"
            assert served.running() == 0
            assert served.used == 3 * BLOCK, "it may still write there"
            with pytest.raises(ModelFault, match="no room, since a worker was lost"):
                await served.answer(prompt_of(2, 60), 8)
            assert await served.answer(prompt_of(1, 20), 8) == ANSWER(prompt_of(1, 20), 8)
            gate.opened.set()
            await served.empty()
        assert lost.events.empty(), "what it brings home is dropped"
        assert await served.answer(prompt_of(2, 60), 8) == ANSWER(prompt_of(2, 60), 8)
    finally:
        gate.opened.set()
        served.close()


def note_looks(served: Served, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Return what is set once a worker has looked for a step from now on."""
    looked, take = threading.Event(), served.engine.take

    def noted(idle: int, *, express: bool) -> WorkItem | None:
        item = take(idle, express=express)
        looked.set()
        return item

    monkeypatch.setattr(served.engine, "take", noted)
    return looked


async def test_who_waits_for_the_room_of_one_that_left_in_mid_step_gets_it_when_the_step_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served = Served(workers=2, cache=KVCacheConfig(64, 6 * BLOCK, 256))
    gate = Gate()
    try:
        with served.before_each_step(gate):
            leaves = served.begin(prompt_of(0, 60), 8)
            await gate.wait()
            served.engine.leave(leaves, "client")
            looked = note_looks(served, monkeypatch)
            waits = served.begin(prompt_of(1, 60), 8)
            assert await asyncio.to_thread(looked.wait, WAIT)
            assert served.running("waiting") == 1
            gate.opened.set()
            assert await served.rest(waits) == ANSWER(prompt_of(1, 60), 8)
            await served.empty()
    finally:
        gate.opened.set()
        served.close()


@pytest.mark.parametrize("leaves", [False, True])
async def test_who_waits_for_the_room_of_a_lost_worker_is_told_that_there_is_none(
    monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    served = Served(cache=KVCacheConfig(64, 6 * BLOCK, 256))
    gate = Gate()
    try:
        with served.before_each_step(gate):
            lost = served.begin(prompt_of(0, 60), 8)
            await gate.wait()
            waits = served.begin(prompt_of(1, 60), 8)
            if leaves:
                served.engine.leave(lost, "client")
            (worker,) = [member for member in served.workers.members() if member.item is not None]
            item, looked = worker.item, note_looks(served, monkeypatch)
            assert item is not None

            def fail(reason: str) -> None:
                assert looked.wait(WAIT), "the next worker must look before the step is given up"
                item.fail(reason)

            worker.item = replace(item, fail=fail)
            await asyncio.to_thread(served.workers.replace, worker, "it hung")
            with pytest.raises(ModelFault, match="no room, since a worker was lost"):
                await served.rest(waits)
            gate.opened.set()
            await served.empty()
        assert await served.answer(prompt_of(1, 60), 8) == ANSWER(prompt_of(1, 60), 8)
    finally:
        gate.opened.set()
        served.close()


# A thread that ends by an exception is what is tested.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_worker_that_dies_gives_back_the_room_it_held() -> None:
    served = Served(cache=KVCacheConfig(64, 6 * BLOCK, 256))

    def die(_: Tensor) -> None:
        raise SystemExit

    try:
        with served.before_each_step(die):
            dead = served.begin(prompt_of(0, 40), 8)
            (worker, _) = served.workers.members()
            assert worker.thread is not None
            await asyncio.to_thread(worker.thread.join, WAIT)
        served.workers.replace(worker, "it died")  # as its watchdog does
        with pytest.raises(ModelFault, match="it died"):
            await served.rest(dead)
        await served.empty()
        assert await served.answer(prompt_of(1, 60), 8) == ANSWER(prompt_of(1, 60), 8)
    finally:
        served.close()
