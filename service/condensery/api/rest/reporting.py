"""One event in the log for each reply that is worth one; of the caller's it holds the id alone."""

import logging
import time

_log = logging.getLogger(__name__)


def reports_all() -> bool:
    """Say whether replies without an error are logged too."""
    return _log.isEnabledFor(logging.DEBUG)


def report(
    *,
    request_id: str,
    method: str,
    route: str,
    status: int,
    code: str,
    started: float,
    key: str = "-",
    expected: bool = False,
) -> None:
    """Log how a request ended: refusals at info, our own failures at error, the rest at debug.

    Args:
        request_id: The caller's, or made.
        method: HTTP's.
        route: The pattern of the path, since the path is the caller's text.
        status: HTTP's; 499 where the client left.
        code: The error's; "-" if there is none.
        started: When the request came, in seconds of ``time.monotonic``.
        key: The name of the key that came.
        expected: Whether a failure is what was asked for: a probe's "no".
    """
    level = logging.INFO if status >= 400 or code != "-" else logging.DEBUG
    if status >= 500 and not expected:
        level = logging.ERROR
    if not _log.isEnabledFor(level):
        return
    _log.log(
        level,
        "reply",
        extra={
            "request_id": request_id,
            "method": method,
            "route": route,
            "status": status,
            "code": code,
            "ms": round((time.monotonic() - started) * 1000, 1),
            "key": key,
        },
    )
