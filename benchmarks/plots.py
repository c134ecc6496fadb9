"""The benchmarks' raw figures as pictures, one beside each JSON that `make bench` writes.

    python benchmarks/plots.py [FOLDER ...]

By default docs/benchmarks and the folders in it. Bars are medians, lines the range over the rounds.
"""

import argparse
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from recording import tell_machine
from service_report import servers_of

from condensery.methods.trainer.reports import new_figure, save_figure

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "benchmarks"
# That the colour-blind tell apart (Okabe and Ito): ours in blue, peers in greys and orange.
COLOURS = ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#999999", "#000000", "#D55E00", "#CC79A7")
OURS = "condensery"
FP32 = " fp32"


def colours_of(names: Sequence[str]) -> Mapping[str, str]:
    """Return a colour for each contender, the same for a peer in either dtype."""
    ours = [name for name in names if name.startswith(OURS)]
    others = {name: name.removesuffix(FP32).removesuffix(" bf16") for name in names}
    peers = dict.fromkeys(peer for name, peer in others.items() if name not in ours)
    of_peer = dict(zip(peers, itertools.cycle(COLOURS[3:]), strict=False))
    return {
        **{name: of_peer[peer] for name, peer in others.items() if peer in of_peer},
        **dict(zip(ours, COLOURS[:3], strict=False)),
    }


def bars(
    axes: Axes,
    groups: Sequence[str],
    values: Mapping[str, Sequence[tuple[float, float, float] | None]],
    *,
    unit: str,
    log: bool = False,
) -> None:
    """Draw a bar for each contender in each group.

    Args:
        axes: Where.
        groups: What they are called, left to right.
        values: By contender, of each group the median, the least and the most; None: not run.
        unit: Of the values.
        log: Whether the scale is logarithmic.
    """
    width = 0.8 / len(values)
    colours = colours_of(list(values))
    for place, (name, row) in enumerate(values.items()):
        at = [group + (place - (len(values) - 1) / 2) * width for group in range(len(groups))]
        there = [(x, value) for x, value in zip(at, row, strict=True) if value is not None]
        heights = [value[0] for _, value in there]
        reach = [[v[0] - v[1] for _, v in there], [v[2] - v[0] for _, v in there]]
        drawn = axes.bar(
            *([x for x, _ in there], heights, width),
            yerr=reach,
            label=name,
            color=colours[name],
            hatch="///" if name.endswith(FP32) else None,
            edgecolor="white",
            error_kw={"elinewidth": 0.8, "ecolor": "#444444"},
        )
        labels = [f"{height:,.0f}" if height >= 100 else f"{height:.3g}" for height in heights]
        axes.bar_label(drawn, labels, fontsize=7, padding=2)
    axes.set_xticks(range(len(groups)), groups)
    axes.set_ylabel(unit)
    if log:
        axes.set_yscale("log")
    axes.margins(y=0.15)
    axes.spines[["top", "right"]].set_visible(False)


def draw_encode(report: Mapping[str, Any]) -> Figure:
    """Draw tokens a second by contender and kind of text."""
    figure = new_figure(8, 4)
    tables = report["tables"]
    names = [row["name"] for row in tables[0]["results"]]
    by_name = [{row["name"]: row for row in table["results"]} for table in tables]
    values = {
        name: [_range(rows.get(name), "tokens_per_second") for rows in by_name] for name in names
    }
    axes = figure.add_subplot()
    bars(axes, [table["title"] for table in tables], values, unit="tokens/s")
    return _finished(figure, [axes], "Encoding all-MiniLM-L6-v2", report)


def draw_service(report: Mapping[str, Any]) -> Figure:
    """Draw requests a second by clients, a panel for each kind of request."""
    tables = report["tables"]
    figure = new_figure(5.5 * len(tables), 4)
    every = [figure.add_subplot(1, len(tables), place + 1) for place in range(len(tables))]
    for axes, table in zip(every, tables, strict=True):
        rows = table["results"]
        names = servers_of(rows[0])
        values = {
            name: [_range(row.get(name), "requests_per_second") for row in rows] for name in names
        }
        groups = [f"{row['concurrency']} client{'s' * (row['concurrency'] > 1)}" for row in rows]
        bars(axes, groups, values, unit="requests/s (logarithmic)", log=True)
        axes.set_title(table["title"], fontsize=9)
    return _finished(figure, every[:1], "The service over REST", report)


def draw_generate(report: Mapping[str, Any]) -> Figure | None:
    """Draw questions a second, and the time to the first token; None where neither was run."""
    kinds = [kind for kind in ("engines", "bits") if report.get(kind)]
    if not kinds:
        return None
    figure = new_figure(4.5 * len(kinds) + 3, 7)
    every: list[Axes] = []
    for column, kind in enumerate(kinds):
        own = report[kind]
        names = list(dict.fromkeys(name for table in own for name in table["rows"]))
        groups = [_callers(*table["title"].split(", concurrency ")) for table in own]
        for row, (figures, unit, log) in enumerate(
            (
                ("questions_per_second", "questions/s", False),
                ("first_ms", "first token, ms (logarithmic)", True),
            )
        ):
            axes = figure.add_subplot(2, len(kinds), row * len(kinds) + column + 1)
            values = {name: [_of_rounds(table, name, figures) for table in own] for name in names}
            bars(axes, groups, values, unit=unit, log=log)
            axes.tick_params(axis="x", labelsize=7)
            every.append(axes)
        every[-2].legend(fontsize=7, frameon=False)
    dtype = report["dtype"]
    return _finished(figure, [], f"Generating answers, {dtype}", report)


def _callers(model: str, count: str) -> str:
    return f"{model}\n{count} caller{'' if count == '1' else 's'}"


def _of_rounds(table: Mapping[str, Any], name: str, key: str) -> tuple[float, float, float] | None:
    if name not in table["rows"]:
        return None
    rounds = [cell[key] for cell in table["rounds"][name]]
    return table["rows"][name][key], min(rounds), max(rounds)


def _range(row: Mapping[str, Any] | None, key: str) -> tuple[float, float, float] | None:
    return None if row is None else (row[key], row["lowest"], row["highest"])


def _finished(figure: Figure, legends: list[Axes], title: str, report: Mapping[str, Any]) -> Figure:
    for axes in legends:
        axes.legend(fontsize=8, frameon=False, ncols=4, loc="upper center")
        axes.margins(y=0.3)  # room above the bars for two lines of names
    figure.suptitle(f"{title}\n{tell_machine(report)}, {report['date']}", fontsize=10)
    return figure


def draw_soak(report: Mapping[str, Any]) -> Figure | None:
    """Draw a long load minute by minute: its rate, its percentiles, the server's memory."""
    minutes = report.get("minutes", [])
    if not minutes:
        return None
    figure = new_figure(8, 7)
    at = [row["minute"] for row in minutes]
    rate, times, memory = (figure.add_subplot(3, 1, place) for place in (1, 2, 3))
    rate.plot(at, [row["requests_per_second"] for row in minutes], color=COLOURS[0])
    rate.set_ylabel("requests/s")
    rate.set_ylim(bottom=0)
    for key, colour in (("p50_ms", COLOURS[0]), ("p95_ms", COLOURS[3]), ("p99_ms", COLOURS[5])):
        times.plot(at, [row[key] for row in minutes], label=key.removesuffix("_ms"), color=colour)
    times.set_yscale("log")
    times.set_ylabel("ms (logarithmic)")
    times.legend(fontsize=8, frameon=False, ncols=3)
    known = [row for row in minutes if "mib" in row]
    memory.plot(*([row[key] for row in known] for key in ("minute", "mib")), color=COLOURS[0])
    memory.set_ylabel("resident, MiB")
    memory.set_ylim(bottom=0)
    memory.set_xlabel("minutes")
    for axes in (rate, times, memory):
        axes.set_xlim(0, at[-1] + 1)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"An hour's load\n{tell_machine(report['run'])}", fontsize=10)
    return figure


def draw_index_size(report: Mapping[str, Any]) -> Figure | None:
    """Draw indexes by kind and size: a query, writing, starting, and the longest query."""
    rows = list(report["rows"].values())
    figure = new_figure(9, 6)
    groups = [f"{row['kind']}\n{row['passages']:,}" for row in rows]
    panels: tuple[tuple[str, bool, Mapping[str, Callable[[Any], float | None]]], ...] = (
        (
            "a query, p50, ms (logarithmic)",
            True,
            {
                name: lambda row, key=key: row["found"].get(key, {}).get("p50_ms")
                for name, key in (
                    (OURS, "ours"),
                    ("FAISS", "faiss"),
                    ("FAISS, 8 bits", "faiss_8_bits"),
                )
            },
        ),
        (
            "passages written a second",
            False,
            {
                OURS: lambda row: row["written_a_second"],
                f"{OURS}, while asked": lambda row: row["asked_written_a_second"],
            },
        ),
        (
            "opened, until the first hits, s",
            False,
            {
                OURS: lambda row: row["start_seconds"],
                f"{OURS}, after a boot": lambda row: row["boot_seconds"],
            },
        ),
        (
            "longest query, ms (logarithmic)",
            True,
            {
                f"{OURS}, {what}": lambda row, key=key: row[key]
                for what, key in (
                    ("quiet", "quiet_ms"),
                    ("snapshot", "snapshot_ms"),
                    ("compacting", "compacting_ms"),
                )
            },
        ),
    )
    for place, (unit, log, contenders) in enumerate(panels):
        axes = figure.add_subplot(2, 2, place + 1)
        values = {
            name: points
            for name, read in contenders.items()
            if any(points := [_point(read(row)) for row in rows])
        }
        bars(axes, groups, values, unit=unit, log=log)
        axes.tick_params(axis="x", labelsize=7)
        axes.legend(
            fontsize=7,
            frameon=False,
            ncols=3,
            columnspacing=1,
            loc="lower center",
            bbox_to_anchor=(0.5, 1),
        )
    figure.suptitle(f"Indexes at size\n{tell_machine(report['runs'][-1])}", fontsize=10)
    return figure


def _point(value: float | None) -> tuple[float, float, float] | None:
    return None if value is None else (value, value, value)


DRAWN: Mapping[str, Callable[[Mapping[str, Any]], Figure | None]] = {
    "encode": draw_encode,
    "service": draw_service,
    "generate": draw_generate,
    "index_size": draw_index_size,
    "soak": draw_soak,
}


def draw(folder: Path) -> list[Path]:
    """Draw what a folder has figures for; returns the pictures."""
    pictures = []
    for name, drawing in DRAWN.items():
        path = folder / f"{name}.json"
        if path.exists() and (figure := drawing(json.loads(path.read_text()))) is not None:
            pictures.append(save_figure(figure, folder / f"{name}.png"))
    return pictures


def main() -> int:
    """Draw, and say what."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", nargs="*", type=Path)
    folders = parser.parse_args().folders or [RESULTS, *filter(Path.is_dir, RESULTS.iterdir())]
    for folder in folders:
        for picture in draw(folder):
            print(picture)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
