"""Request bodies in, replies out.

Parsing: JSON, then the schema (``validation``). The depth of JSON and
the number of its objects and lists are limited before it is parsed.

Writing: long lists are written and sent piece by piece. orjson holds the GIL while it writes, in a
thread too: 2,000 vectors at once keep every other request waiting for 30 ms. And what is handed to
the connection in one piece lies in memory until the client has read it, long after the request has
left admission.

Events: answers as server-sent events, in the format that an ``EventWriter`` gives them.
"""

import asyncio
import logging
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing, nullcontext
from itertools import islice
from typing import Any, Protocol, TypeVar, cast

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from condensery.api.rest.endpoint import Endpoint, run_in_time
from condensery.api.rest.errors import ErrorDetail, find_row
from condensery.api.rest.ignored_fields import find_ignored_fields, report_ignored_fields
from condensery.api.rest.validation import field_names, validate_body
from condensery.errors import CondenseryError, InputError, Unavailable, code_of, shorten
from condensery.jobs.accounting import count_refusals, count_request
from condensery.jobs.embed import TextSimilarities
from condensery.jobs.services import Services
from condensery.metrics import Task
from condensery.question import AnswerEvent, Retrieved
from condensery.request_context import current_request
from condensery.values import Embedded, EmbeddedTokens, Predicted, Reranked

# Objects and lists in one body. Parsing a million of them blocks the process for 0.3 s; 2048
# documents, each with metadata nested a dozen levels deep, are far from this.
MAX_CONTAINERS = 100_000

# Bytes in one pass over a body: short, since no other thread runs during one.
SLICE_BYTES = 2**20

_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_NO_BACKSLASH = re.compile(rb"[^\\]")

# Makes both kinds of brackets one, and takes out the rest.
_TO_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NOT_BRACKETS = bytes(sorted(set(range(256)) - set(b"[]{}")))

# Longer bodies are parsed and validated in a thread.
INLINE_BYTES = 64 * 1024

# The parser stops at the sign, or at the word after it.
_NOT_FINITE = re.compile(r"[^-]?(?P<word>-?(?:NaN|Infinity))")

# Numbers in one piece: about a millisecond.
PIECE_NUMBERS = 25_000
# Texts in one piece, where they are long.
PIECE_TEXTS = 64

END_OF_EVENTS = b"[DONE]"

MODEL_FIELD = "model"

AnswerEvents = AsyncGenerator[AnswerEvent, None]
Body = TypeVar("Body")
T = TypeVar("T")

_log = logging.getLogger(__name__)


async def read_body(
    request: Request, services: Services, schema: type[Body], *, optional: bool = False
) -> Body:
    """Read a request's body as ``schema``; if ``optional``, an empty body is ``{}``.

    Raises:
        InputError: It is no UTF-8, no JSON, or does not fit.
    """
    return await read_as(
        request,
        services,
        lambda data: validate_body(data, schema),
        optional=optional,
        names_model=MODEL_FIELD in field_names(cast(Any, schema)),
    )


async def read_as(
    request: Request,
    services: Services,
    validate: Callable[[Any], T],
    *,
    optional: bool = False,
    names_model: bool = True,
) -> T:
    """Read a request's body as JSON, and return what ``validate`` makes of it.

    The header ``x-model`` names the model where the body could (``names_model``) and does not, as
    with gRPC. Fields that a schema ignores are listed in a header of the reply.

    Raises:
        InputError: It is no UTF-8, no JSON, is nested too deep, or ``validate`` refuses it.
    """
    model = request.headers.get("x-model") if names_model else None

    def validate_named(data: Any) -> T:
        if model and isinstance(data, dict) and data.get(MODEL_FIELD) is None:
            data[MODEL_FIELD] = model
        return validate(data)

    with count_refusals(services, request.state.task, "rest"):
        data = await read_bytes(request.receive)
        return await parse_body(request, services, data, validate_named, optional=optional)


async def parse_body(
    request: Request,
    services: Services,
    data: bytes,
    validate: Callable[[Any], T],
    *,
    optional: bool = False,
) -> T:
    """Return what ``validate`` makes of a body's JSON; of much of it in a thread.

    Fields that a schema ignores are listed in a header of the reply.

    Raises:
        InputError: It is no UTF-8, no JSON, is nested too deep, or ``validate`` refuses it.
    """
    depth = services.limits.max_json_depth

    def read() -> tuple[T, list[str]]:
        parsed = {} if optional and not data.strip() else parse_json(data, depth)
        body = validate(parsed)
        return body, find_ignored_fields(parsed, type(body))

    body, ignored = await asyncio.to_thread(read) if len(data) > INLINE_BYTES else read()
    report_ignored_fields(request, ignored)
    return body


async def read_bytes(receive: Receive) -> bytes:
    """Read a request's whole body; ``receive`` limits its size."""
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body", False):
        body: bytes = message.get("body", b"")
        return body
    chunks: list[bytes] = []
    while message["type"] == "http.request":
        chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(chunks)
        message = await receive()
    raise ClientDisconnect


def parse_json(data: bytes, max_depth: int) -> Any:
    """Parse JSON: UTF-8 without lone surrogates, numbers finite, at most ``max_depth`` deep.

    Raises:
        InputError: It is not that; the message says where.
    """
    check_nesting(data, max_depth)
    try:
        parsed = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise _explain_json_error(data, error) from error
    yield_thread(data)
    return parsed


def _explain_json_error(data: bytes, error: orjson.JSONDecodeError) -> InputError:
    try:
        text = data.decode()
    except UnicodeDecodeError as broken:
        byte = data[broken.start]
        return InputError.at("body", f"the byte 0x{byte:02x} at {broken.start} is not UTF-8.", byte)
    excerpt = text[error.pos : error.pos + 20]
    if number := _NOT_FINITE.match(text, max(0, error.pos - 1)):
        word = number["word"]
        return InputError.at(
            "body",
            f"{word} at character {error.pos} (line {error.lineno}) is not JSON; numbers "
            "must be finite.",
            word,
        )
    return InputError.at(
        "body",
        f"not JSON at line {error.lineno} column {error.colno}: {error.msg}; "
        f"it reads {shorten(excerpt)}.",
        excerpt,
    )


def check_nesting(data: bytes, max_depth: int) -> None:
    """Refuse JSON that is nested too deep, or holds too many objects and lists.

    Invalid JSON may pass: the parser refuses that.

    Raises:
        InputError: It is over one of the limits.
    """
    count = 0  # brackets in strings are counted too
    for bracket in (b"[", b"{"):
        count += data.count(bracket)
        yield_thread(data)
    if count <= max_depth:
        return
    brackets = _outside_strings(data)
    count = brackets.count(b"[")
    if count > MAX_CONTAINERS:
        raise InputError.at(
            "body", f"{count} objects and lists, over the limit of {MAX_CONTAINERS}.", count
        )
    for _ in range(max_depth):
        if not brackets:
            return
        brackets = brackets.replace(b"[]", b"")  # the innermost level
    if b"[]" in brackets:
        raise InputError.at("body", f"nested deeper than {max_depth} (max_json_depth).")


def yield_thread(data: bytes) -> None:
    """Let the event loop's thread run, after a pass over long ``data`` in another thread.

    By itself it would wait for the interpreter's switch interval, 5 ms.
    """
    if len(data) > SLICE_BYTES:
        time.sleep(0)


def _outside_strings(data: bytes) -> bytes:
    """Return the brackets outside of strings, both kinds as ``[]``."""
    brackets = []
    start, in_string = 0, 0
    while start < len(data):
        end = start + SLICE_BYTES
        if data[end - 1 : end] == b"\\":  # the escaped byte belongs to this slice
            after = _NO_BACKSLASH.search(data, end)
            end = after.end() if after else len(data)
        parts = _ESCAPED.sub(b"", data[start:end]).split(b'"')
        brackets.append(b"".join(parts[in_string::2]).translate(_TO_BRACKETS, _NOT_BRACKETS))
        in_string = (in_string + len(parts) - 1) % 2
        start = end
        yield_thread(data)
    return b"".join(brackets)


# Replies


def write_json(
    content: Any, *, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """Return ``content`` as JSON; numpy arrays are written as they are."""
    body = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, status, headers=headers, media_type="application/json")


def result_headers(
    result: Embedded | EmbeddedTokens | TextSimilarities | Reranked | Predicted,
) -> dict[str, str]:
    """Return the headers with the model, timings, and how many inputs were truncated."""
    headers = {"x-model": result.model, **_timing_headers(result.tokens)}
    if result.fingerprint:
        headers["x-model-revision"] = result.fingerprint
    truncated = len(result.truncated)
    if isinstance(result, Reranked):
        truncated += result.query_truncated
    if truncated:
        headers["x-truncated-inputs"] = str(truncated)
    return headers


def _timing_headers(tokens: int) -> dict[str, str]:
    """Return what a request took so far, ms: TEI's headers, and `server-timing` (W3C), not rounded.

    The reply is not written yet.
    """
    context = current_request()
    stats = context.stats
    total = time.monotonic() - context.started
    seconds = {
        "compute": total - stats.wait_seconds,
        "total": total,
        "tokenization": stats.tokenizing,
        "queue": stats.wait_seconds,
        "inference": stats.forward_seconds,
    }
    return {
        "x-compute-type": "gpu" if stats.device == "cuda" else "cpu",
        "x-compute-characters": str(stats.characters),
        "x-compute-tokens": str(tokens),
        **{f"x-{name}-time": str(round(1000 * value)) for name, value in seconds.items()},
        "server-timing": ", ".join(
            f"{name};dur={1000 * value:.3f}" for name, value in seconds.items() if name != "compute"
        ),
    }


class PiecewiseReply(Response):
    """A JSON reply whose body is sent in pieces, each once the connection has room for it."""

    def __init__(self, pieces: list[bytes], headers: dict[str, str]) -> None:
        length = str(sum(map(len, pieces)))
        super().__init__(
            headers={**headers, "content-length": length}, media_type="application/json"
        )
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the reply."""
        start = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **start})
        last = len(self._pieces) - 1
        for index, piece in enumerate(self._pieces):
            await send({"type": "http.response.body", "body": piece, "more_body": index < last})


async def write_list(
    items: Iterable[Any],
    piece_items: int,
    *,
    within: Any = None,
    field: str = "",
    headers: dict[str, str] | None = None,
) -> Response:
    """Return a list as JSON; numpy arrays in it are written as they are.

    Args:
        items: Consumed as they are written.
        within: An object that the list is a field of, empty; None returns the list alone.
        field: The field's name in ``within``.
    """
    if within is not None:
        return await write_lists(within, {field: (items, piece_items)}, headers=headers)
    return _join_pieces([b"[", *await _write_pieces(items, piece_items), b"]"], headers)


async def write_lists(
    within: Any,
    lists: Mapping[str, tuple[Iterable[Any], int]],
    *,
    headers: dict[str, str] | None = None,
) -> Response:
    """Return an object with several lists as JSON.

    Args:
        within: The object, the lists in it empty.
        lists: Items and how many make a piece, by the list's field, in the order of ``within``.
    """
    pieces: list[bytes] = []
    after = orjson.dumps(within)
    for field, (items, piece_items) in lists.items():
        before, opening, after = after.partition(orjson.dumps({field: []})[1:-2])
        assert opening, f"no empty list {field}"
        pieces += [before + opening, *await _write_pieces(items, piece_items)]
    return _join_pieces([*pieces, after], headers)


def _join_pieces(pieces: list[bytes], headers: dict[str, str] | None) -> Response:
    if len(pieces) <= 3:  # one of a list, with what is around it, as in most replies
        return Response(b"".join(pieces), headers=headers, media_type="application/json")
    return PiecewiseReply(pieces, headers or {})


async def _write_pieces(items: Iterable[Any], piece_items: int) -> list[bytes]:
    """Write a list's items in pieces, without the brackets."""
    source = iter(items)
    pieces: list[bytes] = []
    while part := list(islice(source, piece_items)):
        if pieces:
            await asyncio.sleep(0)  # lets other requests run
        piece = orjson.dumps(part, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
        pieces.append(b"," + piece if pieces else piece)
    return pieces


def job_endpoint(
    job: Callable[..., Awaitable[Any]],
    reply: type,
    body: Any = None,
    *,
    optional: bool = False,
    task: Task | None = None,
) -> Endpoint:
    """Return an endpoint that is a job and no more, described by the job's first line.

    Its ``contract`` is what its route says of body and reply.

    Args:
        job: Takes the services, what the path names, and the body's fields by their names.
        reply: What the job returns; or what is made of that, of each of several, or of the path's
            last name where it returns nothing.
        body: Its schema; ``optional`` ones may be left out.
        task: What it counts as, for the index that the path names; None is not counted.
    """

    async def endpoint(request: Request, services: Services) -> Response:
        path, fields = request.path_params, {}
        if body is not None:
            parsed = await read_body(request, services, body, optional=optional)
            fields = {name: getattr(parsed, name) for name in body.model_fields}
        counted = task and count_request(services, None, task, "rest", index=path.get("name"))
        with counted or nullcontext():
            result = await job(services, *path.values(), **fields)
            if not isinstance(result, reply):
                made_of = result if isinstance(result, tuple) else (result,)
                result = reply(*([*path.values()][-1:] if result is None else made_of))
            return write_json(result)

    endpoint.__doc__ = (job.__doc__ or "").partition("\n\n")[0]
    vars(endpoint)["contract"] = {"body": body, "optional": optional, "reply": reply}
    return endpoint


# Server-sent events


class EventWriter(Protocol):
    """Writes answer events in the format of one family of clients."""

    def event(self, event: AnswerEvent) -> bytes:
        """Write one event; it may become several, or none."""
        ...

    def failure(self, error: ErrorDetail) -> bytes:
        """Write a failure after the stream has begun."""
        ...

    def end(self) -> bytes:
        """Write the last event, which follows a failure too."""
        ...


async def stream_events(
    request: Request, events: AnswerEvents, writer: EventWriter
) -> "EventStream":
    """Return the reply that sends events as they come.

    Bad requests fail here, with a status of their own, before the stream begins.
    """
    first = await anext(events)
    model = first.model if isinstance(first, Retrieved) else ""
    headers = {"x-model": model, "cache-control": "no-cache"}
    return EventStream(_write_events(first, events, writer, request), headers, events)


class EventStream(StreamingResponse):
    """A stream that closes its events' generator as soon as its task is cancelled.

    The middleware cancels it when the client leaves.
    """

    def __init__(
        self, content: AsyncGenerator[bytes, None], headers: dict[str, str], events: AnswerEvents
    ) -> None:
        super().__init__(content, headers=headers, media_type="text/event-stream")
        self._content = content
        self._events = events  # begun already; `content` closes it only once it has begun itself

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until they end."""
        async with aclosing(self._events), aclosing(self._content):
            await self.stream_response(send)


async def _write_events(
    first: AnswerEvent, events: AnswerEvents, writer: EventWriter, request: Request
) -> AsyncGenerator[bytes, None]:
    """Write events; a failure after the first is an event too."""
    async with aclosing(events):
        try:
            yield writer.event(first)
            while (event := await run_in_time(anext(events, None))) is not None:
                yield writer.event(event)
        except CondenseryError as error:
            yield writer.failure(_failure(request, error))
        except (
            asyncio.CancelledError
        ):  # the client has left, or the server ends after its grace time
            ended = Unavailable("The server ended before this was done.")
            yield writer.failure(_failure(request, ended))
        # The status is sent already: a bug too can be reported only as an event.
        except Exception:
            request_id = request.state.request_id
            _log.exception("internal_error", extra={"request_id": request_id})
            message = f"Internal error; the server's log has it under request id {request_id}."
            yield writer.failure(_failure(request, CondenseryError(message), "internal_error"))
        yield writer.end()


def _failure(request: Request, error: CondenseryError, code: str | None = None) -> ErrorDetail:
    kind = type(error)
    request.state.code = code = code or code_of(kind)
    return ErrorDetail(error.message, find_row(kind).openai[1], error.field, code)
