"""``condensery bench rates``: what requests cost on this machine, for ``condensery plan``.

A server of its own is started with the flags given, and each kind of request is sent to its doors:
by one caller, then by several. What a request costs is the CPU time of the server's process over
the requests answered, which what others do on the machine changes little; how long it takes is the
clock's, which they change much.
"""

import argparse
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from condensery import __version__
from condensery.capacity import machine
from condensery.capacity.rates import Rates, write_rates
from condensery.commands.common import Parsers, format_table, print_note
from condensery.errors import InputError
from condensery.parsers import Parser

WARNING_CORES = 0.1


def add_bench(parsers: Parsers) -> None:
    """Add ``bench`` and its action."""
    bench = parsers.add_parser(
        "bench",
        help="measure this machine",
        description="Measure what this machine can do.",
    )
    actions = bench.add_subparsers(dest="action", metavar="ACTION", required=True)
    rates = actions.add_parser(
        "rates",
        help="measure what requests cost here, for `condensery plan`",
        description="Start a server, send it requests of each kind, alone and concurrent, and write"
        " what they cost. All other flags are those of `condensery serve`: what is measured is a"
        " server that has them. Nothing else should run meanwhile.",
    )
    rates.add_argument(
        "--out", type=Path, default=Path("rates.json"), metavar="FILE", help="default: %(default)s"
    )
    rates.add_argument(
        "--seconds",
        type=float,
        default=150.0,
        help="about how long, the start left out (default: %(default)g)",
    )
    rates.add_argument(
        "--models", nargs="+", metavar="MODEL", help="measure only these (default: all that serve)"
    )
    rates.add_argument(
        "--index-passages",
        type=int,
        default=10_000,
        metavar="N",
        help="of the larger index that is searched (default: %(default)s)",
    )
    rates.set_defaults(run=run_rates, takes_rest=True)


def run_rates(args: argparse.Namespace) -> int:
    """Measure, print and write the rates."""
    from condensery.commands.flags import FLAGS_USAGE, add_flags, read_flags
    from condensery.commands.measuring import (
        LEAST_INDEX,
        concurrency_of,
        find_models,
        measure_all,
        running_server,
    )
    from condensery.settings import read_settings

    if not 1 <= args.seconds <= 86_400:
        raise InputError.at("--seconds", f"{args.seconds:g} is not from 1 to 86400", args.seconds)
    if not LEAST_INDEX <= args.index_passages <= 10**7:
        wrong = f"{args.index_passages} is not from {LEAST_INDEX} to 10000000"
        raise InputError.at("--index-passages", wrong, args.index_passages)
    parser = Parser(prog="condensery bench rates", usage=FLAGS_USAGE)
    add_flags(parser)
    flags = parser.parse_args(args.rest)
    settings = read_settings(read_flags(flags))  # wrong ones are refused before anything starts
    for name in ("host", "port", "grpc_port", "keys_file", "tls_cert", "tls_key", "data_dir"):
        if getattr(flags, name) is not None:
            flag = f"--{name.replace('_', '-')}"
            wrong = "the server that is measured has its own ports, data and no keys"
            raise InputError.at(flag, wrong, getattr(flags, name))
    began, foreign = time.monotonic(), machine.busy_seconds() - machine.tree_seconds()
    store = settings.store or settings.data_dir / "models"
    with tempfile.TemporaryDirectory(prefix="condensery-rates-") as folder:
        words = [*args.rest, "--data-dir", str(Path(folder) / "data")]
        words += [] if flags.store else ["--store", str(store)]
        with running_server(words, Path(folder) / "log") as server:
            models, device = find_models(server, args.models)
            points, memory = measure_all(server, models, args.seconds, args.index_passages)
    seconds = time.monotonic() - began
    others = (machine.busy_seconds() - machine.tree_seconds() - foreign) / seconds
    about = machine.describe_machine()
    cores = int(about["cores"])
    rates = Rates(
        date=time.strftime("%Y-%m-%d"),
        command=f"condensery bench rates --seconds {args.seconds:g}",
        machine={**about, "memory_bytes": machine.machine_memory()},
        versions={name: _version(name) for name in ("condensery", "torch", "transformers")},
        foreign_cores=round(max(0.0, others), 3),
        device=device,
        servers=cores if device == "cpu" else 1,
        concurrency=concurrency_of(cores),
        models=tuple(models),
        points=tuple(points),
        memory=memory,
    )
    write_rates(args.out, rates)
    print(format_points(rates))
    if rates.foreign_cores > WARNING_CORES:
        print_note(
            f"other processes used {rates.foreign_cores:.2f} cores meanwhile: what requests took by"
            " the clock is too long, and what they cost a little too much"
        )
    print_note(f"written to {args.out}; `condensery plan --rates {args.out}` plans with it")
    return 0


def format_points(rates: Rates) -> str:
    """Return the measured points as a table."""
    head = ("WHAT", "MODEL", "CALLERS", "MS", "P95", "CORE-MS", "LOOP-MS", "A SECOND", "REQUESTS")
    rows = [
        (
            point.label,
            point.model or "-",
            str(point.callers),
            *(f"{1000 * s:.2f}" for s in (point.seconds, point.p95_seconds)),
            *(f"{1000 * s:.2f}" for s in (point.core_seconds, point.loop_seconds)),
            f"{point.throughput:.1f}",
            str(point.requests),
        )
        for point in rates.points
    ]
    return format_table([head, *rows])


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # ours may be run from a checkout that is not installed
        return __version__ if package == "condensery" else "not installed"
