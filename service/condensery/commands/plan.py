"""``condensery plan``: how many machines a traffic needs, and the arithmetic of it."""

import argparse
import json
import math
from dataclasses import asdict, replace
from pathlib import Path

from condensery import __version__
from condensery.capacity import machine
from condensery.capacity.plan import HOURS_A_MONTH, SHARE, CostPart, Plan, Row, Target, make_plan
from condensery.capacity.rates import Rates, read_rates
from condensery.capacity.traffic import (
    MIXES,
    PROFILES,
    TASKS,
    Traffic,
    parse_request,
    total_rate,
    traffic_of,
)
from condensery.commands.common import Parsers, format_table, print_note
from condensery.errors import InputError

FOREIGN_CORES = 0.1  # used by others while rates were measured: more is told
GIB = 2**30
# Flag, default, least, most, and what it is.
WANTED: tuple[tuple[str, float | None, float, float, str], ...] = (
    ("--p95-ms", None, 0.001, 1e9, "p95 of every kind of request, milliseconds"),
    ("--utilisation", 0.8, 0.01, 0.99, "of a machine, at most, whatever the latencies"),
    ("--spare", 1, 0, 1000, "machines that may be lost"),
    ("--cost-an-hour", None, 0, 1e9, "of one machine"),
    (
        "--elsewhere-ms",
        0.0,
        0,
        1e6,
        "core-ms that a request takes of the same machine outside the server: a proxy",
    ),
)
DESCRIPTION = (
    "Say how many machines a traffic needs for a latency, their memory and cost, and why: each line"
    " of the arithmetic with its measured rate. Rates are what `condensery bench rates` wrote."
    " Flags may stand in a file, one a line: @FILE."
)


def add_plan(parsers: Parsers) -> None:
    """Add ``plan``."""
    parser = parsers.add_parser(
        "plan",
        help="how many machines a traffic needs, and why",
        description=DESCRIPTION,
        fromfile_prefix_chars="@",
    )
    parser.add_argument(
        "--rates",
        type=Path,
        default=Path("rates.json"),
        metavar="FILE",
        help="what the machine was measured at (default: %(default)s)",
    )
    traffic = parser.add_argument_group("traffic")
    traffic.add_argument(
        "--request",
        action="append",
        metavar="LINE",
        help='"RATE/s TASK [COUNT] [tokens=N] [output=N] [passages=N] [model=NAME]", TASK one of'
        f' {", ".join(TASKS)}: "2/s rerank 32 tokens=120"; again for each kind',
    )
    traffic.add_argument(
        "--profile", choices=sorted(PROFILES), help="a load test's, at its highest rate"
    )
    traffic.add_argument(
        "--mix", choices=sorted(MIXES), default="mix", help="of the profile (default: mix)"
    )
    traffic.add_argument("--rate", type=float, metavar="R", help="scale all to R requests a second")
    wanted = parser.add_argument_group("what is wanted")
    for flag, default, _, _, help in WANTED:
        more = "" if default is None else " (default: %(default)g)"
        kind = int if flag == "--spare" else float
        wanted.add_argument(flag, type=kind, default=default, metavar="N", help=help + more)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.set_defaults(run=run_plan)


def run_plan(args: argparse.Namespace) -> int:
    """Print a plan.

    Raises:
        InputError: A value is out of its range, a rate was not measured, the target cannot be met.
    """
    for flag, _, least, most, _ in WANTED:
        value = getattr(args, flag[2:].replace("-", "_"))
        if value is not None and not least <= value <= most:
            raise InputError.at(flag, f"{value:g} is not from {least:g} to {most:g}", value)
    traffic, bound = read_traffic(args)
    target = Target(
        p95_ms=args.p95_ms or bound or math.inf,
        most_load=args.utilisation,
        spare=args.spare,
        cost_an_hour=args.cost_an_hour or 0.0,
        elsewhere=args.elsewhere_ms / 1000,
    )
    rates = read_rates(args.rates)
    for line in find_doubts(rates):
        print_note(f"note: {line}")
    plan = make_plan(rates, traffic, target)
    if args.json:
        content = {**asdict(plan), "machines": plan.machines, "doubts": find_doubts(rates)}
        print(json.dumps(_finite(content), ensure_ascii=False))
    else:
        print(format_plan(plan, rates, target))
    return 0


def read_traffic(args: argparse.Namespace) -> tuple[tuple[Traffic, ...], float]:
    """Return the traffic of the arguments, and its own bound of p95, ms; 0 is none.

    Raises:
        InputError: There is none, or two; a line is wrong.
    """
    if bool(args.request) == bool(args.profile):
        raise InputError("give --request, as often as there are kinds, or --profile; one of them")
    if args.rate is not None and not 0 < args.rate < math.inf:
        raise InputError.at("--rate", f"{args.rate:g} is not above 0", args.rate)
    if args.profile:
        profile = PROFILES[args.profile]
        return traffic_of(MIXES[args.mix], args.rate or profile.peak), profile.p95_ms
    traffic = tuple(map(parse_request, args.request))
    factor = args.rate / total_rate(traffic) if args.rate else 1.0
    return tuple(replace(line, rate=line.rate * factor) for line in traffic), 0.0


def find_doubts(rates: Rates) -> list[str]:
    """Return what about the rates may not hold here and now, a line each."""
    doubts = []
    here = machine.describe_machine()
    measured = {name: rates.machine.get(name) for name in ("cpu", "kind", "cores")}
    own = {name: here[name] for name in measured}
    if measured != own:
        doubts.append(f"the rates are another machine's: {_tell(measured)}; this is {_tell(own)}")
    version = rates.versions.get("condensery", "unknown")
    if version != __version__:
        doubts.append(f"the rates are condensery {version}'s, and this is {__version__}")
    if rates.foreign_cores > FOREIGN_CORES:
        used = f"{rates.foreign_cores:.2f} cores while the rates were measured"
        doubts.append(f"other processes used {used}: times by the clock are too long")
    if rates.device != "cpu":
        doubts.append(f"on {rates.device}: no plan for one was checked against a load yet")
    return doubts


def _tell(about: dict[str, object]) -> str:
    return f"{about['cores']} cores of {about['cpu']} ({about['kind']})"


def format_plan(plan: Plan, rates: Rates, target: Target) -> str:
    """Return a plan for people: what is needed, and the arithmetic below it."""
    rate = total_rate(plan.traffic)
    row = plan.row
    unit = "cores" if rates.device == "cpu" else "device"
    memory = rates.machine.get("memory_bytes", 0)
    fits = ", which it has" if plan.memory_bytes <= memory else f", but it has {memory / GIB:.1f}"
    lines = [
        f"{plan.needed} machine{'s' * (plan.needed > 1)} for {rate:g} requests a second"
        + (f", p95 of each kind within {target.p95_ms:g} ms" if target.p95_ms < math.inf else "")
        + f"; {plan.machines} with {plan.spare} that may be lost",
        (
            f"each: {_tell(rates.machine)}, {plan.memory_bytes / GIB:.1f} GiB for the server{fits};"
            f" {plan.machine_bytes / GIB:.1f} GiB with a fifth left free"
        ),
        (
            f"busy: {row.utilisation:.0%} of {unit}, {row.loop:.0%} of the event loop, the spare"
            f" ones lost; one machine has a capacity of {plan.capacity:.1f} requests a second of"
            f" this mix ({plan.bound}), {plan.needed * plan.capacity / rate:.1f} times what comes"
        ),
    ]
    if target.cost_an_hour:
        lines.append(
            f"cost: {plan.machines} x {target.cost_an_hour:g} an hour x {HOURS_A_MONTH:g} hours ="
            f" {plan.cost_a_month:,.2f} a month"
        )
    lines += ["", format_kinds(plan, row), "", format_rows(plan), "", *format_why(plan, rates)]
    return "\n".join(lines)


def format_kinds(plan: Plan, row: Row) -> str:
    """Return the kinds of requests and how each does on the machines that are needed."""
    head = ("REQUEST", "A SECOND", "MODEL", "CORE-MS ALONE", "CONCURRENT", "P95 ALONE", "P95 THEN")
    cells = [
        (
            *(kind.kind.name, f"{line.rate:g}", kind.model),
            *map(_ms, (kind.cost.alone, kind.cost.concurrent, kind.bare_p95, p95)),
        )
        for kind, line, p95 in zip(plan.kinds, plan.traffic, row.p95, strict=True)
    ]
    return format_table([head, *cells])


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.2f}"


def format_rows(plan: Plan) -> str:
    """Return what fewer machines would do, the last row being what is needed."""
    head = ("MACHINES", "UTILISATION", "EVENT LOOP", "P95 OF ALL, MS", "WORST KIND'S P95")
    cells = [
        (
            *(f"{row.machines}", f"{row.utilisation:.0%}", f"{row.loop:.0%}"),
            *((_ms(row.all_p95), _ms(max(row.p95))) if row.p95 else ("cannot keep up", "-")),
        )
        for row in plan.rows[-6:]
    ]
    return format_table([head, *cells])


def format_why(plan: Plan, rates: Rates) -> list[str]:
    """Return the arithmetic, a line a step."""
    used = [model for model in rates.models if model.name in {kind.model for kind in plan.kinds}]
    models = ", ".join(f"{model.name} {model.version} ({model.dtype})" for model in used)
    version = rates.versions.get("condensery", "?")
    lines = [f"measured {rates.date} by `{rates.command}`: condensery {version}, {models}", ""]
    for kind in plan.kinds:
        lines.append(f"{kind.kind.name}, core-ms alone / with {rates.concurrency} concurrent:")
        for part in (*kind.parts, CostPart("in all", 1, kind.cost)):
            times = "" if part.times == 1 else f"x {part.times:g}  "
            alone, concurrent = 1000 * part.cost.alone, 1000 * part.cost.concurrent
            lines.append(f"  {alone:9.3f} /{concurrent:9.3f}  {times}{part.label}")
    return [*lines, "", *_queue_lines(plan, plan.row, rates)]


def _queue_lines(plan: Plan, row: Row, rates: Rates) -> list[str]:
    rate, servers = total_rate(plan.traffic), rates.servers
    pairs = list(zip(plan.traffic, plan.kinds, strict=True))
    alone = sum(line.rate * kind.cost.alone for line, kind in pairs) / rate
    concurrent = sum(line.rate * kind.cost.concurrent for line, kind in pairs) / rate
    a, c = (rate * part / row.machines / servers for part in (alone, concurrent))
    lines = [
        (
            f"mean of the mix: {1000 * alone:.3f} core-ms alone, {1000 * concurrent:.3f}"
            f" concurrent; capacity of a machine = {servers} / {1000 * concurrent:.3f} ms ="
            f" {servers / concurrent:.1f} a second"
        ),
        (
            f"on each of {row.machines}: {rate / row.machines:.4g} a second; load A = {a:.3f}"
            f" alone, C = {c:.3f} concurrent; utilisation = A / (1 + A - C) ="
            f" {row.utilisation:.3f}"
        ),
        (
            f"waiting: M/G/{servers} by Allen and Cunneen, random arrivals spread evenly; short"
            " requests (at most 512 tokens) and the event loop go first, so that batches take"
            f" {row.stretch:.3f} times as long; p95 = own time at this load + the wait that 95 in"
            " 100 do not exceed, and never under that alone:"
        ),
        *(
            f"  {1000 * own:9.1f} +{1000 * wait.quantile(SHARE):9.1f} ms  {kind.kind.name}"
            f" ({wait.chance:.0%} wait, {1000 * wait.scale:.1f} ms in the mean)"
            for own, wait, kind in zip(row.own, row.waits, plan.kinds, strict=True)
        ),
    ]
    if row.streams:
        lines.append(f"answers at once on each: {row.streams:.2f} (Little: rate x time)")
    memory = rates.memory
    lines.append(
        f"memory: {memory.peak / GIB:.2f} GiB at most with {rates.concurrency} callers"
        f" ({memory.start / GIB:.2f} after the start), {memory.stream / 2**20:.2f} MiB an answer"
        f" beyond {rates.concurrency} at once, {memory.passage / 1024:.2f} KiB a passage"
        " of the largest index"
    )
    return lines


def _finite(value: object) -> object:
    """Return what JSON can hold: it has no infinity."""
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
