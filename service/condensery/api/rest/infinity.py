"""What Infinity's clients ask about the models: which there are, and how busy they are."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from condensery.api.rest.doors import reply
from condensery.jobs.busy import Busy, how_busy
from condensery.jobs.describe import capabilities
from condensery.jobs.services import Services
from condensery.values import ModelInfo

# Infinity's words for what models do here.
WORDS = {"embed": "embed", "rerank": "rerank", "predict": "classify"}


async def infinity_models(request: Request, services: Services) -> Response:
    """List the models that serve, as Infinity does: with what waits for each."""
    del request
    able = capabilities(services)
    data = [
        _model(
            info,
            [word for task, word in WORDS.items() if info in able[task]],
            how_busy(services, info.name),
        )
        for info in services.pool.models()
    ]
    return reply({"object": "list", "data": data})


def _model(info: ModelInfo, words: list[str], busy: Busy) -> dict[str, Any]:
    return {
        "id": info.name,
        "object": "model",
        "owned_by": "condensery",
        "created": info.created,
        "backend": "torch",
        "capabilities": words,
        "dtype": info.dtype,
        "device": info.device,
        "revision": info.fingerprint,
        "stats": {
            "queue_fraction": busy.queue_share,
            "queue_absolute": busy.waiting,
            "results_pending": busy.inside,
            "batch_size": busy.batch_items,
        },
    }
