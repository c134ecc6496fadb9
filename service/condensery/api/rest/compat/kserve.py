"""KServe's v2 health and metadata (its Open Inference Protocol); inference is by other routes."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

import condensery
from condensery.api.rest.io import write_json
from condensery.api.rest.models import check_live, check_ready, find_model
from condensery.jobs.services import Services
from condensery.values import ModelInfo


async def kserve_live(_request: Request, services: Services) -> Response:
    """Say whether the process is worth keeping, as KServe asks."""
    check_live(services)
    return write_json({"live": True})


async def kserve_ready(_request: Request, services: Services) -> Response:
    """Say whether requests should come, as KServe asks."""
    check_ready(services)
    return write_json({"ready": True})


async def kserve_server(_request: Request, _services: Services) -> Response:
    """Describe the server, as KServe asks."""
    return write_json(
        {
            "name": "condensery",
            "version": condensery.__version__,
            "extensions": ["model_repository"],
        }
    )


async def kserve_model(request: Request, services: Services) -> Response:
    """Describe one model, as KServe asks; its version is the store's."""
    info = find_model(services, request.path_params["name"])
    inputs, outputs = _tensors(info)
    return write_json(
        {
            "name": info.name,
            "versions": [info.version or info.fingerprint],
            "platform": f"condensery_{info.kind}",
            "inputs": inputs,
            "outputs": outputs,
        }
    )


async def kserve_model_ready(request: Request, services: Services) -> Response:
    """Say whether one model serves, as KServe asks."""
    info = find_model(services, request.path_params["name"])
    check_ready(services)
    return write_json({"name": info.name, "ready": True})


def _tensors(info: ModelInfo) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return what the model takes and gives; -1 is any number."""
    if info.dims is not None:  # it gives vectors
        return [_tensor("input", "BYTES", -1)], [_tensor("embedding", "FP32", -1, info.dims)]
    inputs = [_tensor("query", "BYTES", 1), _tensor("documents", "BYTES", -1)]
    return inputs, [_tensor("relevance_score", "FP32", -1), _tensor("answer", "BYTES", 1)]


def _tensor(name: str, datatype: str, *shape: int) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": list(shape)}
