"""The gRPC server, in the same loop as REST and in front of the same jobs."""

import asyncio
from collections.abc import Callable, Collection
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_reflection.v1alpha import reflection
from grpc_reflection.v1alpha.reflection_pb2 import (
    ServerReflectionRequest,
    ServerReflectionResponse,
)

from condensery.api import ports
from condensery.api.grpc import calls, health, reading, tei
from condensery.api.grpc.guarding import Guard
from condensery.api.grpc.handling import handler
from condensery.api.grpc.reading import Readers
from condensery.api.grpc.streaming import Streams
from condensery.api.ports import Tls, check_free
from condensery.errors import StartError
from condensery.jobs import models
from condensery.jobs.describe import capabilities
from condensery.jobs.services import Limits, Services
from condensery.stubs import condensery_v1_pb2, tei_v1_pb2

CONTRACTS = (condensery_v1_pb2.DESCRIPTOR, tei_v1_pb2.DESCRIPTOR)
CALLS = (*calls.CALLS, *tei.CALLS)
# TEI's clients ask these whether the model is of the kind that they need.
NEEDS = {"tei.v1.Embed": "embed", "tei.v1.Predict": "predict", "tei.v1.Rerank": "rerank"}

# A message, or metadata, over our limit, up to so many times, is read and refused by us, by its
# size and the limit; one over that is the transport's to refuse. Messages being read are in memory
# before admission can count them, and so may be no larger than need be.
MESSAGE_FACTOR = 2
METADATA_FACTOR = 4
# Calls over those that admission takes and over those to health, which is bounded by itself: for
# descriptions, and for who is being refused. Who comes when all are taken is refused at once, with
# RESOURCE_EXHAUSTED.
SPARE_CALLS = 64
# Calls at once of one connection; a client keeps those over it to itself until there is room.
CALLS_PER_CONNECTION = 1024
LEAST_PING_SECONDS = 10.0
# A connection without a call for so long is ended, and its file is free; a client that comes again
# connects again.
IDLE_SECONDS = 600.0
# For a connection to begin: for its TLS handshake, and for what HTTP/2 begins with.
HANDSHAKE_SECONDS = 20.0


class GrpcServer:
    """A running server; made by ``start``.

    Attributes:
        port: Where it listens.
    """

    def __init__(
        self,
        server: grpc.aio.Server,
        port: int,
        guard: Guard,
        checks: health.Health,
        streams: Streams,
    ) -> None:
        self.port = port
        self._server = server
        self._guard = guard
        self._checks = checks
        self._streams = streams

    async def stop(self, grace: float) -> None:
        """Say NOT_SERVING, refuse new calls, wait ``grace`` seconds for those in flight.

        Of a stream those messages are in flight that have come.

        gRPC cancels the calls that have reached it when it stops, or are on their way, and are not
        begun; that tells nobody that they may be repeated. So refusals are held until gRPC has told
        its clients that it ends: who waits for a reply sends nothing into the end. Connections that
        wait in its listening socket are cut off, and no call has come over them: a client sends
        none before the server has greeted it.
        """
        self._checks.close()
        self._streams.close()
        if grace > 0:
            self._guard.hold_refusals()
            await asyncio.sleep(min(ports.LAST_SECONDS, grace))
        self._checks.end()
        stopping = asyncio.create_task(self._server.stop(grace))
        await asyncio.sleep(0.01)  # it has begun
        self._guard.answer()
        await stopping


async def start(services: Services, host: str, port: int, *, tls: Tls | None = None) -> GrpcServer:
    """Start listening; health tells what ``services.health`` does.

    Raises:
        PortTaken: Another process listens there.
        SettingError: The certificate or its key can't be used.
        StartError: The host is no address of this machine.
    """
    credentials = None if tls is None else _credentials(tls)
    by_path = {call.path: call for call in CALLS}
    sizes = services.admission.max_bytes, _message_bytes(services.limits)
    readers = Readers(*sizes, reading.READ_SECONDS)
    streams = Streams(readers.most)
    guard = Guard(services, by_path, health.PATHS)
    server = grpc.aio.server(
        options=_options(services.limits),
        interceptors=(guard,),
        maximum_concurrent_rpcs=services.admission.max_requests + SPARE_CALLS + health.CALLS,
    )
    names = []
    for service in (one for file in CONTRACTS for one in file.services_by_name.values()):
        names.append(service.full_name)
        methods = {
            call.name: handler(services, call, readers, streams)
            for call in CALLS
            if f"{call.package}.{call.service}" == service.full_name
        }
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service.full_name, methods),)
        )
    checks = health.Health(_serving(services, names), Readers(*sizes, reading.HEALTH_READ_SECONDS))
    checks.set_ready(services.health.ready)
    services.health.watch(checks.set_ready)
    services.pool.watch(checks.tell)
    server.add_generic_rpc_handlers((checks.handler(),))
    server.add_generic_rpc_handlers(
        (_reflection((*names, health.SERVICE, reflection.SERVICE_NAME)),)
    )
    check_free(host, port, "grpc_port")  # gRPC itself would log an alarm of its own
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if credentials is None:
            bound = server.add_insecure_port(address)
        else:
            bound = server.add_secure_port(address, credentials)
    except RuntimeError as error:  # taken since, or an address of another machine
        raise StartError(f"--grpc-port: gRPC can't listen on {address}.", field="host") from error
    await server.start()
    return GrpcServer(server, bound, guard, checks, streams)


def _serving(services: Services, names: Collection[str]) -> Callable[[str], bool | None]:
    """Return what tells whether a service, or a model, serves; None of what is neither."""

    def serves(name: str) -> bool | None:
        if name in NEEDS:
            return bool(capabilities(services)[NEEDS[name]])
        if not name or name in names:
            return True
        return models.serves(services, name)

    return serves


def _credentials(tls: Tls) -> grpc.ServerCredentials:
    cert, key = tls.read()
    return grpc.ssl_server_credentials([(key, cert)])


def _reflection(names: Collection[str]) -> grpc.GenericRpcHandler:
    """Return the service that describes the others.

    As ``reflection.enable_server_reflection`` makes it, but for malformed messages: those would
    come back as UNKNOWN, each with a traceback in the log. Read as empty, they get an error reply.
    """

    def read(data: bytes) -> ServerReflectionRequest:
        try:
            return ServerReflectionRequest.FromString(data)
        except DecodeError:
            return ServerReflectionRequest()

    handler = grpc.stream_stream_rpc_method_handler(
        reflection.aio.ReflectionServicer(names).ServerReflectionInfo,
        request_deserializer=read,
        response_serializer=ServerReflectionResponse.SerializeToString,
    )
    methods = {"ServerReflectionInfo": handler}
    return grpc.method_handlers_generic_handler(reflection.SERVICE_NAME, methods)


def _message_bytes(limits: Limits) -> int:
    return MESSAGE_FACTOR * limits.max_body_bytes + 2**20


def _options(limits: Limits) -> list[tuple[str, Any]]:
    metadata = METADATA_FACTOR * limits.max_header_bytes
    return [
        ("grpc.so_reuseport", 0),  # else a second server would share the port unnoticed
        ("grpc.max_receive_message_length", _message_bytes(limits)),
        ("grpc.max_send_message_length", -1),
        # Between the two gRPC refuses at random, more and more.
        ("grpc.max_metadata_size", metadata),
        ("grpc.absolute_max_metadata_size", metadata),
        # A client that is gone without a word is noticed, and what it asked for is cancelled.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        # Clients may do so too, with calls or without; who pings too often is cut off.
        ("grpc.http2.min_ping_interval_without_data_ms", round(1000 * LEAST_PING_SECONDS)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_ping_strikes", 2),
        ("grpc.server_handshake_timeout_ms", round(1000 * HANDSHAKE_SECONDS)),
        ("grpc.max_concurrent_streams", CALLS_PER_CONNECTION),
        ("grpc.max_connection_idle_ms", round(1000 * IDLE_SECONDS)),
    ]
