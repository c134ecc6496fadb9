"""What Ray Serve runs many of: a group's models, loaded, tried, and called by the doors.

Ray itself is not imported here: Serve makes one ``Replica`` a process, calls its methods in one
event loop, and asks ``check_health`` and ``record_autoscaling_stats`` every few seconds.
"""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from condensery.cluster.autoscaling import TOKENS
from condensery.cluster.messages import (
    RATED_TOKENS,
    Call,
    ModelFacts,
    ModelId,
    PairNumbers,
    Rates,
    ReplicaFacts,
    Reply,
    Timing,
    is_read,
    plain_error,
)
from condensery.errors import CondenseryError, ModelFault, Unavailable
from condensery.logs import configure_logging
from condensery.metrics import Metrics, SampleKey, key_of
from condensery.networks.heavy_imports import import_networks
from condensery.request_context import RequestContext, serving_request
from condensery.settings import Settings
from condensery.store.store import ModelStore, shipped_store

if TYPE_CHECKING:
    from condensery.runtime.loader import LoadedModel, ModelLoader
    from condensery.runtime.watchdog import Watchdog

# Of the doors' settings, those that say how a model runs.
RUNTIME_SETTINGS = (
    "device",
    "dtype",
    "compressor_device",
    "generator_device",
    "generator_sequences",
    "generator_cache_mib",
    "encoder_weights",
    "compressor_weights",
    "generator_weights",
    "workers",
    "max_queue_tokens",
    "max_queue_seconds",
    "worker_stall_seconds",
    "tei_metrics",
    "log_level",
)
# What a call may name: of a running model, or of a half of a pair.
COMPRESS = "compress"
METHODS = frozenset({"embed", "embed_tokens", "classify", "score", COMPRESS})
STREAMS = frozenset({"generate"})
FAULT_STATUS = 70  # the exit status of a process that broke inside: EX_SOFTWARE of sysexits.h

_log = logging.getLogger(__name__)


class Replica:
    """One process with a group's models.

    Args:
        models: In these versions; all are loaded and tried before the first call. One that fails is
            refused, the rest serve.
        settings: Those named in ``RUNTIME_SETTINGS``, as they are in a file.
        store: Root of the own models, the same on all machines.
        options: Names what it was deployed with, for doors that find it running.

    Raises:
        ModelFault: None can be read and passes its self-test; or the store's are others than the
            doors'.
    """

    # Serve awaits a constructor that is a coroutine.
    async def __init__(  # type: ignore[misc]
        self, models: Sequence[ModelId], settings: dict[str, Any], store: str, options: str
    ) -> None:
        self._settings = Settings(**settings, store=Path(store))
        configure_logging(self._settings.log_level)
        self._options = options
        self._tokens = 0
        self._fatal = ""
        self._metrics = Metrics(tei=self._settings.tei_metrics)
        self._loaded: dict[ModelId, LoadedModel] = {}
        self._refused: dict[ModelId, str] = {}
        self._loader = await asyncio.to_thread(self._make_loader)
        for model in models:
            self._metrics.prepare_model(model.name)
            try:
                self._loaded[model] = await self._open(model)
            except CondenseryError as error:
                self._refused[model] = error.message
                _log.error("model_refused", extra={"model": model.name, "reason": error.message})
        if not self._loaded:
            raise ModelFault("; ".join(self._refused.values()))
        self._watchdog = self._watch()

    def _make_loader(self) -> "ModelLoader":
        import_networks()
        from condensery.runtime.device import prepare_process
        from condensery.runtime.registry import make_loader

        prepare_process()
        store = ModelStore(shipped_store(), self._settings.own_store)
        return make_loader(
            self._settings, store, self._metrics, lambda line: _log.info("start %s", line)
        )

    async def _open(self, model: ModelId) -> "LoadedModel":
        from condensery.runtime.device import release_memory
        from condensery.runtime.loader import self_test

        loaded = await asyncio.to_thread(self._read, model)
        try:
            await self_test(loaded.model)
        except CondenseryError:
            loaded.model.close()
            raise
        finally:
            await asyncio.to_thread(release_memory)
        return loaded

    def _read(self, model: ModelId) -> "LoadedModel":
        stored = self._loader.store.open(model.name, model.version)
        if stored.manifest.fingerprint != model.fingerprint:
            raise ModelFault(
                f"{model.name} version {model.version} is another one in this machine's store "
                f"({self._settings.own_store}) than in the doors': fingerprint "
                f"{stored.manifest.fingerprint}, not {model.fingerprint}"
            )
        return self._loader.open(stored)

    def _watch(self) -> "Watchdog":
        """Restart a device worker that hangs, once; then Serve is to replace the replica."""
        from condensery.runtime.watchdog import Watchdog

        def on_fatal(reason: str) -> None:
            self._fatal = reason

        return Watchdog(
            self._loader.workers.all(),
            asyncio.get_running_loop(),
            on_fault=lambda reason: None,
            on_fatal=on_fatal,
            end_process=lambda: os._exit(FAULT_STATUS),
            stall_seconds=self._settings.worker_stall_seconds,
            metrics=self._metrics,
        )

    def model(self, model: ModelId) -> Any:
        """Return a running model, as it is here. Raises Unavailable: it is none of these."""
        loaded = self._loaded.get(model)
        if loaded is None:
            raise Unavailable(
                f"This replica holds no {model.name!r} version {model.version} of fingerprint "
                f"{model.fingerprint}.",
                retry_after_seconds=1.0,
            )
        return loaded.model

    # What Serve asks

    def check_health(self) -> None:
        """Raise once nothing but a new process helps, so that Serve starts one in its place."""
        if self._fatal:
            raise ModelFault(self._fatal)

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Return what ``autoscaling.TokensPolicy`` counts."""
        return {TOKENS: float(self._tokens)}

    # What the doors ask

    async def describe(self) -> ReplicaFacts:
        """Return what the doors have to know of the models."""
        return ReplicaFacts(
            {model: _facts(loaded) for model, loaded in self._loaded.items()},
            self._refused,
            self._options,
        )

    async def read_metrics(self) -> tuple[str, list[tuple[SampleKey, float]]]:
        """Return which process this is, and those of its samples that the doors add up."""
        samples = [
            (key_of(sample), sample.value)
            for family in self._metrics.registry.collect()
            for sample in family.samples
            if is_read(sample.name)
        ]
        return f"{os.uname().nodename}:{os.getpid()}", samples

    async def call(self, call: Call) -> Reply:
        """Run one method of a model; our own errors are part of the reply."""
        request = call.caller.request()
        self._tokens += call.tokens
        try:
            with serving_request(request):
                value = await self._method(call, METHODS)(*call.args, **call.options)
            return self._reply(call, request, value=value)
        except CondenseryError as error:
            return self._reply(call, request, error=plain_error(error))
        finally:
            self._tokens -= call.tokens

    async def stream(self, call: Call) -> AsyncGenerator[Reply, None]:
        """Run one method that yields; the last reply has an error, or where the time went."""
        request = call.caller.request()
        self._tokens += call.tokens
        try:
            with serving_request(request):
                values = self._method(call, STREAMS)(*call.args, **call.options)
                async with aclosing(values):
                    async for value in values:
                        yield Reply(value, work_begun=request.work_begun)
            yield self._reply(call, request)
        except CondenseryError as error:
            yield self._reply(call, request, error=plain_error(error))
        finally:
            self._tokens -= call.tokens

    def _method(self, call: Call, allowed: frozenset[str]) -> Callable[..., Any]:
        assert call.method in allowed, call.method
        model = self.model(call.model)
        if call.method == COMPRESS:
            model = model.compressor
        elif call.method in STREAMS:
            model = model.generator
        method: Callable[..., Any] = getattr(model, call.method)
        return method

    def _reply(
        self,
        call: Call,
        request: RequestContext,
        *,
        value: Any = None,
        error: CondenseryError | None = None,
    ) -> Reply:
        loaded = self._loaded.get(call.model)
        rates = None if loaded is None else _rates(loaded.model)
        return Reply(value, error, Timing.of(request.stats), request.work_begun, rates)


def _facts(loaded: "LoadedModel") -> ModelFacts:
    model: Any = loaded.model
    pair = None
    if model.info.kind == "oscar-pair":
        facts, bounds = model.facts, model.generator.bounds
        pair = PairNumbers(
            facts.cost, facts.window, facts.separators, bounds.longest, bounds.cache_positions
        )
    return ModelFacts(model.info, dict(loaded.memory), loaded.seconds, pair)


def _rates(model: Any) -> Rates | None:
    if model.info.kind != "oscar-pair":
        return None
    return Rates(
        model.compressor.expected_seconds(RATED_TOKENS),
        model.generator.expected_seconds(1),
        model.generator.expected_seconds(RATED_TOKENS),
    )
