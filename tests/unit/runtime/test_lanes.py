import asyncio
import time
from collections.abc import Iterator

import pytest

from condensery.callers import Call
from condensery.runtime.lanes import TURN_TOKENS, Lane, Request, Ticket


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


class Maker:
    """Makes requests whose items are named after them: ``a0``, ``a1``, ..."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.lane: Lane[str, str] = Lane()

    def put(
        self, name: str, sizes: list[int], *, caller: str = "one", deadline: float | None = None
    ) -> Request[str, str]:
        call = Call(caller=caller)
        if deadline is not None:
            call.deadline = deadline
        request: Request[str, str] = Request(
            self.loop.create_future(), call, [None] * len(sizes), len(sizes)
        )
        tickets = [
            Ticket(request, place, f"{name}{place}", size) for place, size in enumerate(sizes)
        ]
        self.lane.put(request, tickets)
        return request

    def take(self, budget: int = 2048, most: int = 32, *, strict: bool = False) -> list[str]:
        return [ticket.item for ticket in self.lane.take(budget, most, strict=strict)]


@pytest.fixture
def maker(loop: asyncio.AbstractEventLoop) -> Maker:
    return Maker(loop)


def test_requests_of_one_caller_take_turns(maker: Maker) -> None:
    maker.put("a", [TURN_TOKENS] * 4)
    maker.put("b", [TURN_TOKENS] * 2)
    maker.put("c", [10])
    assert maker.take(budget=10**6) == ["a0", "b0", "c0", "a1", "b1", "a2", "a3"]


def test_callers_take_turns_however_many_requests_each_has(maker: Maker) -> None:
    for number in range(50):
        maker.put(f"greedy{number}-", [TURN_TOKENS], caller="greedy")
    maker.put("meek", [TURN_TOKENS, TURN_TOKENS], caller="meek")
    taken = maker.take(budget=4 * TURN_TOKENS)
    assert taken == ["greedy0-0", "meek0", "greedy1-0", "meek1"]


def test_what_does_not_fit_is_first_next_time(maker: Maker) -> None:
    maker.put("a", [60])
    maker.put("b", [60])
    maker.put("c", [10])
    assert maker.take(budget=100) == ["a0"]
    assert maker.take(budget=100) == ["b0", "c0"]


def test_an_item_over_the_budget_goes_alone(maker: Maker) -> None:
    maker.put("long", [5000])
    maker.put("a", [10])
    assert maker.take(budget=100) == ["long0"]
    assert maker.take(budget=100) == ["a0"]


def test_a_batch_keeps_to_its_items(maker: Maker) -> None:
    maker.put("a", [1] * 10)
    assert len(maker.take(most=4)) == 4
    assert maker.lane.items == maker.lane.tokens == 6


def test_a_request_let_go_of_is_never_taken_and_leaves_no_tokens(maker: Maker) -> None:
    gone, stays = maker.put("gone", [10] * 3), maker.put("stays", [10])
    maker.lane.forget(gone)
    assert (maker.lane.items, maker.lane.tokens) == (1, 10)
    assert maker.take() == ["stays0"]
    assert maker.take() == []
    assert (maker.lane.items, maker.lane.tokens) == (0, 0)
    maker.lane.forget(stays)
    assert maker.lane.tokens == 0


def test_a_request_whose_time_is_over_is_never_taken(maker: Maker) -> None:
    maker.put("late", [10] * 3, deadline=time.monotonic() - 1)
    maker.put("early", [10], deadline=time.monotonic() + 60)
    assert maker.take() == ["early0"]
    assert (maker.lane.items, maker.lane.tokens) == (0, 0)


def test_a_request_learns_that_work_on_it_has_begun(maker: Maker) -> None:
    first, second = maker.put("a", [10]), maker.put("b", [10])
    maker.take(most=1)
    assert (first.begun, first.call.began) == (True, True)
    assert (second.begun, second.call.began) == (False, False)


def test_how_much_goes_before_counts_turns_not_the_whole_queue(maker: Maker) -> None:
    assert maker.lane.ahead("one", 10) == 0
    maker.put("bulk", [100] * 2000, caller="bulk")
    # A caller of its own waits for one turn of the bulk, not for its 200,000 tokens.
    assert maker.lane.ahead("other", 10) == TURN_TOKENS
    # And so does another request of the same caller.
    assert maker.lane.ahead("bulk", 10) == TURN_TOKENS
    # As large a one gets every second turn: it waits for as much as it brings.
    assert maker.lane.ahead("bulk", 150_000) == 150_000
    assert maker.lane.ahead("bulk", 900_000) == 200_000


def test_how_much_goes_before_grows_with_the_caller_s_own_requests(maker: Maker) -> None:
    for number in range(1000):
        maker.put(f"a{number}", [50], caller="flood")
    assert maker.lane.ahead("flood", 50) == 50_000
    assert maker.lane.ahead("other", 50) == TURN_TOKENS


def test_a_strict_budget_makes_a_longer_item_wait_and_all_behind_it(maker: Maker) -> None:
    maker.put("long", [100])
    maker.put("short", [10])
    assert maker.take(budget=99, strict=True) == []
    assert maker.take(budget=105, strict=True) == ["long0"]
    assert maker.take(budget=9) == ["short0"], "else it goes alone"
