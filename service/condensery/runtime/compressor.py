"""The half of a pair that compresses: windows of passages into memory vectors and scores."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

from condensery.errors import CondenseryError, ModelFault
from condensery.networks.oscar_interface import CompressorNetwork, PassageWindow
from condensery.question import CompressedPassage, MemoryWindow
from condensery.runtime.batcher import RATE_MEMORY, Batcher
from condensery.runtime.queue import BatchLimits
from condensery.runtime.workers import Workers
from condensery.values import Floats

if TYPE_CHECKING:
    from condensery.metrics import Metrics


class CompressedWindow(NamedTuple):
    """What a window becomes; relevance is None where the pair has no rerank head.

    ``pointer`` is the characters of the passage that the memory points at, if it does.
    """

    memory: Floats
    relevance: float | None
    pointer: tuple[int, int] | None = None


class Compressor:
    """Compresses and scores in the same forward pass, batched with whoever else asks.

    Args:
        network: The pair's compressor, ready for packed inference.
    """

    def __init__(
        self,
        network: CompressorNetwork,
        workers: Workers,
        *,
        model: str,
        limits: BatchLimits | None = None,
        metrics: "Metrics | None" = None,
    ) -> None:
        self._network = network
        self._model = model
        self._batcher: Batcher[PassageWindow, CompressedWindow] = Batcher(
            self._forward, workers, limits=limits, model=model, stage="compress", metrics=metrics
        )
        self._spread = 0.0  # positions read for each token of a passage

    async def compress(
        self, passages: Sequence[Sequence[PassageWindow]]
    ) -> list[CompressedPassage | CondenseryError]:
        """Compress each passage; of one in several windows the best counts, or all unless scored.

        A passage any of whose windows fails has the error in its place, and harms no other.

        Raises:
            Overloaded, DeadlineExceeded, Unavailable: As ``Batcher.submit_each``.
        """
        flat = [window for windows in passages for window in windows]
        costs = [self._network.cost(window) for window in flat]
        results = iter(await self._batcher.submit_each(flat, costs))
        tokens = sum(window.tokens for window in flat)
        if tokens:
            spread, past = sum(costs) / tokens, self._spread or sum(costs) / tokens
            self._spread = RATE_MEMORY * past + (1 - RATE_MEMORY) * spread
        return [_best_window(windows, [next(results) for _ in windows]) for windows in passages]

    def expected_seconds(self, tokens: int) -> float:
        """Return about how many seconds so many tokens of passages take, at the rate so far.

        0 if nothing was compressed yet. What waits before them is left out.
        """
        rate = self._batcher.rate
        return tokens * self._spread / rate if rate else 0.0

    @torch.inference_mode()
    def _forward(self, windows: list[PassageWindow]) -> list[CompressedWindow | CondenseryError]:
        memories = self._network.compress(windows)
        vectors = memories.vectors.float().cpu()
        relevance = memories.relevance
        scores = [None] * len(windows) if relevance is None else relevance.float().cpu().tolist()
        pointers: list[tuple[int, int] | None] = [None] * len(windows)
        if memories.pointed is not None:
            stretches = memories.pointed.tolist()
            pointers = [w.pointed(*of) for w, of in zip(windows, stretches, strict=True)]
        results: list[CompressedWindow | CondenseryError] = []
        split = vectors.split(memories.counts)
        for memory, score, pointer in zip(split, scores, pointers, strict=True):
            if bool(memory.isfinite().all()) and (score is None or abs(score) < float("inf")):
                # A copy: what is kept of one passage must not keep the whole batch.
                results.append(CompressedWindow(memory.clone().numpy(), score, pointer))
            else:
                results.append(
                    ModelFault(f"{self._model}: a memory vector came out with NaN or infinity")
                )
        return results

    @property
    def busy(self) -> bool:
        """Whether anything waits for its turn."""
        return self._batcher.queued_tokens > 0

    def close(self) -> None:
        """Refuse new passages and those that wait."""
        self._batcher.close()


def _best_window(
    sources: Sequence[PassageWindow], results: Sequence[CompressedWindow | CondenseryError]
) -> CompressedPassage | CondenseryError:
    """Return a passage by its best window, by all where nothing is scored; or what failed."""
    windows: list[CompressedWindow] = []
    for result in results:
        if isinstance(result, CondenseryError):
            return result
        windows.append(result)
    tokens = sources[-1].first + sources[-1].tokens
    scores = [window.relevance for window in windows if window.relevance is not None]
    if not scores and len(windows) > 1:
        parts = tuple(
            MemoryWindow(window.memory, source.first + source.tokens, source.end)
            for window, source in zip(windows, sources, strict=True)
        )
        return CompressedPassage(
            memory=parts[0].memory,
            relevance=None,
            tokens_in=tokens,
            windows=len(windows),
            start=sources[0].start,
            end=sources[-1].end,
            parts=parts,
        )
    best = scores.index(max(scores)) if scores else 0
    return CompressedPassage(
        memory=windows[best].memory,
        relevance=windows[best].relevance,
        tokens_in=tokens,
        windows=len(windows),
        start=sources[best].start,
        end=sources[best].end,
        pointer=windows[best].pointer,
    )


class CompressorHalf(Protocol):
    """What compresses a pair's passages: ``Compressor``, whose words hold, or one elsewhere."""

    @property
    def busy(self) -> bool:
        """Whether anything waits for its turn."""

    async def compress(
        self, passages: Sequence[Sequence[PassageWindow]]
    ) -> list[CompressedPassage | CondenseryError]:
        """Compress each passage."""

    def expected_seconds(self, tokens: int) -> float:
        """Return about how long so many tokens take."""

    def close(self) -> None:
        """Refuse new passages and those that wait."""
