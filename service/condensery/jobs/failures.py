"""Why a passage could not be compressed, and what is no reason to say so."""

from dataclasses import dataclass, field

from condensery.errors import CondenseryError, DeadlineExceeded, Overloaded, Unavailable
from condensery.metrics import FallbackReason

# No fault of the compressor's: the caller must hear of it, and text would not help.
PASSED_ON = (Overloaded, Unavailable, DeadlineExceeded)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a passage could not be compressed.

    Attributes:
        cause: As the metrics name it.
        why: A few words that hold nothing of the caller's.
        message: What the caller may be shown besides.
        error: What was raised, where it is still at hand.
    """

    cause: FallbackReason
    why: str
    message: str = ""
    error: Exception | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, error: Exception) -> "Failure":
        """Make a failure of an error.

        Raises:
            Overloaded, Unavailable, DeadlineExceeded: The error itself, if it is none.
        """
        if isinstance(error, PASSED_ON):
            raise error
        message = error.message if isinstance(error, CondenseryError) else ""
        return cls("fault", type(error).__name__, message, error)
