"""Errors as the server raised them, rebuilt from what a transport carries; and when to retry."""

from dataclasses import dataclass

from condensery import errors
from condensery.errors import CondenseryError, Overloaded, Unavailable, code_of

# By the names they have on the wire: a code over REST, the class's own over gRPC.
KINDS = {
    name: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, CondenseryError)
    for name in (code_of(kind), kind.__name__)
}


@dataclass(frozen=True, slots=True)
class Fault:
    """A refusal: the error to raise, and the seconds after which the server asks to try again."""

    error: CondenseryError
    retry_after_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Retries:
    """How patient a client is with a server that is full, or not ready, and says until when.

    Attributes:
        attempts: Tries in all; 1 never tries again.
        longest_pause_seconds: A server that asks for more is not waited for.
    """

    attempts: int = 3
    longest_pause_seconds: float = 30.0

    @classmethod
    def of(cls, retries: "int | Retries") -> "Retries":
        """Return ``retries``, or those that try so many times again."""
        return retries if isinstance(retries, Retries) else cls(attempts=1 + retries)

    def pause(self, attempt: int, fault: Fault) -> float:
        """Return the seconds to wait after try number ``attempt``, or raise the fault's error."""
        after = fault.retry_after_seconds
        if (
            attempt >= self.attempts
            or after is None
            or not 0 <= after <= self.longest_pause_seconds
            or not isinstance(fault.error, (Overloaded, Unavailable))
        ):
            raise fault.error
        return after


def rebuild(
    name: str | None,
    nearest: type[CondenseryError],
    message: str,
    *,
    field: str | None = None,
    retry_after_seconds: float | None = None,
) -> Fault:
    """Make the error that ``name`` names, or the ``nearest`` one known from the status."""
    kind = KINDS.get(name or "", nearest)
    if issubclass(kind, Overloaded):
        return Fault(
            kind(message, retry_after_seconds=retry_after_seconds or 1.0), retry_after_seconds
        )
    return Fault(kind(message, field=field), retry_after_seconds)
