"""Documents compressed for a question, and the handles of what is held of them.

Vectors never leave the server, nor come in: a handle stands for them.
"""

from starlette.requests import Request
from starlette.responses import Response

from condensery.api.rest.answers import write_block
from condensery.api.rest.bodies import read_body
from condensery.api.rest.doors import reply
from condensery.api.rest.questions import documents_of
from condensery.jobs import compress as job
from condensery.jobs.accounting import account
from condensery.jobs.services import Services
from condensery.schemas_rag import CompressRequest


async def compress(request: Request, services: Services) -> Response:
    """Compress and score documents for a question, in one pass; the vectors stay here."""
    body = await read_body(request, services, CompressRequest)
    with account(services, body.model, "compress", "rest"):
        done = await job.compress(
            services,
            body.query,
            documents_of(body.documents),
            model=body.model,
            rate=body.ratio,
            keep=body.returns == "handle",
            ttl_seconds=body.ttl_s,
        )
        with services.metrics.stage(done.model, "serialize"):
            return reply(
                {
                    "id": done.id,
                    "object": "rag.compression",
                    "model": done.model,
                    "fingerprint": done.fingerprint,
                    "context": done.context,
                    "expires_at": done.expires_at,
                    "results": done.documents,
                    "compression": write_block(done.compression),
                    "usage": {"prompt_tokens": done.tokens, "total_tokens": done.tokens},
                },
                headers={"x-model": done.model, "x-model-revision": done.fingerprint},
            )


async def release(request: Request, services: Services) -> Response:
    """Let go of a context before its time is over."""
    context: str = request.path_params["name"]
    with account(services, None, "compress", "rest"):
        job.release(services, context)
        return reply({"id": context, "object": "context", "deleted": True})
