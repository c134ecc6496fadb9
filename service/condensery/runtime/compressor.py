"""A running compressor: passages, read for a question, to memory vectors and scores."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from condensery.errors import CondenseryError, ModelFault
from condensery.networks.oscar import OscarPair
from condensery.networks.oscar_packing import Pairing, length, pack
from condensery.networks.windows import windows
from condensery.runtime.batcher import Batcher, Limits
from condensery.runtime.pieces import Pieces, PieceTokenizer
from condensery.runtime.workers import Workers
from condensery.values import CompressedPassage, Floats

if TYPE_CHECKING:
    from condensery.metrics import Metrics


class Window(NamedTuple):
    """What one pairing gives."""

    memory: Floats
    relevance: float


class Compressor:
    """Compresses and scores in the same forward pass, batched with whoever else asks.

    Args:
        pair: The networks, ready for packed inference.
        tokenizer: The pair's.
        workers: Where batches run.
        model: Name in metrics and messages.
        limits: Of a batch and of the queue.
        metrics: Where to count.
    """

    def __init__(
        self,
        pair: OscarPair,
        tokenizer: PieceTokenizer,
        workers: Workers,
        *,
        model: str,
        limits: Limits | None = None,
        metrics: "Metrics | None" = None,
    ) -> None:
        self._pair = pair
        self._shape = pair.shape
        self._words = pair.generator.words
        self._specials = tokenizer.specials
        self._model = model
        self._batcher: Batcher[Pairing, Window] = Batcher(
            self._forward, workers, limits=limits, model=model, stage="compress", metrics=metrics
        )

    async def compress(
        self, question: Sequence[int], passages: Sequence[Pieces]
    ) -> list[CompressedPassage]:
        """Compress each passage; one longer than a window is read in several, the best counts.

        Args:
            question: Its word pieces, at most ``query_tokens``.
            passages: Their word pieces with character offsets.
        """
        cuts = [windows(len(p.ids), self._shape.passage_tokens) for p in passages]
        pairings = [
            Pairing(question, passage.ids[start:end])
            for passage, spans in zip(passages, cuts, strict=True)
            for start, end in spans
        ]
        found = iter(
            await self._batcher.submit(pairings, [length(p, self._shape) for p in pairings])
        )
        compressed = []
        for passage, spans in zip(passages, cuts, strict=True):
            seen = [next(found) for _ in spans]
            best = max(range(len(seen)), key=lambda i: seen[i].relevance)
            first, last = spans[best]
            compressed.append(
                CompressedPassage(
                    memory=seen[best].memory,
                    relevance=seen[best].relevance,
                    tokens_in=len(passage.ids),
                    windows=len(spans),
                    start=passage.offsets[first][0] if last > first else 0,
                    end=passage.offsets[last - 1][1] if last > first else 0,
                )
            )
        return compressed

    @torch.inference_mode()
    def _forward(self, pairings: list[Pairing]) -> list[Window | CondenseryError]:
        given = pack(
            pairings,
            self._shape,
            self._specials,
            self._pair.compressor.slot_positions,
            dtype=self._words.dtype,
            device=self._words.device,
        )
        out = self._pair.compressor(given, self._words)
        memory: Floats = out.memory.float().cpu().numpy()
        relevance: Floats = out.relevance.cpu().numpy()
        finite = np.isfinite(memory).all(axis=(1, 2)) & np.isfinite(relevance)
        return [
            Window(vectors, float(score))
            if whole
            else ModelFault(f"{self._model}: a memory vector came out with NaN or infinity")
            for vectors, score, whole in zip(memory, relevance, finite, strict=True)
        ]

    def close(self) -> None:
        """Refuse new passages and those that wait."""
        self._batcher.close()
