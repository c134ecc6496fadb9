"""The composition root: the one place that wires settings, pool, index and doors.

PyTorch and transformers take seconds to import, so that what needs them is imported late: a wrong
setting or a taken port is told at once, and nobody waits in silence.
"""

import asyncio
import contextlib
import logging
import signal
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import condensery
from condensery.api.grpc.server import GrpcServer
from condensery.api.grpc.server import start as start_grpc
from condensery.api.ports import check_free, listen
from condensery.api.rest.server import RestServer
from condensery.errors import CondenseryError, StartError
from condensery.index.store import IndexStore
from condensery.jobs.samples import NAME as SAMPLES
from condensery.jobs.samples import ensure_samples
from condensery.jobs.services import Limits, Services
from condensery.metrics import Metrics
from condensery.settings import Settings

if TYPE_CHECKING:
    from condensery.runtime.pool import RunningModels

Say = Callable[[str], None]


def serve(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit status.

    Raises:
        StartError: A port or the data directory is taken, or no model serves.
        StorageError, StoreError: A disk refused.
    """
    configure_logging(settings.log_level)
    # uvloop and httptools (which uvicorn takes by itself where it is) more than halve what a short
    # request costs beside the model: 310 to 150 us.
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(settings, say))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # there is none for this platform
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def say(line: str) -> None:
    """Tell the person at the terminal what the server is doing."""
    sys.stderr.write(f"condensery: {line}\n")
    sys.stderr.flush()


async def _serve(settings: Settings, say: Say) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        starting = asyncio.create_task(_start(settings, stack, say))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            say("stopping before it was ready")
            starting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await starting
            return 0
        try:
            services, rest, grpc = await starting
        finally:
            stopping.cancel()
        running = asyncio.create_task(stop.wait())
        # The REST server ends by itself only when it fails.
        await asyncio.wait({running, rest.task}, return_when=asyncio.FIRST_COMPLETED)
        running.cancel()
        services.health.set(False, "draining")
        say(f"stopping: requests in flight have {settings.grace_seconds:g} s")
        await asyncio.gather(rest.stop(), grpc.stop(settings.grace_seconds))
    say("stopped")
    return 0 if stop.is_set() else 1


async def _start(
    settings: Settings, stack: AsyncExitStack, say: Say
) -> tuple[Services, RestServer, GrpcServer]:
    """Start everything, the cheap checks first; ``stack`` closes it in reverse."""
    began = time.perf_counter()
    listener = listen(settings.host, settings.port)
    stack.callback(listener.close)
    check_free(settings.host, settings.grpc_port, "grpc_port")
    metrics = Metrics()
    metrics.build_info.labels(condensery.__version__).set(1)
    say(f"data in {settings.data_dir}")
    indexes = await asyncio.to_thread(IndexStore, settings.data_dir, metrics=metrics)
    stack.callback(indexes.close)
    for name, reason in indexes.broken.items():
        say(f"index {name}: refused: {reason}")
    pool = await _load_models(settings, metrics, say)
    stack.callback(pool.close)
    services = Services(
        pool=pool,
        indexes=indexes,
        metrics=metrics,
        limits=Limits(max_items=settings.max_items, max_body_bytes=settings.max_body_bytes),
    )
    if settings.samples and any(info.kind == "encoder" for info in pool.models()):
        try:
            await ensure_samples(services, say)
        except CondenseryError as error:  # a full disk: searching what is there still works
            say(f"index {SAMPLES}: not made: {error.message}")
    grpc = await start_grpc(services, settings.host, settings.grpc_port)
    rest = RestServer(services, listener, settings.grace_seconds)
    await rest.started()
    services.health.set(True, "ready")
    await grpc.set_ready(True)
    port = listener.getsockname()[1]
    say(f"ready in {time.perf_counter() - began:.1f} s")
    url = f"http://{_in_url(settings.host)}:{port}"
    say(f"REST on {url} (description at {url}/docs, metrics at {url}/metrics)")
    say(f"gRPC on {settings.host}:{grpc.port}")
    say(_example(url, pool))
    return services, rest, grpc


async def _load_models(settings: Settings, metrics: Metrics, say: Say) -> "RunningModels":
    say("loading PyTorch")
    from condensery.runtime.device import choose_device, choose_dtype, prepare_process
    from condensery.runtime.pool import RunningModels
    from condensery.store.importing import MINILM, import_minilm
    from condensery.store.store import ModelStore, shipped_store

    prepare_process()
    store = ModelStore(shipped_store(), settings.own_store)
    if MINILM not in store.names():
        say(f"importing {MINILM} into {settings.own_store} (the first time only)")
    try:  # every time: it costs little where the model is whole, and mends it where it is not
        await asyncio.to_thread(import_minilm, store)
    except CondenseryError as error:  # others may serve
        say(f"{MINILM}: not imported: {error.message}")
    device = choose_device(settings.device)
    dtype = choose_dtype(device, settings.dtype)
    say(f"loading models on {device} in {str(dtype).removeprefix('torch.')}")
    pool = await asyncio.to_thread(
        RunningModels.load,
        store,
        device=device,
        dtype=dtype,
        workers=settings.workers or None,
        metrics=metrics,
        say=say,
    )
    if not pool.models():
        reasons = "; ".join(f"{name}: {reason}" for name, reason in pool.refused().items())
        pool.close()
        raise StartError(f"No model serves. {reasons or 'The store is empty.'}")
    say("warming up")
    await pool.warm_up()
    return pool


def configure_logging(level: str) -> None:
    """Write events to stderr as ``time level event key=value ...``; no text of users is logged."""
    handler = logging.StreamHandler()
    handler.setFormatter(_EventFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Uvicorn's own lines ("Started server process") say what we say already.
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, root.level))


class _EventFormatter(logging.Formatter):
    _OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, and the traceback under it if there is one."""
        fields = [
            f"{name}={value!r}" for name, value in vars(record).items() if name not in self._OWN
        ]
        stamp = self.formatTime(record, "%Y-%m-%dT%H:%M:%S")
        line = " ".join([stamp, record.levelname.lower(), record.getMessage(), *fields])
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _in_url(host: str) -> str:
    if host in ("0.0.0.0", "::"):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def _example(url: str, pool: "RunningModels") -> str:
    if any(info.kind == "oscar-pair" for info in pool.models()):
        body = (
            '{"query": "How many traits did Mendel study?", "index": {"name": "samples"}, '
            '"rerank": {"top_n": 1}}'
        )
        path = "/v1/rag/answer"
    else:
        body, path = '{"input": "a text"}', "/v1/embeddings"
    return f"try: curl {url}{path} -d '{body}'"
