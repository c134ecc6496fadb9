"""What each request passes: its call, its time, its client's leaving, its place."""

import asyncio
import json
import logging
import time

import pytest

from condensery.api.rest.middleware import BODY_PIECE_SECONDS
from condensery.request_context import current_request
from condensery.values import Embedded

EMBED = {"inputs": "a"}
ASK = {"query": "where?", "documents": ["some words", "gold"], "stream": True}


class Watching:
    """An encoder that notes the call it serves, and can begin its work."""

    def __init__(self, encoder, *, begins=False):
        self.info = encoder.info
        self.prompts = encoder.prompts
        self.default_prompt = encoder.default_prompt
        self.encoder = encoder
        self.begins = begins
        self.calls = []

    async def embed(self, texts, **options) -> Embedded:
        self.calls.append(current_request())
        current_request().work_begun = self.begins
        return await self.encoder.embed(texts, **options)


@pytest.fixture
def watching(registry):
    registry.encoders["words"] = encoder = Watching(registry.encoders["words"])
    return encoder


async def test_a_job_sees_whose_call_it_serves_and_until_when(line, watching, services):
    asked = time.monotonic()
    await line("/embed", EMBED, headers={"x-request-id": "mine"}).run()
    await line("/v1/indexes/kb", {}, method="PUT").run()
    headers = {"x-request-timeout-ms": "100000", "x-request-id": "yours"}
    await line("/v1/indexes/kb/query", {"query": "x"}, headers=headers).run()  # through FastAPI
    hot, routed = watching.calls
    assert (hot.request_id, hot.caller) == ("mine", "10.0.0.7")
    assert hot.deadline == pytest.approx(asked + services.limits.request_seconds, abs=60)
    assert (routed.request_id, routed.caller) == ("yours", "10.0.0.7")
    assert routed.deadline == pytest.approx(asked + 100, abs=60)
    await line("/embed", EMBED, headers={"x-request-timeout-ms": "9" * 5000}).run()
    assert watching.calls[2].deadline < time.monotonic() + services.limits.request_seconds + 1
    assert current_request().caller == "local", "a call outlived its request"


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "soon", "", "1e3", "٣", "0x10"])
async def test_an_invalid_timeout_is_refused_by_name_and_value(line, value):
    asked = await line("/embed", EMBED, headers={"x-request-timeout-ms": value}).run()
    assert asked.status == 422
    assert asked.error.startswith("x-request-timeout-ms: ")
    asked = await line("/v1/embeddings", {}, headers={"x-request-timeout-ms": value}).run()
    assert asked.status == 400
    assert asked.error["param"] == "x-request-timeout-ms"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/embed", EMBED),
        ("/v1/indexes/kb/query", {"query": "x"}),  # by way of FastAPI
    ],
)
async def test_late_work_is_dropped_and_says_whether_it_had_begun(line, watching, path, body):
    await line("/v1/indexes/kb", {}, method="PUT").run()
    watching.encoder.delay = 60
    # Time enough to begin, where it is to begin.
    for begins, milliseconds, status in ((False, 30, 408), (True, 2000, 504)):
        watching.begins = begins
        headers = {"x-request-timeout-ms": str(milliseconds)}
        asked = await line(path, body, headers=headers).run()
        assert asked.status == status
        assert watching.encoder.waiting == 0


async def test_late_work_is_counted_as_late(line, watching, services):
    watching.encoder.delay = 60
    await line("/embed", EMBED, headers={"x-request-timeout-ms": "30"}).run()
    labels = {"model": "words", "task": "embed", "protocol": "rest", "code": "ExpiredInQueue"}
    assert services.metrics.registry.get_sample_value("condensery_requests_total", labels) == 1


async def test_a_body_that_dribbles_ends_with_its_time(line):
    headers = {"x-request-timeout-ms": "30"}
    asked = line("/embed", [b'{"inputs"', b": "], headers=headers, unfinished=True)
    await asked.run()
    assert asked.status == 408


@pytest.fixture
async def pass_time(monkeypatch):
    """Put the clock of the loop's timers on by so many seconds."""
    loop, passed = asyncio.get_running_loop(), [0.0]
    real = loop.time
    monkeypatch.setattr(loop, "time", lambda: real() + sum(passed))
    return passed.append


def dribbling(line, **options):
    """Return a request for embeddings, and what sends pieces of its body."""
    pieces = asyncio.Queue()
    asked = line("/embed", [], **options)

    async def receive():
        asked.received += 1
        return await pieces.get()

    asked._receive = receive

    def send(piece, more=True):
        pieces.put_nowait({"type": "http.request", "body": piece, "more_body": more})

    return asked, send


async def test_a_slow_body_that_comes_on_is_read_to_its_end(line, pass_time):
    asked, send = dribbling(line)
    asked.start()
    for count, piece in enumerate((b'{"inputs"', b": ", b'"a"', b"}"), start=1):
        await asked.until(lambda count=count: asked.received == count)
        pass_time(0.9 * BODY_PIECE_SECONDS)
        send(piece, more=piece != b"}")
    await asked.end()
    assert asked.status == 200


@pytest.mark.parametrize("begun", [False, True])
async def test_a_body_of_which_nothing_comes_gives_its_bytes_back(line, services, pass_time, begun):
    asked, send = dribbling(line, headers={"content-length": "1000"})
    asked.start()
    if begun:
        send(b"{")
    await asked.until(lambda: asked.received == 1 + begun)
    assert services.admission.bytes == 1000
    pass_time(1.1 * BODY_PIECE_SECONDS)
    await asked.end()
    assert asked.status == 408
    assert asked.error.startswith("body: ")
    assert (services.admission.requests, services.admission.bytes) == (0, 0)
    labels = {"model": "unknown", "task": "embed", "protocol": "rest", "code": "ExpiredInQueue"}
    assert services.metrics.registry.get_sample_value("condensery_requests_total", labels) == 1


async def test_a_body_over_the_limit_of_which_nothing_comes_is_refused_as_that(line, pass_time):
    asked, _ = dribbling(line, headers={"content-length": str(2**30)})
    asked.start()
    await asked.until(lambda: asked.received)
    pass_time(1.1 * BODY_PIECE_SECONDS)
    await asked.end()
    assert asked.status == 413


async def test_zeros_before_a_bodys_length_hide_none_of_it(line, services):
    services.admission.max_bytes = 25_000
    for held, length, status in (
        (24_000, "0" * 5000 + "19000", 429),
        (1000, "9" * 5000, 413),
        (1000, "0" * 5000, 400),
    ):
        with services.admission.admit(held):
            asked = await line("/v1/embeddings", headers={"content-length": length}).run()
        assert asked.status == status


@pytest.mark.parametrize("path", ["/embed", "/v1/indexes/kb/query"])
async def test_a_client_that_leaves_is_dropped_and_sent_nothing(line, registry, caplog, path):
    caplog.set_level(logging.INFO, "condensery")
    await line("/v1/indexes/kb", {}, method="PUT").run()
    registry.encoders["words"].delay = 60
    asked = line(path, EMBED if path == "/embed" else {"query": "x"})
    asked.start()
    await asked.until(lambda: registry.encoders["words"].waiting)
    asked.leave()
    await asked.end()
    assert registry.encoders["words"].waiting == 0
    assert asked.sent == []
    (event,) = caplog.records
    assert (event.getMessage(), event.status, event.levelname) == ("reply", 499, "INFO")


async def test_a_client_that_leaves_amid_its_body_is_sent_nothing(line, caplog):
    caplog.set_level(logging.INFO, "condensery")
    asked = line("/embed", [b"{"], unfinished=True)
    asked.start()
    await asked.until(lambda: asked.received == 2)
    asked.leave()
    await asked.end()
    assert asked.sent == []
    assert [event.status for event in caplog.records] == [499]


async def test_leaving_after_the_reply_harms_nothing(line, caplog):
    caplog.set_level(logging.INFO, "condensery")
    asked = await line("/embed", EMBED).run()
    asked.leave()
    assert asked.status == 200
    assert asked.callbacks == {}
    assert caplog.records == []


async def test_a_client_that_leaves_amid_a_stream_stops_the_generator(line, services, registry):
    asked = line("/v1/rag/answer", ASK)

    async def pause(message):
        if b"event: message" in message.get("body", b""):
            await asyncio.sleep(60)

    asked.pause = pause
    asked.start()
    await asked.until(lambda: b"event: message" in asked.content if asked.sent else False)
    asked.leave()
    await asked.end()
    assert registry.pairs["pair"].closed == 1
    assert cancelled(services) == 1


async def test_a_client_that_leaves_before_a_streams_first_byte_ends_it_at_once(line, services):
    asked = line("/v1/rag/answer", ASK)

    async def pause(message):
        if message["type"] == "http.response.start":
            await asyncio.sleep(60)

    asked.pause = pause
    asked.start()
    await asked.until(lambda: asked.sent)
    assert cancelled(services) is None
    asked.leave()
    await asked.end()
    assert cancelled(services) == 1


def cancelled(services):
    labels = {"model": "pair", "task": "answer", "protocol": "rest", "code": "Cancelled"}
    return services.metrics.registry.get_sample_value("condensery_requests_total", labels)


def slow_to_say(reader, *, after):
    """Make the reader say ``after`` words at once, and the next one never."""
    say = reader._say

    async def slow(words, most):
        count = 0
        async for token in say(words, most):
            if count == after:
                await asyncio.sleep(60)
            count += 1
            yield token

    reader._say = slow


def names_of(content):
    return [
        part.split(b"\n")[0].removeprefix(b"event: ").decode()
        for part in content.split(b"\n\n")
        if part
    ]


async def test_a_stream_that_runs_out_of_time_ends_with_an_error_and_done(line, registry):
    slow_to_say(registry.pairs["pair"], after=2)
    headers = {"x-request-timeout-ms": "2000"}
    asked = await line("/v1/rag/answer", ASK, headers=headers).run()
    assert asked.status == 200
    assert names_of(asked.content) == ["search_results", "message", "message", "error", "done"]
    assert b'"code":"expired_in_queue"' in asked.content  # nothing here says that work began
    assert asked.content.endswith(b"data: [DONE]\n\n")
    assert asked.sent[-1]["more_body"] is False


async def test_a_stream_is_not_cut_by_time_that_it_does_not_need(line, registry):
    say = registry.pairs["pair"]._say

    async def steady(words, most):
        async for token in say(words, most):
            await asyncio.sleep(0.1)
            yield token

    registry.pairs["pair"]._say = steady
    asked = await line("/v1/rag/answer", ASK, headers={"x-request-timeout-ms": "60000"}).run()
    assert names_of(asked.content)[-2:] == ["final_answer", "done"]


async def test_when_the_servers_grace_is_over_callers_who_still_wait_get_an_error(line, registry):
    registry.encoders["words"].delay = 60
    asked = line("/embed", EMBED)
    asked.start()
    await asked.until(lambda: registry.encoders["words"].waiting)
    asked.task.cancel()
    await asked.end()
    assert (asked.status, json.loads(asked.content)["error_type"]) == (503, "Unhealthy")
    slow_to_say(registry.pairs["pair"], after=1)
    asked = line("/v1/rag/answer", ASK)
    asked.start()
    await asked.until(lambda: b"event: message" in asked.content if asked.sent else False)
    asked.task.cancel()
    await asked.end()
    assert names_of(asked.content)[-2:] == ["error", "done"]
    assert b'"code":"unavailable"' in asked.content


async def test_a_full_server_answers_in_the_familys_body_and_says_when_to_come_back(line, services):
    with services.admission.admit(0):
        services.admission.max_requests = 1
        for path, has_form in (
            ("/embed", lambda body: body["error_type"] == "Overloaded"),
            ("/rerank", lambda body: body["error_type"] == "Overloaded"),
            ("/v1/rerank", lambda body: "max_requests" in body["detail"]),
            ("/v1/embeddings", lambda body: body["error"]["code"] == "overloaded"),
            ("/v1/indexes", lambda body: body["error"]["type"] == "rate_limit_error"),
        ):
            asked = line(path, EMBED, method="GET" if path == "/v1/indexes" else "POST")
            await asked.run()
            assert asked.status == 429
            assert has_form(json.loads(asked.content))
            assert int(asked.reply_headers["retry-after"]) >= 1
            assert asked.reply_headers["x-should-retry"] == "true"
            assert asked.received == 0, "the body was read"
        for path in ("/livez", "/readyz", "/metrics", "/health", "/v2/health/ready"):
            assert (await line(path, method="GET").run()).status == 200
    assert (await line("/embed", EMBED).run()).status == 200


async def test_a_place_is_held_until_the_reply_is_sent(line, services):
    held = []
    asked = line("/embed", EMBED)

    async def pause(message):
        held.append((services.admission.requests, services.admission.bytes))

    asked.pause = pause
    await asked.run()
    assert held == [(1, len(json.dumps(EMBED)))] * 2
    assert (services.admission.requests, services.admission.bytes) == (0, 0)


async def test_a_body_of_unknown_length_takes_room_as_it_grows(line, services):
    admission = services.admission
    admission.max_bytes = 2500
    with admission.admit(1000):
        asked = line("/v1/embeddings", [b'{"input": "', b"a" * 1000, b'"}'])
        await asked.run()
        assert asked.status == 200
        asked = line("/v1/embeddings", [b'{"input": "', b"a" * 1000, b"a" * 1000, b'"}'])
        await asked.run()
        assert (asked.status, asked.error["code"]) == (429, "overloaded")
    assert (admission.requests, admission.bytes) == (0, 0)


async def test_a_body_over_the_limit_is_refused_as_that_even_where_room_is_scarce(line, services):
    services.admission.max_bytes = 25_000
    with services.admission.admit(1000):
        asked = await line("/embed", b"a" * 30_000).run()
    assert asked.status == 413


async def test_after_the_last_call_only_health_and_metrics_answer(line, services):
    services.health.drain()
    assert (await line("/embed", EMBED).run()).status == 200, "it is still settling"
    services.health.refusing = True
    for path in ("/embed", "/v1/embeddings", "/v1/rerank"):
        asked = await line(path, EMBED).run()
        assert asked.status == 503
        assert asked.reply_headers["connection"] == "close"
        assert "retry-after" in asked.reply_headers
    assert (await line("/livez", method="GET").run()).status == 200
    assert (await line("/metrics", method="GET").run()).status == 200
    assert (await line("/readyz", method="GET").run()).status == 503


async def test_refusals_are_counted(line, services):
    services.health.refusing = True
    await line("/embed", EMBED).run()
    services.health.refusing = False
    await line("/embed", b"{").run()
    await line("/nowhere", b"{").run()
    counter = services.metrics.requests
    counts = {
        (sample.labels["task"], sample.labels["code"]): sample.value
        for family in counter.collect()
        for sample in family.samples
        if sample.labels.get("model") == "unknown" and sample.name.endswith("_total")
    }
    assert counts == {("embed", "Unavailable"): 1, ("embed", "InputError"): 1}
