"""The service over REST: a blocking and an async client.

from condensery.client.rest import Client

with Client("http://127.0.0.1:8080") as client:
    vectors = client.embed(["a question", "a passage"])  # (2, dims), float32
    print(client.answer("Who discovered radium?", index="samples").text)
"""

import asyncio
import itertools
import json
import secrets
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from types import NoneType
from typing import Any, BinaryIO, Generic, NamedTuple, ParamSpec, TypeVar
from urllib.parse import quote

import httpx

from condensery import errors, wire
from condensery.client.operations import Operations
from condensery.client.transports import (
    DEFAULT_URL,
    TIMEOUT_HEADER,
    Asynchronous,
    Blocking,
    Call,
    Operation,
    Refusal,
    Retries,
    Row,
    Stream,
    call,
    format_milliseconds,
    make_auth_headers,
    make_refusal,
    make_ssl_context,
    operation,
    read_ca,
)
from condensery.documents.files import FileKind
from condensery.documents.writing import AddedFiles
from condensery.errors import CondenseryError, DeadlineExceeded, InputError, Unavailable
from condensery.question import Answer, AnswerEvent, Delta, Retrieved

P = ParamSpec("P")
T = TypeVar("T")
Files = Mapping[str, bytes | Path]
Http = TypeVar("Http", httpx.Client, httpx.AsyncClient)

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


def open_file(path: Path) -> BinaryIO:
    """Open a file to send.

    Raises:
        InputError: It can't be read.
    """
    try:
        return path.open("rb")
    except OSError as error:
        problem = f"{path}: can't be read: {error.strerror}"
        raise InputError.at("files", problem, str(path)) from error


class HttpRequest(NamedTuple):
    """What is sent: JSON, or a form of ``files`` by their names, and ``content`` its fields."""

    method: str
    path: str
    content: Any = None
    files: Files | None = None

    @contextmanager
    def open(self) -> Iterator[dict[str, Any]]:
        """Return the body, and its headers, as httpx takes them.

        Raises:
            InputError: A file can't be read.
        """
        if self.files is None:
            yield {"content": self.content}
            return
        with ExitStack() as stack:
            parts = []
            for name, content in self.files.items():
                part: bytes | BinaryIO = (
                    content
                    if isinstance(content, bytes)
                    else stack.enter_context(open_file(content))
                )
                parts.append(("files", (name, part)))
            media = f"multipart/form-data; boundary={secrets.token_hex(16)}"
            yield {"data": self.content, "files": parts, "headers": {"content-type": media}}


READINESS = HttpRequest("GET", "/readyz")


def write_request(operation: Row[Any, T], call: Call[T]) -> HttpRequest:
    """Write a call as a request.

    Raises:
        InputError: JSON can't hold a value: NaN, a lone surrogate.
    """
    fields = call.fields if isinstance(call.fields, Mapping) else wire.write(call.fields)
    body = {**fields, **call.rest}
    places = {name: quote(body.pop(name), safe="") for name in operation.path_fields}
    path = operation.path.format(**places)
    if operation.verb in ("GET", "DELETE"):
        return HttpRequest(operation.verb, path)
    if (files := body.pop("files", None)) is not None:
        return HttpRequest(operation.verb, path, body, files)
    try:
        content = json.dumps(body, default=wire.write, ensure_ascii=False, allow_nan=False).encode()
    except ValueError as error:
        raise InputError(f"the request can't be written as JSON: {error}") from error
    return HttpRequest(operation.verb, path, content)


def read_reply(operation: Row[Any, T], call: Call[T], content: bytes) -> T:
    """Read the result of a call out of its reply's body.

    Raises:
        ValueError: It is none of this service's; as are LookupError, TypeError, AttributeError.
    """
    hint, within = operation.result_type, operation.within
    if call.read_rest is not None:
        return call.read_rest(content)
    reply = json.loads(content)
    if isinstance(within, tuple):
        reply = tuple(reply[name] for name in within)
    elif within is not None and isinstance(reply, dict):  # some are the bare list
        reply = reply[within]
    elif call.known:
        reply = {**call.known, **reply}
    result: Any = None if hint is NoneType else wire.read(hint, reply)
    return call.complete(result)


def read_event(event: tuple[str, Any]) -> list[AnswerEvent]:
    """Read one event of a streamed answer; raises the error that it may be."""
    name, data = event
    if name == "search_results":
        return [wire.read(Retrieved, {**data, **data["data"]})]
    if name == "message":
        payloads = [part["payload"] for part in data["delta"]["content"]]
        return [wire.read(Delta, {**payload, "text": payload["value"]}) for payload in payloads]
    if name == "final_answer":
        return [wire.read(Answer, {**data, "answer": data["generated_answer"]})]
    if name == "error":
        content = data["error"]
        raise make_refusal(
            content.get("code"), CondenseryError, content["message"], field=content.get("param")
        ).error
    return []  # what a newer server may add; the compression block comes with the answer too


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

    def feed(self, chunk: bytes) -> Iterator[AnswerEvent]:
        """Yield the events that ``chunk`` completes."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            with raise_reply_errors(self._url):
                event = self._end_line(line.rstrip(b"\r").decode())
                events = [] if event is None else read_event(event)
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


NO_RETRIES = Retries(attempts=1)


class _RestClient(Operations, Generic[Http]):
    """What both clients are made with; ``Client`` says what the arguments are."""

    _kind: type[Http]

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
        headers = {
            "content-type": "application/json",
            TIMEOUT_HEADER: format_milliseconds(timeout),
            **make_auth_headers(api_key),
        }
        verify = True if ca is None else make_ssl_context(read_ca(ca))
        with raise_transport_errors(url):
            self._http: Http = self._kind(
                base_url=url, timeout=timeout, headers=headers, verify=verify
            )

    # Over REST alone: gRPC's messages hold no files.

    @operation("POST /v1/indexes/{index}/files", "")
    def add_files(
        self,
        name: str,
        files: Files,
        *,
        format: FileKind | None = None,
        encoding: str | None = None,
        id_column: str | None = None,
        text_column: Sequence[str] = (),
        prefix: str | None = None,
        again: bool = False,
    ) -> Call[AddedFiles]:
        """Write the documents of files, as ``condensery index add`` does.

        A file replaces all that is there of one of its name; what is there already, as it is, is
        passed over. It is on disk when this returns. What could not be read is in the result, each
        file with its ``reason``.

        Args:
            name: The index.
            files: Bytes, or where they are on this disk, by the name that each gets: a path such as
                ``guide/install.md``, with which its documents' ids begin.
            format: What all files are; None is by their suffixes.
            encoding: Of text, where a file does not say; None is UTF-8.
            id_column: Of tables and records, the id; None is ``id``, or ``_id``.
            text_column: Of tables and records, the text; () is ``text``, several are joined.
            prefix: A folder to put before all names.
            again: Whether to write also what is there already, as it is.
        """
        return call(
            index=name,
            files=files,
            format=format,
            encoding=encoding,
            id_column=id_column,
            text_column=list(text_column) or None,
            prefix=prefix,
            again="true" if again else None,
        )


class Client(_RestClient[httpx.Client], Blocking):
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

    _kind = httpx.Client

    def ready(self) -> bool:
        """Return whether the service is there and ready to serve."""
        try:
            with self._open(READINESS, NO_RETRIES):
                return True
        except Unavailable:
            return False

    def send(self, operation: Operation[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call an operation and read its reply."""
        call = operation.make(self, *args, **kwargs)
        request = write_request(operation, call)
        with self._open(request, self._retries) as reply, raise_reply_errors(self.url):
            return read_reply(operation, call, reply.read())

    def stream(
        self, operation: Stream[P, AnswerEvent], /, *args: P.args, **kwargs: P.kwargs
    ) -> Iterator[AnswerEvent]:
        """Call an operation and read each event of its reply as it comes."""
        return self._read_events(write_request(operation, operation.make(self, *args, **kwargs)))

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _read_events(self, request: HttpRequest) -> Iterator[AnswerEvent]:
        events = EventReader(self.url)
        with self._open(request, self._retries) as reply:
            for chunk in reply.iter_bytes():
                yield from events.feed(chunk)
        events.finish()

    @contextmanager
    def _open(self, request: HttpRequest, retries: Retries) -> Iterator[httpx.Response]:
        """Send ``request`` until it is taken, and hold the reply open."""
        with raise_transport_errors(self.url):
            for attempt in itertools.count(1):
                with (
                    request.open() as body,
                    self._http.stream(request.method, request.path, **body) as reply,
                ):
                    if reply.is_success:
                        yield reply
                        return
                    reply.read()
                time.sleep(retries.pause(attempt, read_refusal(reply)))


class AsyncClient(_RestClient[httpx.AsyncClient], Asynchronous):
    """Async REST client; otherwise as ``Client``. ``await close()`` it, or use ``async with``."""

    _kind = httpx.AsyncClient

    async def ready(self) -> bool:
        """Return whether the service is there and ready to serve."""
        try:
            async with self._open(READINESS, NO_RETRIES):
                return True
        except Unavailable:
            return False

    async def send(self, operation: Operation[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call an operation and read its reply."""
        call = operation.make(self, *args, **kwargs)
        async with self._open(write_request(operation, call), self._retries) as reply:
            content = await reply.aread()
        with raise_reply_errors(self.url):
            return read_reply(operation, call, content)

    def stream(
        self, operation: Stream[P, AnswerEvent], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncIterator[AnswerEvent]:
        """Call an operation and read each event of its reply as it comes."""
        return self._read_events(write_request(operation, operation.make(self, *args, **kwargs)))

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _read_events(self, request: HttpRequest) -> AsyncIterator[AnswerEvent]:
        events = EventReader(self.url)
        async with self._open(request, self._retries) as reply:
            async for chunk in reply.aiter_bytes():
                for event in events.feed(chunk):
                    yield event
        events.finish()

    @asynccontextmanager
    async def _open(self, request: HttpRequest, retries: Retries) -> AsyncIterator[httpx.Response]:
        """Send ``request`` until it is taken, and hold the reply open."""
        with raise_transport_errors(self.url):
            for attempt in itertools.count(1):
                with request.open() as body:
                    async with self._http.stream(request.method, request.path, **body) as reply:
                        if reply.is_success:
                            yield reply
                            return
                        await reply.aread()
                await asyncio.sleep(retries.pause(attempt, read_refusal(reply)))
