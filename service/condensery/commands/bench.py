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
from condensery.commands.common import Parsers, print_note
from condensery.errors import InputError
from condensery.parsers import Parser


def add_bench(parsers: Parsers) -> None:
    """Add ``bench`` and its action, whose flags are made when it runs, as those of ``serve``."""
    bench = parsers.add_parser(
        "bench",
        help="measure this machine",
        description="Measure what this machine can do.",
    )
    actions = bench.add_subparsers(dest="action", metavar="ACTION", required=True)
    rates = actions.add_parser(
        "rates", help="measure what requests cost here, for `condensery plan`", add_help=False
    )
    rates.set_defaults(run=run_rates, takes_rest=True)


def make_rates_parser() -> Parser:
    """Return the parser of ``bench rates``: its own flags, and those of ``serve``."""
    from condensery.commands.flags import FLAGS_USAGE, add_flags

    parser = Parser(
        prog="condensery bench rates",
        usage=FLAGS_USAGE,
        description="Start a server, send it requests of each kind, alone and concurrent, and write"
        " what they cost. Flags of `condensery serve` are that server's. Nothing else should run"
        " meanwhile.",
    )
    own = parser.add_argument_group("measuring")
    own.add_argument(
        "--out", type=Path, default=Path("rates.json"), metavar="FILE", help="default: %(default)s"
    )
    own.add_argument(
        "--seconds",
        type=float,
        default=150.0,
        help="about how long, the start left out (default: %(default)g)",
    )
    own.add_argument(
        "--index-passages",
        type=int,
        default=10_000,
        metavar="N",
        help="of the larger index that is searched (default: %(default)s)",
    )
    add_flags(parser)
    return parser


def run_rates(args: argparse.Namespace) -> int:
    """Measure, print and write the rates."""
    from condensery.commands.flags import read_flags
    from condensery.settings import read_settings

    flags = make_rates_parser().parse_args(args.rest)
    settings = read_settings(read_flags(flags))  # wrong ones are refused before anything starts
    from condensery.commands.measuring import (
        LEAST_INDEX,
        OWN,
        concurrency_of,
        find_models,
        measure_all,
        running_server,
    )

    if not 1 <= flags.seconds <= 86_400:
        raise InputError.at("--seconds", f"{flags.seconds:g} is not from 1 to 86400", flags.seconds)
    if not LEAST_INDEX < flags.index_passages <= 10**7:
        wrong = f"{flags.index_passages} is not over {LEAST_INDEX} and up to 10000000"
        raise InputError.at("--index-passages", wrong, flags.index_passages)
    for name in OWN:
        if getattr(flags, name) is not None:
            flag = f"--{name.replace('_', '-')}"
            wrong = "the server that is measured has its own ports, data and no keys"
            raise InputError.at(flag, wrong, getattr(flags, name))
    began, foreign = time.monotonic(), _foreign_seconds()
    given = {name: value for name, value in read_flags(flags).items() if value is not None}
    given.setdefault("store", settings.store or settings.data_dir / "models")
    with tempfile.TemporaryDirectory(prefix="condensery-rates-") as folder:
        words = [word for name, value in given.items() for word in write_flag(name, value)]
        words += ["--data-dir", str(Path(folder) / "data")]
        with running_server(words, Path(folder) / "log") as server:
            models, device = find_models(server)
            points, memory, together = measure_all(
                server, models, flags.seconds, flags.index_passages
            )
    others = (_foreign_seconds() - foreign) / (time.monotonic() - began)
    about = machine.describe_machine()
    cores = int(about["cores"])
    told = {name: value for name, value in given.items() if name != "store"}
    command = ["condensery bench rates", f"--seconds {flags.seconds:g}"]
    command += [" ".join(write_flag(name, value)) for name, value in told.items()]
    rates = Rates(
        date=time.strftime("%Y-%m-%d"),
        command=" ".join(command),
        machine={**about, "memory_bytes": machine.machine_memory()},
        versions={name: _version(name) for name in ("condensery", "torch", "transformers")},
        foreign_cores=round(max(0.0, others), 3),
        device=device,
        servers=cores if device == "cpu" else 1,
        concurrency=concurrency_of(cores),
        models=tuple(models),
        points=tuple(points),
        memory=memory,
        together=together,
    )
    write_rates(flags.out, rates)
    print_note(f"other processes used {rates.foreign_cores:.2f} cores meanwhile")
    print_note(f"written to {flags.out}; `condensery plan --rates {flags.out}` plans with it")
    return 0


def _foreign_seconds() -> float:
    return machine.busy_seconds() - machine.tree_seconds()


def write_flag(name: str, value: object) -> list[str]:
    """Return a setting as words of a command line."""
    from condensery.settings import flag_of

    flag = flag_of(name)
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag.removeprefix('--')}"]
    return [flag, str(value)]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # ours may be run from a checkout that is not installed
        return __version__ if package == "condensery" else "not installed"
