"""How a stored model becomes a running one, at the start and later."""

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from condensery.runtime.classifier import Classifier
from condensery.runtime.device import mapped_weights
from condensery.runtime.encoder import Encoder
from condensery.runtime.limits import Limits, default_limits
from condensery.runtime.memory import weight_bytes
from condensery.runtime.proving import Running
from condensery.runtime.reader import Reader
from condensery.runtime.room import Bounds
from condensery.runtime.teams import Teams
from condensery.store.manifest import StoredModel
from condensery.store.store import ModelStore

if TYPE_CHECKING:
    from condensery.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Opened:
    """A model that is ready to be tried.

    Attributes:
        model: As it runs.
        stored: What it was loaded from.
        seconds: That this took.
        memory: Bytes of its weights, by device.
    """

    model: Running
    stored: StoredModel
    seconds: float
    memory: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Opener:
    """Opens stored models the way that this server runs them.

    Attributes:
        store: Where they are.
        teams: What they run on.
        threads: Where texts are tokenised.
        device: Where to run them.
        compressor: Where to run pairs' compressors.
        generator: And their generators.
        dtype: What to compute in.
        bounds: What each generator may hold.
        queue_tokens: Tokens that may wait for each model; None is what suits the device.
        queue_seconds: How long a request may have to wait for its turn.
        metrics: Where the models count.
    """

    store: ModelStore
    teams: Teams
    threads: ThreadPoolExecutor
    device: torch.device
    compressor: torch.device
    generator: torch.device
    dtype: torch.dtype
    bounds: Bounds
    queue_tokens: int | None
    queue_seconds: float
    metrics: "Metrics | None"

    def open(self, stored: StoredModel) -> Opened:
        """Load a stored model, its files checked before. Blocks: call it off the event loop.

        Raises:
            CorruptModel: Its files don't make a model of its kind.
            ModelNotFound: The model that it shares files with is not there.
            SettingError: The bounds leave a generator no room.
        """
        started = time.perf_counter()
        with mapped_weights():
            model = self._open(stored)
        model.info = replace(model.info, version=stored.version)
        return Opened(model, stored, time.perf_counter() - started, weight_bytes(model.parts))

    def _open(self, stored: StoredModel) -> Running:
        kind = stored.manifest.kind
        if kind == "oscar-pair":
            return Reader.load(
                *(stored, self.store.open_base(stored) if stored.manifest.base else None),
                self.teams.on(self.compressor),
                generators=self.teams.on(self.generator),
                dtype=self.dtype,
                threads=self.threads,
                limits=self.limits,
                bounds=self.bounds,
                metrics=self.metrics,
            )
        return (Encoder if kind == "encoder" else Classifier).load(
            *(stored, self.teams.on(self.device)),
            dtype=self.dtype,
            limits=self.limits(self.device),
            metrics=self.metrics,
            threads=self.threads,
        )

    def limits(self, device: torch.device) -> Limits:
        """Return the limits of a batch and of the queue on a device."""
        own = replace(default_limits(device), queue_seconds=self.queue_seconds)
        if self.queue_tokens is None:
            return own
        return replace(own, queue_tokens=self.queue_tokens)
