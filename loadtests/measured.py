"""The measured rows of docs/reliability.md, made from what the loads kept.

    python loadtests/measured.py docs/benchmarks/reliability/*.json

Each file is what a load wrote with `--out`, named after it: fairness.json, faults.json,
overload.json, drain.json, swapping.json, growth.json, crashes.json (of `python -m
tests.e2e.crashes`). A row of the page that begins as one of these does is replaced; the others stay
as they are.
"""

import argparse
import json
import re
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from servers import HERE, tell_run

PAGE = HERE.parent / "docs" / "reliability.md"
Row = tuple[str, str, str]  # how it begins, what was sent, the figure
DEATH = "A worker whose thread dies"
MAY_LACK = (DEATH,)  # rows that are made where the page has them


def fairness(report: dict[str, Any]) -> Iterator[Row]:
    cells = [
        f"{name} {statistics.median(figures['alone_p95']):.1f} and "
        f"{statistics.median(figures['p95']):.1f} ms ({figures['ratio']:.2f} times)"
        for name, figures in report.items()
    ]
    queries = sum(figures["queries"] for figures in report.values())
    sent = f"lists over REST, over gRPC, two in a row; {queries:,} queries beside them"
    yield "Fairness", sent, f"p95 alone and beside, medians of rounds: {', '.join(cells)}"


def faults(report: dict[str, Any]) -> Iterator[Row]:
    for part, begins in (
        ("items", "Faults:"),
        ("hang", "A worker that hangs"),
        ("death", DEATH),
    ):
        if (figures := report.get(part)) is None:
            continue
        outcomes = Counter(figures["outcomes"])
        counts = ", ".join(f"{count} {name}" for name, count in outcomes.items() if count)
        notes = "; ".join([*figures["notes"], *(f"BROKEN: {bad}" for bad in figures["broken"])])
        notes = re.sub(r': \{"error".*?\}\}', "", notes)  # the reply in full, which the file has
        done = ", ".join(f"{count} {name}" for name, count in figures["faults"].items())
        zero = ", ".join(f"0 {name}" for name in ("failed", "lost") if not outcomes[name])
        figure = "; ".join(filter(None, [counts, zero, f"faults injected: {done}", notes]))
        yield begins, f"{outcomes.total():,} requests", figure


def overload(report: dict[str, Any]) -> Iterator[Row]:
    doors = [report["REST"], report["gRPC"]]
    sent, accepted, refused = (
        sum(door[key] for door in doors) for key in ("sent", "accepted", "refused")
    )
    others = sum(sum(door["others"].values()) for door in doors)
    memory = report["memory_mib"]
    worst = {
        p: max(door["milliseconds"][p] for door in doors) / 1000 for p in ("p50", "p95", "p99")
    }
    yield (
        "Overload",
        f"{sent:,} requests, {report['rate']:.0f} a second",
        (
            f"{accepted:,} right, {refused:,} refused with when to come back, {others} others; "
            f"goodput {report['goodput']:.1f}/s of a capacity of {report['capacity']:.1f}/s "
            f"({report['goodput'] / report['capacity']:.0%}); memory {memory[0]:.0f} to "
            f"{memory[-1]:.0f} MiB, at most {max(memory):.0f}; accepted p50 {worst['p50']:.1f} s, "
            f"p95 {worst['p95']:.1f} s, p99 {worst['p99']:.1f} s; unloaded p50 "
            f"{report['unloaded']['milliseconds']['p50']:.0f} ms before, "
            f"{report['after']['milliseconds']['p50']:.0f} ms after"
        ),
    )


def drain(report: dict[str, Any]) -> Iterator[Row]:
    rounds = [*report["once"], *report["twice"]]
    outcomes: Counter[str] = sum((Counter(figures["outcomes"]) for figures in rounds), Counter())
    counts = ", ".join(f"{count} {name}" for name, count in outcomes.items() if count)
    unready = max((max(figures["unready"].values(), default=0) for figures in rounds), default=0)
    ends = [
        f"{name} after {statistics.median(figures['seconds'] for figures in some):.1f} s"
        for name, some in (("one SIGTERM", report["once"]), ("two", report["twice"]))
        if some
    ]
    statuses = sorted({str(figures["status"]) for figures in rounds})
    yield (
        "Exit under load",
        f"{outcomes.total():,} requests in {len(rounds)} rounds",
        (
            f"{counts}; both doors unready after {unready:.1f} s at most; ended by "
            f"{', by '.join(ends)}, status {', '.join(statuses)}"
        ),
    )


def swapping(report: dict[str, Any]) -> Iterator[Row]:
    swaps = [report[part] for part in ("versions", "alias") if part in report]
    if swaps:
        yield (
            "Versions swapping under load",
            ", ".join(f"{swap['replies']:,} replies over {swap['swaps']} swaps" for swap in swaps),
            "; ".join(
                f"{sum(swap['wrong'].values())} errors, {swap['seconds_a_swap']:.2f} s a swap, "
                f"{swap['callers']} callers, each of which saw "
                f"{' or '.join(map(str, sorted(set(swap['flips_of_each_caller']))))} flips"
                for swap in swaps
            ),
        )
    held = [figures for name, figures in report.items() if name.startswith("memory")]
    if held:
        yield (
            "Memory over",
            ", ".join(
                f"{figures['model']} of {figures['model_mib']:.0f} MiB, {figures['cycles']} times"
                for figures in held
            ),
            "resident set after the first unload and after the last: "
            + "; ".join(
                f"{figures['model']} {figures['after_first_mib']:.0f} and "
                f"{figures['after_last_mib']:.0f} MiB "
                f"({figures['left_mib_a_cycle']:.2f} MiB a time in the median)"
                for figures in held
            ),
        )


def crashes(report: dict[str, Any]) -> Iterator[Row]:
    for part, begins in (("index", "Crashes: an index"), ("server", "Crashes: the whole server")):
        figures = report[part]
        kills, amid = figures.get("kills", 0), figures.get("amid a write", 0)
        # several callers write to the server: a kill is amid a write of each
        counts = f"{kills} kills, {amid} of them amid a write"
        if part == "server":
            counts = f"{kills} kills, amid {amid} writes (one of each caller)"
        yield (
            begins,
            f"{counts}; {figures.get('done', 0):,} acknowledged writes",
            f"0 lost, 0 twice, 0 come back; {figures['seconds']} s",
        )


def growth(report: dict[str, Any]) -> Iterator[Row]:
    first, last = report["readings"][0], report["readings"][-1]
    grew = report["grew_mib"]
    yield (
        "Growth",
        f"{last['requests']:,} requests",
        (
            f"resident {first['resident_mib']:.0f} MiB at the start, {last['resident_mib']:.0f} at "
            f"the end; {grew['resident_mib']:+.1f} after the first tenth"
        ),
    )


MAKERS: dict[str, Callable[[dict[str, Any]], Iterator[Row]]] = {
    maker.__name__: maker
    for maker in (fairness, faults, overload, drain, swapping, crashes, growth)
}


def rewrite(page: str, kept: dict[str, dict[str, Any]]) -> str:
    """Return the page with the rows of these loads made anew.

    Args:
        page: As it is.
        kept: What each load kept, by its name.

    Raises:
        SystemExit: The page has no row that begins as one of a load does.
    """
    for name, report in kept.items():
        figures = dict(report)
        run = figures.pop("run")
        for begins, sent, figure in MAKERS[name](figures):
            begin = rf"^(\| {re.escape(begins)}[^|]*)"
            pattern = re.compile(rf"{begin}\|[^|]*\|[^|]*\|.*\|$", re.MULTILINE)
            command = f" `{run['command']}` ({name}.json) "
            row = f"|{command}| {sent} | {figure} ({tell_run(run)}) |"
            page, count = pattern.subn(lambda match, row=row: match[1] + row, page)
            if not count and begins not in MAY_LACK:
                sys.exit(f"{PAGE.name} has no row that begins with {begins!r}")
    return page


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.json")
    parser.add_argument("--page", type=Path, default=PAGE)
    args = parser.parse_args()
    for file in args.files:
        if file.stem not in MAKERS:
            parser.error(f"{file}: not named after one of {', '.join(MAKERS)}")
    kept = {file.stem: json.loads(file.read_text()) for file in args.files}
    args.page.write_text(rewrite(args.page.read_text(encoding="utf-8"), kept), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
