"""What can go wrong over REST, as our errors."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from condensery import errors
from condensery.client.faults import Fault, rebuild
from condensery.errors import CondenseryError, DeadlineExceeded, InputError, Unavailable

# Where a reply names no class of ours, its status is all there is to go by.
NEAREST: dict[int, type[CondenseryError]] = {
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


def read_fault(reply: httpx.Response) -> Fault:
    """Read a refusal whose body was read: ours, or whatever a proxy put in its place."""
    try:
        body = json.loads(reply.content)
    except ValueError:
        body = None
    told = body.get("error") if isinstance(body, dict) else None
    nearest = NEAREST.get(reply.status_code, CondenseryError)
    after = _retry_after(reply.headers)
    if isinstance(told, dict) and isinstance(told.get("message"), str):
        return rebuild(
            told.get("code"),
            nearest,
            told["message"],
            field=told.get("param"),
            retry_after_seconds=after,
        )
    text = told if isinstance(told, str) else f"{reply.url} answered {reply.status_code}"
    return rebuild(None, nearest, text, retry_after_seconds=after)


def write_body(body: Any) -> bytes | None:
    """Write a request's body; raises InputError for what JSON can't hold (NaN, lone surrogates)."""
    if body is None:
        return None
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except ValueError as error:
        raise InputError(f"the request can't be written as JSON: {error}") from error


@contextmanager
def sending(url: str) -> Iterator[None]:
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
def reading(url: str) -> Iterator[None]:
    """Turn a reply that is not of our shape into an error that says whose it is."""
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
