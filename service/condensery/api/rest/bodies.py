"""Request bodies: JSON, then the schema; what is wrong is named by its path and value."""

import asyncio
import re
from collections.abc import Callable
from typing import Any, TypeVar, cast

import orjson
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from condensery.api.rest.nesting import check_nesting, yield_after
from condensery.errors import InputError, shorten
from condensery.jobs.accounting import counting_refusals
from condensery.jobs.services import Services

# Longer bodies are parsed off the loop: it gets its turn between parsing and validating.
INLINE_BYTES = 64 * 1024

# Where the parser stops may be the sign or the word after it.
_NOT_FINITE = re.compile(r"[^-]?(?P<word>-?(?:NaN|Infinity))")

Body = TypeVar("Body", bound=BaseModel)
T = TypeVar("T")


async def read_body(
    request: Request, services: Services, schema: type[Body], *, optional: bool = False
) -> Body:
    """Read a request's body as ``schema``; ``optional``, an empty one is ``{}``.

    Raises:
        InputError: It is no UTF-8, no JSON, or does not fit.
    """
    return await read(request, services, lambda data: validate(data, schema), optional=optional)


async def read(
    request: Request, services: Services, fit: Callable[[Any], T], *, optional: bool = False
) -> T:
    """Read a request's body as JSON, and as what ``fit`` makes of it.

    A body that could name a model and does not takes the header ``x-model``, as gRPC's doors do.

    Raises:
        InputError: It is no UTF-8, no JSON, is nested too deep, or ``fit`` refuses it.
    """
    depth = services.limits.max_json_depth
    with counting_refusals(services, request.state.task, "rest"):
        data = await read_bytes(request.receive)
        if len(data) > INLINE_BYTES:
            found = await asyncio.to_thread(lambda: fit(load(data, depth)))
        else:
            found = fit({} if optional and not data.strip() else load(data, depth))
    named = request.headers.get("x-model")
    if named and isinstance(found, BaseModel) and getattr(found, "model", named) is None:
        return cast(T, found.model_copy(update={"model": named}))
    return found


async def read_bytes(receive: Receive) -> bytes:
    """Read a request's whole body; how long it may be is checked by who hands us ``receive``."""
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body", False):
        whole: bytes = message.get("body", b"")
        return whole
    chunks: list[bytes] = []
    while message["type"] == "http.request":
        chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(chunks)
        message = await receive()
    raise ClientDisconnect


def load(data: bytes, max_depth: int) -> Any:
    """Parse JSON: UTF-8 without lone surrogates, numbers finite, at most ``max_depth`` deep.

    Raises:
        InputError: It is not that; the message says where.
    """
    check_nesting(data, max_depth)
    try:
        parsed = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise _explain(data, error) from error
    yield_after(data)
    return parsed


def validate(data: Any, schema: type[Body]) -> Body:
    """Check parsed JSON against a schema.

    Raises:
        InputError: A field is missing, of a wrong type or value, or (in our own bodies) unknown.
    """
    if not isinstance(data, dict):
        raise InputError(f"body: {shorten(data)} is not a JSON object.", field="body", value=data)
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise _refuse(first, schema) from error


def _explain(data: bytes, error: orjson.JSONDecodeError) -> InputError:
    try:
        text = data.decode()
    except UnicodeDecodeError as broken:
        byte = data[broken.start]
        return InputError(
            f"body: the byte 0x{byte:02x} at {broken.start} is not UTF-8.", field="body", value=byte
        )
    where = text[error.pos : error.pos + 20]
    if number := _NOT_FINITE.match(text, max(0, error.pos - 1)):
        word = number["word"]
        return InputError(
            f"body: {word} at character {error.pos} (line {error.lineno}) is not JSON; numbers "
            "must be finite.",
            field="body",
            value=word,
        )
    return InputError(
        f"body: not JSON at line {error.lineno} column {error.colno}: {error.msg}; "
        f"there stands {shorten(where)}.",
        field="body",
        value=where,
    )


def _refuse(first: Any, schema: type[BaseModel]) -> InputError:
    field, value = _dotted(first["loc"]), first["input"]
    if first["type"] == "missing":
        return InputError(f"{field}: this field is missing.", field=field)
    if first["type"] == "extra_forbidden":
        names = (one.alias or name for name, one in schema.model_fields.items())
        known = f"; known: {', '.join(names)}" if len(first["loc"]) == 1 else ""
        return InputError(
            f"{field}: unknown field, with value {shorten(value)}{known}.", field=field, value=value
        )
    return InputError(f"{field}: {shorten(value)}: {first['msg']}.", field=field, value=value)


def _dotted(path: tuple[int | str, ...]) -> str:
    dotted = ""
    for step in path:
        dotted += f"[{step}]" if isinstance(step, int) else f".{step}"
    return dotted.removeprefix(".") or "body"
