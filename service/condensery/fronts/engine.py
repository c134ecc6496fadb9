"""Front processes as the engine's process sees them: begun, asked for by none, served, replaced.

Each listens on the REST port by a socket of its own, made here and kept: connections that wait
while a process is replaced wait for the next one.
"""

import asyncio
import contextlib
import logging
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from condensery.api.ports import check_free
from condensery.cluster.messages import Call, ModelId, Reply, Timing, plain_error
from condensery.errors import CondenseryError, ModelFault, StartError
from condensery.fronts.channel import (
    Answered,
    Asked,
    Begin,
    Broken,
    Channel,
    Dropped,
    EngineState,
    Hurry,
    OtherVersion,
    Ping,
    Pong,
    Ready,
    ServedModel,
    Stop,
)
from condensery.fronts.front import CONNECTIONS
from condensery.jobs.services import Services
from condensery.metrics import OtherProcesses
from condensery.request_context import serving_request
from condensery.runtime.tokenizing import TokenizedText
from condensery.settings import Settings
from condensery.values import Embedded, ModelRole

REST_SOCKET, GRPC_SOCKET = "rest.sock", "grpc.sock"
BACKLOG = 2048
PING_SECONDS = 2.0
# Asked so often without a word, a front process hangs, and is replaced. By the clock, one would
# hang whenever this process itself was stopped for a while.
MOST_UNANSWERED = 5
SCRAPE_SECONDS = 2.0  # that a scrape waits; samples that are late count as last time
# Between a process's end and the next one in its place, doubled from time to time that it ends
# before it is ready.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 5.0
# That a process may end before it is ready, at the start: then the start has failed.
TRIES = 3
# For a process to end beyond its requests' grace.
END_SECONDS = 10.0
ROLES: tuple[ModelRole, ...] = ("encoder", "reranker", "classifier")

_log = logging.getLogger(__name__)


class _Front:
    """One place for a front process, and the process that is in it."""

    def __init__(self, fronts: "Fronts", number: int, listener: socket.socket) -> None:
        self.name = f"front {number}"
        self.ready = asyncio.Event()
        self.ponged = asyncio.Event()
        self.broken = ""
        self.began = False  # whether one was ready here
        self._fronts = fronts
        self._listener = listener
        self._channel: Channel | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._unanswered = 0  # pings
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._run: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin a process, and another whenever one ends."""
        self._run = asyncio.create_task(self._keep_running())

    def send(self, message: Any) -> None:
        """Tell the process, if there is one that is ready: before that it hears ``Begin`` alone."""
        if self._channel is not None and self.ready.is_set():
            self._channel.send(message)

    def ping(self) -> bool:
        """Ask whether it works; returns whether it did not answer for too long."""
        if not self.ready.is_set():
            return False
        self._unanswered += 1
        self.send(Ping())
        return self._unanswered > MOST_UNANSWERED

    def stop(self, grace: float) -> None:
        """Have it finish its requests and end; one that has none yet is killed."""
        if self.ready.is_set():
            self.send(Stop(grace))
        else:
            self.kill()

    def kill(self) -> None:
        """End the process, whatever it does."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def end(self, seconds: float) -> None:
        """Wait for the process's end, which it was told to come to; then kill it."""
        if self._run is None:
            return
        await asyncio.wait({self._run}, timeout=seconds)
        self.kill()
        await asyncio.wait({self._run})

    async def _keep_running(self) -> None:
        pause, unready = FIRST_PAUSE_SECONDS, 0
        while not self._fronts.stopping:
            try:
                status: int | str = await self._run_one()
            except OSError as error:  # no files, no memory, no room for another process
                status = str(error)
            if self.broken or self._fronts.stopping:
                return
            _log.error("front_process_ended", extra={"front": self.name, "status": status})
            if self.ready.is_set():
                pause, unready = FIRST_PAUSE_SECONDS, 0
            else:
                pause, unready = min(2 * pause, LONGEST_PAUSE_SECONDS), unready + 1
            self.ready.clear()
            self._fronts.note_lost(self)
            if unready == TRIES and not self.began:
                self.broken = f"it ended {TRIES} times before it was ready (status {status})"
                self.ready.set()
                return
            await asyncio.sleep(pause)

    async def _run_one(self) -> int:
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as stack:
            stack.enter_context(ours)
            given = theirs.fileno(), self._listener.fileno()
            self._process = process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "condensery.fronts.front"),
                *map(str, given),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=given,
                # Where this process finds its modules, whatever the folder that it was begun in.
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
            stack.pop_all()
        self._channel = await Channel.open(ours, self._receive, self._lose)
        self._unanswered = 0
        if self._fronts.stopping:
            self.kill()
        elif (begin := self._fronts.begin_message) is not None:
            self._channel.send(begin)
        status = await process.wait()
        self._channel.close()
        self._channel = None
        return status

    def welcome(self, begin: Begin) -> None:
        """Let the process, which was begun before there was anything to serve, serve."""
        if self._channel is not None:
            self._channel.send(begin)

    def _receive(self, message: Any) -> None:
        self._unanswered = 0
        match message:
            case Asked(number, call, deadline):
                task = asyncio.create_task(self._answer(number, call, deadline))
                self._calls[number] = task
                task.add_done_callback(lambda _: self._calls.pop(number, None))
            case Dropped(number):
                if (dropped := self._calls.get(number)) is not None:
                    dropped.cancel()
            case Pong(samples):
                self._fronts.samples.note(self.name, samples)
                self.ponged.set()
            case Ready():
                self.began = True
                self.ready.set()
                self._fronts.note_ready()
                if (begin := self._fronts.begin_message) is not None:  # it may have changed since
                    self.send(begin.state)
            case Broken(reason):
                _log.error("front_process_broken", extra={"front": self.name, "reason": reason})
                if not self.began:
                    self.broken = reason
                    self.ready.set()

    async def _answer(self, number: int, call: Call, deadline: float) -> None:
        reply = await self._fronts.answer(call, deadline)
        if self._channel is not None:  # who asks may have to say yet that it is ready
            self._channel.send(Answered(number, reply))

    def _lose(self) -> None:
        for task in list(self._calls.values()):
            task.cancel()


class Fronts:
    """The front processes of a server.

    Args:
        listeners: The REST port, once for each process; closed with this.
        reserved: The gRPC port, on which each listens by itself; closed with this.

    Attributes:
        grpc_path: Of the Unix socket by which they pass calls on to this process.
        grpc_port: Where callers find gRPC.
        samples: What they count.
        begin_message: What each begins with; None until there is anything to serve.
        stopping: Whether those that end are not replaced.
    """

    def __init__(
        self, settings: Settings, listeners: Sequence[socket.socket], reserved: socket.socket
    ) -> None:
        self._settings = settings
        self._listeners = listeners
        self._reserved = reserved
        self.grpc_port: int = reserved.getsockname()[1]
        # For its owner alone: a socket in a folder of others' could be anybody's to reach.
        self._folder = Path(tempfile.mkdtemp(prefix="condensery-"))
        self._rest_path, self.grpc_path = self._folder / REST_SOCKET, self._folder / GRPC_SOCKET
        self.samples = OtherProcesses(lambda name: name != CONNECTIONS)
        self.begin_message: Begin | None = None
        self.stopping = False
        self._services: Services
        self._watching: asyncio.Task[None] | None = None
        self._fronts = [_Front(self, place, one) for place, one in enumerate(listeners)]

    def begin(self) -> None:
        """Begin the processes, which take a second to be able to serve."""
        for front in self._fronts:
            front.begin()

    def listen(self) -> socket.socket:
        """Return the socket on which this process serves the requests that they pass on."""
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self._rest_path))
        listener.listen(BACKLOG)
        listener.setblocking(False)
        return listener

    async def serve(self, services: Services) -> None:
        """Let them serve these services, and wait until all do.

        Raises:
            StartError: One says why it can't.
        """
        # Another server may have come to it meanwhile, and would share it unnoticed.
        check_free(self._settings.host, self.grpc_port, "grpc_port")
        self._services = services
        metrics = services.metrics
        metrics.registry.others = self.samples.total
        metrics.registry.refresh = self._refresh
        services.registry.watch(self.tell)
        services.health.watch(lambda ready: self.tell())
        state = self._state()
        self.begin_message = Begin(
            self._settings,
            len(self._fronts),
            str(self._rest_path),
            str(self.grpc_path),
            self.grpc_port,
            state,
        )
        for front in self._fronts:
            front.welcome(self.begin_message)
        for front in self._fronts:
            await front.ready.wait()
            if front.broken:
                raise StartError(f"A front process could not begin: {front.broken}")
        self._watching = asyncio.create_task(self._watch())

    def tell(self) -> None:
        """Tell the processes how things are now."""
        if self.begin_message is None or self.stopping:
            return
        state = self._state()
        self.begin_message = self.begin_message._replace(state=state)
        for front in self._fronts:
            front.send(state)

    async def stop(self, grace: float) -> None:
        """Have them finish their requests, and end."""
        self.stopping = True
        if self._watching is not None:
            self._watching.cancel()
        for front in self._fronts:
            front.stop(grace)
        await asyncio.gather(*(front.end(grace + END_SECONDS) for front in self._fronts))
        self._close_ports()  # else who comes now would wait for nobody

    def hurry(self) -> None:
        """Have them end at once."""
        for front in self._fronts:
            front.send(Hurry())

    async def close(self) -> None:
        """End what has not ended, and let the port and the folder go."""
        self.stopping = True
        for front in self._fronts:
            front.kill()
        await asyncio.gather(*(front.end(0) for front in self._fronts))
        self._close_ports()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _close_ports(self) -> None:
        for listener in (*self._listeners, self._reserved):
            listener.close()

    def note_ready(self) -> None:
        """Show how many serve."""
        ready = sum(front.ready.is_set() for front in self._fronts)
        self._services.metrics.front_processes.set(ready)

    def note_lost(self, front: _Front) -> None:
        """Keep what a process has counted, as it last said."""
        self.samples.remove(front.name)
        if self.begin_message is not None:
            self.note_ready()

    async def answer(self, call: Call, deadline: float) -> Reply:
        """Have a model here do what a front process asks; our own errors are part of the reply."""
        request = call.caller.request()
        request.deadline = deadline
        value, error = None, None
        try:
            with serving_request(request), self._services.admission.admit(0):
                value = await self._method(call)(*call.args, **call.options)
        except CondenseryError as refusal:
            error = plain_error(refusal)
        except Exception:
            _log.exception("internal_error", extra=request.log_fields)
            error = ModelFault("The engine failed inside; its log has more.")
        return Reply(value, error, Timing.of(request.stats), request.work_begun)

    def _method(self, call: Call) -> Callable[..., Any]:
        registry: Any = self._services.registry
        name = call.model.name
        match call.method:
            case "embed_tokenized":
                return partial(_embed_tokenized, registry.encoder(name), call.model.fingerprint)
            case "embed" | "embed_tokens":
                model = registry.encoder(name)
            case "classify":
                model = registry.classifier(name)
            case _:
                assert call.method == "score", call.method
                model = registry.scorer(name)
        method: Callable[..., Any] = getattr(model, call.method)
        return method

    def _state(self) -> EngineState:
        registry, health = self._services.registry, self._services.health
        models = []
        for info in registry.models():
            roles = frozenset(role for role in ROLES if info in registry.models(role))
            own = ModelId(info.name, info.version, info.fingerprint)
            served = ServedModel(own, info, roles, {}, None, None)
            if "encoder" in roles:
                encoder: Any = registry.encoder(info.name)
                served = replace(
                    served,
                    prompts=dict(encoder.prompts),
                    default_prompt=encoder.default_prompt,
                    tokenizer=encoder.tokenizer_folder,
                )
            models.append(served)
        aliases = registry.aliases
        defaults: dict[ModelRole, str] = {}
        finders: dict[ModelRole, Callable[[], Any]] = {
            "encoder": registry.encoder,
            "reranker": registry.scorer,
            "classifier": registry.classifier,
        }
        missing: dict[ModelRole, CondenseryError] = {}
        for role, find in finders.items():
            try:
                defaults[role] = find().info.name
            except CondenseryError as error:
                missing[role] = plain_error(error)
        return EngineState(
            tuple(models),
            {name: aliases.resolve(name) for name in aliases.targets if not aliases.index_of(name)},
            defaults,
            missing,
            dict(registry.refusals()),
            self._services.keys.known,
            health.draining,
            health.refusing,
            health.reason,
        )

    async def _refresh(self) -> None:
        """Read what all have counted; those that are late count as last time."""
        waiting = []
        for front in self._fronts:
            if front.ready.is_set():
                front.ponged.clear()
                front.send(Ping())
                waiting.append(asyncio.create_task(front.ponged.wait()))
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=SCRAPE_SECONDS)
            for task in late:
                task.cancel()

    async def _watch(self) -> None:
        """Read what they count between scrapes too, and replace one that says nothing."""
        while True:
            await asyncio.sleep(PING_SECONDS)
            for front in self._fronts:
                if front.ping():
                    _log.error("front_process_hangs", extra={"front": front.name})
                    front.kill()


async def _embed_tokenized(
    encoder: Any,
    fingerprint: str,
    texts: Sequence[tuple[list[int], bool]],
    characters: int,
    **options: Any,
) -> Embedded:
    if encoder.info.fingerprint != fingerprint:
        raise OtherVersion(f"{encoder.info.name}: another version serves by now")
    tokens = [TokenizedText(ids, truncated) for ids, truncated in texts]
    embedded: Embedded = await encoder.embed_tokenized(tokens, characters, **options)
    return embedded
