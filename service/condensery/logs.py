"""Logs: one event a line, on stderr, and under a fault's event where it was raised.

No text of users is logged. The message of an exception may hold some: ours quote the value that is
wrong, and so do Python's and other people's. So of an exception its type and its stack are logged,
and never its message; what is known to hold nothing of a user's goes into fields of the event.
"""

import asyncio
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from condensery.request_context import RequestContext, served_request

SLOW_MILLISECONDS = 10_000.0
SLOW_LINE_SECONDS = 1.0  # at most one slow request a second is logged

_log = logging.getLogger(__name__)


def configure_logging(level: str) -> None:
    """Write events to stderr as ``time level event key=value ...``; no text of users is logged.

    So are exceptions that nobody caught, in any thread, which Python would print whole.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(EventFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Uvicorn's own lines ("Started server process") say what we say already.
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, root.level))
    # A line for each request to a server that writes answers, and at debug its headers.
    for library in ("httpx", "httpcore"):
        logging.getLogger(library).setLevel(max(logging.WARNING, root.level))
    # Warns of each form that is none, which is refused; a debug line for each piece of one.
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
    sys.excepthook = lambda kind, error, trace: _log.critical("uncaught", exc_info=error)
    sys.unraisablehook = lambda args: _log.error("unraisable", exc_info=args.exc_value)
    threading.excepthook = _log_thread_fault


def _log_thread_fault(args: threading.ExceptHookArgs) -> None:
    if args.exc_type is not SystemExit:  # by which a thread may end itself
        _log.error("thread_failed", exc_info=args.exc_value)


def log_loop_fault(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what nobody awaited, or what failed in a callback: an event loop's exception handler.

    The loop's own message names the task or the callback, with its result or its arguments.
    """
    error = context.get("exception")
    fields = {} if error is not None else {"reason": context.get("message")}
    _log.error("loop_fault", extra=fields, exc_info=error)


def describe_exception(error: BaseException) -> str:
    """Return an exception's type and stack, and those of what led to it; no message."""
    return "\n".join(_describe_lines(error, set()))


def _describe_lines(error: BaseException, seen: set[int]) -> Iterator[str]:
    seen.add(id(error))
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None and id(cause) not in seen:
        yield from _describe_lines(cause, seen)
        yield "which led to:"
    yield "Traceback (most recent call last):"
    for line in traceback.format_tb(error.__traceback__):
        yield line.rstrip("\n")
    kind = type(error)
    number = error.errno if isinstance(error, OSError) else None
    why = f": {os.strerror(number)}" if isinstance(number, int) else ""
    yield f"{kind.__module__}.{kind.__qualname__}{why}"
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            if id(member) not in seen:
                yield "of which one is:"
                yield from _describe_lines(member, seen)


class EventFormatter(logging.Formatter):
    """One line an event, and under it where its exception was raised.

    What happens while a request is served has its id, and its trace's where requests are traced.
    """

    _OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, and the exception's type and stack under it if there is one."""
        named = {
            name: value
            for name, value in vars(record).items()
            if name not in self._OWN and not name.startswith("_")  # Ray puts its own to each
        }
        if (request := served_request()) is not None:
            named = {**named, **{k: v for k, v in request.log_fields.items() if k not in named}}
        fields = [f"{name}={value!r}" for name, value in named.items()]
        stamp = self.formatTime(record, "%Y-%m-%dT%H:%M:%S")
        line = " ".join([stamp, record.levelname.lower(), record.getMessage(), *fields])
        error = record.exc_info[1] if record.exc_info else None
        return line if error is None else f"{line}\n{describe_exception(error)}"


class SlowRequests:
    """Logs requests that took long: where their time went and on how much, never their text.

    Args:
        least_ms: What counts as long, milliseconds; 0 logs none.
        clock: Seconds, as ``RequestContext.started`` has them.
    """

    def __init__(
        self, least_ms: float = SLOW_MILLISECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._least_ms = least_ms
        self._clock = clock
        self._logged = -SLOW_LINE_SECONDS
        self._unlogged = 0  # since the last line

    def took_long(self, call: RequestContext) -> bool:
        """Whether a request that is over may be worth a line."""
        return 0 < self._least_ms <= 1000 * (self._clock() - call.started)

    def log(self, call: RequestContext, *, transport: str, route: str, status: int | str) -> None:
        """Log a request that is over, if it took long and no other was logged just now.

        Args:
            transport: "rest" or "grpc".
            route: The pattern of its path, or its method; the path itself is the caller's text.
            status: What it ended with: an HTTP status or a gRPC code.
        """
        if not self.took_long(call):
            return
        now = self._clock()
        if now - self._logged < SLOW_LINE_SECONDS:
            self._unlogged += 1
            return
        stats = call.stats
        stages = {
            **stats.stages,
            "tokenize": stats.tokenizing,
            "queue": stats.queued,
            "forward": stats.forward_seconds,
        }
        _log.warning(
            "slow_request",
            extra={
                **call.log_fields,
                "door": transport,
                "route": route,
                "status": status,
                "ms": round(1000 * (now - call.started), 1),
                **{f"{name}_ms": round(1000 * stages[name], 1) for name in sorted(stages)},
                "items": stats.inputs,
                "passages": stats.passages,
                "tokens": stats.tokens,
                "tokens_generated": stats.generated,
                "slow_unlogged": self._unlogged,
            },
        )
        self._logged, self._unlogged = now, 0
