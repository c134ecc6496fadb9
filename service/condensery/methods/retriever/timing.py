"""How fast an encoder is beside its parent, both as they are served, on real texts."""

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from condensery.methods.trainer.batching import EVALUATED_TOKENS, Tokens, in_batches
from condensery.methods.trainer.reports import table
from condensery.networks.backbone import Backbone
from condensery.networks.pooling import Pooling, normalise

PARENT, CHILD = "parent", "model"
ROUNDS = 7
BATCH, TIMED_BATCHES, TIMED_SINGLES = 64, 4, 24
Reader = Callable[[Sequence[Tokens]], NDArray[np.float32]]


class Vectors:
    """A backbone's vectors of tokens, of length 1, without gradients.

    Args:
        backbone: As it is served.
        pooling: Of token vectors.
    """

    def __init__(self, backbone: Backbone, pooling: Pooling) -> None:
        self._backbone, self._pooling = backbone, pooling

    def __call__(self, rows: Sequence[Tokens]) -> NDArray[np.float32]:
        """Return (rows, dims)."""

        def read(part: list[Tokens]) -> Tensor:
            hidden, packing = self._backbone.read([row.ids for row in part], pooling=self._pooling)
            return normalise(self._backbone.pool(hidden, packing, self._pooling)).cpu()

        vectors: NDArray[np.float32] = in_batches(rows, EVALUATED_TOKENS, read).numpy()
        return vectors

    @torch.no_grad()
    def read(self, rows: Sequence[Tokens]) -> tuple[Tensor, Tensor]:
        """Return the last hidden states (tokens, dims) of a batch, and vectors (rows, dims)."""
        hidden, packing = self._backbone.read([row.ids for row in rows])
        vectors = normalise(self._backbone.pool(hidden, packing, self._pooling))
        return hidden[: sum(packing.lengths)].float(), vectors


def compare_speed(
    readers: Mapping[str, Reader], rows: Sequence[Tokens], rounds: int
) -> dict[str, Any]:
    """Time both on real texts, in turns, medians: 64 at once, and one at a time.

    In process, on all threads of the device's own.
    """
    texts = [*rows][: BATCH * TIMED_BATCHES]
    batches = [texts[at : at + BATCH] for at in range(0, len(texts), BATCH)]
    singles = [[row] for row in texts[:TIMED_SINGLES]]
    seconds: dict[str, dict[str, list[float]]] = {}
    for number in range(rounds + 1):  # the first round is not counted
        for name, read in readers.items():
            for kind, parts in (("batch_64", batches), ("batch_1", singles)):
                spent = _timed(read, parts)
                if number:
                    seconds.setdefault(kind, {}).setdefault(name, []).append(spent)
    report: dict[str, Any] = {}
    for kind, by_model in seconds.items():
        count = len(texts) if kind == "batch_64" else len(singles)
        medians = {name: median(values) for name, values in by_model.items()}
        report[kind] = {
            "texts": count,
            "tokens": sum(len(row.ids) for row in texts[:count]),
            "seconds": medians,
            "texts_a_second": {name: count / value for name, value in medians.items()},
            "milliseconds_a_text": {name: 1e3 * v / count for name, v in medians.items()},
            "speed_up": medians[PARENT] / medians[CHILD],
        }
    return report


def _timed(read: Reader, parts: Sequence[Sequence[Tokens]]) -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    began = time.perf_counter()
    for part in parts:
        read(part)  # ends with a copy to the CPU
    return time.perf_counter() - began


def speed_table(
    speed: Mapping[str, Any], parent: str = "parent", child: str = "model"
) -> list[str]:
    """Return lines of Markdown of what ``compare_speed`` gave, under these names."""
    rows = []
    for kind, figures in speed.items():
        texts, milliseconds = figures["texts_a_second"], figures["milliseconds_a_text"]
        rows.append(
            [
                f"{kind.removeprefix('batch_')} at once",
                f"{figures['texts']:,} texts, {figures['tokens']:,} tokens",
                *(f"{texts[name]:.0f}/s, {milliseconds[name]:.2f} ms" for name in (PARENT, CHILD)),
                f"{figures['speed_up']:.2f}x",
            ]
        )
    return table(["", "of", parent, child, "speed-up"], rows, left=2)
