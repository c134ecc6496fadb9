"""What both transports share: the key, trusted certificates, the timeout, refusals and retries.

A refusal becomes the error that the server raised, or another try.
"""

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from condensery import errors
from condensery.errors import CondenseryError, InputError, Overloaded, Unavailable, code_of

# How long the caller waits, in whole milliseconds: the server drops requests after that.
TIMEOUT_HEADER = "x-request-timeout-ms"


def make_auth_headers(api_key: str | None) -> dict[str, str]:
    """Return the headers, or metadata, that show the key; none without one.

    Raises:
        InputError: The key has characters that no header carries.
    """
    if api_key is None:
        return {}
    if not (api_key.isascii() and api_key.isprintable()) or not api_key.strip():
        raise InputError("api_key: a key is printable ASCII, and not empty.", field="api_key")
    return {"authorization": f"Bearer {api_key}"}


def read_ca(ca: str | Path) -> bytes:
    """Read the PEM file of the certificates that may sign a server's.

    Raises:
        InputError: It holds none, or can't be read.
    """
    try:
        content = Path(ca).read_bytes()
        make_ssl_context(content)
    except (ssl.SSLError, ValueError) as error:
        raise InputError(
            f"ca: {str(ca)!r} holds no certificate in PEM.", field="ca", value=str(ca)
        ) from error
    except OSError as error:
        raise InputError(
            f"ca: {str(ca)!r} can't be read: {error.strerror}.", field="ca", value=str(ca)
        ) from error
    return content


def make_ssl_context(ca: bytes) -> ssl.SSLContext:
    """Make the context that checks a server's certificate against those of ``ca`` only."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=ca.decode("ascii", "ignore"))
    return context


def format_milliseconds(seconds: float) -> str:
    """Write seconds as the value of ``TIMEOUT_HEADER``."""
    return str(max(1, round(min(seconds * 1000, 1e15))))


# Clients that may retry at once spread over this time, so that they don't come all together.
LEAST_SPREAD_SECONDS = 0.1

# By their names on the wire: a code over REST, the class's name over gRPC.
ERRORS_BY_NAME = {
    name: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, CondenseryError)
    for name in (code_of(kind), kind.__name__)
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """The error to raise, and the seconds after which the server asks to try again."""

    error: CondenseryError
    retry_after_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Retries:
    """How a client retries where the server is full or not ready, and says when to retry.

    It waits as long as the server says, and a random time of up to as long again: clients that were
    refused together would else come back together.

    Attributes:
        attempts: Tries in all; 1 never retries.
        longest_pause_seconds: The refusal is raised where the server asks for a longer wait.
        chance: Draws the random time; with a seed, the same each time.
    """

    attempts: int = 3
    longest_pause_seconds: float = 30.0
    chance: Random = field(default_factory=Random, compare=False, repr=False)

    @classmethod
    def of(cls, retries: "int | Retries") -> "Retries":
        """Return ``retries``, or those that try so many times again."""
        return retries if isinstance(retries, Retries) else cls(attempts=1 + retries)

    def pause(self, attempt: int, refusal: Refusal) -> float:
        """Return the seconds to wait after try number ``attempt``, or raise the refusal's error."""
        after = refusal.retry_after_seconds
        if (
            attempt >= self.attempts
            or after is None
            or not 0 <= after <= self.longest_pause_seconds
            or not isinstance(refusal.error, (Overloaded, Unavailable))
        ):
            raise refusal.error
        return after + self.chance.uniform(0.0, max(after, LEAST_SPREAD_SECONDS))


def make_refusal(
    name: str | None,
    nearest: type[CondenseryError],
    message: str,
    *,
    field: str | None = None,
    retry_after_seconds: float | None = None,
) -> Refusal:
    """Make the error called ``name``, or of class ``nearest``, known from the status."""
    kind = ERRORS_BY_NAME.get(name or "", nearest)
    if issubclass(kind, Overloaded):
        return Refusal(
            kind(message, retry_after_seconds=retry_after_seconds or 1.0), retry_after_seconds
        )
    return Refusal(kind(message, field=field), retry_after_seconds)
