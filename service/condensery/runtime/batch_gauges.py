"""A batcher's metrics, looked up once: a look-up costs as much as the update."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from condensery.runtime.lanes import Item, Request, Result, Ticket

if TYPE_CHECKING:
    from condensery.metrics import Metrics, Stage


def requests_of(batch: Sequence[Ticket[Item, Result]]) -> list[Request[Item, Result]]:
    """Return the requests that a batch has items of, each once."""
    return list({id(ticket.request): ticket.request for ticket in batch}.values())


class BatchGauges:
    """What one batcher counts; without metrics it counts nowhere.

    Args:
        metrics: Where to count.
        model: The label.
        stage: What its forward passes count as.
    """

    def __init__(self, metrics: "Metrics | None", model: str, stage: "Stage") -> None:
        self._metrics = metrics
        self._model = model
        self._stage = stage
        if metrics is None:
            return
        self._queue_requests = metrics.queue_requests.labels(model)
        self._queue_tokens = metrics.queue_tokens.labels(model)
        self._queue_seconds = metrics.stage_seconds.labels(model, "queue")
        self._forward_seconds = metrics.stage_seconds.labels(model, "forward")
        self._batch_tokens = metrics.batch_tokens.labels(model)
        self._batch_items = metrics.batch_items.labels(model)
        self._forwards = metrics.forwards.labels(model)

    def tell(self, requests: int, tokens: int) -> None:
        """Show what waits."""
        if self._metrics is not None:
            self._queue_requests.set(requests)
            self._queue_tokens.set(tokens)

    def runs(self) -> None:
        """Count a forward pass."""
        if self._metrics is not None:
            self._forwards.inc()

    def ran(
        self, batch: Sequence[Ticket[Any, Any]], tokens: int, started: float, seconds: float
    ) -> None:
        """Count a batch that began at ``started`` and took ``seconds``."""
        if self._metrics is None:
            return
        for request in requests_of(batch):
            self._queue_seconds.observe(started - request.arrived)
        self._forward_seconds.observe(seconds)
        self._batch_tokens.observe(tokens)
        self._batch_items.observe(len(batch))
        if self._metrics.tei is not None:
            self._metrics.tei.batch(len(batch), tokens)

    def dropped(self, *, begun: bool, cause: str) -> None:
        """Count a request whose caller has gone, or whose time ran out."""
        if self._metrics is not None:
            stage = self._stage if begun else "queue"
            self._metrics.cancelled.labels(self._model, stage, cause).inc()
