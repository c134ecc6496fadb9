"""The same question answered from vectors and from text."""

from condensery.jobs.services import Services
from condensery.questions import Question
from condensery.values import Comparison


async def compare(services: Services, question: Question) -> Comparison:
    """Answer a question from memory vectors and from the passages' own text."""
    raise NotImplementedError
