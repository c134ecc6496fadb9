"""A front process: reads, checks and writes requests, and asks the engine's process for the rest.

It imports neither PyTorch nor FAISS, and holds nothing that a kill could lose but the requests in
its hands. It ends when the engine says so, or is gone; signals are the engine's to hear.
"""

import asyncio
import gc
import itertools
import math
import os
import signal
import socket
import sys
from dataclasses import replace
from typing import Any, cast

from condensery.api.grpc.server import GrpcServer, join_address, start_at
from condensery.api.ports import Tls, limit_connections
from condensery.api.rest.http import RestServer, loop_factory
from condensery.auth import Keys
from condensery.cluster.calling import ReplicaLost
from condensery.cluster.messages import Call, ModelId, Reply
from condensery.errors import CondenseryError
from condensery.fronts.calls import EngineCalls
from condensery.fronts.channel import (
    Answered,
    Asked,
    Begin,
    Broken,
    Channel,
    Dropped,
    EngineState,
    Hurry,
    Ping,
    Pong,
    Ready,
    Stop,
)
from condensery.fronts.registry import FrontRegistry, NothingHere, RefusingRegistry
from condensery.fronts.relay import FrontApp
from condensery.jobs.services import Admission, Health, RequestLimits, Services
from condensery.logs import SlowRequests, configure_logging, log_loop_fault
from condensery.metrics import Metrics, SampleKey, key_of
from condensery.request_context import current_request
from condensery.tracing.opening import find_target, open_tracing

ENDED_STATUS = 0
LOST_STATUS = 75  # EX_TEMPFAIL of sysexits.h: the engine's process is gone
TRACES_SECONDS = 5.0  # for the last spans, once all requests are done
CONNECTIONS = "condensery_connections"  # of the moment, and added up; other gauges are the engine's


class FrontProcess:
    """One process, from its beginning to its end; as ``Replicas``, what calls the engine's models.

    Args:
        listener: The REST port, which it shares with the other front processes.
    """

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._channel: Channel
        self._begun: asyncio.Future[Begin] = asyncio.get_running_loop().create_future()
        self._ending: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._numbers = itertools.count()
        self._calls: dict[int, asyncio.Future[Reply]] = {}
        self._registry = FrontRegistry(self)
        self._health = Health()
        self._keys = Keys()
        self._metrics: Metrics
        self._rest: RestServer | None = None
        self._grpc: GrpcServer | None = None

    async def run(self, channel: socket.socket) -> None:
        """Begin when the engine says so, and serve until it says otherwise."""
        asyncio.get_running_loop().set_exception_handler(log_loop_fault)
        self._channel = await Channel.open(channel, self._receive, self._lose)
        begin = await self._begun
        settings = begin.settings
        configure_logging(settings.log_level)
        self._metrics = Metrics(tei=settings.tei_metrics)
        target = find_target(settings.otlp_endpoint)
        tracing = None
        if target is not None:
            tracing = open_tracing(target, self._metrics, asked=settings.otlp_endpoint is not None)
        try:
            services = self._make_services(begin, tracing)
            self._rest, self._grpc = rest, grpc = await self._listen(begin, services)
        except (CondenseryError, OSError) as error:
            self._channel.send(Broken(str(error)))
            self._channel.close()
            return
        gc.collect()
        gc.freeze()  # what is there now stays: a look through it would stop every request
        self._channel.send(Ready())
        grace = await self._ending
        await asyncio.gather(rest.stop(grace), grpc.stop(grace))
        if tracing is not None:
            await tracing.close(TRACES_SECONDS)
        self._channel.send(Pong(self._samples()))
        self._channel.close()

    def _make_services(self, begin: Begin, tracer: Any) -> Services:
        settings = begin.settings
        # Requests are counted by the engine, for all front processes; bytes lie here.
        share = math.ceil(settings.max_inflight_bytes / begin.fronts)
        most = max(settings.max_body_bytes, share)
        nothing: Any = NothingHere()
        self._take(begin.state)
        self._health.start()
        return Services(
            registry=cast(Any, self._registry),
            indexes=nothing,
            contexts=nothing,
            uploads=nothing,
            metrics=self._metrics,
            limits=RequestLimits.of(settings),
            health=self._health,
            admission=Admission(settings.max_requests, most, self._metrics),
            keys=self._keys,
            search_mode=settings.search,
            slow=SlowRequests(settings.slow_ms),
            tracer=tracer,
        )

    async def _listen(self, begin: Begin, services: Services) -> tuple[RestServer, GrpcServer]:
        settings = begin.settings
        tls = None
        if settings.tls_cert and settings.tls_key:
            tls = Tls(settings.tls_cert, settings.tls_key)
        grpc = await start_at(
            replace(services, registry=cast(Any, RefusingRegistry(self._registry))),
            join_address(settings.host, begin.grpc_port),
            tls=tls,
            shared=True,
            others=EngineCalls(begin.grpc, services),
        )
        rest = RestServer(
            services,
            self._listener,
            tls=tls,
            max_connections=limit_connections(math.ceil(settings.max_connections / begin.fronts)),
            trusted_proxies=settings.trusted_proxies,
            cors_origin=settings.cors_origin,
            allowed_hosts=settings.allowed_hosts,
            host=settings.host,
            wrap=lambda own: FrontApp(own, begin.rest, self._health),
        )
        await rest.started()
        return rest, grpc

    # Of the engine's models, by ``Remote``

    def check(self) -> None:
        """Raise nothing: with the engine, this process ends."""

    async def call(self, call: Call) -> Reply:
        """Have a call served by the engine. Cancelled, it is dropped there. Raises ReplicaLost."""
        number = next(self._numbers)
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._calls[number] = answer
        try:
            self._channel.send(Asked(number, call, current_request().deadline))
            return await answer
        except asyncio.CancelledError:
            self._channel.send(Dropped(number))
            request = current_request()
            if request.seconds_left <= 0:
                request.work_begun = True  # it was sent: what became of it is not known
            raise
        finally:
            del self._calls[number]

    def stream(self, call: Call) -> Any:
        """Refuse: answers are passed on whole."""
        raise ReplicaLost("a front process has no streams")

    def close(self, model: ModelId) -> None:
        """Do nothing: models come and go with the engine's word."""

    # What the engine says

    def _receive(self, message: Any) -> None:
        match message:
            case Answered(number, reply):
                answer = self._calls.get(number)
                if answer is not None and not answer.done():
                    answer.set_result(reply)
            case EngineState():
                self._take(message)
            case Begin():
                self._begun.set_result(message)
            case Ping():
                self._channel.send(Pong(self._samples()))
            case Stop(grace):
                if not self._ending.done():
                    self._ending.set_result(grace)
            case Hurry():
                if self._rest is not None and self._grpc is not None:
                    self._rest.hurry()
                    self._hurrying = asyncio.create_task(self._grpc.stop(0))

    def _take(self, state: EngineState) -> None:
        self._registry.update(state, self._metrics)
        self._keys.replace(state.keys)
        self._health.fault(None if state.reason == "ready" else state.reason)
        self._health.draining, self._health.refusing = state.draining, state.refusing

    def _samples(self) -> dict[SampleKey, float]:
        return {
            key_of(sample): sample.value
            for family in self._metrics.registry.collect()
            for sample in family.samples
            if sample.value
            and (family.type != "gauge" or family.name == CONNECTIONS)
            and not sample.name.endswith("_created")
        }

    def _lose(self) -> None:
        if not self._ending.done():  # the engine was killed: its supervisor begins all anew
            os._exit(LOST_STATUS)


async def _run(channel: int, listener: int) -> None:
    with socket.socket(fileno=listener) as listening:
        await FrontProcess(listening).run(socket.socket(fileno=channel))


def main() -> None:
    """Run a front process; its arguments are the numbers of two sockets that it was given."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    channel, listener = map(int, sys.argv[1:])
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_run(channel, listener))
    os._exit(ENDED_STATUS)


if __name__ == "__main__":
    main()
