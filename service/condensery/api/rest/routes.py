"""Every route in one table: what answers, who may ask, how its errors look."""

from condensery.api.rest import ops
from condensery.api.rest.routes_indexes import INDEXES, UPKEEP
from condensery.api.rest.routes_inference import ANSWERS, INFERENCE
from condensery.api.rest.routes_models import ABOUT, HEALTH, KSERVE_REPOSITORY
from condensery.api.rest.routing import Route


def sections(*, open_metrics: bool = False) -> dict[str, tuple[Route, ...]]:
    """Return the table, in the sections of its description.

    Args:
        open_metrics: Whether metrics need no key where others do.
    """
    metrics = Route(
        *("GET", "/metrics", ops.metrics, None, "open" if open_metrics else "any"),
        media="text/plain",
        vital=True,
    )
    return {
        "Inference": INFERENCE,
        "Answers": ANSWERS,
        "Keeping indexes": UPKEEP,
        "Indexes": INDEXES,
        "About": (*ABOUT, *KSERVE_REPOSITORY),
        "Health and metrics": (*HEALTH, metrics),
    }
