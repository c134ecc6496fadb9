"""How busy a model is, from the metrics."""

from dataclasses import dataclass

from condensery.jobs.services import Services


@dataclass(frozen=True, slots=True)
class Busy:
    """What waits for a model now.

    Attributes:
        waiting: Items in its queue.
        queue_share: Tokens in it, of those that may be, 0 to 1.
        inside: Requests in the house that have no reply yet, whatever their model.
        batch_items: Items of a forward pass, on average since the start; 0 before the first.
    """

    waiting: int
    queue_share: float
    inside: int
    batch_items: int


def how_busy(services: Services, model: str) -> Busy:
    """Return how busy a model is."""

    def read(name: str) -> float:
        return services.metrics.registry.get_sample_value(name, {"model": model}) or 0.0

    passes = read("condensery_batch_items_count")
    tokens = read("condensery_queue_tokens")
    return Busy(
        waiting=round(read("condensery_queue_requests")),
        queue_share=min(1.0, tokens / services.limits.max_queue_tokens),
        inside=services.admission.requests,
        batch_items=round(read("condensery_batch_items_sum") / passes) if passes else 0,
    )
