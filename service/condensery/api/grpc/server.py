"""The gRPC server, in the same loop as REST and in front of the same jobs."""

import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from condensery.api.grpc.calls import CALLS, Call
from condensery.api.grpc.errors import Trailer, code_of, trailers
from condensery.api.ports import check_free
from condensery.errors import CondenseryError, InputError, PayloadTooLarge
from condensery.jobs.accounting import account
from condensery.jobs.services import Services
from condensery.stubs import condensery_v1_pb2 as pb

log = logging.getLogger(__name__)

PACKAGE = pb.DESCRIPTOR.package
Context = grpc.aio.ServicerContext[Any, Any]


class GrpcServer:
    """A running server; made by ``start``.

    Attributes:
        port: Where it listens.
    """

    def __init__(
        self, server: grpc.aio.Server, port: int, checks: health.aio.HealthServicer
    ) -> None:
        self.port = port
        self._server = server
        self._checks = checks

    async def set_ready(self, ready: bool) -> None:
        """Tell the health service."""
        reply = health_pb2.HealthCheckResponse
        status = reply.SERVING if ready else reply.NOT_SERVING
        for name in ("", *_service_names()):
            await self._checks.set(name, status)

    async def stop(self, grace: float) -> None:
        """Say NOT_SERVING, refuse new calls, wait ``grace`` seconds for those in flight."""
        await self.set_ready(False)
        await self._server.stop(grace)


async def start(services: Services, host: str, port: int) -> GrpcServer:
    """Start listening; health says NOT_SERVING until ``set_ready``.

    Raises:
        PortTaken: Another process listens there.
    """
    # Above our own limit, so that what is too long gets our answer, not the transport's.
    longest = 2 * services.limits.max_body_bytes + 2**20
    server = grpc.aio.server(
        options=[
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", longest),
            ("grpc.max_send_message_length", -1),
        ]
    )
    for name in sorted({call.service for call in CALLS}):
        handlers = {c.name: _handler(services, c) for c in CALLS if c.service == name}
        full = f"{PACKAGE}.{name}"
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(full, handlers),))
    checks = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    reflection.enable_server_reflection(
        (*_service_names(), health.SERVICE_NAME, reflection.SERVICE_NAME), server
    )
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    check_free(host, port, "grpc_port")  # gRPC itself would log an alarm of its own
    bound = server.add_insecure_port(address)
    await server.start()
    running = GrpcServer(server, bound, checks)
    await running.set_ready(False)
    return running


def _service_names() -> list[str]:
    return [f"{PACKAGE}.{name}" for name in sorted({call.service for call in CALLS})]


def _handler(services: Services, call: Call[Any]) -> Any:
    """Wrap a call: raw bytes in, so that a malformed message gets our answer."""
    if call.unary is not None:
        return grpc.unary_unary_rpc_method_handler(
            _unary(services, call, call.unary), None, _bytes_of
        )
    return grpc.unary_stream_rpc_method_handler(_stream(services, call), None, _bytes_of)


def _bytes_of(message: Message) -> bytes:
    return message.SerializeToString()


def _unary(
    services: Services, call: Call[Any], do: Callable[..., Awaitable[Message]]
) -> Callable[[bytes, Context], Awaitable[Message]]:
    async def handle(data: bytes, context: Context) -> Message:
        request_id = _request_id(context)
        try:
            given = _parse(services, call, data)
            model = _model(given, context)
            if call.task is None:
                return await do(services, given, model)
            with account(services, model, call.task, "grpc"):
                return await do(services, given, model)
        except CondenseryError as error:
            await _fail(context, error, request_id)
        except Exception:  # a bug must not show the caller its traceback
            log.exception("fault", extra={"call": call.name, "request_id": request_id})
            await _crash(context, request_id)
        raise AssertionError  # abort raises

    return handle


def _stream(
    services: Services, call: Call[Any]
) -> Callable[[bytes, Context], AsyncIterator[Message]]:
    stream = call.stream
    task = call.task
    assert stream is not None
    assert task is not None

    async def handle(data: bytes, context: Context) -> AsyncIterator[Message]:
        request_id = _request_id(context)
        try:
            given = _parse(services, call, data)
            model = _model(given, context)
            with account(services, model, task, "grpc"):
                async for message in stream(services, given, model):
                    yield message
        except CondenseryError as error:
            await _fail(context, error, request_id)
        except Exception:  # as above
            log.exception("fault", extra={"call": call.name, "request_id": request_id})
            await _crash(context, request_id)

    return handle


def _parse(services: Services, call: Call[Any], data: bytes) -> Any:
    most = services.limits.max_body_bytes
    if len(data) > most:
        raise PayloadTooLarge(
            f"the message has {len(data)} bytes, over the limit of {most}", value=len(data)
        )
    try:
        return call.request.FromString(data)
    except DecodeError as error:
        raise InputError(
            f"the message is no {call.request.DESCRIPTOR.full_name} "
            "(malformed, or text that is not UTF-8)"
        ) from error


def _model(given: Any, context: Context) -> str | None:
    """Choose the model: the field, else the metadata ``x-model``, else the default."""
    if named := getattr(given, "model", ""):
        return str(named)
    return _metadata(context, "x-model")


def _metadata(context: Context, name: str) -> str | None:
    for key, value in context.invocation_metadata() or ():
        if key == name and isinstance(value, str):
            return value
    return None


def _request_id(context: Context) -> str:
    return _metadata(context, "x-request-id") or f"req_{secrets.token_hex(8)}"


async def _fail(context: Context, error: CondenseryError, request_id: str) -> None:
    extra: tuple[Trailer, ...] = (*trailers(error), ("x-request-id", request_id))
    await context.abort(code_of(error), error.message, trailing_metadata=extra)


async def _crash(context: Context, request_id: str) -> None:
    await context.abort(
        grpc.StatusCode.INTERNAL,
        "internal error",
        trailing_metadata=(("x-request-id", request_id),),
    )
