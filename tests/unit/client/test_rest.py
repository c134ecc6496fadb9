import random
import time
from typing import Any

import numpy as np
import pytest

from condensery import errors
from condensery.client.rest import AsyncClient, Client
from condensery.client.transports import ERRORS_BY_NAME, Refusal, Retries, make_refusal
from condensery.errors import (
    CondenseryError,
    DeadlineExceeded,
    InputError,
    Overloaded,
    Unavailable,
)

ROWS = [[1.0, 0.0, 0.0], [0.0, 0.6, 0.8]]


def refusal(code: str | None, message: str = "no", param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": "x", "param": param, "code": code}}


def test_vectors_come_as_one_float32_array(script: Any, vectors_reply: Any) -> None:
    script.then(200, vectors_reply(ROWS))
    with Client(script.url) as client:
        vectors = client.embed(["one", "two"], model="m")
    assert vectors.dtype == np.float32
    assert vectors.tolist() == np.asarray(ROWS, np.float32).tolist()
    method, path, body = script.requests[0]
    assert (method, path) == ("POST", "/v1/embeddings")
    assert body == {
        "input": ["one", "two"],
        "encoding_format": "base64",
        "model": "m",
        "truncate": True,
    }


async def test_the_async_client_sends_and_reads_the_same(script: Any, vectors_reply: Any) -> None:
    script.then(200, vectors_reply(ROWS))
    with Client(script.url) as client:
        blocking = client.embed(["one", "two"])
    async with AsyncClient(script.url) as client_async:
        awaited = await client_async.embed(["one", "two"])
    assert awaited.tolist() == blocking.tolist()
    assert script.requests[0] == script.requests[1]


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (404, "model_not_found", errors.ModelNotFound),
        (404, "index_not_found", errors.IndexNotFound),
        (404, None, errors.NotFound),
        (401, "unauthenticated", errors.Unauthenticated),
        (401, None, errors.Unauthenticated),
        (403, "forbidden", errors.Forbidden),
        (403, None, errors.Forbidden),
        (408, "expired_in_queue", errors.ExpiredInQueue),
        (408, None, errors.ExpiredInQueue),
        (504, "deadline_exceeded", errors.DeadlineExceeded),
        (504, None, errors.DeadlineExceeded),
        (431, None, errors.HeadersTooLarge),
        (409, "encoder_mismatch", errors.EncoderMismatch),
        (413, "payload_too_large", errors.PayloadTooLarge),
        (422, None, errors.InputError),
        (424, None, errors.ModelFault),
        (500, None, CondenseryError),
        (507, "storage_full", errors.StorageFull),
    ],
)
def test_a_refusal_comes_back_as_the_error_it_was(
    script: Any, status: int, code: str | None, kind: type[CondenseryError]
) -> None:
    script.then(status, refusal(code, "what the server said", "the.field"))
    with Client(script.url) as client, pytest.raises(CondenseryError) as caught:
        client.models()
    assert type(caught.value) is kind
    assert caught.value.message == "what the server said"
    assert caught.value.field == "the.field"
    assert len(script.requests) == 1


def test_a_refusal_that_is_not_ours_names_address_and_status(script: Any) -> None:
    script.then(502, b"<html>bad gateway</html>")
    with Client(script.url) as client, pytest.raises(CondenseryError, match=r"/v1/models .* 502"):
        client.models()


def test_a_reply_that_is_not_ours_is_an_error_that_says_so(script: Any) -> None:
    script.then(200, b"<html>welcome</html>")
    with Client(script.url) as client, pytest.raises(CondenseryError, match="not one of this"):
        client.models()


def test_a_full_server_is_asked_again_when_it_says(script: Any, vectors_reply: Any) -> None:
    script.then(429, refusal("overloaded"), retry_after_ms="120").then(200, vectors_reply(ROWS))
    started = time.perf_counter()
    with Client(script.url) as client:
        assert client.embed(["a"]).shape == (2, 3)
    assert time.perf_counter() - started >= 0.12
    assert len(script.requests) == 2


def test_those_refused_together_do_not_come_back_together_nor_sooner_than_said() -> None:
    for retry_after, spread in ((0.0, 0.1), (0.02, 0.1), (2.0, 2.0), (30.0, 30.0)):
        fault = Refusal(Overloaded("full"), retry_after)
        pauses = [Retries().pause(1, fault) for _ in range(200)]
        assert retry_after <= min(pauses) < retry_after + spread / 4
        assert retry_after + spread * 3 / 4 < max(pauses) <= retry_after + spread
        seeded = [Retries(chance=random.Random(7)).pause(1, fault) for _ in range(2)]
        assert seeded[0] == seeded[1]
    with pytest.raises(Overloaded):
        Retries().pause(1, Refusal(Overloaded("full"), 30.1))


class Later(random.Random):
    """Draws the latest."""

    def uniform(self, a: float, b: float) -> float:
        del a
        return b


async def test_each_client_waits_as_long_as_was_drawn(script: Any, vectors_reply: Any) -> None:
    for later, least in ((random.Random(1), 0.15), (Later(), 0.3)):
        for client in (Client, AsyncClient):
            script.replies.clear()
            script.then(429, refusal("overloaded"), retry_after_ms="150")
            script.then(200, vectors_reply(ROWS))
            started = time.perf_counter()
            opened = client(script.url, retries=Retries(chance=later))
            reply = opened.embed(["a"])
            assert (reply if client is Client else await reply).shape == (2, 3)
            assert time.perf_counter() - started >= least
            await opened.close() if client is AsyncClient else opened.close()


async def test_the_async_client_asks_again_too(script: Any, vectors_reply: Any) -> None:
    script.then(503, refusal(None), retry_after="0").then(200, vectors_reply(ROWS))
    async with AsyncClient(script.url) as client:
        assert (await client.embed(["a"])).shape == (2, 3)
    assert len(script.requests) == 2


def test_a_full_server_says_when_to_come_back(script: Any) -> None:
    script.then(429, refusal("overloaded"), retry_after_ms="120")
    with Client(script.url, retries=0) as client, pytest.raises(Overloaded) as caught:
        client.models()
    assert caught.value.retry_after_seconds == 0.12
    assert len(script.requests) == 1


def test_a_full_server_is_asked_twice_again_unless_told_otherwise(script: Any) -> None:
    script.then(429, refusal("overloaded"), retry_after="0")
    with Client(script.url) as client, pytest.raises(Overloaded):
        client.models()
    assert len(script.requests) == 3
    with Client(script.url, retries=1) as client, pytest.raises(Overloaded):
        client.models()
    assert len(script.requests) == 5


async def test_the_key_and_the_time_go_with_each_request(script: Any, vectors_reply: Any) -> None:
    script.then(200, vectors_reply(ROWS))
    with Client(script.url, api_key="secret", timeout=25.5) as client:
        client.embed(["a"])
        client.embed(["a"])
    async with AsyncClient(script.url, api_key="secret", timeout=25.5) as client_async:
        await client_async.embed(["a"])
    with Client(script.url) as client:
        client.embed(["a"])
    *three, last = script.headers
    for headers in three:
        assert headers["authorization"] == "Bearer secret"
        assert headers["x-request-timeout-ms"] == "25500"
    assert "authorization" not in last
    assert last["x-request-timeout-ms"] == "120000"


def test_a_server_that_stays_full_is_given_up(script: Any) -> None:
    script.then(429, refusal("overloaded", "full"), retry_after="0")
    with (
        Client(script.url, retries=Retries(attempts=4)) as client,
        pytest.raises(Overloaded, match="full"),
    ):
        client.models()
    assert len(script.requests) == 4


@pytest.mark.parametrize(
    ("status", "headers"),
    [(429, {}), (429, {"retry_after": "3600"}), (500, {"retry_after": "0"}), (404, {})],
)
def test_nothing_else_is_tried_again(script: Any, status: int, headers: dict[str, str]) -> None:
    script.then(status, refusal(None), **headers)
    with Client(script.url) as client, pytest.raises(CondenseryError):
        client.models()
    assert len(script.requests) == 1


def test_an_address_where_nobody_listens_is_unavailable(free_port: int) -> None:
    url = f"http://127.0.0.1:{free_port}"
    with Client(url) as client:
        assert not client.ready()
        with pytest.raises(Unavailable, match=url):
            client.models()


def test_an_address_that_is_none_is_refused() -> None:
    with Client("localhost:8080") as client, pytest.raises(InputError, match="localhost:8080"):
        client.models()


def test_a_silent_server_is_given_up_after_the_timeout(silent_port: int) -> None:
    with (
        Client(f"http://127.0.0.1:{silent_port}", timeout=0.1) as client,
        pytest.raises(DeadlineExceeded),
    ):
        client.models()


def test_a_vector_that_json_cannot_hold_is_refused_before_it_is_sent(script: Any) -> None:
    with Client(script.url) as client, pytest.raises(InputError, match="JSON"):
        client.query("kb", vector=np.array([np.nan], np.float32))
    assert script.requests == []


def test_a_stream_that_is_refused_raises_at_its_first_event(script: Any) -> None:
    script.then(404, refusal("index_not_found", "no index"))
    with Client(script.url) as client:
        events = client.answer_stream("q", index="nowhere")
        with pytest.raises(errors.IndexNotFound):
            next(events)


def test_every_error_comes_back_as_its_class_and_with_when_to_retry() -> None:
    assert len(ERRORS_BY_NAME) > 40
    for name, kind in ERRORS_BY_NAME.items():
        refusal = make_refusal(name, CondenseryError, "no", field="x", retry_after_seconds=17.0)
        assert type(refusal.error) is kind
        assert getattr(refusal.error, "retry_after_seconds", 17.0) == 17.0
