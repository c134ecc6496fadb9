"""How a stored model becomes a running one: loaded, tried, and leased to calls.

A model must pass ``self_test`` before its first request. A call keeps the version it began with to
its end, and a version that was replaced is closed when its last call is done.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from condensery.errors import ModelCannot, ModelFault
from condensery.networks.quantised import EncoderWeights
from condensery.request_context import RequestContext
from condensery.runtime.classifier import Classifier
from condensery.runtime.device import (
    WeightsSetting,
    mapped_weights,
    release_files,
    weight_bytes,
)
from condensery.runtime.encoder import Encoder
from condensery.runtime.generator import NO_GENERATOR_LIMITS
from condensery.runtime.generator_server import GeneratorServerConfig
from condensery.runtime.oscar import OscarModel
from condensery.runtime.queue import BatchLimits, default_limits
from condensery.runtime.scheduler import GeneratorLimits
from condensery.runtime.workers import WorkersByDevice
from condensery.store.manifest import StoredModel
from condensery.store.store import ModelStore
from condensery.values import MODEL_KINDS, Floats, ModelInfo, ModelKind, ModelRole

if TYPE_CHECKING:
    from condensery.metrics import Metrics


POLL_SECONDS = 0.01
# Twice the same input, alone each time. Kernels that add in no fixed order differ in the last
# digits of bf16; weights that are still being written, or a race, differ in the first.
RELATIVE, ABSOLUTE = 2e-2, 2e-3
PROBES = ("a river", "The river is 1,200 kilometres long, and ends in a delta of many arms.")


class RunningModel(Protocol):
    """A model of any kind that runs, as registry and lifecycle know it.

    What it is asked for is for its roles: what has the role "encoder" has the methods of
    ``jobs.interfaces.Encoder``, and so on.

    What may be there and not able to work, for some of it is elsewhere, has ``unready`` too: why
    it can't, or None.

    Attributes:
        info: What ``/v1/models`` shows of it.
    """

    info: ModelInfo

    @property
    def parts(self) -> Sequence[Any]:
        """What holds its weights: tensors are looked for in them, to count their bytes."""
        ...

    @property
    def roles(self) -> frozenset[ModelRole]:
        """What it can be asked for."""
        ...

    @property
    def busy(self) -> bool:
        """Whether anything waits in it, or is being answered."""
        ...

    async def probe(self, text: str) -> Floats:
        """Return what it makes of a plain text; the self-test compares it, twice the same text.

        Raises:
            CondenseryError: It fails on it.
        """
        ...

    async def warm_up(self) -> None:
        """Run a few shapes, so that the first caller does not wait for kernels to be prepared.

        Raises:
            CondenseryError: It fails on plain text.
        """
        ...

    def close(self) -> None:
        """Refuse new work and what waits; what runs is finished."""
        ...


async def self_test(model: RunningModel) -> None:
    """Warm a model up, and see whether its output is finite, and the same twice.

    Raises:
        ModelFault: It is not.
        CondenseryError: It fails on plain text.
    """
    await model.warm_up()
    first = [await model.probe(text) for text in PROBES]
    second = [await model.probe(text) for text in PROBES]
    for before, after in zip(first, second, strict=True):
        if not np.isfinite(before).all():
            raise ModelFault(f"{model.info.name}: NaN or infinity came out of plain text")
        if not np.allclose(before, after, rtol=RELATIVE, atol=ABSOLUTE):
            most = float(np.abs(before - after).max())
            raise ModelFault(
                f"{model.info.name}: the same text gave other numbers the second time, "
                f"by up to {most:.3g}"
            )


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that is ready for its self-test.

    Attributes:
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
        compressor: Where to run pairs' compressors.
        generator: And their generators.
        encoder_weights: What encoders, classifiers and rerankers hold their weights as.
        generator_weights: What generators hold theirs as.
        compressor_weights: And pairs' compressors.
        generator_servers: Pairs, by name, whose generators run on another server.
        first: Names of the models that a server starts with; none: all that are stored.
        queue_tokens: Tokens that may wait for each model; None is what suits the device.
        queue_seconds: How long a request may have to wait for its turn.
    """

    store: ModelStore
    workers: WorkersByDevice
    threads: ThreadPoolExecutor
    device: torch.device
    compressor: torch.device
    generator: torch.device
    dtype: torch.dtype
    generator_limits: GeneratorLimits = NO_GENERATOR_LIMITS
    encoder_weights: EncoderWeights = "float"
    generator_weights: WeightsSetting = "float"
    compressor_weights: EncoderWeights = "float"
    generator_servers: Mapping[str, GeneratorServerConfig] = field(default_factory=dict)
    first: tuple[str, ...] = ()
    queue_tokens: int | None = None
    queue_seconds: float = 10.0
    metrics: "Metrics | None" = None

    @classmethod
    def on_devices(
        cls,
        store: ModelStore,
        *,
        device: torch.device,
        compressor: torch.device | None = None,
        generator: torch.device | None = None,
        workers: int | None = None,
        **options: Any,
    ) -> "ModelLoader":
        """Make one with workers of its own on each device, watched from the start.

        Args:
            compressor: Where to run pairs' compressors, if elsewhere.
            generator: Where to run their generators, if elsewhere.
            workers: Threads for forward passes; None is one a core on a CPU.
            **options: The other fields.
        """
        loader = cls(
            store=store,
            workers=WorkersByDevice(workers),
            threads=ThreadPoolExecutor(2, thread_name_prefix="tokenizer"),
            device=device,
            compressor=compressor or device,
            generator=generator or device,
            **options,
        )
        for used in (device, loader.compressor, loader.generator):
            loader.workers.on(used)
        return loader

    def names(self) -> Sequence[str]:
        """Name the models that a server starts with."""
        return self.first or self.store.names()

    def open(self, stored: StoredModel) -> LoadedModel:
        """Load a stored model, its files checked before. Blocks: call it off the event loop.

        Raises:
            CorruptModel: Its files don't make a model of its kind.
            ModelCannot: Nothing runs models of its kind (``RUNNERS``).
            ModelNotFound: The model that it shares files with is not there.
            SettingError: The limits leave a generator no room for a cache, or its device is not for
                such weights.
        """
        started = time.perf_counter()
        kind = stored.manifest.kind
        if kind not in RUNNERS:
            raise ModelCannot(f"nothing runs models of kind {kind!r}", field="model")
        with mapped_weights():
            model = RUNNERS[kind](self, stored)
        release_files(model.parts)
        model.info = replace(model.info, version=stored.version)
        return LoadedModel(model, stored, time.perf_counter() - started, weight_bytes(model.parts))

    def limits(self, device: torch.device) -> BatchLimits:
        """Return the limits of a batch and of the queue on a device."""
        own = replace(default_limits(device), queue_seconds=self.queue_seconds)
        if self.queue_tokens is None:
            return own
        return replace(own, queue_tokens=self.queue_tokens)


Runner = Callable[[ModelLoader, StoredModel], RunningModel]


def run_pair(loader: ModelLoader, stored: StoredModel) -> RunningModel:
    """Run an OSCAR pair."""
    return OscarModel.load(
        stored,
        loader.store.open_base(stored) if stored.manifest.base else None,
        loader.workers.on(loader.compressor),
        generators=loader.workers.on(loader.generator),
        dtype=loader.dtype,
        threads=loader.threads,
        limits=loader.limits,
        generator_limits=loader.generator_limits,
        generator_weights=loader.generator_weights,
        compressor_weights=loader.compressor_weights,
        generator_server=loader.generator_servers.get(stored.name),
        metrics=loader.metrics,
    )


def run_on_device(
    model: type[Encoder] | type[Classifier], loader: ModelLoader, stored: StoredModel
) -> RunningModel:
    """Run an encoder, a classifier or a cross-encoder."""
    return model.load(
        stored,
        loader.workers.on(loader.device),
        dtype=loader.dtype,
        weights=loader.encoder_weights,
        limits=loader.limits(loader.device),
        metrics=loader.metrics,
        threads=loader.threads,
    )


# How each kind of model runs. Of several that have a role, those of the first kind here come first
# where a request names none: pairs rerank before cross-encoders, models of several labels classify
# before those of one. Kinds of the store that are not here serve nothing.
RUNNERS: dict[ModelKind, Runner] = {
    "oscar-pair": run_pair,
    "encoder": partial(run_on_device, Encoder),
    "classifier": partial(run_on_device, Classifier),
    "reranker": partial(run_on_device, Classifier),
}


def register_kind(kind: ModelKind, runner: Runner) -> None:
    """Let models of another kind be stored and run, after all others where no model is named.

    Call it before a store is read: manifests of kinds that are not known are broken.

    Raises:
        ValueError: There is such a kind already.
    """
    if kind in MODEL_KINDS:
        raise ValueError(f"there is a kind {kind!r} already")
    MODEL_KINDS.add(kind)
    RUNNERS[kind] = runner


class ModelLease:
    """A running model, leased to calls.

    A call keeps its version to its end. So an answer that compresses, searches and generates does
    all of it with the same version, and ``drained`` knows when nobody needs the old one any more.
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
        if all(call.leases.get(name) is not self for name in names):
            with self._lock:
                self._users += 1
            call.endings.append(self._give_back)
        for name in names:
            call.leases[name] = self

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
