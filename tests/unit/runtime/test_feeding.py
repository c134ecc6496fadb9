import asyncio
import threading
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from tests.unit.runtime.conftest import submit

from condensery.errors import Overloaded
from condensery.runtime.batcher import Batcher
from condensery.runtime.feeding import BatchFeeder
from condensery.runtime.queue import BatchLimits
from condensery.runtime.workers import Workers

WAIT = 30.0  # for what must happen, however busy the machine is


class Read(NamedTuple):
    count: int = 1
    truncated: bool = False


@pytest.mark.parametrize(
    ("texts", "fits"),
    [
        (["a" * 320], True),  # 80 tokens by its characters, and two that every text has
        (["a" * 400], False),
        ([""] * 40, True),
        ([""] * 60, False),
    ],
)
async def test_a_list_is_refused_by_what_it_will_take_before_any_of_it_is_tokenised(
    texts: list[str], fits: bool
) -> None:
    workers = Workers(1)
    entered, gate = threading.Event(), threading.Event()
    read: list[str] = []

    def forward(batch: list[str]) -> list[str]:
        entered.set()
        assert gate.wait(WAIT)
        return batch

    async def tokenise(some: Sequence[str], first: int) -> list[Read]:
        del first
        read.extend(some)
        return [Read()] * len(some)

    batcher: Batcher[str, str] = Batcher(forward, workers, limits=BatchLimits(queue_tokens=100))
    feeder: BatchFeeder[str, str] = BatchFeeder(batcher, "m", None)
    tasks = [asyncio.create_task(submit(batcher, ["held"], [1]))]
    try:
        assert await asyncio.to_thread(entered.wait, WAIT)
        tasks.append(asyncio.create_task(submit(batcher, ["waits"], [10])))
        await asyncio.sleep(0)
        feeding = asyncio.create_task(
            feeder.feed(texts, sum(map(len, texts)), tokenise, lambda _: "text")
        )
        await asyncio.sleep(0)
        assert feeding.done() != fits
        gate.set()
        if fits:
            rows, tokens = await asyncio.wait_for(feeding, WAIT)
            assert len(rows) == len(tokens) == len(texts)
        else:
            with pytest.raises(Overloaded, match="10 tokens wait"):
                await feeding
        assert read == (texts if fits else [])
        await asyncio.gather(*tasks)
    finally:
        gate.set()
        workers.close()


async def test_what_the_network_puts_to_each_text_takes_room_in_a_batch_but_is_no_token() -> None:
    workers = Workers(1)
    sizes: list[int] = []

    def forward(batch: list[str]) -> list[str]:
        sizes.append(len(batch))
        return batch

    async def tokenise(some: Sequence[str], first: int) -> list[Read]:
        del first
        return [Read(2)] * len(some)

    batcher: Batcher[str, str] = Batcher(forward, workers, limits=BatchLimits(batch_tokens=20))
    try:
        for extra, most in ((0, 10), (8, 2)):
            sizes.clear()
            feeder: BatchFeeder[str, str] = BatchFeeder(batcher, "m", None, extra)
            _, tokens = await feeder.feed([""] * 12, 0, tokenise, lambda _: "text")
            assert max(sizes) == most
            assert sum(text.count for text in tokens) == 24
    finally:
        workers.close()
