"""``condensery serve``."""

import argparse
from pathlib import Path

from condensery.commands.printing import Parsers, extra

SETTINGS = (
    *("host", "port", "grpc_port", "data_dir", "store"),
    *("dtype", "device", "workers", "samples", "log_level"),
    *("max_body_bytes", "max_items", "grace_seconds"),
)


def add_parser(parsers: Parsers) -> None:
    """Add ``serve``; what is not given comes from the environment, then from the defaults."""
    parser = parsers.add_parser(
        "serve",
        help="serve models over REST and gRPC",
        description="Serve models over REST and gRPC. Each setting can also be given by the"
        " environment, as CONDENSERY_PORT and so on; the command line wins.",
    )
    parser.add_argument("--host", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, help="REST; 0 takes a free one (default: 8080)")
    parser.add_argument("--grpc-port", type=int, help="gRPC; 0 takes a free one (default: 8081)")
    parser.add_argument(
        "--data-dir", type=Path, metavar="DIR", help="where indexes and imported models live"
    )
    parser.add_argument(
        "--store", type=Path, metavar="DIR", help="model store (default: DATA_DIR/models)"
    )
    parser.add_argument("--dtype", choices=("auto", "bfloat16", "float32"), help="default: auto")
    parser.add_argument("--device", help="auto, cpu, cuda, cuda:1, ... (default: auto)")
    parser.add_argument("--workers", type=int, help="threads that compute; 0 decides (default: 0)")
    parser.add_argument(
        "--samples",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="make the index `samples` on first start (default)",
    )
    parser.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), help="default: info"
    )
    parser.add_argument(
        "--max-body-bytes", type=int, metavar="BYTES", help="longest request (default: 8 MiB)"
    )
    parser.add_argument(
        "--max-items", type=int, metavar="N", help="most texts in a request (default: 2048)"
    )
    parser.add_argument(
        "--grace-seconds",
        type=float,
        metavar="SECONDS",
        help="for requests in flight when it is told to stop (default: 10)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until told to stop."""
    with extra("serve"):
        from condensery.server import serve
        from condensery.settings import read_settings
    return serve(read_settings({name: getattr(args, name) for name in SETTINGS}))
