"""The service over REST: a blocking and an async client.

from condensery.client.rest import Client

with Client("http://127.0.0.1:8080") as client:
    vectors = client.embed(["a question", "a passage"])  # (2, dims), float32
    print(client.answer("Who discovered radium?", index="samples").text)
"""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx

from condensery import errors
from condensery.client import rest_calls as calls
from condensery.client.operations import awaiting, blocking, streaming, streaming_async
from condensery.client.rest_calls import RestCall
from condensery.client.transports import (
    TIMEOUT_HEADER,
    Refusal,
    Retries,
    format_milliseconds,
    make_auth_headers,
    make_refusal,
    make_ssl_context,
    read_ca,
)
from condensery.errors import CondenseryError, DeadlineExceeded, InputError, Unavailable

# Where a reply names no class of ours, its status is all there is to go by.
ERRORS_BY_STATUS: dict[int, type[CondenseryError]] = {
    400: errors.InputError,
    401: errors.Unauthenticated,
    403: errors.Forbidden,
    404: errors.NotFound,
    408: errors.ExpiredInQueue,
    409: errors.Conflict,
    413: errors.PayloadTooLarge,
    422: errors.InputError,
    424: errors.ModelFault,
    429: errors.Overloaded,
    431: errors.HeadersTooLarge,
    503: errors.Unavailable,
    504: errors.DeadlineExceeded,
    507: errors.StorageFull,
}


def read_refusal(reply: httpx.Response) -> Refusal:
    """Read a refusal whose body was read: ours, or whatever a proxy put in its place."""
    try:
        body = json.loads(reply.content)
    except ValueError:
        body = None
    error = body.get("error") if isinstance(body, dict) else None
    nearest = ERRORS_BY_STATUS.get(reply.status_code, CondenseryError)
    after = _retry_after(reply.headers)
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return make_refusal(
            error.get("code"),
            nearest,
            error["message"],
            field=error.get("param"),
            retry_after_seconds=after,
        )
    text = error if isinstance(error, str) else f"{reply.url} answered {reply.status_code}"
    return make_refusal(None, nearest, text, retry_after_seconds=after)


def write_body(body: Any) -> bytes | None:
    """Write a request's body; raises InputError for what JSON can't hold (NaN, lone surrogates)."""
    if body is None:
        return None
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except ValueError as error:
        raise InputError(f"the request can't be written as JSON: {error}") from error


@contextmanager
def raise_transport_errors(url: str) -> Iterator[None]:
    """Turn what the transport raises into our errors."""
    try:
        yield
    except httpx.TimeoutException as error:
        raise DeadlineExceeded(f"{url}: no reply in time ({type(error).__name__})") from error
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise InputError(f"{url!r} is not an http(s) address: {error}", field="url") from error
    except httpx.HTTPError as error:
        raise Unavailable(f"{url}: {str(error) or type(error).__name__}") from error


@contextmanager
def raise_reply_errors(url: str) -> Iterator[None]:
    """Turn a reply of another shape into an error that names the address."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise CondenseryError(
            f"{url}: the reply is not one of this service's ({type(error).__name__}: {error})"
        ) from error


def _retry_after(headers: httpx.Headers) -> float | None:
    """Return the seconds asked for; None if there are none (a date is not understood)."""
    for name, scale in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            return float(headers[name]) / scale
        except (KeyError, ValueError):
            continue
    return None


T = TypeVar("T")
END_OF_EVENTS = "[DONE]"


class EventReader:
    """Collects a stream's bytes into events, each ended by an empty line, until ``[DONE]``.

    Lines end at a line feed only: texts may hold Unicode's other line ends.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._rest = b""
        self._name = ""
        self._data: list[str] = []
        self._done = False

    def feed(self, chunk: bytes, read: Callable[[Any], Iterable[T]]) -> Iterator[T]:
        """Yield what ``read`` makes of each (name, parsed data) that ``chunk`` completes."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            with raise_reply_errors(self._url):
                event = self._end_line(line.rstrip(b"\r").decode())
                events = [] if event is None else list(read(event))
            yield from events

    def finish(self) -> None:
        """Raise Unavailable if the stream stopped before its end."""
        if not self._done:
            raise Unavailable(f"{self._url}: the answer broke off before its end")

    def _end_line(self, line: str) -> tuple[str, Any] | None:
        if line:
            key, _, value = line.partition(":")  # a comment's key is empty
            if key == "event":
                self._name = value.removeprefix(" ")
            elif key == "data":
                self._data.append(value.removeprefix(" "))
            return None
        name, data = self._name, "\n".join(self._data)
        self._name, self._data = "", []
        if data == END_OF_EVENTS:
            self._done = True
            return None
        return (name, json.loads(data)) if data else None


DEFAULT_URL = "http://127.0.0.1:8080"
NO_RETRIES = Retries(attempts=1)


def _httpx_options(timeout: float, api_key: str | None, ca: str | Path | None) -> dict[str, Any]:
    """Return httpx's arguments for a client's."""
    headers = {
        "content-type": "application/json",
        TIMEOUT_HEADER: format_milliseconds(timeout),
        **make_auth_headers(api_key),
    }
    verify = True if ca is None else make_ssl_context(read_ca(ca))
    return {"timeout": timeout, "headers": headers, "verify": verify}


class Client:
    """Blocking REST client, usable from several threads; ``close`` it, or use ``with``.

    Args:
        url: Where the service listens; ``https://`` if it shows a certificate.
        timeout: Seconds a call may take. The server knows of it, and drops requests after that.
        retries: How often to try again where the server is full or not ready, and says until when.
        api_key: A key, if the server wants one.
        ca: PEM file with the certificates to trust instead of the usual ones.

    Raises:
        CondenseryError: By each method: the server's own error, by class and message.
            Unavailable also where nobody listens, DeadlineExceeded after ``timeout``.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        timeout: float = 120.0,
        retries: int | Retries = 2,
        api_key: str | None = None,
        ca: str | Path | None = None,
    ) -> None:
        self.url = url
        self._retries = Retries.of(retries)
        with raise_transport_errors(url):
            self._http = httpx.Client(base_url=url, **_httpx_options(timeout, api_key, ca))

    embed = blocking(calls.embed)
    rerank = blocking(calls.rerank)
    answer = blocking(calls.answer)
    answer_stream = streaming(calls.answer_stream)
    compare = blocking(calls.compare)
    compress = blocking(calls.compress)
    release = blocking(calls.release)
    create_index = blocking(calls.create_index)
    list_indexes = blocking(calls.list_indexes)
    drop_index = blocking(calls.drop_index)
    aliases = blocking(calls.aliases)
    update_aliases = blocking(calls.update_aliases)
    create_snapshot = blocking(calls.create_snapshot)
    list_snapshots = blocking(calls.list_snapshots)
    delete_snapshot = blocking(calls.delete_snapshot)
    restore_snapshot = blocking(calls.restore_snapshot)
    rebuild_index = blocking(calls.rebuild_index)
    rebuild_status = blocking(calls.rebuild_status)
    cancel_rebuild = blocking(calls.cancel_rebuild)
    upsert = blocking(calls.upsert)
    delete = blocking(calls.delete)
    query = blocking(calls.query)
    count = blocking(calls.count)
    get = blocking(calls.get)
    scroll = blocking(calls.scroll)
    models = blocking(calls.models)
    report = blocking(calls.report)
    report_card = blocking(calls.report_card)
    report_plot = blocking(calls.report_plot)
    load_model = blocking(calls.load_model)
    unload_model = blocking(calls.unload_model)
    stored_models = blocking(calls.stored_models)
    set_aliases = blocking(calls.set_aliases)

    def ready(self) -> bool:
        """Return whether the service is there and ready to serve."""
        try:
            with self._open(calls.ready(), NO_RETRIES):
                return True
        except Unavailable:
            return False

    def send(self, call: RestCall[T]) -> T:
        """Send ``call`` and read its reply."""
        with self._open(call, self._retries) as reply, raise_reply_errors(self.url):
            return call.read(call.decode(reply.read()))

    def stream(self, call: RestCall[Iterable[T]]) -> Iterator[T]:
        """Send ``call`` and read each event of its reply as it comes."""
        events = EventReader(self.url)
        with self._open(call, self._retries) as reply:
            for chunk in reply.iter_bytes():
                yield from events.feed(chunk, call.read)
        events.finish()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _open(self, call: RestCall[Any], retries: Retries) -> Iterator[httpx.Response]:
        """Send ``call`` until it is taken, and hold the reply open."""
        content = write_body(call.body)
        with raise_transport_errors(self.url):
            for attempt in itertools.count(1):
                with self._http.stream(call.method, call.path, content=content) as reply:
                    if reply.is_success:
                        yield reply
                        return
                    reply.read()
                time.sleep(retries.pause(attempt, read_refusal(reply)))


class AsyncClient:
    """Async REST client; otherwise as ``Client``. ``await close()`` it, or use ``async with``."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        timeout: float = 120.0,
        retries: int | Retries = 2,
        api_key: str | None = None,
        ca: str | Path | None = None,
    ) -> None:
        self.url = url
        self._retries = Retries.of(retries)
        with raise_transport_errors(url):
            self._http = httpx.AsyncClient(base_url=url, **_httpx_options(timeout, api_key, ca))

    embed = awaiting(calls.embed)
    rerank = awaiting(calls.rerank)
    answer = awaiting(calls.answer)
    answer_stream = streaming_async(calls.answer_stream)
    compare = awaiting(calls.compare)
    compress = awaiting(calls.compress)
    release = awaiting(calls.release)
    create_index = awaiting(calls.create_index)
    list_indexes = awaiting(calls.list_indexes)
    drop_index = awaiting(calls.drop_index)
    aliases = awaiting(calls.aliases)
    update_aliases = awaiting(calls.update_aliases)
    create_snapshot = awaiting(calls.create_snapshot)
    list_snapshots = awaiting(calls.list_snapshots)
    delete_snapshot = awaiting(calls.delete_snapshot)
    restore_snapshot = awaiting(calls.restore_snapshot)
    rebuild_index = awaiting(calls.rebuild_index)
    rebuild_status = awaiting(calls.rebuild_status)
    cancel_rebuild = awaiting(calls.cancel_rebuild)
    upsert = awaiting(calls.upsert)
    delete = awaiting(calls.delete)
    query = awaiting(calls.query)
    count = awaiting(calls.count)
    get = awaiting(calls.get)
    scroll = awaiting(calls.scroll)
    models = awaiting(calls.models)
    report = awaiting(calls.report)
    report_card = awaiting(calls.report_card)
    report_plot = awaiting(calls.report_plot)
    load_model = awaiting(calls.load_model)
    unload_model = awaiting(calls.unload_model)
    stored_models = awaiting(calls.stored_models)
    set_aliases = awaiting(calls.set_aliases)

    async def ready(self) -> bool:
        """Return whether the service is there and ready to serve."""
        try:
            async with self._open(calls.ready(), NO_RETRIES):
                return True
        except Unavailable:
            return False

    async def send(self, call: RestCall[T]) -> T:
        """Send ``call`` and read its reply."""
        async with self._open(call, self._retries) as reply:
            content = await reply.aread()
        with raise_reply_errors(self.url):
            return call.read(call.decode(content))

    async def stream(self, call: RestCall[Iterable[T]]) -> AsyncIterator[T]:
        """Send ``call`` and read each event of its reply as it comes."""
        events = EventReader(self.url)
        async with self._open(call, self._retries) as reply:
            async for chunk in reply.aiter_bytes():
                for event in events.feed(chunk, call.read):
                    yield event
        events.finish()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @asynccontextmanager
    async def _open(self, call: RestCall[Any], retries: Retries) -> AsyncIterator[httpx.Response]:
        """Send ``call`` until it is taken, and hold the reply open."""
        content = write_body(call.body)
        with raise_transport_errors(self.url):
            for attempt in itertools.count(1):
                async with self._http.stream(call.method, call.path, content=content) as reply:
                    if reply.is_success:
                        yield reply
                        return
                    await reply.aread()
                await asyncio.sleep(retries.pause(attempt, read_refusal(reply)))
