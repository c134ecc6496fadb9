"""Documents compressed for a question, and held for answers to it."""

from collections.abc import Sequence

from condensery.jobs.services import Services
from condensery.values import Compressed, Document


async def compress(
    services: Services,
    text: str,
    documents: Sequence[Document],
    *,
    model: str | None = None,
    rate: int | None = None,
    keep: bool = True,
    ttl_seconds: float = 600.0,
) -> Compressed:
    """Compress documents for a question."""
    raise NotImplementedError


def release(services: Services, context: str) -> None:
    """Let go of a context."""
    raise NotImplementedError
