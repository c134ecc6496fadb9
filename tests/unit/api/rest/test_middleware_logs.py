"""What the log says of replies, and what it never says."""

import hashlib
import logging
import time

import pytest

from condensery.auth import Key
from condensery.errors import ModelFault
from condensery.logs import SlowRequests

SECRET = "a-key-that-nobody-may-see"
PRIVATE = "private words"


@pytest.fixture
def events(caplog):
    caplog.set_level(logging.INFO, "condensery")
    return caplog


async def test_refusals_are_told_with_who_what_and_how_long(line, services, events):
    digest = hashlib.sha256(SECRET.encode()).digest()
    services.keys.replace([Key("shop", frozenset({"infer"}), digest)])
    headers = {"authorization": SECRET, "x-request-id": "mine-7"}
    await line("/embed", {"inputs": 5}, headers=headers).run()
    (event,) = events.records
    assert (event.levelname, event.getMessage()) == ("INFO", "reply")
    assert (event.request_id, event.method, event.route) == ("mine-7", "POST", "/embed")
    assert (event.status, event.code, event.key) == (422, "input_error", "shop")
    assert 0 <= event.ms < 5000


async def test_a_path_is_told_by_its_pattern(line, events):
    await line(f"/v1/indexes/{PRIVATE}", method="GET").run()
    await line(f"/{PRIVATE}", method="GET").run()
    await line(f"/v1/models/{PRIVATE}", method="GET").run()
    await line("/embed", method="GET").run()
    logged = [(event.route, event.status) for event in events.records]
    assert logged == [
        ("/v1/indexes/{name}", 400),
        ("-", 404),
        ("/v1/models/{name}", 404),
        ("/embed", 405),
    ]


async def test_good_replies_are_told_to_who_debugs_only(line, events):
    await line("/embed", {"inputs": "a"}).run()
    assert events.records == []
    events.set_level(logging.DEBUG, "condensery")
    await line("/embed", {"inputs": "a"}).run()
    assert [(event.levelname, event.status) for event in events.records] == [("DEBUG", 200)]


async def test_our_own_failures_are_errors_and_a_probes_no_is_none(
    line, registry, services, events
):
    registry.encoders["words"].fails = ModelFault("not finite")
    await line("/v1/embeddings", {"input": "a"}).run()
    services.health.drain()
    await line("/readyz", method="GET").run()
    logged = [(event.levelname, event.status) for event in events.records]
    assert logged == [("ERROR", 500), ("INFO", 503)]


async def test_a_stream_that_fails_is_told_though_its_status_is_good(line, registry, events):
    registry.pairs["pair"].fails_after = 1
    body = {"query": "q", "documents": ["gold"], "stream": True}
    await line("/v1/rag/answer", body).run()
    bug, reply = events.records
    assert bug.getMessage() == "internal_error"
    assert (reply.status, reply.code) == (200, "internal_error")


async def test_nothing_that_a_caller_wrote_is_in_the_log(line, services, events):
    digest = hashlib.sha256(SECRET.encode()).digest()
    services.keys.replace([Key("shop", frozenset({"infer"}), digest)])
    events.set_level(logging.DEBUG)
    headers = {"authorization": SECRET, "x-other": PRIVATE, "x-request-timeout-ms": PRIVATE}
    for body in ({"inputs": PRIVATE}, {"inputs": [5, PRIVATE]}, b"{" + PRIVATE.encode()):
        await line("/embed", body, headers={**headers, "x-request-timeout-ms": "9000"}).run()
        await line("/embed", body, headers=headers).run()
        await line("/embed", body, headers={"authorization": PRIVATE}).run()
        await line(f"/{PRIVATE}", body, headers={"authorization": SECRET}).run()
    assert events.records
    logged = repr([vars(event) for event in events.records])
    assert PRIVATE not in logged
    assert SECRET not in logged


@pytest.fixture
def hurried(services):
    """Services to which every request has taken an hour."""
    slow = SlowRequests(1_000, clock=lambda: time.monotonic() + 3600)
    object.__setattr__(services, "slow", slow)  # the fixture's own are frozen
    return slow


async def test_a_slow_request_is_told_with_its_stages_and_counts_and_without_its_text(
    line, services, events, hurried
):
    question = {"query": PRIVATE, "documents": [f"{PRIVATE} gold", "b"]}
    for path, body, own in (
        ("/v1/embeddings", {"input": [PRIVATE, "b"]}, {}),
        ("/rerank", {"query": PRIVATE, "texts": ["a"]}, {}),
        ("/v1/rag/answer", question, {"tokens_generated": 3}),
        ("/v1/rag/answer", {**question, "stream": True}, {"tokens_generated": 3}),
        ("/embed", {"inputs": 5}, {"status": 422}),
        (f"/v1/indexes/{PRIVATE}", {}, {"route": "/v1/indexes/{name}", "status": 405}),
    ):
        events.clear()
        services.slow._logged = -1.0  # a second ago, to it
        await line(path, body, headers={"x-request-id": "mine-7"}).run()
        (event,) = (record for record in events.records if record.getMessage() == "slow_request")
        wanted = {"request_id": "mine-7", "door": "rest", "route": path, "status": 200, **own}
        assert {name: getattr(event, name) for name in wanted} == wanted
        assert event.ms > 3_500_000
        for name in ("queue_ms", "tokenize_ms", "forward_ms", "items", "passages", "tokens"):
            assert getattr(event, name) >= 0
        if "answer" in path:
            assert event.compress_ms >= 0
            assert event.generate_ms >= 0
        assert PRIVATE not in repr(vars(event))
