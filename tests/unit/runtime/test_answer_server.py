"""A server that writes answers: what it is sent, what of its reply is passed on, and its faults."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, aclosing, asynccontextmanager
from typing import Any, cast

import pytest
from scripted_server import (
    COMMENTS,
    CUT,
    DONE,
    HOLD,
    Step,
    answer,
    event,
    head,
    refuse,
    say,
    scripted,
    unused_url,
    usage,
)

from condensery.errors import (
    AnswerServerFault,
    AnswerServerSlow,
    AnswerServerUnavailable,
    CondenseryError,
    DeadlineExceeded,
)
from condensery.metrics import Metrics
from condensery.question import NOT_FOUND, GeneratedToken, Sampling
from condensery.request_context import Fields, RequestContext, serving_request
from condensery.runtime import event_stream
from condensery.runtime.answer_server import AnswerServerConfig, RemoteGenerator

KEY = "a-secret/key+1"
OK = answer("Seven", " traits")
PASSAGES = ["Mendel studied peas.", "Seven traits."]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no time pass between two tries."""
    monkeypatch.setattr(event_stream, "BACK_OFF_SECONDS", 0.0)


@asynccontextmanager
async def generator(url: str, **config: Any) -> AsyncIterator[RemoteGenerator]:
    made = RemoteGenerator(
        AnswerServerConfig(f"{url}/chat/completions", "qwen", **config), Metrics(tei=False)
    )
    try:
        yield made
    finally:
        await made.close()


async def write(made: RemoteGenerator, **how: Any) -> list[GeneratedToken]:
    prompt = made.make_prompt("How many traits?", PASSAGES)
    stream = made.generate_from_prompt(prompt, **{"max_tokens": 16, **how})
    return [token async for token in stream]


def until(deadline: float) -> AbstractContextManager[RequestContext]:
    return serving_request(RequestContext(deadline=deadline))


def text_of(tokens: Sequence[GeneratedToken]) -> str:
    return "".join(token.text for token in tokens)


def count(made: RemoteGenerator, name: str, **labels: str) -> float:
    full = f"condensery_answer_server_{name}"
    return made._client.metrics.registry.get_sample_value(full, labels) or 0.0


async def test_words_are_passed_on_as_they_come() -> None:
    heard = asyncio.Event()
    script: list[Step] = [head(), say("Seven"), heard, say(" traits"), say(None, "stop"), DONE]
    async with scripted(script) as server, generator(server.url) as made:
        prompt = made.make_prompt("q", ["p"])
        tokens = made.generate_from_prompt(prompt, max_tokens=16)
        assert (await anext(tokens)).text == "Seven"
        heard.set()  # only now is the rest sent
        assert text_of([token async for token in tokens]) == " traits"
    assert count(made, "ttft_seconds_count") == 1
    assert count(made, "requests_total") == 1


async def test_the_request_is_openais_with_the_passages_as_text() -> None:
    async with scripted(OK) as server, generator(server.url, key=KEY) as made:
        stops = ["a", "b", "c", "d", "e"]
        await write(made, sampling=Sampling(0.5, 0.9, 3), stop=stops)
    (asked,) = server.asked
    assert asked.path == "/v1/chat/completions"
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    (message,) = asked.body.pop("messages")
    assert message["role"] == "user"
    for part in ("[1] Mendel studied peas.", "[2] Seven traits.", "How many traits?", NOT_FOUND):
        assert part in message["content"]
    assert asked.body == {
        "model": "qwen",
        "max_tokens": 16,
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 3,
        "stop": stops[:4],  # OpenAI's limit
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_passages_go_as_documents_where_that_is_set() -> None:
    async with scripted(OK) as server, generator(server.url, passages="documents") as made:
        await write(made)
    (asked,) = server.asked
    assert asked.body["messages"] == [{"role": "user", "content": "How many traits?"}]
    assert [item["text"] for item in asked.body["documents"]] == PASSAGES
    assert "authorization" not in asked.headers


async def test_tokens_are_as_the_server_counts_them_else_estimated() -> None:
    silent = [head(), say("Seven"), say(" traits"), say(None, "length"), DONE]
    wrong = [head(), say("Seven"), usage("many", -1), say(None, "stop"), DONE]
    async with scripted(OK, silent, wrong) as server, generator(server.url) as made:
        counted, estimated, unsaid = [(await write(made))[-1] for _ in range(3)]
    assert (counted.prompt_tokens, counted.count, counted.finish) == (11, 7, "stop")
    assert (estimated.count, estimated.finish) == (2, "length")
    assert estimated.prompt_tokens == unsaid.prompt_tokens == sum(made.count_positions(PASSAGES))
    assert unsaid.count == 1


async def test_the_budget_is_of_passages_by_their_bytes() -> None:
    async with generator("http://127.0.0.1:9", context_tokens=100) as made:
        one = made.free_positions(made.make_prompt("q" * 10_000, ["a" * 80]), 512)
        assert one == 100 - made.count_positions(["a" * 80])[0]
        wide = made.count_positions(["\N{GREEK SMALL LETTER ALPHA}" * 80])[0]
        assert wide > made.count_positions(["a" * 80])[0]


async def test_an_answer_ends_before_a_stop_string_and_the_rest_is_not_waited_for() -> None:
    script = [head(), say("Seven tr"), say("aits END and more"), HOLD]
    async with scripted(script) as server, generator(server.url) as made:
        tokens = await write(made, stop=["1", "2", "3", "4", "END"])
        assert text_of(tokens) == "Seven traits "
        assert tokens[-1].finish == "stop"
        async with asyncio.timeout(20):
            await server.left.wait()


async def test_lines_may_come_in_any_pieces_and_end_in_any_way() -> None:
    whole = b"".join([say("S\u00e9pt"), say(None, "stop"), DONE]).replace(b"\n", b"\r\n")
    pieces: list[Step] = [bytes([byte]) for byte in whole]
    script: list[Step] = [head(), b": hello\r\nevent: x\r\n\r\n", *pieces]
    async with scripted(script) as server, generator(server.url) as made:
        assert text_of(await write(made)) == "S\u00e9pt"


@pytest.mark.parametrize("end", [[], [CUT], [usage(11, 7)]], ids=["end", "cut", "usage"])
async def test_nothing_is_missed_after_the_last_word(end: list[Step]) -> None:
    script = [head(), say("Seven"), say(None, "stop"), *end]
    async with scripted(script) as server, generator(server.url) as made:
        assert (await write(made))[-1].finish == "stop"


@pytest.mark.parametrize(
    "bad",
    [
        refuse("429 Too Many Requests", retry_after="0"),
        refuse("503 Service Unavailable", retry_after="Wed, 21 Oct 2015 07:28:00 GMT"),
        refuse("500 Internal Server Error", {"error": {"message": "no"}}),
        [head()],
        [head(), say(""), CUT],
        [CUT],
        [b"rubbish\r\n\r\n"],
    ],
    ids=["429", "503", "500", "no words", "cut before words", "no head", "no HTTP"],
)
async def test_it_is_asked_again_before_its_first_words(bad: list[Step]) -> None:
    async with scripted(bad, bad, OK) as server, generator(server.url, retries=2) as made:
        assert text_of(await write(made)) == "Seven traits"
        assert len(server.asked) == count(made, "requests_total") == 3
    async with scripted(bad, bad, OK) as server, generator(server.url, retries=1) as made:
        with pytest.raises((AnswerServerUnavailable, AnswerServerFault)):
            await write(made)
        assert len(server.asked) == 2


FAULTS: dict[str, tuple[list[Step], type[CondenseryError], str]] = {
    "html": ([head(media="text/html"), b"<html>hi"], AnswerServerFault, "malformed"),
    "json": (
        [head(media="application/json"), b'{"choices": []}'],
        AnswerServerFault,
        "malformed",
    ),
    "no JSON": ([head(), b"data: {nonsense\n\n"], AnswerServerFault, "malformed"),
    "no UTF-8": ([head(), b'data: {"choices": "\xff"}\n\n'], AnswerServerFault, "malformed"),
    "a list": ([head(), event([1])], AnswerServerFault, "malformed"),
    "no choices": ([head(), event({"text": "Seven"})], AnswerServerFault, "malformed"),
    "wrong choices": ([head(), event({"choices": {}})], AnswerServerFault, "malformed"),
    "wrong choice": ([head(), event({"choices": [7]})], AnswerServerFault, "malformed"),
    "wrong delta": ([head(), event({"choices": [{"delta": [1]}]})], AnswerServerFault, "malformed"),
    "wrong text": ([head(), say(7)], AnswerServerFault, "malformed"),  # type: ignore[arg-type]  # what is wrong
    "wrong end": ([head(), say("x", 7)], AnswerServerFault, "malformed"),  # type: ignore[arg-type]  # what is wrong
    "completions": (
        [head(), event({"choices": [{"text": "Seven", "finish_reason": "stop"}]}), DONE],
        AnswerServerFault,
        "malformed",
    ),
    "no word": ([head(), say(None, "length"), DONE], AnswerServerFault, "malformed"),
    "no end of a line": ([head(), b"data: " + b"x" * 2**21], AnswerServerFault, "malformed"),
    "no end of an event": ([head(), b"data: x\n" * 2**18], AnswerServerFault, "malformed"),
    "no end of an answer": (
        [head(), *[say("x" * 2**12)] * 16, HOLD],
        AnswerServerFault,
        "malformed",
    ),
    "redirect": ([head("301 Moved", location="/v2")], AnswerServerFault, "refused"),
    "400": (refuse("400 Bad Request", {"error": "?"}), AnswerServerFault, "refused"),
    "401": (refuse("401 Unauthorized", {"error": KEY}), AnswerServerFault, "refused"),
    "404": (refuse("404 Not Found", {"detail": "no"}), AnswerServerFault, "refused"),
    "an error in the stream": (
        [head(), say("Se"), event({"error": {"message": f"out of {KEY}"}})],
        AnswerServerFault,
        "cut",
    ),
    "filtered": ([head(), say("Se", "content_filter")], AnswerServerFault, "cut"),
    "cut in mid-stream": ([head(), say("Se"), CUT], AnswerServerFault, "cut"),
    "ended in mid-stream": ([head(), say("Se")], AnswerServerFault, "cut"),
    "ended in mid-chunk": (
        [head(transfer_encoding="chunked"), b"%x\r\n%b\r\n" % (len(say("Se")), say("Se"))],
        AnswerServerFault,
        "cut",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_each_fault_is_told_counted_and_not_tried_again(name: str) -> None:
    script, kind, reason = FAULTS[name]
    async with scripted(script, OK) as server, generator(server.url, key=KEY) as made:
        with pytest.raises(kind) as caught:
            await write(made)
        assert len(server.asked) == 1
    assert type(caught.value) is kind
    assert KEY not in caught.value.message
    assert count(made, "failures_total", reason=reason) == 1
    if reason == "refused":  # the server's fault is named
        assert script[0].split()[1].decode() in caught.value.message


async def test_what_was_said_before_a_fault_was_passed_on() -> None:
    async with scripted([head(), say("Se"), CUT]) as server, generator(server.url) as made:
        tokens = made.generate_from_prompt(made.make_prompt("q", ["p"]), max_tokens=4)
        assert (await anext(tokens)).text == "Se"
        with pytest.raises(AnswerServerFault):
            await anext(tokens)


async def test_what_might_have_begun_a_stop_string_is_passed_on_before_a_fault() -> None:
    async with scripted([head(), say("Se. "), CUT]) as server, generator(server.url) as made:
        prompt = made.make_prompt("q", ["p"])
        tokens = made.generate_from_prompt(prompt, max_tokens=4, stop=[". And"])
        assert [(await anext(tokens)).text, (await anext(tokens)).text] == ["Se", ". "]
        with pytest.raises(AnswerServerFault):
            await anext(tokens)


async def test_a_server_that_is_down_is_tried_again_and_then_unavailable() -> None:
    async with generator(await unused_url(), retries=2) as made:
        with pytest.raises(AnswerServerUnavailable):
            await write(made)
    assert count(made, "requests_total") == 3
    assert count(made, "failures_total", reason="connection") == 3


@pytest.mark.parametrize(
    "script",
    [[HOLD], [head(), HOLD], [head(), COMMENTS], [head(), say("Se"), HOLD]],
    ids=["no reply", "no words", "comments alone", "no more words"],
)
async def test_a_slow_server_is_left_after_its_time(script: list[Step]) -> None:
    async with scripted(script) as server, generator(server.url, timeout_seconds=2) as made:
        with pytest.raises(AnswerServerSlow):
            await write(made)
        async with asyncio.timeout(20):
            await server.left.wait()
        assert len(server.asked) == 1
    assert count(made, "failures_total", reason="slow") == 1


async def test_the_callers_deadline_goes_before_the_servers_time() -> None:
    async with scripted([head(), HOLD]) as server, generator(server.url) as made:
        with until(time.monotonic() + 2), pytest.raises(DeadlineExceeded):
            await write(made)
        async with asyncio.timeout(20):
            await server.left.wait()
        with until(time.monotonic() - 1), pytest.raises(DeadlineExceeded):
            await write(made)
    assert len(server.asked) == 1
    assert count(made, "failures_total", reason="slow") == 0


async def test_no_try_is_waited_for_longer_than_the_caller_has_time() -> None:
    busy = refuse("429 Too Many Requests", retry_after="1000")
    async with scripted(busy, OK) as server, generator(server.url) as made:
        left = time.monotonic() + 900
        with until(left), pytest.raises(AnswerServerUnavailable) as caught:
            await write(made)
        assert len(server.asked) == 1
    assert caught.value.retry_after_seconds == 1000


async def test_who_leaves_ends_the_request() -> None:
    async with scripted([head(), say("Se"), HOLD]) as server, generator(server.url) as made:
        prompt = made.make_prompt("q", ["p"])
        async with aclosing(made.generate_from_prompt(prompt, max_tokens=4)) as tokens:
            await anext(tokens)
        async with asyncio.timeout(20):
            await server.left.wait()


async def test_who_leaves_before_the_first_words_ends_the_request() -> None:
    async with scripted([HOLD]) as server, generator(server.url) as made:
        task = asyncio.create_task(write(made))
        async with asyncio.timeout(20):
            while not server.asked:  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.01)
            task.cancel()
            await server.left.wait()
        with pytest.raises(asyncio.CancelledError):
            await task


def test_the_key_is_in_no_text_of_the_configuration() -> None:
    assert KEY not in repr(AnswerServerConfig("http://there", "qwen", KEY))


async def test_each_try_is_a_span_and_the_server_gets_it_as_its_parent() -> None:
    spans: list[tuple[str, str | None]] = []

    class Outgoing:
        def __init__(self) -> None:
            self.headers = {"traceparent": f"try-{len(spans) + 1}"}

        def end(self, fields: Fields, *, error: str | None = None) -> None:
            spans.append((self.headers["traceparent"], error))

    class Trace:
        trace_id = "1"

        def start_call(self, name: str, fields: Fields) -> Outgoing:
            assert name == "chat qwen"
            assert fields["server.address"] == "127.0.0.1"
            return Outgoing()

    async with scripted(refuse("503 Busy"), OK) as server, generator(server.url) as made:
        with serving_request(RequestContext(trace=cast(Any, Trace()))):
            await write(made)
    assert [asked.headers["traceparent"] for asked in server.asked] == ["try-1", "try-2"]
    assert spans == [("try-1", "unavailable"), ("try-2", None)]
