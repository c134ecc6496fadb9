"""What the doors hand to every job: the running parts and their limits, in one value."""

from dataclasses import dataclass, field

from condensery.jobs.ports import Indexes, Pool
from condensery.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may ask for.

    Attributes:
        max_items: Texts, passages or documents in one request.
        max_body_bytes: Bytes of one request, REST body and gRPC message alike.
        chars_per_token: An input over ``max_tokens`` of its model times this many characters is
            refused; a shorter one that is too long in tokens is truncated and reported.
        max_top_k: Passages that one query may return.
        max_answer_documents: Passages that one answer may read.
        max_answer_tokens: Tokens that one answer may have.
        passage_tokens: Tokens of a passage that a long document is split into, special ones
            counted.
        passage_overlap: Tokens that a passage repeats of the one before it.
    """

    max_items: int = 2048
    max_body_bytes: int = 8 * 2**20
    chars_per_token: int = 250
    max_top_k: int = 100
    max_answer_documents: int = 100
    max_answer_tokens: int = 512
    passage_tokens: int = 128
    passage_overlap: int = 16


@dataclass(slots=True)
class Health:
    """Whether requests should come, and why not. The composition root changes it.

    Attributes:
        ready: Default models are loaded and the server is not draining.
        reason: For people: "starting", "ready", "draining", ...
    """

    ready: bool = False
    reason: str = "starting"

    def set(self, ready: bool, reason: str) -> None:
        """Change both at once."""
        self.ready, self.reason = ready, reason


@dataclass(frozen=True, slots=True)
class Services:
    """The parts that jobs use."""

    pool: Pool
    indexes: Indexes
    metrics: Metrics
    limits: Limits = field(default_factory=Limits)
    health: Health = field(default_factory=Health)
