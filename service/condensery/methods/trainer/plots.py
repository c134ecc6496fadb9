"""A run's log as pictures: what was lowered, how fast, and what validation said."""

import argparse
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from condensery.errors import InputError
from condensery.methods.trainer.progress import NAME, read_log

Series = dict[str, list[tuple[int, float]]]
NOT_LOSSES = ("step", "steps", "norm", "rate", "items", "items_per_second", "seconds_left")


def series(rows: Sequence[Mapping[str, Any]]) -> dict[str, Series]:
    """Sort a log's numbers into panels, each a few lines over steps."""
    panels: dict[str, Series] = {}
    for row in rows:
        for name, value in _numbers(row):
            head, _, tail = name.partition(".")
            if head == "validation":
                # Figures of one name share a panel: gold.f1, plain.f1 under "f1".
                *of, what = tail.split(".")
                panel, label = f"validation: {what}", ".".join(of) or what
            elif name in ("norm", "rate", "items_per_second"):
                panel = label = name.replace("_", " ")
            elif name not in NOT_LOSSES:
                panel, label = "loss", name
            else:
                continue
            panels.setdefault(panel, defaultdict(list))[label].append((row["step"], value))
    return panels


def _numbers(row: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, float]]:
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{at}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{at}{name}", float(value)


def plot(out: Path, to: Path | None = None) -> Path:
    """Draw the log of the run in ``out`` as ``log.png``, a panel each of loss, rate and figures.

    Raises:
        InputError: The run has no log yet.
    """
    panels = series(read_log(out))
    if not panels:
        raise InputError(f"{out / NAME}: nothing to plot yet", field="run", value=str(out))
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(5 * columns, 3.2 * lines), layout="constrained")
    FigureCanvasAgg(figure)
    for i, (title, found) in enumerate(panels.items()):
        axes = figure.add_subplot(lines, columns, i + 1)
        for label, points in found.items():
            steps, values = zip(*points, strict=True)
            axes.plot(steps, values, label=label, marker="." if len(points) < 30 else "")
        axes.set_title(title)
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
        if len(found) > 1:
            axes.legend(fontsize="small")
    to = to or out / "log.png"
    aside = to.with_name(f"{to.name}.partial")
    figure.savefig(aside, format="png", dpi=110)
    return aside.replace(to)


def main(argv: list[str] | None = None) -> None:
    """Run ``condensery train plot``."""
    parser = argparse.ArgumentParser(prog="condensery train plot", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="a training run's folder")
    parser.add_argument("--to", type=Path, help="the picture (default: log.png in it)")
    args = parser.parse_args(argv)
    print(plot(args.run, args.to))  # noqa: T201
