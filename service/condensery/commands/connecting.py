"""Which server a command talks to."""

import argparse
import os
from typing import TYPE_CHECKING, TypeAlias

from condensery.client.rest import URL, Client

if TYPE_CHECKING:
    from condensery.client.grpc import GrpcClient

Connection: TypeAlias = "Client | GrpcClient"


def add_server(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that choose the server."""
    group = parser.add_argument_group("server")
    door = group.add_mutually_exclusive_group()
    door.add_argument(
        "--url",
        default=os.environ.get("CONDENSERY_URL", URL),
        help="where the service answers REST (default: $CONDENSERY_URL or %(default)s)",
    )
    door.add_argument("--grpc", metavar="ADDRESS", help="use gRPC, at host:port, instead")
    group.add_argument(
        "--timeout", type=float, default=120.0, metavar="SECONDS", help="default: %(default)s"
    )


def connect(args: argparse.Namespace) -> Connection:
    """Open a client for the server that ``args`` name; close it, or use ``with``."""
    if args.grpc:
        from condensery.client.grpc import GrpcClient  # not imported by those who use REST

        return GrpcClient(args.grpc, timeout=args.timeout)
    return Client(args.url, timeout=args.timeout)
