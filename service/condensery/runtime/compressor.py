"""A running compressor: passages, read for a question, to memory vectors and scores."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from condensery.answers import CompressedPassage, MemoryWindow
from condensery.errors import CondenseryError, ModelFault
from condensery.networks.oscar_interface import CompressorNetwork, Reading
from condensery.runtime.batcher import RATE_MEMORY, Batcher
from condensery.runtime.limits import Limits
from condensery.runtime.workers import Workers
from condensery.values import Floats

if TYPE_CHECKING:
    from condensery.metrics import Metrics


class Window(NamedTuple):
    """What one reading gives; relevance is None where the pair has no rerank head."""

    memory: Floats
    relevance: float | None


class Compressor:
    """Compresses and scores in the same forward pass, batched with whoever else asks.

    Args:
        network: The pair's compressor, ready for packed inference.
        workers: Where batches run.
        model: Name in metrics and messages.
        limits: Of a batch and of the queue.
        metrics: Where to count.
    """

    def __init__(
        self,
        network: CompressorNetwork,
        workers: Workers,
        *,
        model: str,
        limits: Limits | None = None,
        metrics: "Metrics | None" = None,
    ) -> None:
        self._network = network
        self._model = model
        self._batcher: Batcher[Reading, Window] = Batcher(
            self._forward, workers, limits=limits, model=model, stage="compress", metrics=metrics
        )
        self._spread = 0.0  # positions read for each token of a passage

    async def compress(
        self, passages: Sequence[Sequence[Reading]]
    ) -> list[CompressedPassage | CondenseryError]:
        """Compress each passage; of one in several windows the best counts, or all unless scored.

        A passage any of whose windows fails has the error in its place, and harms no other.

        Args:
            passages: The windows of each.

        Raises:
            Overloaded, DeadlineExceeded, Unavailable: As ``Batcher.submit_each``.
        """
        readings = [reading for windows in passages for reading in windows]
        costs = [self._network.cost(reading) for reading in readings]
        found = iter(await self._batcher.submit_each(readings, costs))
        tokens = sum(reading.tokens for reading in readings)
        if tokens:
            spread, past = sum(costs) / tokens, self._spread or sum(costs) / tokens
            self._spread = RATE_MEMORY * past + (1 - RATE_MEMORY) * spread
        return [_best(windows, [next(found) for _ in windows]) for windows in passages]

    def expects(self, tokens: int) -> float:
        """Return about how many seconds so many tokens of passages take, at the rate so far.

        0 if nothing was compressed yet. What waits before them is left out.
        """
        rate = self._batcher.rate
        return tokens * self._spread / rate if rate else 0.0

    @torch.inference_mode()
    def _forward(self, readings: list[Reading]) -> list[Window | CondenseryError]:
        memories = self._network.compress(readings)
        vectors = memories.vectors.float().cpu()
        found = memories.relevance
        scores = [None] * len(readings) if found is None else found.float().cpu().tolist()
        windows: list[Window | CondenseryError] = []
        for memory, score in zip(vectors.split(memories.counts), scores, strict=True):
            if bool(memory.isfinite().all()) and (score is None or abs(score) < float("inf")):
                # A copy: what is kept of one passage must not keep the whole batch.
                windows.append(Window(memory.clone().numpy(), score))
            else:
                windows.append(
                    ModelFault(f"{self._model}: a memory vector came out with NaN or infinity")
                )
        return windows

    @property
    def busy(self) -> bool:
        """Whether anything waits for its turn."""
        return self._batcher.queued_tokens > 0

    def close(self) -> None:
        """Refuse new passages and those that wait."""
        self._batcher.close()


def _best(
    readings: Sequence[Reading], seen: Sequence[Window | CondenseryError]
) -> CompressedPassage | CondenseryError:
    """Return a passage by its best window, by all where nothing is scored; or what failed."""
    windows: list[Window] = []
    for one in seen:
        if isinstance(one, CondenseryError):
            return one
        windows.append(one)
    tokens = readings[-1].first + readings[-1].tokens
    scores = [window.relevance for window in windows if window.relevance is not None]
    if not scores and len(windows) > 1:
        parts = tuple(
            MemoryWindow(window.memory, reading.first + reading.tokens, reading.end)
            for window, reading in zip(windows, readings, strict=True)
        )
        return CompressedPassage(
            memory=parts[0].memory,
            relevance=None,
            tokens_in=tokens,
            windows=len(windows),
            start=readings[0].start,
            end=readings[-1].end,
            parts=parts,
        )
    best = scores.index(max(scores)) if scores else 0
    return CompressedPassage(
        memory=windows[best].memory,
        relevance=windows[best].relevance,
        tokens_in=tokens,
        windows=len(windows),
        start=readings[best].start,
        end=readings[best].end,
    )
