"""How a run is followed: ``log.jsonl``, a line a row for whoever watches, and ``log.png``."""

import json
import logging
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from condensery.atomic_files import write_atomically
from condensery.errors import InputError
from condensery.methods.trainer.checkpoints import TrainingStopped
from condensery.methods.trainer.reports import DPI, new_figure, save_figure
from condensery.parsers import Parser

log = logging.getLogger(__name__)
NAME = "log.jsonl"
Series = dict[str, list[tuple[int, float]]]
BAR_SECONDS, BAR_WIDTH = 30, 30
NOT_LOSSES = ("step", "steps", "norm", "rate", "items", "items_per_second", "seconds_left")


def read_log(out: Path) -> list[dict[str, Any]]:
    """Return the rows of a run's log; a last line that a kill cut short is left out."""
    path = out / NAME
    rows: list[dict[str, Any]] = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


def validation_curve(out: Path) -> list[dict[str, Any]]:
    """Return the figures of each evaluation of a run, with their ``step``."""
    return [
        {"step": row["step"], **row["validation"]} for row in read_log(out) if "validation" in row
    ]


def rewind(out: Path, step: int) -> list[dict[str, Any]]:
    """Drop rows past ``step``, which a resumed run writes again; return those that stay."""
    rows = [row for row in read_log(out) if row["step"] <= step]
    path = out / NAME
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if path.exists() and path.read_text() != text:
        write_atomically(path, text)
    return rows


def record(out: Path, row: Mapping[str, object]) -> None:
    """Append a row to the run's log, and show it.

    Raises:
        TrainingStopped: The disk refused.
    """
    row = {name: _short(value) for name, value in row.items()}
    text = json.dumps(row)
    try:
        with (out / NAME).open("a") as file:
            file.write(text + "\n")
    except OSError as error:
        raise TrainingStopped(f"step {row['step']}: {out / NAME}: {error}") from error
    log.info("%s", line(row))


def _short(value: object) -> object:
    """Round the numbers of a row to six decimals."""
    if isinstance(value, Mapping):
        return {name: _short(part) for name, part in value.items()}
    return round(value, 6) if isinstance(value, float) else value


def line(row: Mapping[str, object]) -> str:
    """Return a row as one line: ``step 50/3600 · loss 2.31 · ...``."""
    shown = [f"step {row['step']}/{row['steps']}"]
    shown += [
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {json.dumps(value)}"
        for name, value in row.items()
        if name not in ("step", "steps", "seconds_left")
    ]
    left = row.get("seconds_left")
    if isinstance(left, float):
        shown.append(f"{_hours(left)} left")
    return " · ".join(shown)


class StagesProgress:
    """How far a run of several stages is, and how long the rest takes: a bar in the log.

    The time left is what the stages' work so far took in this process, over the work that is left.

    Args:
        work: Of each stage, in their order, in any unit that they share (tokens read).
    """

    def __init__(self, work: Mapping[str, float]) -> None:
        self._work = dict(work)
        self._began: tuple[float, float] | None = None  # seconds, and the work done before
        self._shown = -math.inf

    def begin_step(self, stage: str, step: int, steps: int) -> None:
        """Note that a stage begins a step, counted from 0; shows the bar twice a minute."""
        now, done = time.monotonic(), self._done(stage, step / steps)
        if self._began is None:
            self._began = now, done
        if now - self._shown >= BAR_SECONDS and done > self._began[1]:
            self._shown = now
            log.info("%s", self.bar(done, now))

    def bar(self, done: float, now: float) -> str:
        """Return ``[####......] 37 % of all stages · 0:42 h left``."""
        assert self._began is not None
        whole = sum(self._work.values())
        since, before = self._began
        left = (now - since) / (done - before) * (whole - done)
        filled = round(BAR_WIDTH * done / whole)
        marks = "#" * filled + "." * (BAR_WIDTH - filled)
        return f"[{marks}] {done / whole:.0%} of all stages · {_hours(left)} left"

    def _done(self, stage: str, share: float) -> float:
        names = list(self._work)
        earlier = names[: names.index(stage)]
        return sum(self._work[name] for name in earlier) + share * self._work[stage]


def _hours(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60}:{minutes % 60:02} h"


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


def plot(out: Path, to: Path | None = None, *, dpi: int = DPI) -> Path:
    """Draw the log of the run in ``out`` as ``log.png``, a panel each of loss, rate and figures.

    Raises:
        InputError: The run has no log yet.
    """
    panels = series(read_log(out))
    if not panels:
        raise InputError(f"{out / NAME}: nothing to plot yet", field="run", value=str(out))
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure = new_figure(5 * columns, 3.2 * lines)
    for i, (title, panel) in enumerate(panels.items()):
        axes = figure.add_subplot(lines, columns, i + 1)
        for label, points in panel.items():
            steps, values = zip(*points, strict=True)
            axes.plot(steps, values, label=label, marker="." if len(points) < 30 else "")
        axes.set_title(title)
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
        if len(panel) > 1:
            # A place of its own: matplotlib warns where a busy machine is slow to look for one.
            axes.legend(loc="upper right", fontsize="small")
    return save_figure(figure, to or out / "log.png", dpi=dpi)


def main(argv: list[str] | None = None) -> None:
    """Run ``condensery train plot``."""
    parser = Parser(
        prog="condensery train plot",
        description="A run's log as pictures: what was lowered, how fast, what validation found.",
    )
    parser.add_argument("--run", type=Path, required=True, help="a training run's folder")
    parser.add_argument("--to", type=Path, help="the picture (default: log.png in it)")
    args = parser.parse_args(argv)
    print(plot(args.run, args.to))  # noqa: T201
