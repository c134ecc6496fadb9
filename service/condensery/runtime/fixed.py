"""An engine's steps of single tokens in fixed shapes, made ready before anything is served."""

import logging
from typing import TYPE_CHECKING

from condensery.networks.caching import Cache
from condensery.networks.decoding import Decoder
from condensery.networks.stepping import Stepper
from condensery.runtime.workers import Job

if TYPE_CHECKING:
    from condensery.metrics import Metrics

_log = logging.getLogger(__name__)


class FixedSteps:
    """A decoder that the first free worker prepares; until then, and if it fails, there is none.

    Steps then run as they are, slower by what launching their kernels costs; it is logged and
    counted.

    Args:
        stepper: The model.
        cache: The engine's.
        sequences: Most of them in a step.
        model: Name in metrics and logs.
        metrics: Where to count.

    Attributes:
        decoder: What runs them, once it is ready.
    """

    def __init__(
        self,
        stepper: Stepper,
        cache: Cache,
        sequences: int,
        *,
        model: str,
        metrics: "Metrics | None" = None,
    ) -> None:
        self.decoder: Decoder | None = None
        self._stepper = stepper
        self._cache = cache
        self._sequences = sequences
        self._model = model
        self._metrics = metrics
        self._begun = False

    def job(self) -> Job | None:
        """Return what prepares the decoder, the first time; the caller holds the workers' lock."""
        if self._begun:
            return None
        self._begun = True
        return Job(run=self._prepare, fail=self._failed, long=True)

    def _prepare(self) -> None:
        try:
            decoder = self._stepper.decoder(self._cache, self._sequences)
            decoder.prepare()
        except Exception as error:  # capturing may raise anything, and serving goes on without
            self._failed(type(error).__name__, error)
            return
        self.decoder = decoder
        graphs = len(decoder.sizes) if self._cache.device.type == "cuda" else 0
        _log.info("decode_ready", extra={"model": self._model, "graphs": graphs})
        if self._metrics is not None:
            self._metrics.decode_graphs.labels(self._model).set(graphs)

    def _failed(self, reason: str, error: Exception | None = None) -> None:
        # of graphs that are captured before anybody's text is read
        told = {} if error is None else {"detail": str(error)}
        fields = {"model": self._model, "reason": reason, **told}
        _log.warning("decode_graphs_failed", extra=fields, exc_info=error)
        if self._metrics is not None:
            self._metrics.decode_graph_failures.labels(self._model).inc()
