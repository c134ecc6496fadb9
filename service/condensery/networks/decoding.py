"""Steps of single tokens in fixed shapes, on CUDA as captured graphs.

A token of one sequence is a thousand small kernels, which take longer to launch than to run: a
graph launches them all at once. It holds addresses, so its inputs lie in buffers that stay.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from condensery.networks.caching import BLOCK, Cache, Span, Step
from condensery.networks.paging import Tokens

# Of scores, in steps of either kind. In bf16 they differ by rounding (cosine 0.999); a wrong mask
# or position costs far more.
AGREEMENT = 0.99
WARM_UPS = 2  # libraries choose kernels and take memory at their first runs, which no graph may


class Runner(Protocol):
    """What runs a step: a ``Stepper``."""

    longest: int
    width: int

    @property
    def dtype(self) -> torch.dtype:
        """Of the embeddings."""
        ...

    def run(self, embeds: Tensor, step: Any) -> Tensor:
        """Run a step's rows (total, hidden); returns their last hidden states."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Score every token after the given states, fp32."""
        ...


class Decoder:
    """Runs single tokens of up to ``rows`` sequences, padded to a power of two.

    Args:
        runner: The model.
        cache: What is read and written.
        rows: Most sequences in a step.

    Attributes:
        sizes: What steps are padded to.
        runs: Steps so far.
    """

    def __init__(self, runner: Runner, cache: Cache, rows: int) -> None:
        self.sizes = [1 << power for power in range((rows - 1).bit_length() + 1)]
        self.runs = 0
        self._runner = runner
        self._lock = threading.Lock()  # all steps share their buffers
        most = self.sizes[-1]
        self._tokens = Tokens(cache, most, min(runner.longest, cache.positions))
        self._embeds = torch.zeros(most, runner.width, dtype=runner.dtype, device=cache.device)
        self._scores: Tensor | None = None
        self._steps: dict[int, Callable[[], None]] = {}
        for size in self.sizes:
            self._steps[size] = self._step(size)

    def _step(self, size: int) -> Callable[[], None]:
        tokens, embeds = self._tokens.first(size), self._embeds[:size]

        def step() -> None:
            scores = self._runner.logits(self._runner.run(embeds, tokens))
            if self._scores is None:
                self._scores = scores.new_empty(self.sizes[-1], scores.shape[-1])
            self._scores[:size].copy_(scores)

        return step

    @torch.inference_mode()
    def prepare(self) -> None:
        """Capture a graph of each size, on CUDA, and see that steps give what they should; once.

        Raises:
            Exception: Whatever capturing raises, or a ``ValueError``: the decoder can't be used.
        """
        if self._embeds.is_cuda:
            with torch.cuda.device(self._embeds.device):
                self._capture()
        spot = self._tokens.cache.spare * BLOCK + np.arange(BLOCK)
        last = BLOCK - 1
        source = torch.Generator().manual_seed(0)
        probe = torch.randn(BLOCK, self._runner.width, generator=source).to(self._embeds)
        cache = self._tokens.cache
        self._runner.run(probe[:last], Step(cache, [Span(spot, 0, last)]))
        token = Span(spot, last, 1)
        wanted = self._runner.logits(self._runner.run(probe[last:], Step(cache, [token])))
        for size in self.sizes:
            actual = self.run(probe[last:].expand(size, -1), [token] * size)
            assert actual is not None
            agreement = nn.functional.cosine_similarity(actual, wanted).min().item()
            # Not `<`: a NaN must be refused as well.
            if not agreement >= AGREEMENT:
                raise ValueError(
                    f"{size} tokens in fixed shapes give other scores (cosine {agreement:.3f})"
                )

    def _capture(self) -> None:
        self._tokens.fill([])
        graphs: dict[int, Callable[[], None]] = {}
        pool = None
        side = torch.cuda.Stream(self._embeds.device)
        # The largest first: the memory that it needs is enough for all others.
        for size in reversed(self.sizes):
            side.wait_stream(torch.cuda.current_stream(side.device))
            with torch.cuda.stream(side):
                for _ in range(WARM_UPS):
                    self._steps[size]()
            torch.cuda.current_stream(side.device).wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            # By thread: what others do on the device meanwhile is none of the graph's business.
            with torch.cuda.graph(graph, pool=pool, stream=side, capture_error_mode="thread_local"):
                self._steps[size]()
            pool = pool or graph.pool()
            graphs[size] = graph.replay
        self._steps = graphs

    @torch.inference_mode()
    def run(self, embeds: Tensor, spans: Sequence[Span]) -> Tensor | None:
        """Run a token of each sequence; returns the scores of what comes next, fp32.

        Args:
            embeds: Of the tokens, (sequences, hidden).
            spans: Their sequences', a row each.

        Returns:
            (sequences, vocabulary); None if it can't: there are too many, or another step, of a
            thread that hangs perhaps, is in it.
        """
        count = len(spans)
        if count > self.sizes[-1] or not self._lock.acquire(blocking=False):
            return None
        try:
            size = next(size for size in self.sizes if size >= count)
            self._tokens.first(size).fill(spans)
            self._embeds[:count].copy_(embeds)
            self._steps[size]()
            self.runs += 1
            assert self._scores is not None
            return self._scores[:count].clone()
        finally:
            self._lock.release()
