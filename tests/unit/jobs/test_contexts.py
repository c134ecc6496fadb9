"""Who may read what is held, for how long, and how much of it there may be."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from tests.unit.conftest import info

from condensery.errors import (
    ContextExpired,
    ContextLost,
    ContextMismatch,
    ContextNotFound,
    InputError,
    Overloaded,
    PayloadTooLarge,
)
from condensery.jobs import contexts as module
from condensery.jobs.contexts import (
    CompressedContext,
    ContextStore,
    PassageFailure,
    check_lifetime,
    count_text_bytes,
)
from condensery.metrics import Metrics
from condensery.question import CompressedPassage
from condensery.values import Document

DOCUMENTS = (Document("a", "gold"), Document("b", "broken"))
PAIR = info("pair", "oscar-pair")


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def metrics():
    return Metrics()


@pytest.fixture
def held(clock, metrics):
    return ContextStore(400_000, metrics, clock)


def make(size=10_000):
    memory = np.zeros(size // 4, np.float32).reshape(-1, 1)
    return CompressedContext(
        *("pair", "sha256:pair", "where?"),
        documents=DOCUMENTS,
        passages=(CompressedPassage(memory, 1.0, 1), PassageFailure("fault", "ModelFault")),
        vectors=len(memory),
        text_bytes=count_text_bytes("where?", DOCUMENTS),
    )


def sample(metrics, name, **labels):
    return metrics.registry.get_sample_value(f"condensery_{name}", labels)


async def test_a_handle_returns_what_was_put_as_often_as_it_is_asked(held):
    context = make()
    handle = held.put("alice", context, 60)
    assert held.get("alice", handle) is context
    assert held.get("alice", handle) is context


async def test_handles_hold_128_random_bits(held):
    handles = {held.put("alice", make(40), 60) for _ in range(5)}
    assert len(handles) == 5
    assert all(
        handle.startswith("ctx_") and len(bytes.fromhex(handle[4:])) == 16 for handle in handles
    )


async def test_anothers_handle_is_as_unknown_as_one_that_never_was(held, clock):
    handle = held.put("alice", make(), 60)
    errors = []
    for caller, asked in (("bob", handle), ("bob", "ctx_" + "0" * 32), ("alice", "\ud800")):
        with pytest.raises(ContextNotFound) as caught:
            held.get(caller, asked)
        errors.append((type(caught.value), caught.value.message, caught.value.field))
    with pytest.raises(ContextNotFound) as caught:
        held.release("bob", handle)
    errors.append((type(caught.value), caught.value.message, caught.value.field))
    clock.now += 61
    with pytest.raises(ContextNotFound) as caught:
        held.get("bob", handle)
    errors.append((type(caught.value), caught.value.message, caught.value.field))
    assert set(errors) == {(ContextNotFound, "context: there is no such handle.", "context")}


async def test_a_context_ends_when_its_time_is_over_and_its_caller_hears_that_it_expired(
    held, clock
):
    handle = held.put("alice", make(), 60)
    clock.now += 59.9
    held.get("alice", handle)
    clock.now += 0.1
    for _ in range(2):
        with pytest.raises(ContextExpired, match="its time is over"):
            held.get("alice", handle)
    with pytest.raises(ContextExpired):
        held.release("alice", handle)


async def test_expired_handles_are_remembered_up_to_a_number(held, clock, monkeypatch):
    monkeypatch.setattr(module, "REMEMBERED", 2)
    handles = []
    for _ in range(3):
        handles.append(held.put("alice", make(40), 1))
        clock.now += 1
        with pytest.raises(ContextExpired):
            held.get("alice", handles[-1])
    errors = []
    for handle in handles:
        with pytest.raises(ContextNotFound) as caught:
            held.get("alice", handle)
        errors.append(type(caught.value))
    assert errors == [ContextNotFound, ContextExpired, ContextExpired]


async def test_lost_handles_are_remembered_up_to_a_number(held, monkeypatch):
    monkeypatch.setattr(module, "REMEMBERED", 2)
    handles = []
    for _ in range(3):
        handles.append(held.put("alice", make(40), 60))
        held.keep_only({})
    errors = []
    for handle in handles:
        with pytest.raises((ContextNotFound, ContextLost)) as caught:
            held.get("alice", handle)
        errors.append(type(caught.value))
    assert errors == [ContextNotFound, ContextLost, ContextLost]


async def test_a_released_context_is_gone(held, metrics):
    handle = held.put("alice", make(), 60)
    held.release("alice", handle)
    with pytest.raises(ContextNotFound) as caught:
        held.get("alice", handle)
    assert type(caught.value) is ContextNotFound
    assert (sample(metrics, "contexts"), sample(metrics, "context_bytes")) == (0, 0)


async def test_memory_is_freed_when_the_time_is_over_though_nobody_asks(metrics):
    held = ContextStore(400_000, metrics)
    held.put("alice", make(), 0.05)
    assert sample(metrics, "contexts") == 1
    async with asyncio.timeout(20):
        while sample(metrics, "contexts"):  # noqa: ASYNC110 - a timer has no event
            await asyncio.sleep(0.02)
    assert sample(metrics, "context_bytes") == 0


async def test_however_small_they_are_their_number_is_bounded():
    held = ContextStore(2**20)
    for _ in range(2**18 // make(0).size):  # in a quarter of a mebibyte: a dozen
        held.put("alice", make(0), 60)
    with pytest.raises(Overloaded):
        held.put("alice", make(0), 60)
    assert make(0).size > 2**14


async def test_vectors_texts_and_metadata_count(held, metrics):
    assert make(10_000).size - make(0).size == 10_000
    bare = count_text_bytes("where?", [Document("a", "")])
    assert count_text_bytes("where?", [Document("a", "é" * 100)]) - bare == 200
    assert count_text_bytes("where?", [Document("a", "", {"title": "t" * 100})]) - bare >= 100
    assert count_text_bytes("where?" + "x" * 50, [Document("a", "")]) - bare == 50
    assert count_text_bytes("where?", [Document("a", ""), Document("b", "")]) - bare > 1000
    held.put("alice", make(), 60)
    held.put("bob", make(), 60)
    assert sample(metrics, "contexts") == 2
    assert sample(metrics, "context_bytes") == 2 * make().size


async def test_a_caller_has_a_quarter_and_is_told_when_there_is_room_again(held, clock, metrics):
    size = 100_000 - make(0).size  # a quarter of 400,000, to the byte
    held.put("bob", make(40), 60)  # its end makes no room for alice
    for ttl in (300, 200):
        held.put("alice", make(size // 2 // 4 * 4 - make(0).size), ttl)
    clock.now += 50
    with pytest.raises(Overloaded, match="for one caller") as caught:
        held.put("alice", make(size // 2), 60)
    assert caught.value.retry_after_seconds == 150
    assert sample(metrics, "rejected_total", reason="context_bytes") == 1
    held.put("bob", make(size // 2), 60)


async def test_no_live_context_is_dropped_for_another(held):
    whole = make(100_000 - make(0).size)
    handles = {caller: held.put(caller, whole, 60) for caller in "abcd"}
    with pytest.raises(Overloaded, match="400000 bytes") as caught:
        held.put("e", make(40), 60)
    assert caught.value.retry_after_seconds == 60
    for caller, handle in handles.items():
        assert held.get(caller, handle) is whole


async def test_expired_ones_make_room(held, clock):
    whole = make(100_000 - make(0).size)
    for caller in "abcd":
        held.put(caller, whole, 60)
    clock.now += 60
    held.put("e", whole, 60)
    held.put("a", whole, 60)


async def test_released_ones_make_room(held):
    whole = make(100_000 - make(0).size)
    held.release("a", held.put("a", whole, 60))
    held.put("a", whole, 60)


async def test_what_never_has_room_is_too_large_and_not_for_later(held):
    with pytest.raises(PayloadTooLarge, match="max_context_bytes"):
        held.put("alice", make(100_004 - make(0).size), 60)


@pytest.mark.parametrize(
    ("pair", "question", "says"),
    [
        (PAIR, "who?", "for another question"),
        (replace(PAIR, id="other"), "where?", "by pair, and other can't read it"),
        (replace(PAIR, fingerprint="sha256:new"), "where?", "with fingerprint sha256:pair"),
    ],
)
def test_a_context_serves_one_question_and_one_pair(pair, question, says):
    make().check(PAIR, "where?")
    with pytest.raises(ContextMismatch, match=says) as caught:
        make().check(pair, question)
    assert caught.value.field == "context"


@pytest.mark.parametrize("seconds", [0.99, 3600.1, float("nan"), float("inf"), -1])
def test_a_lifetime_is_a_second_to_an_hour(seconds):
    check_lifetime(1)
    check_lifetime(3600)
    with pytest.raises(InputError, match="is not 1 to 3600 seconds"):
        check_lifetime(seconds)
