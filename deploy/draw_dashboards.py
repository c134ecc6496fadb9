"""Draw the Grafana dashboards without Grafana: a PNG each, by their own queries of a Prometheus.

    python deploy/draw_dashboards.py --prometheus http://127.0.0.1:9090 --minutes 10 \\
        --out docs/images

Grid, titles, legends, units and thresholds are the dashboards' own, and where they say nothing
Grafana's defaults; the look is not. What it cannot draw (a type of panel, a unit, a variable) is
an error. It needs matplotlib, of the extra `methods`.
"""

import argparse
import io
import json
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import httpx
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator
from numpy.typing import NDArray
from PIL import Image

DASHBOARDS = Path(__file__).parent / "grafana" / "dashboards"

# Pixels.
WIDTH = 1600
HEAD = 52
MARGIN = 8
COLUMN = (WIDTH - 2 * MARGIN) / 24
ROW = 38
DPI = 100
LINE = 19  # of a legend
LEGEND_LINES = 4
COLOURS = 128  # of a file

PAGE, PAPER, EDGE, GRID = "#f4f5f5", "#ffffff", "#d8d9da", "#e9e9ea"
INK, FAINT = "#24292e", "#6b7178"
# Grafana's names, dark enough for white paper.
NAMED = {"green": "#37872d", "yellow": "#b8860b", "orange": "#e0752d", "red": "#c4162a"}
LINES = (
    *("#3274d9", "#e0752d", "#37872d", "#c4162a", "#8f3bb8", "#b8860b"),
    *("#0f8b8d", "#d6409f", "#6b7178", "#7c5c3b"),
)
UNITS: dict[str, tuple[tuple[float, str], ...]] = {
    "short": ((1, ""), (1e3, " K"), (1e6, " Mil"), (1e9, " Bil"), (1e12, " Tri")),
    "ops": ((1, " ops/s"), (1e3, "K ops/s")),
    "reqps": ((1, " req/s"), (1e3, "K req/s")),
    "percentunit": ((0.01, "%"),),
    "s": ((1e-6, " µs"), (1e-3, " ms"), (1, " s"), (60, " min"), (3600, " h"), (86400, " days")),
    "bytes": tuple(
        (2.0 ** (10 * n), f" {unit}") for n, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB"))
    ),
    "watt": ((1, " W"), (1e3, " kW")),
}
TICKS = (5, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)  # seconds

Values = NDArray[np.float64]
Align = Literal["left", "center", "right"]


@dataclass(frozen=True, slots=True)
class Window:
    """The times that are drawn: ``start`` to ``end``, a value each ``step``, in seconds."""

    start: float
    end: float
    step: float
    rate_interval: float  # what Grafana makes of $__rate_interval

    @property
    def times(self) -> Values:
        return np.arange(self.start, self.end + self.step / 2, self.step)


@dataclass(frozen=True, slots=True)
class Target:
    """A query of a panel, its variables not yet filled in."""

    query: str
    legend: str
    instant: bool

    def fill_in(self, rate_interval: float, variables: Mapping[str, str]) -> str:
        """Return the query as Prometheus takes it."""
        known = {"__rate_interval": f"{math.ceil(rate_interval)}s", **variables}
        return re.sub(r"\$(\w+)", lambda found: known[found[1]], self.query)

    def name(self, labels: Mapping[str, str]) -> str:
        """Return what a series of these labels is called in the legend."""
        return re.sub(r"{{\s*(\w+)\s*}}", lambda found: labels.get(found[1], ""), self.legend)


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel: where it is, in columns and rows, and how its values are shown."""

    title: str
    kind: str
    x: int
    y: int
    columns: int
    rows: int
    unit: str
    low: float | None
    high: float | None
    stacked: bool
    opacity: float  # of the area below a line, 0 to 1
    thresholds: tuple[tuple[float, str], ...]  # from which value, which colour
    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A dashboard; its variables stand for all that they can."""

    name: str
    title: str
    variables: dict[str, str]
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Series:
    """A line: a value at each of a window's times, not a number where there is none."""

    name: str
    labels: dict[str, str]
    values: Values


def read_dashboards(folder: Path = DASHBOARDS) -> Iterator[Dashboard]:
    for path in sorted(folder.glob("*.json")):
        body = json.loads(path.read_text(encoding="utf-8"))
        listed = [one for one in body["templating"]["list"] if one["type"] != "datasource"]
        variables = {one["name"]: one["allValue"] for one in listed}
        panels = tuple(map(_read_panel, body["panels"]))
        yield Dashboard(path.stem, body["title"], variables, panels)


def _read_panel(body: dict[str, Any]) -> Panel:
    place = body["gridPos"]
    defaults = body.get("fieldConfig", {}).get("defaults", {})
    custom = defaults.get("custom", {})
    # Grafana's own, where a dashboard has none.
    steps = defaults.get("thresholds", {}).get(
        "steps", [{"value": None, "color": "green"}, {"value": 80, "color": "red"}]
    )
    targets = tuple(
        Target(one["expr"], one.get("legendFormat", ""), one.get("instant", False))
        for one in body["targets"]
    )
    return Panel(
        title=body["title"],
        kind=body["type"],
        x=place["x"],
        y=place["y"],
        columns=place["w"],
        rows=place["h"],
        unit=defaults.get("unit", "short"),
        low=defaults.get("min"),
        high=defaults.get("max"),
        stacked=custom.get("stacking", {}).get("mode") == "normal",
        opacity=custom.get("fillOpacity", 0) / 100,
        thresholds=tuple(
            (-math.inf if one["value"] is None else one["value"], one["color"]) for one in steps
        ),
        targets=targets,
    )


def last_minutes(minutes: float, scrape_seconds: float) -> Window:
    """Return the window that ends now, with Grafana's steps for a data source scraped like this."""
    step = max(scrape_seconds, minutes * 60 / 480)
    end = time.time() // step * step
    start = end - minutes * 60 // step * step
    return Window(start, end, step, max(step + scrape_seconds, 4 * scrape_seconds))


def ask(
    client: httpx.Client, target: Target, window: Window, variables: Mapping[str, str]
) -> list[Series]:
    """Return a target's series that have values; of an instant one only the window's last."""
    query = target.fill_in(window.rate_interval, variables)
    if target.instant:
        path, span = "/api/v1/query", {"time": window.end}
    else:
        path = "/api/v1/query_range"
        span = {"start": window.start, "end": window.end, "step": window.step}
    reply = client.get(path, params={"query": query, **span})
    if reply.status_code != httpx.codes.OK:
        raise RuntimeError(f"Prometheus refuses {query}: {reply.text}")
    found = []
    for row in reply.json()["data"]["result"]:
        labels = row["metric"]
        values = np.full(len(window.times), np.nan)
        for at, value in row["values"] if "values" in row else [row["value"]]:
            values[round((at - window.start) / window.step)] = float(value)
        found.append(
            Series(target.name(labels), labels, np.where(np.isfinite(values), values, np.nan))
        )
    return [one for one in found if np.isfinite(one.values).any()]


def scale_of(unit: str, value: float) -> tuple[float, str]:
    """Return what values as large as ``value`` are divided by, and what is written after them."""
    steps = UNITS[unit]
    if not value:
        return next((step for step in steps if step[0] == 1), steps[0])
    return max((step for step in steps if step[0] <= abs(value)), default=steps[0])


def format_value(unit: str, value: float) -> str:
    """Write a value as Grafana does: three digits, and the unit's name."""
    divisor, suffix = scale_of(unit, value)
    scaled = value / divisor
    digits = max(0, 2 - math.floor(math.log10(abs(scaled)))) if scaled else 0
    text = f"{scaled:.{min(digits, 4)}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) + suffix


def format_time(seconds: float, pattern: str) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime(pattern)


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle in pixels, from the top left corner of the picture."""

    x: float
    y: float
    width: float
    height: float


class Sheet:
    """A picture of ``height`` pixels, measured from its top left corner."""

    def __init__(self, height: int) -> None:
        self.height = height
        self._figure = Figure(figsize=(WIDTH / DPI, height / DPI), dpi=DPI, facecolor=PAGE)
        FigureCanvasAgg(self._figure)

    def add_panel(self, box: Box) -> None:
        corner = (box.x / WIDTH, 1 - (box.y + box.height) / self.height)
        size = (box.width / WIDTH, box.height / self.height)
        paper = Rectangle(corner, *size, facecolor=PAPER, edgecolor=EDGE, zorder=-1)
        paper.set_transform(self._figure.transFigure)
        self._figure.add_artist(paper)

    def add_line(self, box: Box, colour: str, thickness: float) -> None:
        """Draw a line along a box's top."""
        xs, y = (box.x / WIDTH, (box.x + box.width) / WIDTH), 1 - box.y / self.height
        line = Line2D(xs, (y, y), color=colour, linewidth=thickness)
        line.set_transform(self._figure.transFigure)
        self._figure.add_artist(line)

    def add_text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 13,
        colour: str = INK,
        bold: bool = False,
        align: Align = "left",
        most: float = math.inf,
    ) -> None:
        """Write a line whose middle is at ``y``, smaller where it is wider than ``most``."""
        written = self._figure.text(
            x / WIDTH,
            1 - y / self.height,
            text,
            fontsize=size * 72 / DPI,
            color=colour,
            fontweight="bold" if bold else "normal",
            horizontalalignment=align,
            verticalalignment="center_baseline",
            parse_math=False,
        )
        width = written.get_window_extent().width
        if width > most:
            written.set_fontsize(size * 72 / DPI * 0.97 * most / width)

    def measure(self, text: str, *, size: float = 13, bold: bool = False) -> float:
        """Return how wide a text is."""
        weight = "bold" if bold else "normal"
        written = Text(0, 0, text, fontsize=size * 72 / DPI, fontweight=weight, parse_math=False)
        written.set_figure(self._figure)
        return float(written.get_window_extent().width)

    def add_axes(self, box: Box) -> Axes:
        bottom = 1 - (box.y + box.height) / self.height
        axes = self._figure.add_axes(
            (box.x / WIDTH, bottom, box.width / WIDTH, box.height / self.height)
        )
        axes.set_facecolor("none")
        for side in axes.spines.values():
            side.set_visible(False)
        axes.tick_params(length=0, labelsize=12 * 72 / DPI, labelcolor=FAINT, pad=5)
        return axes

    def save(self, path: Path) -> None:
        """Write it as a PNG with a palette; a line's colour, however rare, is in it."""
        drawn = io.BytesIO()
        self._figure.savefig(drawn, format="png")
        picture = Image.open(drawn).convert("RGB")
        kept = (PAGE, PAPER, *LINES)
        found = picture.quantize(COLOURS - len(kept), kmeans=3).getpalette() or []
        palette = Image.new("P", (1, 1))
        palette.putpalette([*found, *bytes.fromhex("".join(kept).replace("#", ""))])
        small = picture.quantize(palette=palette, dither=Image.Dither.NONE)
        small.save(path, optimize=True)


def box_of(panel: Panel) -> Box:
    """Return where a panel lies in its dashboard's picture."""
    x, y = MARGIN + panel.x * COLUMN + 4, HEAD + panel.y * ROW
    return Box(x, y, panel.columns * COLUMN - 8, panel.rows * ROW - 8)


def draw(dashboard: Dashboard, client: httpx.Client, window: Window, path: Path) -> dict[str, int]:
    """Draw a dashboard to ``path``; return how many series each panel shows, by its title."""
    rows = max(panel.y + panel.rows for panel in dashboard.panels)
    sheet = Sheet(HEAD + rows * ROW + MARGIN)
    sheet.add_text(MARGIN + 6, HEAD / 2, dashboard.title, size=20, bold=True)
    start = format_time(window.start, "%Y-%m-%d %H:%M:%S")
    span = f"{start} to {format_time(window.end, '%H:%M:%S')} UTC"
    sheet.add_text(WIDTH - MARGIN - 6, HEAD / 2, span, size=13, colour=FAINT, align="right")
    drawn = {}
    for panel in dashboard.panels:
        box = box_of(panel)
        sheet.add_panel(box)
        add_title(sheet, box, panel.title)
        series = [
            one
            for target in panel.targets
            for one in ask(client, target, window, dashboard.variables)
        ]
        inside = Box(box.x + 10, box.y + 34, box.width - 20, box.height - 42)
        if panel.kind not in DRAW:
            raise ValueError(
                f"{dashboard.name}: {panel.title}: no drawing of {panel.kind} is known"
            )
        if series:
            DRAW[panel.kind](sheet, inside, panel, series, window)
        else:
            middle = inside.y + inside.height / 2 - 4
            sheet.add_text(
                box.x + box.width / 2, middle, "No data", size=16, colour=FAINT, align="center"
            )
        drawn[panel.title] = len(series)
    sheet.save(path)
    return drawn


def add_title(sheet: Sheet, box: Box, title: str) -> None:
    """Write a panel's title, in two lines where one is too short."""
    words = title.split(" ")
    end = len(words)
    while end > 1 and sheet.measure(" ".join(words[:end]), size=14, bold=True) > box.width - 20:
        end -= 1
    lines = [" ".join(line) for line in (words[:end], words[end:]) if line]
    for number, line in enumerate(lines):
        y = box.y + (17 if len(lines) == 1 else 13 + 17 * number)
        sheet.add_text(box.x + 10, y, line, size=14, bold=True, most=box.width - 20)


def draw_stat(
    sheet: Sheet, box: Box, panel: Panel, series: Sequence[Series], window: Window
) -> None:
    """The last value of each series, side by side, and its course below."""
    width = box.width / len(series)
    for number, values in enumerate(one.values for one in series):
        x = box.x + number * width
        last = float(values[np.isfinite(values)][-1])
        colour = [name for start, name in panel.thresholds if start <= last][-1]
        colour = NAMED.get(colour, colour)
        low, high = float(np.nanmin(values)), float(np.nanmax(values))
        room = 0.1 * (high - low or 1)
        course = sheet.add_axes(Box(x, box.y + box.height - 32, width, 38))
        course.set_axis_off()
        course.set_xlim(window.start, window.end)
        course.set_ylim(low - room, high + room)
        course.plot(window.times, values, color=colour, linewidth=1)
        course.fill_between(window.times, values, low - room, color=colour, alpha=0.12, linewidth=0)
        text = format_value(panel.unit, last)
        middle = (x + width / 2, box.y + 30)
        sheet.add_text(*middle, text, size=36, colour=colour, bold=True, align="center", most=width)


def draw_lines(
    sheet: Sheet, box: Box, panel: Panel, series: Sequence[Series], window: Window
) -> None:
    table = np.array([one.values for one in series])
    below = np.zeros_like(table)
    if panel.stacked:
        below[1:] = np.cumsum(np.nan_to_num(table), axis=0)[:-1]
        table += below
    peak = float(np.nanmax(np.abs(table)))
    divisor, suffix = scale_of(panel.unit, peak)
    zero = format_value(panel.unit, 0)
    table, below = table / divisor, below / divisor
    bottom = float(np.nanmin(table)) if panel.low is None else panel.low / divisor
    top = float(np.nanmax(table)) if panel.high is None else panel.high / divisor
    top = bottom + 1 if top <= bottom else top
    plot = add_plot(sheet, add_legend(sheet, box, [one.name for one in series]), window)
    plot.set_ylim(
        bottom - (0.04 * (top - bottom) if panel.low is None else 0), bottom + 1.06 * (top - bottom)
    )
    plot.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    plot.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:g}{suffix}" if value else zero)
    )
    plot.grid(color=GRID, linewidth=0.8)
    for number, values in enumerate(table):
        colour = LINES[number % len(LINES)]
        plot.plot(window.times, values, color=colour, linewidth=1.3, clip_on=False, zorder=3)
        plot.fill_between(
            window.times, values, below[number], color=colour, alpha=panel.opacity, linewidth=0
        )


def draw_heatmap(
    sheet: Sheet, box: Box, panel: Panel, series: Sequence[Series], window: Window
) -> None:
    """Buckets of a histogram, which count what is at most `le`, as what lies between two bounds."""
    series = sorted(series, key=lambda one: float(one.labels["le"]))
    counts = np.diff(np.array([one.values for one in series]), axis=0, prepend=0)
    most = max(float(np.nanmax(counts)), 1e-9)
    axes = add_plot(sheet, Box(box.x, box.y, box.width, box.height - LINE), window)
    edges = np.append(window.times, window.end + window.step) - window.step
    shown = axes.pcolormesh(
        edges,
        np.arange(len(series) + 1),
        np.where(counts > 0, counts, np.nan),
        cmap="Oranges",
        vmin=0,
        vmax=most,
    )
    every = math.ceil(len(series) / 8)
    places = range(len(series) - 1, -1, -every)
    axes.set_yticks(
        [place + 0.5 for place in places], [f"≤ {series[place].labels['le']}" for place in places]
    )
    key = Box(box.x + box.width / 2 - 90, box.y + box.height - 10, 180, 8)
    scale = sheet.add_axes(key)
    scale.set_axis_off()
    scale.imshow([np.linspace(0, most, 60)], cmap=shown.cmap, aspect="auto")
    sheet.add_text(key.x - 8, key.y + 4, "0", colour=FAINT, align="right")
    sheet.add_text(key.x + 188, key.y + 4, f"{most:.3g}", colour=FAINT)


def draw_table(
    sheet: Sheet, box: Box, panel: Panel, series: Sequence[Series], window: Window
) -> None:
    labels = sorted({label for one in series for label in one.labels})
    heads = ["Time", *labels, "Value"]
    rows = [
        [
            format_time(window.end, "%Y-%m-%d %H:%M:%S"),
            *(one.labels.get(label, "") for label in labels),
            format_value(panel.unit, float(one.values[np.isfinite(one.values)][-1])),
        ]
        for one in series
    ]
    fitting = int(box.height / 26) - 1
    width = box.width / len(heads)
    for line, cells in enumerate([heads, *rows[:fitting]]):
        y = box.y + 13 + 26 * line
        for column, cell in enumerate(cells):
            x = box.x + column * width
            sheet.add_text(x, y, cell, size=14, bold=not line, most=width - 12)
        sheet.add_line(Box(box.x, y + 13, box.width, 0), EDGE, 0.8)
    if rows[fitting:]:
        sheet.add_text(
            box.x, box.y + box.height - 2, f"and {len(rows) - fitting} more", colour=FAINT
        )


DRAW = {"stat": draw_stat, "timeseries": draw_lines, "heatmap": draw_heatmap, "table": draw_table}


def add_plot(sheet: Sheet, box: Box, window: Window) -> Axes:
    """Add axes in a box, with room for their numbers, and times below."""
    axes = sheet.add_axes(Box(box.x + 66, box.y + 6, box.width - 76, box.height - 34))
    axes.set_xlim(window.start, window.end)
    span = window.end - window.start
    apart = next((tick for tick in TICKS if span / tick <= 6), TICKS[-1])
    edge = span * 32 / (box.width - 76)  # half a label's width, for which there must be room
    first = math.ceil((window.start + edge) / apart) * apart
    axes.xaxis.set_major_locator(FixedLocator([*np.arange(first, window.end - edge, apart)]))
    pattern = "%H:%M:%S" if apart < 60 else "%H:%M"
    axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: format_time(at, pattern)))
    return axes


def add_legend(sheet: Sheet, box: Box, names: Sequence[str]) -> Box:
    """Write the names in lines at the bottom of a box; return what is left of it."""
    lines: list[list[tuple[float, int]]] = [[]]
    x = 0.0
    for place, name in enumerate(names):
        width = 20 + sheet.measure(name) + 16
        if lines[-1] and x + width > box.width:
            lines.append([])
            x = 0.0
        lines[-1].append((x, place))
        x += width
    hidden = sum(map(len, lines[LEGEND_LINES:]))
    lines = lines[:LEGEND_LINES]
    top = box.y + box.height - LINE * (len(lines) + bool(hidden))
    for number, line in enumerate(lines):
        y = top + LINE * (number + 0.5)
        for at, place in line:
            left = box.x + at
            sheet.add_line(Box(left, y, 14, 0), LINES[place % len(LINES)], 2.2)
            sheet.add_text(left + 20, y, names[place], most=box.width - 20)
    if hidden:
        sheet.add_text(
            box.x + 20, top + LINE * (len(lines) + 0.5), f"and {hidden} more", colour=FAINT
        )
    return Box(box.x, box.y, box.width, top - box.y)


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the Grafana dashboards without Grafana.")
    parser.add_argument("--prometheus", default="http://127.0.0.1:9090", metavar="URL")
    parser.add_argument("--minutes", type=float, default=60, help="how long back from now")
    parser.add_argument(
        "--scrape-seconds", type=float, default=15, help="how often that Prometheus scrapes"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the pictures")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    window = last_minutes(asked.minutes, asked.scrape_seconds)
    with httpx.Client(base_url=asked.prometheus, timeout=60) as client:
        for dashboard in read_dashboards():
            path = asked.out / f"dashboard-{dashboard.name}.png"
            drawn = draw(dashboard, client, window, path)
            print(f"{path}: {len(drawn)} panels, {path.stat().st_size / 1024:.0f} KiB")
            if empty := [title for title, count in drawn.items() if not count]:
                print(f"    no data: {', '.join(empty)}")


if __name__ == "__main__":
    main()
