"""What callers say of themselves, by the same rules on every door: id, key, patience."""

import math
import secrets

from condensery.errors import Forbidden, InputError, shorten
from condensery.keys import Keys, Scope

MAX_REQUEST_ID_CHARS = 128
TIMEOUT = "x-request-timeout-ms"


def request_id(given: str | None) -> str:
    """Return the caller's id if it can stand in a header and a log line, else a new one."""
    if given and given.isascii() and given.isprintable() and len(given) <= MAX_REQUEST_ID_CHARS:
        return given
    return secrets.token_hex(16)


def presented(authorization: str | None, api_key: str | None) -> str | None:
    """Return the key that came: ``Authorization``, with or without ``Bearer``, or ``x-api-key``."""
    given = (authorization or "").strip()
    scheme, _, rest = given.partition(" ")
    if scheme.lower() == "bearer":
        given = rest.strip()
    return given or (api_key or "").strip() or None


def key_name(keys: Keys, key: str | None, scope: Scope | None) -> str | None:
    """Return the name of the key that came; None where none is needed.

    Args:
        keys: The known ones.
        key: The one that came.
        scope: What it must be allowed; None takes every known key.

    Raises:
        Unauthenticated, Forbidden: As the keys say.
    """
    if scope is not None:
        return keys.check(key, scope)
    try:
        return keys.check(key, "infer")
    except Forbidden:  # a key without `infer`, or `admin`, has what is left
        return keys.check(key, "index-write")


def patience(given: str | None) -> float:
    """Return the seconds that a caller waits; infinite where none are named.

    Args:
        given: Milliseconds, as the header ``TIMEOUT`` has them.

    Raises:
        InputError: There is no such time.
    """
    if given is None:
        return math.inf
    digits = given.strip()
    if not (digits.isascii() and digits.isdigit()) or not digits.strip("0"):
        raise InputError(
            f"{TIMEOUT}: {shorten(given)} is not a whole number of milliseconds from 1 up.",
            field=TIMEOUT,
            value=given,
        )
    return int(digits.lstrip("0")[:18]) / 1000  # 18 digits are for ever, and so are more
