"""The composition root: the one place that wires settings, models, indexes and both APIs.

PyTorch and transformers take seconds to import, so that what needs them is imported late: a wrong
setting or a taken port is reported at once, not after seconds of silence.
"""

import asyncio
import contextlib
import logging
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from prometheus_client import ProcessCollector

import condensery
from condensery.api.grpc.server import GrpcServer
from condensery.api.grpc.server import start_at as start_grpc_at
from condensery.api.grpc.server import start_server as start_grpc
from condensery.api.ports import (
    Tls,
    check_free,
    check_keys_for_host,
    is_reachable,
    limit_connections,
    listen,
    listen_together,
    reserve_shared,
)
from condensery.api.rest.http import RestServer, loop_factory
from condensery.atomic_files import PRIVATE_UMASK, make_private, umask
from condensery.auth import KEY_FILE, Keys, load_or_make_key, reload_keys
from condensery.errors import CondenseryError, StartError
from condensery.fronts.engine import Fronts
from condensery.fronts.relay import RelayedApp
from condensery.index.lock import DataDirLock
from condensery.index.maintenance import SNAPSHOTS
from condensery.index.store import INDEXES, IndexStore
from condensery.jobs.contexts import ContextStore
from condensery.jobs.indexes import log_outdated_prompts
from condensery.jobs.maintenance import SAMPLES_INDEX as SAMPLES
from condensery.jobs.maintenance import ensure_samples, resume_rebuilds
from condensery.jobs.models import watch_models
from condensery.jobs.services import Admission, Health, RequestLimits, Services, Uploads
from condensery.jobs.shadows import Shadows
from condensery.logs import SlowRequests, configure_logging, log_loop_fault
from condensery.metrics import Metrics, watch_disk
from condensery.networks.heavy_imports import import_networks, kept_for_good
from condensery.other_servers import (
    Say,
    open_answer_server,
    open_databases,
    tell_generators,
    watch_databases,
)
from condensery.request_context import Tracer
from condensery.settings import Settings, read_names
from condensery.store.aliases import FILE as MODEL_ALIASES
from condensery.store.checking import hashed_once
from condensery.store.store import ModelStore, shipped_store
from condensery.tracing.opening import find_target, open_tracing
from condensery.values import IndexCaps

if TYPE_CHECKING:
    from condensery.runtime.registry import ModelRegistry


FAULT_STATUS = 70  # the exit status of a process that broke inside: EX_SOFTWARE of sysexits.h
TRACES_SECONDS = 5.0  # for the last spans, once all requests are done
FATAL_GRACE_SECONDS = 1.0  # for requests in flight then
TRIM_SECONDS = 300.0  # between givings-back of memory

_log = logging.getLogger(__name__)


class ModelSource(Protocol):
    """Models that run elsewhere, behind a registry of this process (``condensery.cluster``)."""

    async def load(
        self, settings: Settings, metrics: Metrics, say: Say, *, usual_umask: int
    ) -> "ModelRegistry":
        """Return the registry once the models are ready, as ``registry.load_models`` does."""
        ...

    def watch(
        self,
        registry: "ModelRegistry",
        on_fault: Callable[[str | None], None],
        on_fatal: Callable[[str], None],
    ) -> None:
        """Call back in the loop with what is wrong with them, or None, whenever that changes.

        Args:
            on_fatal: Called where only a new process helps.
        """
        ...

    def close(self) -> None:
        """Leave them. Blocks."""
        ...


def serve(settings: Settings, models: ModelSource | None = None) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit status.

    Args:
        models: Where they run, if not in this process.

    Raises:
        StartError: A port or the data directory is taken, or no model serves.
        StorageError, StoreError: A disk refused.
    """
    configure_logging(settings.log_level)
    # What users write is nobody else's to read; SQLite too makes its files by this.
    with umask(PRIVATE_UMASK) as usual, asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_serve(settings, print_status, usual, models))


def print_status(line: str) -> None:
    """Show the person at the terminal what the server is doing."""
    sys.stderr.write(f"condensery: {line}\n")
    sys.stderr.flush()


async def _serve(
    settings: Settings, say: Say, usual_umask: int, models: ModelSource | None = None
) -> int:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(log_loop_fault)
    signals = Signals(loop)
    async with AsyncExitStack() as stack:
        server = Server(settings, signals, say, usual_umask, models)
        starting = asyncio.create_task(server.start(stack))
        if not await _wait_for_first(
            starting, signals.stop, seconds=settings.start_timeout_seconds
        ):
            starting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await starting
            if not signals.stop.is_set():
                raise StartError(
                    f"Not ready within {settings.start_timeout_seconds:g} s "
                    "(start_timeout_seconds)."
                )
            say("stopped before it was ready")
            return 0
        await starting
        await server.run()
    say("stopped" if not server.fatal else f"ended: {server.fatal}")
    return server.status


async def _wait_for_first(
    task: "asyncio.Task[Any]", event: asyncio.Event, *, seconds: float
) -> bool:
    """Wait for a task, an event or ``seconds``; returns whether the task is done."""
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait({task, waiting}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return task.done()
    finally:
        waiting.cancel()


async def _trim_regularly() -> None:
    """Give the system back what a rush has left free: malloc would keep it for good."""
    from condensery.runtime.device import trim_memory

    while True:
        await asyncio.sleep(TRIM_SECONDS)
        await asyncio.to_thread(trim_memory)


class Signals:
    """Signals as events of the loop.

    SIGTERM asks to end once those who send requests have noticed; SIGINT, a person at the
    terminal, to end now. A second one of either hurries. SIGHUP reads the keys again.

    Attributes:
        stop: Set by the first.
        hurry: Set by the second.
        settle: Whether the first was SIGTERM.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        self.settle = False
        self._loop = loop
        self.listen()
        # Until there are keys to read: by default it would end the process.
        loop.add_signal_handler(signal.SIGHUP, lambda: None)

    def listen(self) -> None:
        """Hear of signals to end; again, where a library has put handlers of its own there."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._on_end_signal, number)

    def on_hangup(self, reload: Callable[[], None]) -> None:
        """Call ``reload`` at each SIGHUP from now on."""
        self._loop.add_signal_handler(signal.SIGHUP, reload)

    def _on_end_signal(self, number: signal.Signals) -> None:
        if self.stop.is_set():
            self.hurry.set()
        else:
            self.settle = number == signal.SIGTERM
            self.stop.set()


class Server:
    """The running parts, from start to end.

    Args:
        say: Called with each line for whoever started it.
        usual_umask: For what is made outside the data directory.
        models: Where they run, if not in this process.

    Attributes:
        status: The process's, once ``run`` has returned.
        fatal: Why nothing but a new process helps; "" while all is well.
    """

    def __init__(
        self,
        settings: Settings,
        signals: Signals,
        say: Say,
        usual_umask: int = PRIVATE_UMASK,
        models: ModelSource | None = None,
    ) -> None:
        self.status = 0
        self.fatal = ""
        self._settings = settings
        self._signals = signals
        self._say = say
        self._usual_umask = usual_umask
        self._models = models
        self._ended = asyncio.Event()
        self._keys = Keys()
        self._services: Services
        self._rest: RestServer
        self._grpc: GrpcServer
        self._fronts: Fronts | None = None

    async def start(self, stack: AsyncExitStack) -> None:
        """Start everything, the cheap checks first; ``stack`` closes it in reverse."""
        began = time.perf_counter()
        settings, say = self._settings, self._say
        makes_key = self._read_keys()
        if settings.front_processes:
            listeners = listen_together(settings.host, settings.port, settings.front_processes)
            reserved = reserve_shared(settings.host, settings.grpc_port, "grpc_port")
            self._fronts = Fronts(settings, listeners, reserved)
            stack.push_async_callback(self._fronts.close)
        else:
            listeners = [listen(settings.host, settings.port)]
            stack.callback(listeners[0].close)
            check_free(settings.host, settings.grpc_port, "grpc_port")
        metrics = Metrics(tei=settings.tei_metrics)
        tracer = self._open_tracing(stack, metrics)
        metrics.build_info.labels(condensery.__version__).set(1)
        metrics.queue_tokens_limit.set(settings.max_queue_tokens)
        ProcessCollector(registry=metrics.registry)
        say(f"data in {settings.data_dir}")
        lock = DataDirLock(settings.data_dir)
        stack.callback(lock.release)
        make_private(
            lock.path, *(settings.data_dir / name for name in (INDEXES, SNAPSHOTS, MODEL_ALIASES))
        )
        if makes_key:
            self._make_key()
        if self._fronts is not None:
            self._fronts.begin()
        caps = IndexCaps(settings.max_indexes, settings.max_aliases, settings.max_snapshots)
        databases = await asyncio.to_thread(open_databases, settings, say)
        stack.callback(databases.close)
        indexes = await asyncio.to_thread(
            IndexStore,
            settings.data_dir,
            metrics=metrics,
            lock=lock,
            caps=caps,
            databases=databases,
        )
        stack.callback(indexes.close)
        for name, reason in indexes.broken.items():
            say(f"index {name}: refused: {reason}")
        watch_disk(metrics, settings.data_dir)
        say("loading PyTorch")
        with hashed_once():
            if self._models is None:  # else it loads them elsewhere
                # Importing leaves it a core. Nothing waits for its end: it only reads.
                threading.Thread(target=self._hash_models, name="hashing", daemon=True).start()
            with kept_for_good():
                import_networks()
                from condensery.runtime.device import release_memory
                from condensery.runtime.gpu_metrics import watch_gpus
                from condensery.runtime.registry import load_models

            load = load_models if self._models is None else self._models.load
            registry = await load(settings, metrics, say, usual_umask=self._usual_umask)
        stack.callback(self._close_registry, registry)
        tell_generators(settings, registry, say)
        if self._models is not None:  # before that: what it runs elsewhere outlives this process
            stack.push_async_callback(asyncio.to_thread, self._models.close)
            self._signals.listen()
        watch_gpus(metrics, (workers.device for workers in registry.workers))
        admission = Admission(settings.max_requests, settings.max_inflight_bytes, metrics)
        health = Health()
        watch_databases(databases, health, metrics)
        self._services = services = Services(
            registry=registry,
            indexes=indexes,
            metrics=metrics,
            limits=RequestLimits.of(settings),
            health=health,
            admission=admission,
            keys=self._keys,
            contexts=ContextStore(settings.max_context_bytes, metrics),
            search_mode=settings.search,
            answer_server=open_answer_server(settings, stack, metrics, say),
            slow=SlowRequests(settings.slow_ms),
            uploads=Uploads(settings.data_dir),
            tracer=tracer,
            shadows=self._open_shadows(stack, registry, admission, health, metrics),
        )
        watch_models(services)
        services.health.watch(metrics.ready.set)
        self._watch(stack, registry, metrics)
        stack.push_async_callback(services.rebuilds.close)
        await resume_rebuilds(services)
        log_outdated_prompts(services)
        samples = bool(registry.models("encoder")) and await self._make_samples()
        await asyncio.to_thread(release_memory)  # what reading models and trying them needed
        stack.callback(asyncio.create_task(_trim_regularly()).cancel)
        await self._start_servers(listeners[0])
        services.health.start()
        url = self._greet(listeners[0].getsockname()[1], time.perf_counter() - began)
        say(_example(url, registry, samples=samples, keyed=not self._keys.open))

    def _hash_models(self) -> None:
        """Hash what is about to be loaded; whoever loads it says what is wrong with it."""
        store = ModelStore(shipped_store(), self._settings.own_store)
        named = self._settings.models
        with contextlib.suppress(CondenseryError):
            for name in read_names(named) if named else store.names():
                with contextlib.suppress(CondenseryError):
                    store.open(name)

    def _open_tracing(self, stack: AsyncExitStack, metrics: Metrics) -> Tracer | None:
        """Return what makes spans of requests, if they are to go anywhere."""
        asked = self._settings.otlp_endpoint
        target = find_target(asked)
        if target is None:
            return None
        tracing = open_tracing(target, metrics, asked=asked is not None)
        if tracing is not None:
            stack.push_async_callback(tracing.close, TRACES_SECONDS)
            self._say(f"traces go to {target.endpoint} ({target.protocol})")
        return tracing

    def _open_shadows(
        self,
        stack: AsyncExitStack,
        registry: "ModelRegistry",
        admission: Admission,
        health: Health,
        metrics: Metrics,
    ) -> Shadows | None:
        """Return what computes a share of answers a second time, if one is set."""
        share, model = self._settings.shadow_share, self._settings.shadow_model
        if not share:
            return None
        if model is not None:
            try:
                registry.pair(model)
            except CondenseryError as error:  # it may be loaded later
                self._say(f"warning: shadow_model: {error.message}")
        shadows = Shadows(share, model, registry, admission, health, metrics)
        stack.push_async_callback(shadows.close)
        self._say(f"{share:g} of answers are computed again in idle time, as text")
        return shadows

    async def _make_samples(self) -> bool:
        """Make the sample index, if it is wanted and not there; returns whether it is there."""
        if not self._settings.samples:
            return False
        try:
            return await ensure_samples(self._services, self._say)
        except CondenseryError as error:  # a full disk: searching what is there still works
            self._say(f"index {SAMPLES}: not made: {error.message}")
            return False

    async def _start_servers(self, listener: socket.socket) -> None:
        """Start gRPC, then REST."""
        settings = self._settings
        tls = None
        if settings.tls_cert and settings.tls_key:
            tls = Tls(settings.tls_cert, settings.tls_key)
        max_connections = limit_connections(settings.max_connections)
        relayed: dict[str, Any] = {}
        if self._fronts is not None:
            # By them they come to this process, whose own limit is theirs together.
            relayed = {"address": listener.getsockname()[0], "wrap": RelayedApp}
            listener, tls = self._fronts.listen(), None
            self._grpc = await start_grpc_at(self._services, f"unix:{self._fronts.grpc_path}")
        else:
            self._grpc = await start_grpc(
                self._services, settings.host, settings.grpc_port, tls=tls
            )
        if max_connections < settings.max_connections:
            self._say(
                f"at most {max_connections} REST connections: the process may open few files "
                "(ulimit -n)"
            )
        self._rest = RestServer(
            self._services,
            listener,
            tls=tls,
            max_connections=max_connections,
            trusted_proxies=settings.trusted_proxies,
            cors_origin=settings.cors_origin,
            allowed_hosts=settings.allowed_hosts,
            host=settings.host,
            **relayed,
        )
        await self._rest.started()
        if self._fronts is not None:
            await self._fronts.serve(self._services)
            self._say(f"{settings.front_processes} front processes serve REST and gRPC")

    async def run(self) -> None:
        """Serve until a signal, or until something breaks that can't be mended; then end."""
        # The REST server ends by itself only when it fails.
        self._rest.task.add_done_callback(lambda task: self._ended.set())
        stopping = asyncio.create_task(self._signals.stop.wait())
        ending = asyncio.create_task(self._ended.wait())
        await asyncio.wait({stopping, ending}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        ending.cancel()
        if self._signals.stop.is_set():
            await self._drain()
        else:
            self.fatal = self.fatal or "the REST server ended by itself"
            self.status = FAULT_STATUS
            self._services.health.refusing = True
            await self._stop_servers(FATAL_GRACE_SECONDS)

    async def _drain(self) -> None:
        """Unready, settle, refuse new, finish what was accepted; a second signal hurries."""
        settings, health, hurry = self._settings, self._services.health, self._signals.hurry
        health.drain()
        if self._signals.settle and settings.settle_seconds:
            self._say(f"stopping: unready, and serving for {settings.settle_seconds:g} s more")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(hurry.wait(), settings.settle_seconds)
        health.refusing = True
        if self._fronts is not None:
            self._fronts.tell()
        self._say(f"stopping: requests in flight have {settings.grace_seconds:g} s")
        stopping = asyncio.create_task(self._stop_servers(settings.grace_seconds))
        if not await _wait_for_first(stopping, hurry, seconds=math.inf):
            self._say("stopping at once")
            if self._fronts is not None:
                self._fronts.hurry()
            self._rest.hurry()
            await self._grpc.stop(0)
        await stopping

    async def _stop_servers(self, grace: float) -> None:
        if self._fronts is not None:  # before what serves them
            self._grpc.close_streams()  # of which those that they pass on are some
            await self._fronts.stop(grace)
            grace = FATAL_GRACE_SECONDS
        await asyncio.gather(self._rest.stop(grace), self._grpc.stop(grace))

    def _watch(self, stack: AsyncExitStack, registry: "ModelRegistry", metrics: Metrics) -> None:
        from condensery.runtime.watchdog import FAREWELL_SECONDS, Watchdog

        loop, health = asyncio.get_running_loop(), self._services.health

        def fatal(reason: str) -> None:
            self.fatal = reason
            health.fault(reason, fatal=True)
            loop.call_later(FAREWELL_SECONDS, self._ended.set)

        watchdog = Watchdog(
            registry.workers,
            loop,
            on_fault=health.fault,
            on_fatal=fatal,
            # Nothing acknowledged is lost: it is synced.
            end_process=lambda: os._exit(FAULT_STATUS),
            stall_seconds=self._settings.worker_stall_seconds,
            loading=lambda: bool(registry.lifecycle.states.loading),
            metrics=metrics,
        )
        stack.callback(watchdog.close)
        if self._models is not None:
            on_fault = partial(health.fault, source="models elsewhere")
            self._models.watch(registry, on_fault, fatal)

    def _close_registry(self, registry: "ModelRegistry") -> None:
        registry.close(FATAL_GRACE_SECONDS if self.fatal else self._settings.grace_seconds)

    def _read_keys(self) -> bool:
        """Read the keys that are set; returns whether one is to be made since there are none.

        Raises:
            SettingError: They can't be used; or there are none, and other machines may come in.
        """
        settings = self._settings
        path, key = settings.keys_file, settings.api_key
        if path is None and key is None and settings.make_key and not settings.allow_no_keys:
            return True
        reload_keys(self._keys, path, key)
        check_keys_for_host(settings.host, self._keys, allow_no_keys=settings.allow_no_keys)
        self._read_again(lambda: reload_keys(self._keys, path, key))
        return False

    def _make_key(self) -> None:
        """Accept the key kept in the data directory, and no other; make it at the first start."""
        path = self._settings.data_dir / KEY_FILE

        def read() -> None:
            key, made = load_or_make_key(path)
            reload_keys(self._keys, None, key)
            _log.info("key_made" if made else "key_kept", extra={"file": str(path)})

        read()
        self._read_again(read)
        self._say(f"the key is in {path}")

    def _read_again(self, read: Callable[[], None]) -> None:
        """Read the keys again at each SIGHUP; what can't be read leaves them as they are."""

        def again() -> None:
            try:
                read()
            except CondenseryError as error:
                _log.error("keys_not_reloaded", extra={"reason": error.message})
            else:
                if self._fronts is not None:
                    self._fronts.tell()
                _log.info("keys_reloaded")

        self._signals.on_hangup(again)

    def _greet(self, port: int, seconds: float) -> str:
        """Say where it listens; returns the URL of the REST port."""
        say, host = self._say, self._settings.host
        scheme = "https" if self._settings.tls_cert else "http"
        url = f"{scheme}://{_in_url(host)}:{port}"
        say(f"ready in {seconds:.1f} s")
        say(f"REST on {url} (a console for browsers there; its routes at {url}/docs)")
        grpc_port = self._grpc.port if self._fronts is None else self._fronts.grpc_port
        say(f"gRPC on {host}:{grpc_port}")
        reachable = is_reachable(host)
        if not self._services.keys.open:
            say("a key is needed for everything but health checks and the console's files")
        elif reachable:
            say(f"warning: no key is set, and whoever reaches {host} can use and change everything")
        if reachable:
            say(
                f"warning: gRPC does not bound its connections; if strangers reach port "
                f"{grpc_port}, bound them before it, as docs/settings.md shows (Connections)"
            )
        return url


def _in_url(host: str) -> str:
    if host in ("0.0.0.0", "::"):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def _example(url: str, registry: "ModelRegistry", *, samples: bool, keyed: bool) -> str:
    """Return a request that this server answers: of the sample index only where there is one."""
    if registry.models("oscar-pair"):
        passages = '"documents": ["Mendel studied seven traits of peas."]'
        passages = f'"index": {{"name": "{SAMPLES}"}}' if samples else passages
        body = f'{{"query": "How many traits did Mendel study?", {passages}}}'
        path = "/v1/rag/answer"
    else:
        body, path = '{"input": "a text"}', "/v1/embeddings"
    key = ' -H "authorization: Bearer $CONDENSERY_API_KEY"' if keyed else ""
    return f"try: curl {url}{path}{key} -d '{body}'"
