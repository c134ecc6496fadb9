"""What calls share: documents read beside the loop, and replies written under a stage's clock."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from google.protobuf.message import Message

from condensery.api.grpc import messages
from condensery.jobs.checks import check_count
from condensery.jobs.services import Services
from condensery.stubs import condensery_v1_pb2 as pb
from condensery.values import Document


class Done(Protocol):
    """What a job returns that a model did."""

    @property
    def model(self) -> str:
        """The model's name."""
        ...


Found = TypeVar("Found", bound=Done)


async def read_documents(
    services: Services, given: Sequence[pb.Document], most: int
) -> list[Document]:
    """Read documents, which millions of empty ones never become: that would take half a minute."""
    check_count(given, "documents", most)
    # Two thousand documents' metadata takes 50 ms, in which others want their turn.
    return await asyncio.to_thread(messages.documents, given, services.limits.max_json_depth)


def write(services: Services, found: Found, message_of: Callable[[Found], Message]) -> bytes:
    """Write what a job found."""
    with services.metrics.stage(found.model, "serialize"):
        return message_of(found).SerializeToString()
