"""``condensery ray``: serving from a Ray cluster, and what is deployed there.

Modules are imported where they are used, since ``condensery --help`` and clients need none of them.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from condensery.commands.common import Parsers, format_table, require_extra
from condensery.errors import InputError
from condensery.parsers import Parser

if TYPE_CHECKING:
    from condensery.cluster.deployments import Cluster


def add_ray(parsers: Parsers) -> None:
    """Add ``ray`` and its actions; ``deploy`` makes its flags when it runs, as ``serve`` does."""
    ray = parsers.add_parser(
        "ray",
        help="serve models that run on a Ray cluster",
        description="Serve over REST and gRPC from here models that run on a Ray cluster.",
    )
    actions = ray.add_subparsers(dest="action", metavar="ACTION", required=True)
    deploy = actions.add_parser(
        "deploy", help="deploy the models of a file, and serve them", add_help=False
    )
    deploy.set_defaults(run=run_deploy, takes_rest=True)
    for name, run, text in (
        ("status", run_status, "print what is deployed, and how many replicas are up"),
        ("delete", run_delete, "delete what is deployed"),
    ):
        action = actions.add_parser(name, help=text, description=f"{text.capitalize()}.")
        _add_config(action)
        action.set_defaults(run=run)


def run_deploy(args: argparse.Namespace) -> NoReturn:
    """Deploy, and serve until a signal ends it."""
    from condensery.commands.flags import FLAGS_EXPLANATION, FLAGS_USAGE, add_flags, read_flags
    from condensery.settings import read_settings

    parser = Parser(
        prog="condensery ray deploy",
        usage=FLAGS_USAGE.replace("%(prog)s", "%(prog)s CONFIG"),
        description="Deploy the models that a file names on a Ray cluster, and serve them from here"
        f" over REST and gRPC. {FLAGS_EXPLANATION}",
    )
    _add_config(parser)
    add_flags(parser)
    parsed = parser.parse_args(args.rest)
    settings = read_settings(read_flags(parsed))
    with require_extra("serve"):
        from condensery.cluster.config import read_config
    config = read_config(parsed.config)
    _require_ray()
    from condensery.cluster.loading import ClusterModels
    from condensery.server import serve

    status = serve(settings, ClusterModels(config))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # as `serve`: Python would take seconds to unload PyTorch's modules


def run_status(args: argparse.Namespace) -> int:
    """Print each application of the file's name."""
    cluster = _join(args.config)
    try:
        rows = [
            (name, state.status, str(state.up), state.reason)
            for name, state in sorted(cluster.read_states().items())
        ]
    finally:
        cluster.close()
    print(format_table([("APPLICATION", "STATUS", "REPLICAS", "REASON"), *rows]))
    return 0


def run_delete(args: argparse.Namespace) -> int:
    """Delete every application of the file's name."""
    cluster = _join(args.config)
    try:
        for name in cluster.read_states():
            cluster.delete(name)
            print(f"deleted {name}")
    finally:
        cluster.close()
    return 0


def _require_ray() -> None:
    """Import Ray, which reads what we have to say to it; refused at once where it is missing."""
    from condensery.cluster.deployments import set_environment

    set_environment()
    with require_extra("ray"):
        import ray.serve  # noqa: F401


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "config", type=Path, metavar="CONFIG", help="YAML file: groups of models (docs/ray.md)"
    )


def _join(path: Path) -> "Cluster":
    """Join the running cluster that a file names.

    Raises:
        InputError: It names none: one that ``deploy`` starts for itself ends with it.
        StartError: It does not answer.
    """
    with require_extra("serve"):
        from condensery.cluster.config import read_config
    config = read_config(path)
    if config.address is None:
        raise InputError(f"{path}: address: it names no running Ray; `auto` is this machine's")
    _require_ray()
    from condensery.cluster.deployments import Cluster

    cluster = Cluster(config, {}, "", max_requests=1, drain_seconds=1.0)
    cluster.connect()
    return cluster
