"""An engine's metrics, looked up once: a look-up costs as much as the update."""

from typing import TYPE_CHECKING

from condensery.runtime.sequences import Generation

if TYPE_CHECKING:
    from condensery.metrics import Metrics


class EngineGauges:
    """What one engine counts; without metrics it counts nowhere.

    Args:
        metrics: Where to count.
        model: The label.
        positions: Of the cache.
    """

    def __init__(self, metrics: "Metrics | None", model: str, positions: int) -> None:
        self._metrics = metrics
        if metrics is None:
            return
        metrics.cache_positions.labels(model, "limit").set(positions)
        self._used = metrics.cache_positions.labels(model, "used")
        self._running = metrics.sequences.labels(model, "running")
        self._waiting = metrics.sequences.labels(model, "waiting")
        self._queue_seconds = metrics.stage_seconds.labels(model, "queue")
        self._step_tokens = metrics.step_tokens.labels(model)
        self._inter_token = metrics.inter_token_seconds.labels(model)

    def tell(self, running: int, waiting: int, used: int) -> None:
        """Show how much runs and waits, and the positions taken."""
        if self._metrics is not None:
            self._running.set(running)
            self._waiting.set(waiting)
            self._used.set(used)

    def began(self, waited: float) -> None:
        """Count the seconds that a sequence waited for room."""
        if self._metrics is not None:
            self._queue_seconds.observe(waited)

    def ran(self, tokens: int) -> None:
        """Count a step."""
        if self._metrics is not None:
            self._step_tokens.observe(tokens)

    def chosen(self, generation: Generation) -> None:
        """Count the time since the sequence's token before."""
        seconds = generation.told_after()
        if self._metrics is not None and seconds is not None:
            self._inter_token.observe(seconds)
