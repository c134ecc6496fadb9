import asyncio
import itertools
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from condensery.request_context import RequestContext
from condensery.runtime.queue import DUE_FACTOR, TURN_TOKENS, FairQueue, QueuedRequest, QueueItem


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


class Maker:
    """Makes requests whose items are named after them: ``a0``, ``a1``, ..."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.queue: FairQueue[str, str] = FairQueue()

    def put(
        self,
        name: str,
        sizes: list[int],
        *,
        caller: str = "one",
        deadline: float | None = None,
        of: int | None = None,
    ) -> QueuedRequest[str, str]:
        """Queue a request, or the first items ``of`` so many."""
        call = RequestContext(caller=caller)
        if deadline is not None:
            call.deadline = deadline
        count = of or len(sizes)
        request: QueuedRequest[str, str] = QueuedRequest(
            self.loop.create_future(), call, [None] * count, count
        )
        request.missing = 0  # of these, those that were queued
        self.add(request, name, sizes)
        return request

    def add(self, request: QueuedRequest[str, str], name: str, sizes: list[int]) -> None:
        entries = [
            QueueItem(request, place, f"{name}{place}", size)
            for place, size in enumerate(sizes, request.missing)
        ]
        request.missing += len(sizes)
        self.queue.put(request, entries)

    def take(self, budget: int = 2048, most: int = 32, *, strict: bool = False) -> list[str]:
        return [entry.item for entry in self.queue.take(budget, most, strict=strict)]


@pytest.fixture
def maker(loop: asyncio.AbstractEventLoop) -> Maker:
    return Maker(loop)


def test_equal_requests_of_one_caller_are_done_in_the_order_they_came(maker: Maker) -> None:
    for name in "abc":
        maker.put(name, [TURN_TOKENS] * 2)
    assert maker.take(budget=10**6) == ["a0", "a1", "b0", "b1", "c0", "c1"]


def test_a_smaller_request_of_a_caller_goes_before_a_larger_one(maker: Maker) -> None:
    maker.put("list", [100] * 100)
    assert maker.take(budget=200) == ["list0", "list1"]
    maker.put("few", [100] * 3)
    assert maker.take(budget=400) == ["few0", "few1", "few2", "list2"]


def test_a_list_is_not_overtaken_for_ever(maker: Maker) -> None:
    """Once four times its tokens were handed out since it came, nobody goes before it."""
    maker.put("list", [100] * 10)
    taken = []
    for number in range(100):
        maker.put(f"few{number}-", [100] * 2)
        taken += maker.take(budget=200)
    first = taken.index("list0")
    assert first * 100 == DUE_FACTOR * (1000 - 200)
    assert taken[first : first + 10] == [f"list{place}" for place in range(10)]


def test_what_comes_of_a_request_later_keeps_its_place(maker: Maker) -> None:
    """A list is tokenised piece by piece: its second piece does not queue behind its followers."""
    first = maker.put("first", [100] * 2, of=4)
    maker.put("second", [100] * 4)
    assert maker.take(budget=200) == ["first0", "first1"]
    maker.add(first, "first", [100] * 2)
    assert maker.take(budget=400) == ["first2", "first3", "second0", "second1"]


def test_a_turn_is_as_long_for_a_caller_of_many_small_requests(maker: Maker) -> None:
    for number in range(100):
        maker.put(f"small{number}-", [TURN_TOKENS // 8], caller="many")
    maker.put("large", [TURN_TOKENS] * 10, caller="one")
    taken = maker.take(budget=4 * TURN_TOKENS)
    assert [item[:5] for item in taken] == [*["small"] * 8, "large", *["small"] * 8, "large"]


def test_callers_take_turns_however_many_requests_each_has(maker: Maker) -> None:
    for number in range(50):
        maker.put(f"greedy{number}-", [TURN_TOKENS], caller="greedy")
    maker.put("meek", [TURN_TOKENS, TURN_TOKENS], caller="meek")
    taken = maker.take(budget=4 * TURN_TOKENS)
    assert taken == ["greedy0-0", "meek0", "greedy1-0", "meek1"]


def test_what_does_not_fit_is_first_next_time(maker: Maker) -> None:
    maker.put("a", [60], caller="one")
    maker.put("b", [60], caller="two")
    maker.put("c", [10], caller="three")
    assert maker.take(budget=100) == ["a0"]
    assert maker.take(budget=100) == ["b0", "c0"]


def test_an_item_over_the_budget_goes_alone(maker: Maker) -> None:
    maker.put("long", [5000], caller="one")
    maker.put("a", [10], caller="two")
    assert maker.take(budget=100) == ["long0"]
    assert maker.take(budget=100) == ["a0"]


def test_a_batch_keeps_to_its_items(maker: Maker) -> None:
    maker.put("a", [1] * 10)
    assert len(maker.take(most=4)) == 4
    assert maker.queue.items == maker.queue.tokens == 6


def test_a_request_let_go_of_is_never_taken_and_leaves_no_tokens(maker: Maker) -> None:
    gone, stays = maker.put("gone", [10] * 3), maker.put("stays", [10])
    maker.queue.drop(gone)
    assert (maker.queue.items, maker.queue.tokens) == (1, 10)
    assert maker.take() == ["stays0"]
    assert maker.take() == []
    assert (maker.queue.items, maker.queue.tokens) == (0, 0)
    maker.queue.drop(stays)
    assert maker.queue.tokens == 0


def test_a_request_whose_time_is_over_is_never_taken(maker: Maker) -> None:
    maker.put("late", [10] * 3, deadline=time.monotonic() - 1)
    maker.put("early", [10], deadline=time.monotonic() + 60)
    assert maker.take() == ["early0"]
    assert (maker.queue.items, maker.queue.tokens) == (0, 0)


def test_a_request_learns_that_work_on_it_has_begun(maker: Maker) -> None:
    first, second = maker.put("a", [10]), maker.put("b", [10])
    maker.take(most=1)
    assert (first.begun, first.call.work_begun) == (True, True)
    assert (second.begun, second.call.work_begun) == (False, False)


def test_how_much_goes_before_counts_turns_not_the_whole_queue(maker: Maker) -> None:
    assert maker.queue.tokens_ahead("one", 10) == 0
    maker.put("bulk", [100] * 2000, caller="bulk")
    # A caller of its own waits for one turn of the bulk, not for its 200,000 tokens.
    assert maker.queue.tokens_ahead("other", 10) == TURN_TOKENS
    # A smaller request of the same caller goes before it.
    assert maker.queue.tokens_ahead("bulk", 10) == 0
    assert maker.queue.tokens_ahead("bulk", 150_000) == 0
    # As large a one waits for all of it.
    assert maker.queue.tokens_ahead("bulk", 200_000) == 200_000
    assert maker.queue.tokens_ahead("bulk", 900_000) == 200_000


def test_how_much_goes_before_grows_with_the_caller_s_own_requests(maker: Maker) -> None:
    for number in range(1000):
        maker.put(f"a{number}", [50], caller="flood")
    assert maker.queue.tokens_ahead("flood", 50) == 50_000
    assert maker.queue.tokens_ahead("other", 50) == TURN_TOKENS


def test_a_strict_budget_makes_a_longer_item_wait_and_all_behind_it(maker: Maker) -> None:
    maker.put("long", [100], caller="one")
    maker.put("short", [10], caller="two")
    assert maker.take(budget=99, strict=True) == []
    assert maker.take(budget=105, strict=True) == ["long0"]
    assert maker.take(budget=9) == ["short0"], "else it goes alone"


RATE = 8000  # tokens a second
LONGEST = 10.0  # seconds that a request may have to wait for those before it
BATCH = 2048


@dataclass
class Asked:
    """A request that was let in, and when it came and was done."""

    came: float
    cost: int
    request: QueuedRequest[str, str]
    done: float = math.inf

    @property
    def waited(self) -> float:
        """Seconds from its arrival to its end, less those of its own work."""
        return self.done - self.came - self.cost / RATE


def overload(
    maker: Maker, sizes: Iterator[list[int]], *, callers: int, factor: float
) -> list[Asked]:
    """Let ``factor`` times as much come as the device can do, for a minute of a clock of its own.

    Who would wait longer than ``LONGEST`` is refused, as ``runtime.refusing`` does; returns those
    who are not, all of them served.
    """
    now, brought, number = 0.0, 0.0, 0
    accepted: list[Asked] = []
    open_: list[Asked] = []
    while now < 60 or open_:
        while now < 60 and brought < factor * RATE * now:
            items = next(sizes)
            brought += sum(items)
            number += 1
            caller = f"caller {number % callers}"
            if maker.queue.tokens_ahead(caller, sum(items)) / RATE <= LONGEST:
                came = brought / factor / RATE
                asked = Asked(came, sum(items), maker.put(f"{number}-", items, caller=caller))
                open_.append(asked)
                accepted.append(asked)
        batch = maker.queue.take(BATCH, 32)
        now += sum(entry.tokens for entry in batch) / RATE or 0.01
        for asked in [item for item in open_ if not item.request.waiting]:
            asked.done = now
            open_.remove(asked)
    return accepted


@pytest.mark.parametrize(
    ("callers", "longer"),
    [(1, 1.0), (2, 1.25), (16, 2.5)],  # others who come later take their turns all the same
)
def test_who_is_let_in_waits_no_longer_than_promised_though_ten_times_too_many_come(
    maker: Maker, callers: int, longer: float
) -> None:
    """If a caller's lists took turns, each would wait for later ones too: twice as long."""
    accepted = overload(maker, itertools.repeat([112] * 8), callers=callers, factor=10)
    done = sum(item.cost for item in accepted)
    assert done > 0.95 * 60 * RATE, "those who were refused could have been served"
    batches = 3 * BATCH / RATE  # being run as it comes, and as it ends
    assert max(entry.waited for entry in accepted) < longer * LONGEST + batches


def test_a_list_waits_at_most_for_its_patience_longer(maker: Maker) -> None:
    chance = random.Random(1)
    sizes = iter(lambda: [112] * round(8 * 30 ** chance.random()), None)
    accepted = overload(maker, sizes, callers=1, factor=10)
    assert max(item.cost for item in accepted) > 20 * min(entry.cost for entry in accepted)
    batches = 3 * BATCH / RATE  # being run as it comes, and as it ends
    for item in accepted:
        assert item.waited < LONGEST + (DUE_FACTOR + 1) * item.cost / RATE + batches, item.cost
