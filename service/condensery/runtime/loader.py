"""How a stored model becomes a running one: loaded, tried, and leased to calls.

A model must pass ``self_test`` before its first request. A call keeps the version it began with to
its end, and a version that was replaced is closed when its last call is done.
"""

import asyncio
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from condensery.errors import CondenseryError, ModelFault
from condensery.question import CompressedPassage
from condensery.request_context import RequestContext
from condensery.runtime.classifier import Classifier
from condensery.runtime.device import mapped_weights, weight_bytes
from condensery.runtime.encoder import Encoder
from condensery.runtime.oscar import OscarModel
from condensery.runtime.queue import BatchLimits, default_limits
from condensery.runtime.scheduler import GeneratorLimits
from condensery.runtime.workers import WorkersByDevice
from condensery.store.manifest import StoredModel
from condensery.store.store import ModelStore
from condensery.values import Floats

if TYPE_CHECKING:
    from condensery.metrics import Metrics


RunningModel = Encoder | OscarModel | Classifier

POLL_SECONDS = 0.01
# Twice the same input, alone each time. Kernels that add in no fixed order differ in the last
# digits of bf16; weights that are still being written, or a race, differ in the first.
RELATIVE, ABSOLUTE = 2e-2, 2e-3
PROBES = ("a river", "The river is 1,200 kilometres long, and ends in a delta of many arms.")


async def self_test(model: RunningModel) -> None:
    """Warm a model up, and see whether its output is finite, and the same twice.

    Raises:
        ModelFault: It is not.
        CondenseryError: It fails on plain text.
    """
    await model.warm_up()
    first, second = await _outputs(model), await _outputs(model)
    for before, after in zip(first, second, strict=True):
        if not np.isfinite(before).all():
            raise ModelFault(f"{model.info.name}: NaN or infinity came out of plain text")
        if not np.allclose(before, after, rtol=RELATIVE, atol=ABSOLUTE):
            most = float(np.abs(before - after).max())
            raise ModelFault(
                f"{model.info.name}: the same text gave other numbers the second time, "
                f"by up to {most:.3g}"
            )


async def _outputs(model: RunningModel) -> list[Floats]:
    if isinstance(model, Encoder):
        return [(await model.embed([text])).vectors for text in PROBES]
    if isinstance(model, Classifier):
        return [(await model.classify([text])).logits for text in PROBES]
    return [_numbers((await model.compress(PROBES[0], [text]))[0]) for text in PROBES]


def _numbers(result: CompressedPassage | CondenseryError) -> Floats:
    if isinstance(result, CondenseryError):
        raise result
    return np.append(result.memory.ravel(), np.float32(result.relevance or 0.0))


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that is ready for its self-test.

    Attributes:
        model: As it runs.
        stored: What it was loaded from.
        seconds: That this took.
        memory: Bytes of its weights, by device.
    """

    model: RunningModel
    stored: StoredModel
    seconds: float
    memory: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ModelLoader:
    """Opens stored models the way that this server runs them.

    Attributes:
        store: Where they are.
        workers: What they run on.
        threads: Where texts are tokenised.
        device: Where to run them.
        compressor: Where to run pairs' compressors.
        generator: And their generators.
        dtype: What to compute in.
        generator_limits: What each generator may hold.
        queue_tokens: Tokens that may wait for each model; None is what suits the device.
        queue_seconds: How long a request may have to wait for its turn.
        metrics: Where the models count.
    """

    store: ModelStore
    workers: WorkersByDevice
    threads: ThreadPoolExecutor
    device: torch.device
    compressor: torch.device
    generator: torch.device
    dtype: torch.dtype
    generator_limits: GeneratorLimits
    queue_tokens: int | None
    queue_seconds: float
    metrics: "Metrics | None"

    def open(self, stored: StoredModel) -> LoadedModel:
        """Load a stored model, its files checked before. Blocks: call it off the event loop.

        Raises:
            CorruptModel: Its files don't make a model of its kind.
            ModelNotFound: The model that it shares files with is not there.
            SettingError: The limits leave a generator no room for a cache.
        """
        started = time.perf_counter()
        with mapped_weights():
            model = self._open(stored)
        model.info = replace(model.info, version=stored.version)
        return LoadedModel(model, stored, time.perf_counter() - started, weight_bytes(model.parts))

    def _open(self, stored: StoredModel) -> RunningModel:
        kind = stored.manifest.kind
        if kind == "oscar-pair":
            return OscarModel.load(
                stored,
                self.store.open_base(stored) if stored.manifest.base else None,
                self.workers.on(self.compressor),
                generators=self.workers.on(self.generator),
                dtype=self.dtype,
                threads=self.threads,
                limits=self.limits,
                generator_limits=self.generator_limits,
                metrics=self.metrics,
            )
        return (Encoder if kind == "encoder" else Classifier).load(
            stored,
            self.workers.on(self.device),
            dtype=self.dtype,
            limits=self.limits(self.device),
            metrics=self.metrics,
            threads=self.threads,
        )

    def limits(self, device: torch.device) -> BatchLimits:
        """Return the limits of a batch and of the queue on a device."""
        own = replace(default_limits(device), queue_seconds=self.queue_seconds)
        if self.queue_tokens is None:
            return own
        return replace(own, queue_tokens=self.queue_tokens)


class ModelLease:
    """A running model, leased to calls.

    A call keeps its version to its end. So an answer that compresses, searches and generates does
    all of it with the same version, and ``drained`` knows when nobody needs the old one any more.

    Attributes:
        model: What runs.
        stored: What it was loaded from.
        seconds: That loading took.
        memory: Bytes of its weights, by device.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self.model: RunningModel = loaded.model
        self.stored: StoredModel = loaded.stored
        self.seconds = loaded.seconds
        self.memory: Mapping[str, int] = loaded.memory
        self._users = 0
        self._lock = threading.Lock()

    def lend(self, call: RequestContext, names: tuple[str, ...]) -> None:
        """Let a call use it to its end, by these names."""
        if all(call.kept.get(name) is not self for name in names):
            with self._lock:
                self._users += 1
            call.endings.append(self._give_back)
        for name in names:
            call.kept[name] = self

    def _give_back(self) -> None:
        with self._lock:
            self._users -= 1

    async def drained(self, seconds: float) -> bool:
        """Wait until no call uses it, nor anything waits in it; False where that takes too long."""
        until = time.monotonic() + seconds
        while self._users or self.model.busy:
            if time.monotonic() > until:
                return False
            await asyncio.sleep(POLL_SECONDS)
        return True
