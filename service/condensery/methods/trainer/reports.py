"""What figures are reported by: means with their intervals, tables, pictures."""

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray
from PIL import Image

BLOCK = 500  # resamples at a time: a few MB each
DPI = 110
Cells = Sequence[str]


@dataclass(frozen=True, slots=True)
class Intervals:
    """Means of columns and the 95% intervals round them, (columns,) each."""

    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def bootstrap(values: ArrayLike, *, samples: int = 10_000, seed: int = 0) -> Intervals:
    """Return each column's mean and its 95% interval by resampling the rows.

    All columns are resampled alike, so that the interval of a column of differences is a paired
    one, and equal seeds compare.

    Args:
        values: (questions, columns).
        samples: How often the questions are drawn anew, as many as there are, with replacement.
        seed: Of the draws.
    """
    table = np.asarray(values, dtype=np.float64)
    count = len(table)
    rng = np.random.default_rng(seed)
    means = np.empty((samples, table.shape[1]))
    for first in range(0, samples, BLOCK):
        size = min(BLOCK, samples - first)
        picks = rng.integers(count, size=(size, count)) + count * np.arange(size)[:, None]
        # How often each question was drawn: one matrix product then serves all columns.
        drawn = np.bincount(picks.ravel(), minlength=size * count).reshape(size, count)
        means[first : first + size] = drawn.astype(np.float64) @ table / count
    low, high = np.percentile(means, [2.5, 97.5], axis=0)
    return Intervals(table.mean(axis=0), low, high)


def paired_bootstrap(
    better: Sequence[float], worse: Sequence[float], *, samples: int = 10_000, seed: int = 0
) -> tuple[float, float, float]:
    """Return the mean difference and its 95% interval by resampling questions."""
    difference = np.asarray(better) - np.asarray(worse)
    estimate = bootstrap(difference[:, None], samples=samples, seed=seed)
    return float(estimate.mean[0]), float(estimate.low[0]), float(estimate.high[0])


def table(head: Cells, rows: Iterable[Cells], *, left: int = 1) -> list[str]:
    """Return the lines of a table without its empty columns; none without rows.

    Args:
        head: The columns' names.
        rows: As many cells each.
        left: Columns that hold words; the others hold figures and stand to the right.
    """
    texts = [[_cell(cell) for cell in row] for row in rows]
    if not texts:
        return []
    kept = [place for place in range(len(head)) if any(row[place] for row in texts)]
    marks = ["---" if place < left else "---:" for place in kept]

    def line(cells: Cells) -> str:
        return f"| {' | '.join(cells)} |"

    return [
        line([head[place] for place in kept]),
        line(marks),
        *(line([row[place] or "–" for place in kept]) for row in texts),
        "",
    ]


def number(value: float | None) -> str:
    """Return a number with three digits, without an exponent."""
    if value is None:
        return ""
    if value == 0 or abs(value) >= 1000:
        return f"{value:.0f}"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{decimals}f}"


def _cell(text: str) -> str:
    """Return text that stays in its cell, and means nothing to Markdown or HTML."""
    flat = " ".join(text.split())
    for mark in ("\\", "|", "`", "*", "_", "<", "[", "]"):
        flat = flat.replace(mark, "&lt;" if mark == "<" else f"\\{mark}")
    return flat


def without_folders(command: str) -> str:
    """Shorten the paths from the root in a command line, which tell one machine's folders.

    Of a folder its last part stays; of a file its folder too, by which its set is known.

    Raises:
        ValueError: A quotation is not closed.
    """
    return shlex.join(map(_shorten, shlex.split(command)))


def command_line(name: str, argv: Sequence[str]) -> str:
    """Return the line of a command of ours, for a card or a report, without folders."""
    return without_folders(f"condensery {name} {shlex.join(argv)}")


def _shorten(word: str) -> str:
    path = Path(word)
    if not path.is_absolute() and ".." not in path.parts:
        return word
    return f"{path.parent.name}/{path.name}" if "." in path.name else path.name


def making_section(about: Mapping[str, Any]) -> list[str]:
    """Return the last section of a card: how a model was made.

    Args:
        about: ``licence``, ``data``, ``recipe``, ``versions`` and ``command``; perhaps ``notes``.
    """
    return [
        "## Making",
        "",
        f"- Licence: {about['licence']}",
        *(f"- {note}" for note in about.get("notes", ())),
        f"- Data: {', '.join(about['data']) or 'none'}",
        f"- Recipe: {', '.join(f'{k} {v}' for k, v in about['recipe'].items())}",
        f"- Versions: {', '.join(f'{k} {v}' for k, v in about['versions'].items())}",
        "",
        "```",
        about["command"],
        "```",
        "",
    ]


def new_figure(width: float, height: float) -> Figure:
    """Return an empty picture of so many inches that no screen is needed for."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: Path, *, dpi: int = DPI) -> Path:
    """Write a picture as PNG, whole or not at all; its folder is made if it is not there.

    Of 32 colours, which a plot's lines and the edges of its letters need: a quarter of the bytes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.partial")
    figure.savefig(aside, format="png", dpi=dpi)
    with Image.open(aside) as drawn:
        few = drawn.convert("RGB").quantize(32, dither=Image.Dither.NONE)
    few.save(aside, format="png", optimize=True)
    return aside.replace(path)
