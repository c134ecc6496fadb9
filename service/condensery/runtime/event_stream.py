"""Requests to another server that writes: sent, timed, tried again; their replies as events.

Of what it sends nothing is trusted: each event has a size, and the next one a time. It is asked
again only while nothing of its reply was passed on.
"""

import asyncio
import logging
import math
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import httpx
import orjson

from condensery.errors import (
    AnswerServerFault,
    AnswerServerSlow,
    AnswerServerUnavailable,
    CondenseryError,
    shorten,
)
from condensery.question import GeneratedToken
from condensery.request_context import MODEL_FIELD, RequestContext

if TYPE_CHECKING:
    from condensery.metrics import AnswerServerFailure, Metrics

MAX_EVENT_BYTES = 2**20
MAX_ERROR_BYTES = 2**16
CONNECT_SECONDS = 10.0
LAST_SECONDS = 5.0  # for the usage, and the end of the stream, once all words are there
BACK_OFF_SECONDS, MAX_BACK_OFF_SECONDS = 0.5, 8.0
MAX_QUOTED_CHARACTERS = 300

_log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AskedServer:
    """A server that writes, and how it is asked.

    Attributes:
        title: Of it in messages, such as "The server that writes answers (answer_with)".
        model: Named in each request to it.
        key: Its bearer token; None sends none.
        timeout_seconds: Longest wait for its next words, the first included.
        retries: Times that it is asked again, before its first words.
    """

    title: str
    model: str
    key: str | None = field(default=None, repr=False)
    timeout_seconds: float = 60.0
    retries: int = 2


class RequestFailure(Exception):
    """One request to the server failed.

    Args:
        kind: As the metrics name it.
        problem: What the server did, to be read after its title.
        theirs: What it says of that itself.
        again: Whether another try may help.
        retry_after: Seconds until then, as the server says.
        sent: Whether there was a request: a server that is known not to work gets none.
    """

    def __init__(
        self,
        kind: "AnswerServerFailure",
        problem: str,
        theirs: str = "",
        *,
        again: bool = False,
        retry_after: float | None = None,
        sent: bool = True,
    ) -> None:
        super().__init__(problem)
        self.kind = kind
        self.problem = problem
        self.theirs = theirs
        self.again = again
        self.retry_after = retry_after
        self.sent = sent

    def unsent(self) -> "RequestFailure":
        """Return one of the same for a request that is not sent, because of it."""
        how: dict[str, Any] = {"again": self.again, "retry_after": self.retry_after, "sent": False}
        return RequestFailure(self.kind, self.problem, self.theirs, **how)

    def error(self, server: AskedServer) -> CondenseryError:
        """Return what the caller is told, without the key, which the server may quote."""
        key = server.key
        theirs = self.theirs.replace(key, "(the key)") if key else self.theirs
        says = f": {shorten(theirs, MAX_QUOTED_CHARACTERS)}" if theirs else ""
        message = f"{server.title} {self.problem}{says}."
        if self.kind in ("connection", "unavailable"):
            seconds = 1.0 if self.retry_after is None else self.retry_after
            return AnswerServerUnavailable(message, retry_after_seconds=seconds)
        return AnswerServerSlow(message) if self.kind == "slow" else AnswerServerFault(message)


class EventStream:
    """A reply whose stream has begun: its events, each in time."""

    def __init__(self, client: "StreamClient", response: httpx.Response, call: RequestContext):
        self._client = client
        self._call = call
        self._chunks = aiter(response.aiter_raw())
        self._events = EventReader()

    async def next(self, most: float = math.inf) -> list[bytes]:
        """Return the next events' data, at least one.

        Args:
            most: Seconds to wait for them at most, beside the server's own limit.

        Raises:
            RequestFailure: They did not come in time, or the stream broke off.
            DeadlineExceeded: The caller's time is over.
        """
        return await self._client.in_time(self._next(), self._call, most)

    async def _next(self) -> list[bytes]:
        while True:
            try:
                chunk = await anext(self._chunks, None)
            except httpx.TransportError as error:
                problem = f"broke off in the middle of its reply ({type(error).__name__})"
                raise RequestFailure("cut", problem, again=True) from error
            if chunk is None:
                raise RequestFailure("cut", "ended its reply in the middle", again=True)
            if ready := list(self._events.feed(chunk)):
                return ready


class StreamClient:
    """Asks one server, over connections that are kept.

    Args:
        server: Which, and how.
    """

    def __init__(self, server: AskedServer, metrics: "Metrics") -> None:
        self._server = server
        self.metrics = metrics
        # As it comes: what is compressed could be any size. A redirect is no answer.
        headers = {"accept": "text/event-stream", "accept-encoding": "identity"}
        if server.key is not None:
            headers["authorization"] = f"Bearer {server.key}"
        # Below the time for the first words, so that a host that is not there is told as such.
        connect = min(CONNECT_SECONDS, server.timeout_seconds / 2)
        self._client = httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(None, connect=connect),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=32),
            follow_redirects=False,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def ask(
        self, attempt: Callable[[], AsyncGenerator[GeneratedToken, None]], call: RequestContext
    ) -> AsyncGenerator[GeneratedToken, None]:
        """Pass on what an attempt gives; make another one where that may help.

        Args:
            attempt: Sends one request; raises RequestFailure.

        Raises:
            RequestFailure: The last attempt's.
        """
        tries, begun = 0, False
        while True:
            tries += 1
            try:
                async with aclosing(attempt()) as tokens:
                    async for token in tokens:
                        begun = begun or bool(token.text) or token.id is not None
                        yield token
                return
            except RequestFailure as failure:
                if failure.sent:
                    self._count(failure, call)
                wait = None
                if failure.again and not begun and tries <= self._server.retries:
                    wait = self._wait_seconds(failure, tries, call)
                if wait is None:
                    raise
            await asyncio.sleep(wait)

    @asynccontextmanager
    async def stream(
        self,
        url: str,
        body: bytes,
        call: RequestContext,
        count: Callable[[], int],
        *,
        probe: bool = False,
    ) -> AsyncGenerator[EventStream, None]:
        """Send a request, and yield its reply's stream; close it in the end.

        Args:
            count: Of the tokens that were written, once it ends.
            probe: Whether nobody waits for an answer: the metrics count those that do.

        Raises:
            RequestFailure: The server is not there, or replies what is no stream.
            DeadlineExceeded: The caller's time is over.
        """
        if not probe:
            self.metrics.answer_server_requests.inc()
        async with (
            self._traced(url, count, call) as headers,
            self._open("POST", url, body, call, headers) as response,
        ):
            media = media_type(response)
            if media != "text/event-stream":
                what = shorten(media) if media else "no content type"
                raise RequestFailure("malformed", f"replied with {what}, not text/event-stream")
            yield EventStream(self, response, call)

    async def get(self, url: str, call: RequestContext) -> Any:
        """Return what JSON a route holds; raises as ``stream`` does."""
        async with self._open("GET", url, None, call, {}) as response:
            content = await self.in_time(_read_all(response), call)
        try:
            return orjson.loads(content)
        except ValueError as error:
            path = urlsplit(url).path
            raise RequestFailure("malformed", f"replied what is no JSON to {path}") from error

    async def in_time(self, work: Awaitable[T], call: RequestContext, most: float = math.inf) -> T:
        """Wait for ``work`` as long as the server may take, and the caller has time."""
        seconds, left = min(self._server.timeout_seconds, most), call.seconds_left
        try:
            async with asyncio.timeout(min(seconds, left)):
                return await work
        except TimeoutError:
            if left <= seconds:
                raise call.expired() from None
            raise RequestFailure(
                "slow", f"sent no words for {seconds:g} s (answer_timeout)"
            ) from None

    def _wait_seconds(
        self, failure: RequestFailure, tries: int, call: RequestContext
    ) -> float | None:
        """Return how long to wait for the next try; None where that is too long."""
        most = min(MAX_BACK_OFF_SECONDS, BACK_OFF_SECONDS * 2 ** (tries - 1))
        wait = random.uniform(0, most)  # so that those refused together do not come back together
        if failure.retry_after is not None:
            wait = failure.retry_after + min(wait, failure.retry_after)
        return wait if wait < min(self._server.timeout_seconds, call.seconds_left) else None

    def _count(self, failure: RequestFailure, call: RequestContext) -> None:
        self.metrics.answer_server_failures.labels(failure.kind).inc()
        fields = {"reason": failure.kind, **call.log_fields}
        _log.warning("answer_server_failed", extra=fields)

    @asynccontextmanager
    async def _traced(
        self, url: str, count: Callable[[], int], call: RequestContext
    ) -> AsyncGenerator[Mapping[str, str], None]:
        """Make a span of a request, where it is traced; yields the headers that carry it on."""
        if call.trace is None:
            yield {}
            return
        parts, model = urlsplit(url), self._server.model
        fields: dict[str, str | int] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "openai",  # whose API it is
            MODEL_FIELD: model,
            "server.address": parts.hostname or "",
            "server.port": parts.port or (443 if parts.scheme == "https" else 80),
        }
        span, failure = call.trace.start_call(f"chat {model}", fields), None
        try:
            yield span.headers
        except RequestFailure as error:
            failure = error.kind
            raise
        finally:
            span.end({"gen_ai.usage.output_tokens": count()}, error=failure)

    @asynccontextmanager
    async def _open(
        self,
        method: str,
        url: str,
        body: bytes | None,
        call: RequestContext,
        trace: Mapping[str, str],
    ) -> AsyncGenerator[httpx.Response, None]:
        """Send a request, and yield a reply of status 200; close it in the end."""
        headers = {"x-request-id": call.request_id, **trace}
        if body is not None:
            headers["content-type"] = "application/json"
        request = self._client.build_request(method, url, content=body, headers=headers)
        response = await self.in_time(_send(self._client, request), call)
        try:
            if response.status_code != HTTPStatus.OK:
                raise await self._refusal(response, call)
            yield response
        finally:
            await response.aclose()

    async def _refusal(self, response: httpx.Response, call: RequestContext) -> RequestFailure:
        """Return what a status other than 200 means."""
        status = response.status_code
        problem = f"replied {status}"
        if status in (401, 403):  # whose text may quote a part of the key
            return RequestFailure("refused", f"{problem}: it wants another key (answer_key)")
        theirs = await self.in_time(_read_error(response), call)
        return failure_of_status(status, problem, theirs, read_retry_after(response.headers))


def failure_of_status(
    status: int, problem: str, theirs: str, retry_after: float | None = None
) -> RequestFailure:
    """Return what an error of such a status means: too busy or broken, or a refusal."""
    if status == HTTPStatus.TOO_MANY_REQUESTS or status >= 500:
        return RequestFailure("unavailable", problem, theirs, again=True, retry_after=retry_after)
    return RequestFailure("refused", problem, theirs)


async def _send(client: httpx.AsyncClient, request: httpx.Request) -> httpx.Response:
    """Send a request; returns its reply, of which the head has come."""
    try:
        return await client.send(request, stream=True)
    except httpx.TransportError as error:
        down = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError)
        what = "could not be reached" if down else "broke off before it replied"
        problem = f"{what} ({type(error).__name__})"
        raise RequestFailure("connection", problem, again=True) from error


async def _read_all(response: httpx.Response) -> bytes:
    """Return a reply's body, which is short."""
    content = b""
    try:
        async for chunk in response.aiter_raw():
            content += chunk
            if len(content) > MAX_EVENT_BYTES:
                raise RequestFailure("malformed", f"replied with over {MAX_EVENT_BYTES} bytes")
    except httpx.TransportError as error:
        problem = f"broke off in the middle of its reply ({type(error).__name__})"
        raise RequestFailure("cut", problem, again=True) from error
    return content


async def _read_error(response: httpx.Response) -> str:
    """Return what the body of an error says; "" where that is not found in it."""
    content = b""
    try:
        async for chunk in response.aiter_raw():
            content += chunk
            if len(content) > MAX_ERROR_BYTES:
                return ""
        return find_error_message(orjson.loads(content))
    except (httpx.TransportError, ValueError):
        return ""


def media_type(response: httpx.Response) -> str:
    """Return a reply's media type, without parameters; "" where it names none."""
    text: str = response.headers.get("content-type", "")
    return text.partition(";")[0].strip().lower()


def find_error_message(content: Any) -> str:
    """Return the message in an error's body, where the servers that are known put it."""
    for name in ("error", "message", "detail"):
        if isinstance(content, dict) and content.get(name):
            content = content[name]
            if isinstance(content, str):
                return content
            return find_error_message(content)
    return ""


def read_retry_after(headers: httpx.Headers) -> float | None:
    """Return the seconds asked for, as a number or up to a date; None if there are none."""
    for name, scale in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        text = headers.get(name, "")
        try:
            seconds = float(text) / scale
        except ValueError:
            try:
                seconds = parsedate_to_datetime(text).timestamp() - time.time()
            except (ValueError, OverflowError):
                continue
        if math.isfinite(seconds):
            return max(0.0, seconds)
    return None


class EventReader:
    """Collects a stream's bytes into the data of server-sent events.

    Comments, by which servers keep a connection open, are none.
    """

    def __init__(self) -> None:
        self._line = bytearray()
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the data of the events that ``chunk`` completes."""
        first, *others = chunk.split(b"\n")
        self._extend(first)
        for piece in others:
            line = bytes(self._line).removesuffix(b"\r")
            self._line.clear()
            if line.startswith(b"data:"):
                self._data.append(line.removeprefix(b"data:").removeprefix(b" "))
            elif not line:
                data, self._data, self._size = b"\n".join(self._data), [], 0
                if data:
                    yield data
            self._extend(piece)

    def _extend(self, piece: bytes) -> None:
        self._line += piece
        self._size += len(piece)
        if self._size > MAX_EVENT_BYTES:
            raise RequestFailure("malformed", f"sent an event of over {MAX_EVENT_BYTES} bytes")


def is_done(data: bytes) -> bool:
    """Whether an event's data says that the stream is over."""
    return data.strip() == b"[DONE]"


def parse_event(data: bytes, *, begun: bool = True) -> dict[str, Any]:
    """Return an event's object, which has ``choices``.

    Args:
        begun: Whether words came before it. An error in the place of the first ones is what a
            status would have said, had the stream not begun already.

    Raises:
        RequestFailure: It is no such object, or an error.
    """
    try:
        content = orjson.loads(data)
    except ValueError as error:
        raise RequestFailure("malformed", "sent an event that is not JSON") from error
    if not isinstance(content, dict):
        raise RequestFailure("malformed", "sent an event that is no object")
    if content.get("error"):
        theirs, fault = find_error_message(content), content["error"]
        status = fault.get("code") if isinstance(fault, dict) else None
        if begun or type(status) is not int:
            raise RequestFailure("cut", "broke off with an error", theirs)
        raise failure_of_status(status, f"sent error {status} in place of words", theirs)
    if not isinstance(content.get("choices"), list):
        raise RequestFailure("malformed", "sent an event without a list of `choices`")
    return content
