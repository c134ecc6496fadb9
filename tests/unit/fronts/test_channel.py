"""What two processes say to each other arrives whole, in order, however it is cut."""

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from condensery.cluster.messages import Reply
from condensery.fronts.channel import FRAME_MESSAGES, Answered, Channel


class End:
    """One end, what it has got, and whether the other is gone."""

    def __init__(self) -> None:
        self.got: list[Any] = []
        self.lost = asyncio.Event()
        self.came = asyncio.Event()
        self.channel: Channel

    async def open(self, sock: socket.socket) -> "End":
        self.channel = await Channel.open(sock, self.take, self.lost.set)
        return self

    def take(self, message: Any) -> None:
        self.got.append(message)
        self.came.set()

    async def until(self, count: int) -> list[Any]:
        async with asyncio.timeout(30):
            while len(self.got) < count:
                self.came.clear()
                await self.came.wait()
        return self.got


@pytest.fixture
async def ends() -> AsyncIterator[tuple[End, End]]:
    ours, theirs = socket.socketpair()
    first, second = await End().open(ours), await End().open(theirs)
    yield first, second
    for end in (first, second):
        end.channel.close()
    async with asyncio.timeout(30):
        await asyncio.gather(first.lost.wait(), second.lost.wait())


async def test_messages_of_one_turn_arrive_in_order_also_beyond_a_frame(
    ends: tuple[End, End],
) -> None:
    first, second = ends
    count = 2 * FRAME_MESSAGES + 3
    for number in range(count):
        first.channel.send(number)
    assert await second.until(count) == list(range(count))


async def test_a_large_message_among_small_ones_arrives_whole(ends: tuple[End, End]) -> None:
    first, second = ends
    vectors = np.arange(2048 * 384, dtype=np.float32).reshape(2048, 384)
    for message in ("before", Answered(7, Reply(vectors)), "after"):
        first.channel.send(message)
        await asyncio.sleep(0)
    before, answered, after = await second.until(3)
    assert (before, answered.number, after) == ("before", 7, "after")
    np.testing.assert_array_equal(answered.reply.value, vectors)


async def test_what_comes_in_pieces_is_put_together() -> None:
    end = End()
    channel = Channel(end.take, end.lost.set)
    sent: list[bytes] = []

    class Transport:
        def write(self, data: bytes) -> None:
            sent.append(data)

        def is_closing(self) -> bool:
            return False

    channel.connection_made(Transport())  # type: ignore[arg-type]
    channel.send("one")
    await asyncio.sleep(0)
    channel.send(("two", 2))
    await asyncio.sleep(0)
    assert len(sent) == 2
    for byte in b"".join(sent):
        channel.data_received(bytes([byte]))
    assert end.got == ["one", ("two", 2)]


async def test_after_the_end_nothing_is_sent_and_nothing_fails(ends: tuple[End, End]) -> None:
    first, second = ends
    first.channel.send("early")
    first.channel.close()
    await second.until(1)
    async with asyncio.timeout(30):
        await second.lost.wait()
        await first.lost.wait()
    first.channel.send("late")
    second.channel.send("late")
    await asyncio.sleep(0)
    assert second.got == ["early"]
    assert not first.got


@pytest.mark.parametrize("size", [0, 1, 70_000])
async def test_text_of_any_length(ends: tuple[End, End], size: int) -> None:
    first, second = ends
    first.channel.send("x" * size)
    assert await second.until(1) == ["x" * size]
