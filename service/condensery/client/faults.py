"""Errors as the server raised them, rebuilt from what a transport carries; and when to retry."""

import random
from dataclasses import dataclass, field

from condensery import errors
from condensery.errors import CondenseryError, Overloaded, Unavailable, code_of

# Of clients that are told to come back at once, each comes within this time, not all together.
LEAST_SPREAD_SECONDS = 0.1

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

    It comes back no sooner than the server says, and at random up to as long again later: those who
    were refused together would else come back together.

    Attributes:
        attempts: Tries in all; 1 never tries again.
        longest_pause_seconds: A server that asks for more is not waited for.
        chance: Draws how much later; with a seed, the same each time.
    """

    attempts: int = 3
    longest_pause_seconds: float = 30.0
    chance: random.Random = field(default_factory=random.Random, compare=False, repr=False)

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
        return after + self.chance.uniform(0.0, max(after, LEAST_SPREAD_SECONDS))


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
