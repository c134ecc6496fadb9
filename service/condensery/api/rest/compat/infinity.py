"""Infinity's list of models, with how busy each is."""

from dataclasses import dataclass, field
from typing import Literal

from starlette.requests import Request
from starlette.responses import Response

from condensery.api.rest.io import write_json
from condensery.jobs.accounting import measure_workload
from condensery.jobs.models import list_capabilities
from condensery.jobs.services import Services

# Infinity's names of capabilities, and ours.
Capability = Literal["embed", "rerank", "classify"]
INFINITY_TASKS: dict[str, Capability] = {
    "embed": "embed",
    "rerank": "rerank",
    "predict": "classify",
}


@dataclass(frozen=True, slots=True)
class Stats:
    """How busy a model is."""

    queue_fraction: float
    """Tokens that wait, of those that may, 0 to 1."""
    queue_absolute: int
    """Items that wait."""
    results_pending: int
    """Requests that the server has begun, whatever their model."""
    batch_size: int
    """Items of a forward pass, on average."""


@dataclass(frozen=True, slots=True)
class InfinityModel:
    """A running model, as Infinity shows it."""

    id: str
    object: Literal["model"] = field(init=False, default="model")
    owned_by: str = field(init=False, default="condensery")
    created: int
    backend: Literal["torch"] = field(init=False, default="torch")
    capabilities: list[Capability]
    dtype: str
    device: str
    revision: str
    """Its fingerprint."""
    stats: Stats


@dataclass(frozen=True, slots=True)
class InfinityModels:
    """Every running model, defaults first."""

    object: Literal["list"] = field(init=False, default="list")
    data: list[InfinityModel]


async def list_infinity_models(_request: Request, services: Services) -> Response:
    """List the models that serve, as Infinity does: with what waits for each."""
    capabilities = list_capabilities(services)
    data = [
        InfinityModel(
            id=info.id,
            created=info.created,
            capabilities=[
                name for task, name in INFINITY_TASKS.items() if info in capabilities[task]
            ],
            dtype=info.dtype,
            device=info.device,
            revision=info.fingerprint,
            stats=_measure_stats(services, info.id),
        )
        for info in services.registry.models()
    ]
    return write_json(InfinityModels(data))


def _measure_stats(services: Services, model: str) -> Stats:
    workload = measure_workload(services, model)
    return Stats(
        queue_fraction=workload.queue_share,
        queue_absolute=workload.waiting,
        results_pending=workload.open_requests,
        batch_size=workload.batch_items,
    )
