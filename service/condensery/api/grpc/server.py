"""The gRPC server, in the same loop as REST and in front of the same jobs."""

import grpc
from grpc_reflection.v1alpha import reflection

from condensery.api.grpc import health
from condensery.api.grpc.calls import CALLS
from condensery.api.grpc.handling import handler
from condensery.api.ports import check_free
from condensery.errors import StartError
from condensery.jobs.services import Services
from condensery.stubs import condensery_v1_pb2 as pb

# A message over our limit, up to so many times, is read and refused by us, by its size and the
# limit; one over that is the transport's to refuse.
TRANSPORT_FACTOR = 4


class GrpcServer:
    """A running server; made by ``start``.

    Attributes:
        port: Where it listens.
    """

    def __init__(self, server: grpc.aio.Server, port: int, checks: health.Health) -> None:
        self.port = port
        self._server = server
        self._checks = checks

    async def set_ready(self, ready: bool) -> None:
        """Tell the health service."""
        self._checks.set_ready(ready)

    async def stop(self, grace: float) -> None:
        """Say NOT_SERVING, refuse new calls, wait ``grace`` seconds for those in flight."""
        self._checks.close()
        await self._server.stop(grace)


async def start(services: Services, host: str, port: int) -> GrpcServer:
    """Start listening; health says NOT_SERVING until ``set_ready``.

    Raises:
        PortTaken: Another process listens there.
        StartError: The host is no address of this machine.
    """
    server = grpc.aio.server(
        options=[
            ("grpc.so_reuseport", 0),  # else a second server would share the port unnoticed
            (
                "grpc.max_receive_message_length",
                TRANSPORT_FACTOR * services.limits.max_body_bytes + 2**20,
            ),
            ("grpc.max_send_message_length", -1),
        ]
    )
    names = []
    for service in pb.DESCRIPTOR.services_by_name.values():
        names.append(service.full_name)
        methods = {
            call.name: handler(services, call) for call in CALLS if call.service == service.name
        }
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service.full_name, methods),)
        )
    checks = health.Health(names)
    server.add_generic_rpc_handlers((checks.handler(),))
    reflection.enable_server_reflection((*names, health.SERVICE, reflection.SERVICE_NAME), server)
    check_free(host, port, "grpc_port")  # gRPC itself would log an alarm of its own
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        bound = server.add_insecure_port(address)
    except RuntimeError as error:  # taken since, or an address of another machine
        raise StartError(f"--grpc-port: gRPC can't listen on {address}.", field="host") from error
    await server.start()
    return GrpcServer(server, bound, checks)
