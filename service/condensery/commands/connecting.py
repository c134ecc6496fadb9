"""Which server a command talks to."""

import argparse
import os
from typing import TYPE_CHECKING, TypeAlias

from condensery.client.rest import URL, Client

if TYPE_CHECKING:
    from condensery.client.grpc import GrpcClient

API_KEY = "CONDENSERY_API_KEY"
Connection: TypeAlias = "Client | GrpcClient"


def add_server(parser: argparse.ArgumentParser, *, needed: bool = True) -> None:
    """Add the arguments that choose the server.

    Args:
        parser: Takes them.
        needed: Whether the command asks a server where none is named; else ``args.url`` is None.
    """
    group = parser.add_argument_group("server")
    door = group.add_mutually_exclusive_group()
    door.add_argument(
        "--url",
        default=os.environ.get("CONDENSERY_URL", URL) if needed else None,
        help="where the service answers REST"
        + (" (default: $CONDENSERY_URL or %(default)s)" if needed else ""),
    )
    door.add_argument("--grpc", metavar="ADDRESS", help="use gRPC, at host:port, instead")
    group.add_argument(
        "--timeout", type=float, default=120.0, metavar="SECONDS", help="default: %(default)s"
    )
    group.add_argument(
        "--api-key",
        metavar="KEY",
        help=f"a key, if the server wants one (default: ${API_KEY}, which other users can't see)",
    )
    group.add_argument("--tls", action="store_true", help="with --grpc: expect a certificate")
    group.add_argument(
        "--ca", metavar="FILE", help="certificates to trust instead of the usual ones, PEM"
    )


def connect(args: argparse.Namespace) -> Connection:
    """Open a client for the server that ``args`` name; close it, or use ``with``."""
    api_key = args.api_key or os.environ.get(API_KEY) or None
    if args.grpc:
        from condensery.client.grpc import GrpcClient  # not imported by those who use REST

        return GrpcClient(
            args.grpc, timeout=args.timeout, api_key=api_key, tls=args.tls, ca=args.ca
        )
    return Client(args.url, timeout=args.timeout, api_key=api_key, ca=args.ca)
