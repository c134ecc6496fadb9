"""The same question answered from vectors and from the passages' own text."""

from starlette.requests import Request
from starlette.responses import Response

from condensery.api.rest.answers import write_answer
from condensery.api.rest.bodies import read_body
from condensery.api.rest.doors import reply
from condensery.api.rest.questions import question_of
from condensery.jobs import compare as job
from condensery.jobs.accounting import account
from condensery.jobs.services import Services
from condensery.schemas_rag import CompareRequest


async def compare(request: Request, services: Services) -> Response:
    """Answer a question from vectors and from the passages' own text, and compare."""
    body = await read_body(request, services, CompareRequest)
    with account(services, body.model, "compare", "rest") as counted:
        both = await job.compare(services, question_of(body))
        counted.model = both.compressed.model  # a context names its pair
        with services.metrics.stage(both.compressed.model, "serialize"):
            return reply(
                {
                    "object": "rag.comparison",
                    "compressed": write_answer(both.compressed),
                    "plain": write_answer(both.plain),
                    "agreement": {"exact": both.exact, "f1": both.f1, "cosine": both.cosine},
                    "speedup": both.speedup,
                    "flops_saved": both.flops_saved,
                },
                headers={"x-model": both.compressed.model},
            )
