"""Models that are loaded, replaced and unloaded while others serve, and what each is doing."""

import asyncio
import errno
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from condensery.errors import (
    CondenseryError,
    ModelAliasTaken,
    ModelCannot,
    ModelNotLoaded,
    StoreError,
    Unavailable,
)
from condensery.runtime.batcher import is_out_of_memory
from condensery.runtime.device import release_memory
from condensery.runtime.loader import (
    RUNNERS,
    LoadedModel,
    ModelLease,
    ModelLoader,
    self_test,
)
from condensery.runtime.queue import NO_METRICS
from condensery.store.manifest import BrokenModel, StoredModel
from condensery.threads import lower_priority
from condensery.values import (
    ModelInfo,
    ModelLoad,
    ModelState,
    ModelUnload,
    ModelVersion,
    Revision,
)

if TYPE_CHECKING:
    from condensery.runtime.registry import ModelRegistry


STATES: tuple[ModelState, ...] = ("READY", "LOADING", "UNLOADING", "UNAVAILABLE")


class ModelStates:
    """What each model is doing, as the lifecycle notes it.

    Args:
        loader: Where they are stored, and where they count.

    Attributes:
        loading: The version that is being loaded, by name.
        leaving: Name and version of those that finish their last requests.
        failures: Why a version could not be loaded, by name and version.
    """

    def __init__(self, registry: "ModelRegistry", loader: ModelLoader) -> None:
        self.loading: dict[str, str] = {}
        self.leaving: list[tuple[str, str]] = []
        self.failures: dict[tuple[str, str], str] = {}
        self._registry = registry
        self._loader = loader

    async def versions(self) -> list[ModelVersion]:
        """List every stored version of every model that could serve, and what serves unstored."""
        listing = await asyncio.to_thread(self._loader.store.list, check=False)
        versions: dict[tuple[str, str], ModelVersion] = {}
        for entry in listing:
            if isinstance(entry, BrokenModel):
                key = entry.name, entry.path.name
                versions[key] = ModelVersion(*key, "UNAVAILABLE", entry.reason)
            elif entry.manifest.kind in RUNNERS:
                versions.setdefault((entry.name, entry.version), self._state(entry))
        for info in self._registry.models():  # its files may have gone since
            key = info.name, info.version
            versions[key] = self._serving_state(*key)
        return [
            versions[key] for key in sorted(versions, key=lambda key: (key[0], key[1].zfill(20)))
        ]

    def update_metrics(self, name: str) -> None:
        """Show in the metrics what a model does."""
        metrics = self._loader.metrics or NO_METRICS
        serving = self._registry.serving(name)
        counts = {
            "READY": serving is not None and self._registry.unready(name) is None,
            "LOADING": name in self.loading,
            "UNLOADING": any(own == name for own, _ in self.leaving),
        }
        counts["UNAVAILABLE"] = not any(counts.values())
        for state in STATES:
            metrics.model_state.labels(name, state.lower()).set(counts[state])
        metrics.model_loaded.labels(name).set(serving is not None)
        if serving is not None:
            metrics.model_load_seconds.labels(name).set(serving.seconds)
        memory = {} if serving is None else serving.memory
        for device in {str(workers.device) for workers in self._registry.workers} | set(memory):
            metrics.model_memory_bytes.labels(name, device).set(memory.get(device, 0))

    def _serving_state(self, name: str, version: str) -> ModelVersion:
        """Return the state of what serves: a pair whose generator is not there is not ready."""
        reason = self._registry.unready(name)
        if reason is None:
            return ModelVersion(name, version, "READY")
        return ModelVersion(name, version, "UNAVAILABLE", reason)

    def _state(self, stored: StoredModel) -> ModelVersion:
        key = name, version = stored.name, stored.version
        serving = self._registry.serving(name)
        if self.loading.get(name) == version:
            return ModelVersion(*key, "LOADING")
        if serving is not None and serving.stored.version == version:
            return self._serving_state(*key)
        if key in self.leaving:
            return ModelVersion(*key, "UNLOADING")
        # What was refused at the start names its version itself.
        refused = "" if serving is not None else self._registry.refusals().get(name, "")
        return ModelVersion(*key, "UNAVAILABLE", self.failures.get(key, refused))


T = TypeVar("T")

_log = logging.getLogger(__name__)


class ModelLifecycle:
    """Loads, replaces and unloads models while they serve; of one model a change at a time.

    A change that has begun goes to its end, also where who asked for it leaves: the next look at
    ``versions`` shows how it ended.

    Args:
        drain_seconds: How long the last requests of a model that goes may take.

    Attributes:
        states: What each does.
    """

    def __init__(
        self, registry: "ModelRegistry", loader: ModelLoader, drain_seconds: float
    ) -> None:
        self._registry = registry
        self._loader = loader
        self._drain_seconds = drain_seconds
        # One thread, so that no two models are loaded at once where there is room for one, and
        # what they leave free lies in one of malloc's arenas.
        self._executor = ThreadPoolExecutor(1, "model-loader", initializer=_prepare_thread)
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._naming = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self.states = ModelStates(registry, loader)
        self._closed = False

    async def load(
        self, name: str, version: str | None = None, *, again: bool = False
    ) -> ModelLoad:
        """Load a stored model, try it, and let it serve in place of the version that does.

        That one serves until then, and finishes what it has begun.

        Raises:
            ModelNotFound: There is no such model or version in the store.
            ModelCannot: It is no model that serves, or of another kind than the one that does.
            ModelAliasTaken: Its name is an alias.
            ModelNotLoaded: It is broken, or fails when it is tried, or there is no room for it.
                What served before serves on.
        """
        store = self._loader.store
        try:  # its files are hashed later
            stored = await asyncio.to_thread(store.open, name, version, check=False)
        except StoreError as error:
            raise self._refusal(name, version, error.message) from error
        self._check(stored)
        return await self._run(lambda result: self._load(stored, again, result))

    async def unload(self, name: str, check: Callable[[], None]) -> ModelUnload:
        """Let a model serve no new request, wait for its last ones, and free its memory.

        Args:
            check: Raises what speaks against it; called at the last moment.

        Raises:
            ModelNotFound: It does not serve.
            CondenseryError: As ``check``.
        """
        self._registry.require(name)
        return await self._run(lambda result: self._unload(name, check, result))

    async def set_aliases(self, changes: Mapping[str, str | None]) -> Mapping[str, str]:
        """Change aliases, all at once, and return all there are; raises as ``Aliases.change``."""
        return await self._run(lambda result: self._set_aliases(dict(changes), result))

    def close(self) -> None:
        """Begin nothing more; a load under way comes to nothing."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def versions(self) -> list[ModelVersion]:
        """List every stored version of every model that could serve, and what serves unstored."""
        return await self.states.versions()

    async def _run(self, work: Callable[["asyncio.Future[T]"], Coroutine[Any, Any, None]]) -> T:
        """Run ``work`` to its end, and return as soon as it has set its result."""
        if self._closed:
            raise Unavailable("The server is shutting down.")
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()

        async def run() -> None:
            try:
                await work(result)
            except Exception as error:  # whatever went wrong, the caller must hear of it
                if result.done():
                    _log.exception("model_change_failed")
                else:
                    result.set_exception(error)

        # Not in the caller's context: the caller's deadline must not be the self-test's.
        task = loop.create_task(run(), context=Context())
        self._tasks.add(task)

        def ended(task: "asyncio.Task[None]") -> None:
            self._tasks.discard(task)
            if not result.done():  # cancelled, perhaps before its first step
                result.set_exception(Unavailable("The server ended before this was done."))

        task.add_done_callback(ended)
        result.add_done_callback(lambda future: future.cancelled() or future.exception())
        return await asyncio.shield(result)

    async def _load(
        self, stored: StoredModel, again: bool, result: "asyncio.Future[ModelLoad]"
    ) -> None:
        name = stored.name
        async with self._locks[name]:
            current = self._registry.serving(name)
            if current is not None and not again and _is_same_version(current.stored, stored):
                info, memory = current.model.info, sum(current.memory.values())
                result.set_result(ModelLoad(info, _revision(info), False, 0.0, memory))
                return
            started = time.perf_counter()
            previous = None if current is None else _revision(current.model.info)
            leaving = [] if current is None else [current]
            del current
            serving = await self._load_and_test(stored)
            self.states.failures.pop((name, stored.version), None)
            info, memory = serving.model.info, sum(serving.memory.values())
            del serving
            seconds = time.perf_counter() - started
            _log.info("model_loaded", extra={"model": name, "version": stored.version})
            result.set_result(ModelLoad(info, previous, True, seconds, memory))
            await self._retire(leaving)

    async def _load_and_test(self, stored: StoredModel) -> ModelLease:
        """Load, test and put in place; on a failure everything stays as it was, and it says why."""
        key = name, version = stored.name, stored.version
        self.states.loading[name] = version
        self.states.update_metrics(name)
        loaded: LoadedModel | None = None
        try:
            self._check(stored)
            loaded = await self._in_executor(lambda: self._open(stored))
            await self_test(loaded.model)
            async with self._naming:
                self._check(stored)
                if self._closed:
                    raise Unavailable("The server is shutting down.")
                serving = ModelLease(loaded)
                self._registry.put(name, serving)
                return serving
        except (ModelCannot, ModelAliasTaken, Unavailable):
            _close_loaded(loaded)
            raise
        except asyncio.CancelledError:
            _close_loaded(loaded)
            raise
        except Exception as error:  # whatever is wrong with a model is its own fault alone
            _close_loaded(loaded)
            reason = explain_failure(error, name, version)
        finally:
            self.states.loading.pop(name, None)
            self.states.update_metrics(name)
        # Here, where nothing holds the frames that hold what was loaded of it.
        loaded = None
        await self._in_executor(release_memory)
        self.states.failures[key] = reason
        if self._registry.serving(name) is None:
            self._registry.put(name, None, refused=reason)
        raise self._refusal(name, version, reason)

    def _refusal(self, name: str, version: str | None, reason: str) -> ModelNotLoaded:
        current = self._registry.serving(name)
        still = f"version {current.stored.version} serves on" if current else "none of it serves"
        what = f"model {name!r}" if version is None else f"model {name!r} version {version}"
        return ModelNotLoaded(
            f"{what} was not loaded, and {still}: {reason}", field="model", value=name
        )

    def _open(self, stored: StoredModel) -> LoadedModel:
        """Check and load; in the loader's thread."""
        return self._loader.open(self._loader.store.verify(stored.name, stored.version))

    async def _unload(
        self, name: str, check: Callable[[], None], result: "asyncio.Future[ModelUnload]"
    ) -> None:
        async with self._locks[name]:
            async with self._naming:
                leaving = [self._registry.require(name)]  # another may have unloaded it meanwhile
                check()
                self._registry.put(name, None)
            started, info = time.perf_counter(), leaving[0].model.info
            await self._retire(leaving)
            seconds = time.perf_counter() - started
            result.set_result(ModelUnload(name, info.version, info.fingerprint, seconds))
            _log.info("model_unloaded", extra={"model": name, "version": info.version})

    async def _set_aliases(
        self,
        changes: Mapping[str, str | None],
        result: "asyncio.Future[Mapping[str, str]]",
    ) -> None:
        registry = self._registry
        async with self._naming:  # nothing comes or goes meanwhile
            serving = {info.name for info in registry.models()}
            named = serving | set(registry.refusals())

            def change() -> None:
                taken = named | set(self._loader.store.names())
                registry.aliases.change(changes, serving=serving, taken=taken)

            await asyncio.to_thread(change)
        registry.notify()
        result.set_result(registry.aliases.targets)

    async def _retire(self, leaving: list[ModelLease]) -> None:
        """Wait for the last requests of what serves no new ones, and free it."""
        if not leaving:
            return
        stored = leaving[0].stored
        key = stored.name, stored.version
        self.states.leaving.append(key)
        self.states.update_metrics(stored.name)
        try:
            if not await leaving[0].drained(self._drain_seconds):
                _log.warning("model_cut_off", extra={"model": stored.name})
        finally:
            leaving.pop().model.close()
            self.states.leaving.remove(key)
            self.states.update_metrics(stored.name)
        self._registry.notify()  # what it made for its last requests has gone with it
        await self._in_executor(release_memory)

    def _check(self, stored: StoredModel) -> None:
        name, kind = stored.name, stored.manifest.kind
        if kind not in RUNNERS:
            raise ModelCannot(
                f"model {name!r} is a {kind.replace('-', ' ')}, which others are made from: it "
                "does not serve",
                field="model",
                value=name,
            )
        if name in self._registry.aliases:
            raise ModelAliasTaken(
                f"model {name!r} can't be loaded: its name is an alias of "
                f"{self._registry.aliases.targets[name]!r}",
                field="model",
                value=name,
            )
        current = self._registry.serving(name)
        if current is not None and current.model.info.kind != kind:
            raise ModelCannot(
                f"model {name!r} serves as {current.model.info.kind}; its version "
                f"{stored.version} is of kind {kind}, and can't take its place: unload it first",
                field="model",
                value=name,
            )

    async def _in_executor(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


def _prepare_thread() -> None:
    """Load on one thread, after all requests' work."""
    torch.set_num_threads(1)
    lower_priority()


def _revision(info: ModelInfo) -> Revision:
    return Revision(info.version, info.fingerprint)


def _is_same_version(current: StoredModel, wanted: StoredModel) -> bool:
    same = current.manifest.fingerprint == wanted.manifest.fingerprint
    return current.version == wanted.version and same


def _close_loaded(loaded: LoadedModel | None) -> None:
    if loaded is not None:
        loaded.model.close()


def explain_failure(error: Exception, name: str, version: str) -> str:
    """Return why a model does not serve, as who asks for it is told; log what nobody foresaw."""
    if isinstance(error, CondenseryError):
        return error.message
    # of the model's files, and of our own texts that it was tried with
    fields = {"model": name, "version": version, "detail": str(error)}
    _log.error("model_not_loaded", extra=fields, exc_info=error)
    if is_out_of_memory(error) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return "there is not enough memory for it"
    return f"{type(error).__name__}; the server's log has more"
