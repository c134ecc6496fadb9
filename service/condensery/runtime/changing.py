"""Models that come and go while others serve."""

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
from condensery.runtime.faults import is_out_of_memory
from condensery.runtime.lending import Serving
from condensery.runtime.memory import give_back
from condensery.runtime.opening import Opened, Opener
from condensery.runtime.proving import prove
from condensery.runtime.states import States
from condensery.runtime.workers import step_back
from condensery.store.manifest import StoredModel
from condensery.values import (
    ModelInfo,
    ModelLoad,
    ModelUnload,
    ModelVersion,
    Revision,
)

if TYPE_CHECKING:
    from condensery.runtime.pool import RunningModels

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Changing:
    """Loads, replaces and unloads models while they serve; of one model a change at a time.

    A change that has begun goes to its end, also where who asked for it leaves: the next look at
    ``versions`` tells how it ended.

    Args:
        pool: Whose models.
        opener: How they are opened.
        drain_seconds: How long the last requests of a model that goes may take.

    Attributes:
        states: What each does.
    """

    def __init__(self, pool: "RunningModels", opener: Opener, drain_seconds: float) -> None:
        self._pool = pool
        self._opener = opener
        self._drain_seconds = drain_seconds
        # One thread, so that no two models are loaded at once where there is room for one, and
        # what they leave free lies in one of malloc's arenas.
        self._loader = ThreadPoolExecutor(1, "model-loader", initializer=_prepare_thread)
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._naming = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self.states = States(pool, opener)
        self._closed = False

    async def load(
        self, name: str, version: str | None = None, *, again: bool = False
    ) -> ModelLoad:
        """Load a stored model, try it, and let it serve in place of the version that does.

        That one serves until then, and finishes what it has begun.

        Args:
            name: In the store.
            version: A whole number; None is the highest.
            again: Load it though it serves already.

        Raises:
            ModelNotFound: There is no such model or version in the store.
            ModelCannot: It is no model that serves, or of another kind than the one that does.
            ModelAliasTaken: Its name is an alias.
            ModelNotLoaded: It is broken, or fails when it is tried, or there is no room for it.
                What served before serves on.
        """
        store = self._opener.store
        try:  # its files are hashed later
            stored = await asyncio.to_thread(store.open, name, version, check=False)
        except StoreError as error:
            raise self._refusal(name, version, error.message) from error
        self._check(stored)
        return await self._run(lambda done: self._load(stored, again, done))

    async def unload(self, name: str, check: Callable[[], None]) -> ModelUnload:
        """Let a model serve no new request, wait for its last ones, and free its memory.

        Args:
            name: The model's own.
            check: Raises what speaks against it; called at the last moment.

        Raises:
            ModelNotFound: It does not serve.
            CondenseryError: As ``check``.
        """
        self._pool.require(name)
        return await self._run(lambda done: self._unload(name, check, done))

    async def set_aliases(self, changes: Mapping[str, str | None]) -> Mapping[str, str]:
        """Change aliases, all at once, and return all there are; raises as ``Aliases.change``."""
        return await self._run(lambda done: self._set_aliases(dict(changes), done))

    def close(self) -> None:
        """Begin nothing more; a load under way comes to nothing."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        self._loader.shutdown(wait=False, cancel_futures=True)

    async def versions(self) -> list[ModelVersion]:
        """List every stored version of every model that could serve, and what serves unstored."""
        return await self.states.versions()

    async def _run(self, work: Callable[["asyncio.Future[T]"], Coroutine[Any, Any, None]]) -> T:
        """Do what ``work`` does to its end, and return once it has told its result."""
        if self._closed:
            raise Unavailable("The server is shutting down.")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        async def run() -> None:
            try:
                await work(done)
            except Exception as error:  # a bug is whoever's to hear who asked
                if done.done():
                    _log.exception("model_change_failed")
                else:
                    done.set_exception(error)

        # Not in the caller's context: their time is theirs, and not the model's to be tried in.
        task = loop.create_task(run(), context=Context())
        self._tasks.add(task)

        def ended(task: "asyncio.Task[None]") -> None:
            self._tasks.discard(task)
            if not done.done():  # cancelled, perhaps before its first step
                done.set_exception(Unavailable("The server ended before this was done."))

        task.add_done_callback(ended)
        done.add_done_callback(lambda one: one.cancelled() or one.exception())
        return await asyncio.shield(done)

    async def _load(
        self, stored: StoredModel, again: bool, done: "asyncio.Future[ModelLoad]"
    ) -> None:
        name = stored.name
        async with self._locks[name]:
            current = self._pool.serving(name)
            if current is not None and not again and _same(current.stored, stored):
                info, memory = current.model.info, sum(current.memory.values())
                done.set_result(ModelLoad(info, _revision(info), False, 0.0, memory))
                return
            started = time.perf_counter()
            previous = None if current is None else _revision(current.model.info)
            leaving = [] if current is None else [current]
            del current
            serving = await self._bring(stored)
            self.states.failures.pop((name, stored.version), None)
            info, memory = serving.model.info, sum(serving.memory.values())
            del serving
            seconds = time.perf_counter() - started
            _log.info("model_loaded", extra={"model": name, "version": stored.version})
            done.set_result(ModelLoad(info, previous, True, seconds, memory))
            await self._retire(leaving)

    async def _bring(self, stored: StoredModel) -> Serving:
        """Load, try and put in place; what fails says why, and leaves everything as it was."""
        key = name, version = stored.name, stored.version
        self.states.loading[name] = version
        self.states.tell(name)
        opened: Opened | None = None
        try:
            self._check(stored)
            opened = await self._in_loader(lambda: self._open(stored))
            await prove(opened.model)
            async with self._naming:
                self._check(stored)
                if self._closed:
                    raise Unavailable("The server is shutting down.")
                serving = Serving(opened)
                self._pool.put(name, serving)
                return serving
        except (ModelCannot, ModelAliasTaken, Unavailable):
            _close(opened)
            raise
        except asyncio.CancelledError:
            _close(opened)
            raise
        except Exception as error:  # whatever is wrong with a model is its own fault alone
            _close(opened)
            reason = _reason(error)
            if not isinstance(error, CondenseryError):
                # of the model's files, and of our own texts that it was tried with
                fields = {"model": name, "version": version, "detail": str(error)}
                _log.exception("model_not_loaded", extra=fields)
        finally:
            self.states.loading.pop(name, None)
            self.states.tell(name)
        # Here, where nothing holds the frames that hold what was loaded of it.
        opened = None
        await self._in_loader(give_back)
        self.states.failures[key] = reason
        if self._pool.serving(name) is None:
            self._pool.put(name, None, refused=reason)
        raise self._refusal(name, version, reason)

    def _refusal(self, name: str, version: str | None, reason: str) -> ModelNotLoaded:
        current = self._pool.serving(name)
        still = f"version {current.stored.version} serves on" if current else "none of it serves"
        what = f"model {name!r}" if version is None else f"model {name!r} version {version}"
        return ModelNotLoaded(
            f"{what} was not loaded, and {still}: {reason}", field="model", value=name
        )

    def _open(self, stored: StoredModel) -> Opened:
        """Check and load; in the loader's thread."""
        return self._opener.open(self._opener.store.verify(stored.name, stored.version))

    async def _unload(
        self, name: str, check: Callable[[], None], done: "asyncio.Future[ModelUnload]"
    ) -> None:
        async with self._locks[name]:
            async with self._naming:
                leaving = [self._pool.require(name)]  # another may have unloaded it meanwhile
                check()
                self._pool.put(name, None)
            started, info = time.perf_counter(), leaving[0].model.info
            await self._retire(leaving)
            done.set_result(ModelUnload(name, _revision(info), time.perf_counter() - started))
            _log.info("model_unloaded", extra={"model": name, "version": info.version})

    async def _set_aliases(
        self,
        changes: Mapping[str, str | None],
        done: "asyncio.Future[Mapping[str, str]]",
    ) -> None:
        pool = self._pool
        async with self._naming:  # nothing comes or goes meanwhile
            serving = {info.name for info in pool.models()}
            named = serving | set(pool.refused())

            def change() -> None:
                taken = named | set(self._opener.store.names())
                pool.aliases.change(changes, serving=serving, taken=taken)

            await asyncio.to_thread(change)
        pool.told()
        done.set_result(pool.aliases.targets)

    async def _retire(self, leaving: list[Serving]) -> None:
        """Wait for the last requests of what serves no new ones, and free it."""
        if not leaving:
            return
        stored = leaving[0].stored
        key = stored.name, stored.version
        self.states.leaving.append(key)
        self.states.tell(stored.name)
        try:
            if not await leaving[0].drained(self._drain_seconds):
                _log.warning("model_cut_off", extra={"model": stored.name})
        finally:
            leaving.pop().model.close()
            self.states.leaving.remove(key)
            self.states.tell(stored.name)
        self._pool.told()  # what it made for its last requests has gone with it
        await self._in_loader(give_back)

    def _check(self, stored: StoredModel) -> None:
        name, kind = stored.name, stored.manifest.kind
        if kind == "language-model":
            raise ModelCannot(
                f"model {name!r} is a language model, which others are made from: it does not "
                "serve",
                field="model",
                value=name,
            )
        if name in self._pool.aliases:
            raise ModelAliasTaken(
                f"model {name!r} can't be loaded: its name is an alias of "
                f"{self._pool.aliases.targets[name]!r}",
                field="model",
                value=name,
            )
        current = self._pool.serving(name)
        if current is not None and current.model.info.kind != kind:
            raise ModelCannot(
                f"model {name!r} serves as {current.model.info.kind}; its version "
                f"{stored.version} is of kind {kind}, and can't take its place: unload it first",
                field="model",
                value=name,
            )

    async def _in_loader(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._loader, work)


def _prepare_thread() -> None:
    """Go behind whoever is served while a model is loaded."""
    torch.set_num_threads(1)
    step_back()


def _revision(info: ModelInfo) -> Revision:
    return Revision(info.version, info.fingerprint)


def _same(one: StoredModel, other: StoredModel) -> bool:
    same = one.manifest.fingerprint == other.manifest.fingerprint
    return one.version == other.version and same


def _close(opened: Opened | None) -> None:
    if opened is not None:
        opened.model.close()


def _reason(error: Exception) -> str:
    if isinstance(error, CondenseryError):
        return error.message
    if is_out_of_memory(error) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return "there is not enough memory for it"
    return f"{type(error).__name__}; the server's log has more"
