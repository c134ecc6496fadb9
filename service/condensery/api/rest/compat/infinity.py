"""Infinity's list of models, with how busy each is."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from condensery.api.rest.io import write_json
from condensery.jobs.accounting import Workload, measure_workload
from condensery.jobs.models import list_capabilities
from condensery.jobs.services import Services
from condensery.values import ModelInfo

# Infinity's names of capabilities, and ours.
INFINITY_TASKS = {"embed": "embed", "rerank": "rerank", "predict": "classify"}


async def list_infinity_models(_request: Request, services: Services) -> Response:
    """List the models that serve, as Infinity does: with what waits for each."""
    capabilities = list_capabilities(services)
    data = [
        _write_model(
            info,
            [name for task, name in INFINITY_TASKS.items() if info in capabilities[task]],
            measure_workload(services, info.name),
        )
        for info in services.registry.models()
    ]
    return write_json({"object": "list", "data": data})


def _write_model(info: ModelInfo, capabilities: list[str], workload: Workload) -> dict[str, Any]:
    return {
        "id": info.name,
        "object": "model",
        "owned_by": "condensery",
        "created": info.created,
        "backend": "torch",
        "capabilities": capabilities,
        "dtype": info.dtype,
        "device": info.device,
        "revision": info.fingerprint,
        "stats": {
            "queue_fraction": workload.queue_share,
            "queue_absolute": workload.waiting,
            "results_pending": workload.inside,
            "batch_size": workload.batch_items,
        },
    }
