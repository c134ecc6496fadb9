"""The gRPC server, in the same loop as REST and in front of the same jobs.

Keys are checked before a call's message is read, whether or not its method exists. Around every
call its message is read and counted, and errors become statuses.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import ExitStack, aclosing
from typing import Any, Protocol

import grpc
from google.protobuf import descriptor_pool, text_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import DecodeError
from grpc_reflection.v1alpha import reflection
from grpc_reflection.v1alpha.reflection_pb2 import DESCRIPTOR as REFLECTION_V1ALPHA
from grpc_reflection.v1alpha.reflection_pb2 import (
    ServerReflectionRequest,
    ServerReflectionResponse,
)

from condensery.api import ports
from condensery.api.grpc import condensery_v1, health, inference_v2, streaming, tei_v1
from condensery.api.grpc.condensery_v1 import RpcMethod
from condensery.api.grpc.errors import CallContext, abort_call, abort_with_error, status_code_of
from condensery.api.grpc.streaming import (
    MessageReaders,
    Metadata,
    OpenStreams,
    begin_trace,
    caller_host,
    check_size,
    count_call,
    end_trace,
    find_key,
    find_metadata,
    key_name,
    metadata_bytes,
    parse_message,
    read_deadline,
    run_in_time,
    serve_stream,
    write_message,
)
from condensery.api.ports import Tls, check_free
from condensery.auth import check_any_key, read_request_id
from condensery.errors import CondenseryError, HeadersTooLarge, StartError, Unavailable
from condensery.jobs import models
from condensery.jobs.accounting import count_refusals
from condensery.jobs.models import list_capabilities
from condensery.jobs.services import RequestLimits, Services
from condensery.request_context import (
    LATE_MARGIN_SECONDS,
    TRACE_HEADERS,
    TRACE_REPLY_HEADER,
    RequestContext,
    serving_request,
)
from condensery.stubs import condensery_v1_pb2, inference_v2_pb2, tei_v1_pb2

Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Any]]
_log = logging.getLogger(__name__)

CONTRACTS = (condensery_v1_pb2.DESCRIPTOR, tei_v1_pb2.DESCRIPTOR, inference_v2_pb2.DESCRIPTOR)
ALL_METHODS = (*condensery_v1.METHODS, *tei_v1.METHODS, *inference_v2.METHODS)
# TEI's clients check by the health of these services that the model is of the kind they need.
TEI_SERVICE_TASKS = {
    "tei.v1.Embed": "embed",
    "tei.v1.Predict": "predict",
    "tei.v1.Rerank": "rerank",
}

# A message, or metadata, of up to this many times our limit is read, and refused by us with its
# size and the limit; the transport refuses larger ones. Messages being read are in memory before
# admission counts them, so the factors are small.
MESSAGE_FACTOR = 2
METADATA_FACTOR = 4
# Calls beside those that admission and health accept: for descriptions, and for calls being
# refused. A call over all of these is refused at once, with RESOURCE_EXHAUSTED.
SPARE_CALLS = 64
REFLECTION_V1_SERVICE = "grpc.reflection.v1.ServerReflection"
REFLECTION_SERVICES = (reflection.SERVICE_NAME, REFLECTION_V1_SERVICE)
# Calls at once of one connection; a client holds back more until some have ended.
CALLS_PER_CONNECTION = 1024
MIN_PING_SECONDS = 10.0
# A connection without a call for this long is closed, to free its file; clients connect again.
IDLE_SECONDS = 600.0
# For a connection's TLS handshake and HTTP/2 preface.
HANDSHAKE_SECONDS = 20.0
# A stream's deadline is checked between its steps, so that what is done can still be sent. This
# much later it is cut wherever it is: at a step that hangs, or a client that stopped reading.
STREAM_MARGIN_SECONDS = 1.0


class AuthInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls without a valid key, and calls that come when the server is about to stop.

    Where keys are needed, all but ``open_paths`` need one, also methods that don't exist, and
    reflection. A refused call's message is not read: callers without a key take no memory.

    Args:
        methods: The methods that need a scope, by path; all others need any key.
        open_paths: Paths that never need a key, and answer until the server stops: health.
    """

    def __init__(
        self, services: Services, methods: Mapping[str, RpcMethod[Any]], open_paths: Iterable[str]
    ) -> None:
        self._services = services
        self._methods = methods
        self._open_paths = frozenset(open_paths)
        self._releasing = asyncio.Event()
        self._releasing.set()

    def hold_refusals(self) -> None:
        """Hold the refusals of calls that come now until ``release_refusals``."""
        self._releasing.clear()

    def release_refusals(self) -> None:
        """Send the refusals that were held."""
        self._releasing.set()

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """Return the method's handler, or one that refuses."""
        path: str = handler_call_details.method
        metadata: Metadata = handler_call_details.invocation_metadata or ()
        method = self._methods.get(path)
        try:
            with count_refusals(self._services, method.task if method else None, "grpc"):
                self._check_size(metadata)
                if path not in self._open_paths:
                    self._check_key(method, metadata)
                    await self._check_open()
        except CondenseryError as error:
            refusal, request_id = error, read_request_id(find_metadata(metadata, "x-request-id"))
        else:
            return await continuation(handler_call_details)

        async def refuse(_: Any, context: CallContext) -> None:
            await abort_with_error(context, refusal, request_id)

        # A stream's handler begins before any message is read.
        return grpc.stream_stream_rpc_method_handler(refuse)

    def _check_size(self, metadata: Metadata) -> None:
        size, limit = metadata_bytes(metadata), self._services.limits.max_header_bytes
        if size > limit:
            raise HeadersTooLarge(
                f"The metadata has {size} bytes, over the limit of {limit} (max_header_bytes).",
                value=size,
            )

    def _check_key(self, method: RpcMethod[Any] | None, metadata: Metadata) -> None:
        keys = self._services.keys
        if not keys.open:
            key_name.set(check_any_key(keys, find_key(metadata), method.scope if method else None))

    async def _check_open(self) -> None:
        health = self._services.health
        if health.refusing:
            await self._releasing.wait()
            raise Unavailable(f"The server takes no new requests: {health.reason}.")


class HealthEnd(Protocol):
    """What tells watchers of health that the server is about to end, and ends their calls."""

    def close(self) -> None:
        """Be ready no more; watchers are notified."""
        ...

    def end(self) -> None:
        """End the calls of watchers, since the server stops."""
        ...


class OtherCalls(HealthEnd, Protocol):
    """Serves what a process leaves to another one: all that its server has no method for."""

    def leaves(self, method: RpcMethod[Any]) -> bool:
        """Whether a method is served here."""
        ...

    def handler(self) -> grpc.GenericRpcHandler:
        """Return what serves every other path."""
        ...


class GrpcServer:
    """A running server, listening at ``port``; made by ``start_server``."""

    def __init__(
        self,
        server: grpc.aio.Server,
        port: int,
        guard: AuthInterceptor,
        checks: HealthEnd,
        streams: OpenStreams,
    ) -> None:
        self.port = port
        self._server = server
        self._guard = guard
        self._checks = checks
        self._streams = streams

    def close_streams(self) -> None:
        """Read no more messages of streams; those that have come are answered."""
        self._streams.close()

    async def stop(self, grace: float) -> None:
        """Report NOT_SERVING, refuse new calls, wait ``grace`` seconds for those in flight.

        Of a stream, the messages that have come are in flight.

        gRPC cancels the calls that have reached it when it stops, or are on their way, and have not
        begun; that does not say that they may be repeated. So refusals are held until gRPC has sent
        its clients the end of the connection: a client that waits for a reply sends no new calls
        into the stop. Connections that wait in the listening socket are cut off, and no call has
        come over them: a client sends none before the server's greeting.
        """
        self._checks.close()
        self._streams.close()
        if grace > 0:
            self._guard.hold_refusals()
            await ports.wait_for_last(grace)
        self._checks.end()
        stopping = asyncio.create_task(self._server.stop(grace))
        await asyncio.sleep(0.01)  # until it has begun
        self._guard.release_refusals()
        await stopping


async def start_server(
    services: Services, host: str, port: int, *, tls: Tls | None = None
) -> GrpcServer:
    """Start listening; the health service follows ``services.health``.

    Raises:
        PortTaken: Another process listens there.
        SettingError: The certificate or its key can't be used.
        StartError: The host is no address of this machine.
    """
    check_free(host, port, "grpc_port")  # gRPC itself would log an alarm of its own
    return await start_at(services, join_address(host, port), tls=tls)


def join_address(host: str, port: int) -> str:
    """Return an address as gRPC has it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def start_at(
    services: Services,
    address: str,
    *,
    tls: Tls | None = None,
    shared: bool = False,
    others: "OtherCalls | None" = None,
) -> GrpcServer:
    """Start listening at an address as gRPC has it, a path after ``unix:`` too.

    Args:
        shared: Whether other processes listen there, among which the system shares out clients.
        others: Serves all but the methods that it leaves to ``services``, health too.

    Raises:
        SettingError, StartError: As ``start_server``.
    """
    credentials = None if tls is None else _read_credentials(tls)
    is_local = address.startswith("unix:")  # from front processes, which bound their callers
    by_path = {method.path: method for method in ALL_METHODS}
    sizes = services.admission.max_bytes, max_message_bytes(services.limits)
    readers = MessageReaders(*sizes, streaming.READ_SECONDS)
    streams = OpenStreams(readers.limit)
    guard = AuthInterceptor(services, by_path, health.HEALTH_PATHS)
    server = grpc.aio.server(
        options=_server_options(services.limits, shared=shared, bounded=not is_local),
        interceptors=(guard,),
        maximum_concurrent_rpcs=services.admission.max_requests + SPARE_CALLS + health.HEALTH_CALLS,
    )
    names = []
    for service in (s for contract in CONTRACTS for s in contract.services_by_name.values()):
        names.append(service.full_name)
        handlers = {
            method.name: make_handler(services, method, readers, streams)
            for method in ALL_METHODS
            if method.service_name == service.full_name
            and (others is None or others.leaves(method))
        }
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service.full_name, handlers),)
        )
    if others is None:
        checks: HealthEnd = _add_health(server, services, names, sizes)
        server.add_generic_rpc_handlers(_make_reflection((*names, health.HEALTH_SERVICE)))
    else:
        checks = others
        server.add_generic_rpc_handlers((others.handler(),))
    try:
        if credentials is None:
            bound = server.add_insecure_port(address)
        else:
            bound = server.add_secure_port(address, credentials)
    except RuntimeError as error:  # taken since, or an address of another machine
        raise StartError(f"--grpc-port: gRPC can't listen on {address}.", field="host") from error
    await server.start()
    return GrpcServer(server, bound, guard, checks, streams)


def _add_health(
    server: grpc.aio.Server, services: Services, names: Collection[str], sizes: tuple[int, int]
) -> health.HealthService:
    seconds, share = streaming.HEALTH_READ_SECONDS, streaming.HEALTH_SHARE
    readers = MessageReaders(*sizes, seconds, share=share)
    checks = health.HealthService(_make_serving_check(services, names), readers)
    checks.set_ready(services.health.ready)
    services.health.watch(checks.set_ready)
    services.registry.watch(checks.notify)
    server.add_generic_rpc_handlers((checks.handler(),))
    return checks


def _make_serving_check(services: Services, names: Collection[str]) -> Callable[[str], bool | None]:
    """Return a function: whether a service or model serves; None for a name that is neither."""

    def serves(name: str) -> bool | None:
        if name in TEI_SERVICE_TASKS:
            return bool(list_capabilities(services)[TEI_SERVICE_TASKS[name]])
        if not name or name in names:
            return True
        serving = models.is_serving(services, name)
        return serving and models.find_unready(services, name) is None

    return serves


def _read_credentials(tls: Tls) -> grpc.ServerCredentials:
    cert, key = tls.read()
    return grpc.ssl_server_credentials([(key, cert)])


def _make_reflection(names: Collection[str]) -> tuple[grpc.GenericRpcHandler, ...]:
    """Return the services that describe the others: v1alpha's, and v1, which differs by name alone.

    As ``reflection.enable_server_reflection`` makes it, but for malformed messages: those would
    come back as UNKNOWN, each with a traceback in the log. Read as empty, they get an error reply.
    """

    def read(data: bytes) -> ServerReflectionRequest:
        try:
            return ServerReflectionRequest.FromString(data)
        except DecodeError:
            return ServerReflectionRequest()

    _describe_reflection_v1()
    handler = grpc.stream_stream_rpc_method_handler(
        reflection.aio.ReflectionServicer((*names, *REFLECTION_SERVICES)).ServerReflectionInfo,
        request_deserializer=read,
        response_serializer=ServerReflectionResponse.SerializeToString,
    )
    methods = {"ServerReflectionInfo": handler}
    return tuple(
        grpc.method_handlers_generic_handler(name, methods) for name in REFLECTION_SERVICES
    )


def _describe_reflection_v1() -> None:
    """Add v1's description, which grpcio lacks, to those that reflection finds."""
    pool, described = descriptor_pool.Default(), FileDescriptorProto()
    REFLECTION_V1ALPHA.CopyToProto(described)
    renamed = text_format.MessageToString(described).replace("v1alpha", "v1")
    v1 = text_format.Parse(renamed, FileDescriptorProto())
    try:
        pool.FindFileByName(v1.name)
    except KeyError:
        pool.AddSerializedFile(v1.SerializeToString())


def max_message_bytes(limits: RequestLimits) -> int:
    """Return the longest message that the transport takes, so that we can say what our limit is."""
    return MESSAGE_FACTOR * limits.max_body_bytes + 2**20


def _server_options(limits: RequestLimits, *, shared: bool, bounded: bool) -> list[tuple[str, Any]]:
    calls = [("grpc.max_concurrent_streams", CALLS_PER_CONNECTION)] if bounded else []
    metadata = METADATA_FACTOR * limits.max_header_bytes
    return [
        ("grpc.so_reuseport", int(shared)),  # else a second server would share the port unnoticed
        ("grpc.max_receive_message_length", max_message_bytes(limits)),
        ("grpc.max_send_message_length", -1),
        # Between the two, gRPC refuses at random, the more the larger.
        ("grpc.max_metadata_size", metadata),
        ("grpc.absolute_max_metadata_size", metadata),
        # Clients that are gone without closing are noticed, and their calls cancelled.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        # Clients may ping too, with calls or without; those that ping too often are cut off.
        ("grpc.http2.min_ping_interval_without_data_ms", round(1000 * MIN_PING_SECONDS)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_ping_strikes", 2),
        ("grpc.server_handshake_timeout_ms", round(1000 * HANDSHAKE_SECONDS)),
        *calls,
        ("grpc.max_connection_idle_ms", round(1000 * IDLE_SECONDS)),
    ]


def make_handler(
    services: Services, method: RpcMethod[Any], readers: MessageReaders, streams: OpenStreams
) -> Any:
    """Return a method's handler, as gRPC takes it.

    To gRPC every request is a stream, of which one message is read: else it would read messages
    itself, before our limits on their number and time.

    Messages come as bytes and are parsed here: gRPC would fail a malformed one with UNKNOWN and a
    message of its own. A stream is written from a coroutine, not yielded: a client that leaves
    cancels the coroutine wherever it is, and the generator behind it is closed at once.
    """

    async def handle(_: Any, context: CallContext) -> bytes | None:
        started = time.monotonic()
        metadata: Metadata = context.invocation_metadata() or ()
        request_context = RequestContext(
            request_id=read_request_id(find_metadata(metadata, "x-request-id")),
            caller=key_name.get() or caller_host(context),
            deadline=started + services.limits.request_seconds,
            started=started,
        )
        begin_trace(services, metadata, request_context)
        context.set_trailing_metadata(make_call_trailers(request_context))
        outcome = "CANCELLED"  # unless it ends by itself
        try:
            with serving_request(request_context):
                if method.streamed:
                    reply = await serve_stream(services, method, streams, context, request_context)
                else:
                    reply = await _serve_call(services, method, readers, context, request_context)
            outcome = "OK"
            return reply
        except CondenseryError as error:
            outcome = status_code_of(error, method.family).name
            await abort_with_error(context, error, request_context.request_id, method.family)
        except Exception:  # a bug must not show the caller its traceback, nor end the connection
            outcome = "INTERNAL"
            _log.exception(
                "internal_error",
                extra={"call": method.path, **request_context.log_fields},
            )
            request_id = request_context.request_id
            details = f"internal error; the server's log has it under request id {request_id}"
            await abort_call(context, grpc.StatusCode.INTERNAL, details, request_id)
        finally:
            _log_call(method, request_context, outcome, started)
            end_trace(method, request_context, outcome)
            if method.each is None:  # each message of a stream of requests is reported by itself
                services.slow.log(
                    request_context, transport="grpc", route=method.path, status=outcome
                )

    if method.unary is not None or method.gather is not None:
        return grpc.stream_unary_rpc_method_handler(handle)
    return grpc.stream_stream_rpc_method_handler(handle)


def make_call_trailers(request_context: RequestContext) -> tuple[tuple[str, str], ...]:
    """Return what the end of every call tells: its request's id, and its trace's."""
    trailers = (("x-request-id", request_context.request_id),)
    if request_context.trace is None:
        return trailers
    return (*trailers, (TRACE_REPLY_HEADER, request_context.trace.headers[TRACE_HEADERS[0]]))


async def _serve_call(
    services: Services,
    method: RpcMethod[Any],
    readers: MessageReaders,
    context: CallContext,
    request_context: RequestContext,
) -> bytes | None:
    metadata: Metadata = context.invocation_metadata() or ()
    with ExitStack() as stack:
        with count_refusals(services, method.task, "grpc"):
            request_context.deadline = min(
                request_context.deadline, read_deadline(context, metadata)
            )
            data = await run_in_time(readers.read(context), request_context)
            check_size(len(data), services.limits.max_body_bytes)
            stack.enter_context(services.admission.admit(len(data)))
            request = parse_message(method, data)
        model = str(getattr(request, method.model_field, "")) or find_metadata(metadata, "x-model")
        stack.enter_context(count_call(services, method, request, model))
        request_context.check()
        if method.unary is not None:
            work = method.run(services, request, model)
            return await run_in_time(work, request_context, margin=LATE_MARGIN_SECONDS)
        await run_in_time(
            _write_stream(services, method, request, model, context),
            request_context,
            margin=STREAM_MARGIN_SECONDS,
        )
        return None


async def _write_stream(
    services: Services,
    method: RpcMethod[Any],
    request: Any,
    model: str | None,
    context: CallContext,
) -> None:
    assert method.stream is not None
    async with aclosing(method.stream(services, request, model)) as stream:
        async for message in stream:
            await write_message(context, message)


def _log_call(
    method: RpcMethod[Any], request_context: RequestContext, outcome: str, started: float
) -> None:
    """Log how a call ended. Of the caller, only the request id and the key's name are logged."""
    level = logging.INFO
    if outcome == "OK":
        level = logging.DEBUG
    elif outcome == "INTERNAL":
        level = logging.ERROR
    if not _log.isEnabledFor(level):
        return
    _log.log(
        level,
        "reply",
        extra={
            **request_context.log_fields,
            "call": method.path,
            "status": outcome,
            "ms": round((time.monotonic() - started) * 1000, 1),
            "key": key_name.get() or "-",
        },
    )
