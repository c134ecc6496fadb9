"""A report as pictures: quality against cost, passages, training and abstention."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

from condensery.methods.oscar.measured import Report, Setting, key_of
from condensery.methods.trainer.progress import series
from condensery.methods.trainer.reports import new_figure, save_figure

# Colours that the colour-blind tell apart (Okabe and Ito), a marker each for paper without colour.
FAMILIES: Mapping[str, tuple[str, str, str]] = {
    "plain": ("text, all read", "#000000", "s"),
    "compressed": ("vectors, all read", "#0072B2", "o"),
    "reranked": ("vectors, the best scored read", "#D55E00", "^"),
    "bm25": ("text, BM25's best read", "#009E73", "D"),
}
GOLD: Mapping[str, tuple[str, str, str]] = {
    "gold": ("own passage, vectors", "#0072B2", "*"),
    "gold_plain": ("own passage, text", "#000000", "*"),
    "gold_among_five": ("among five, all as vectors", "#0072B2", "P"),
    "gold_among_five_best_one": ("among five, best one as vectors", "#D55E00", "P"),
    "gold_among_five_plain": ("among five, all as text", "#000000", "P"),
}
GREY = "#666666"
# Percent: what is at nothing is still seen, and no small difference is made to look large.
BOTTOM, TOP = -2, 20


def draw_plots(report: Report, folder: Path, min_relevance: float | None = None) -> list[str]:
    """Draw what there are figures for, as ``folder/<name>.png``; returns the names.

    Args:
        report: What was measured.
        folder: Made if it is not there.
        min_relevance: The pair's default threshold, which is marked.
    """
    drawn: dict[str, Callable[[], Figure | None]] = {
        "cost": lambda: draw_cost(report),
        "passages": lambda: draw_passages(report),
        "training": lambda: draw_training(report.training),
        "abstention": lambda: draw_abstention(report, min_relevance),
    }
    names = []
    for name, draw in drawn.items():
        figure = draw()
        if figure is not None:
            save_figure(figure, folder / f"{name}.png")
            names.append(name)
    return names


def draw_cost(report: Report) -> Figure | None:
    """Draw F1 against TFLOPs and against seconds a question; None without either."""
    costs = {
        "tflops": "TFLOPs a question, from the models' dimensions",
        "seconds": "seconds a question, as measured",
    }
    there = {
        name: label
        for name, label in costs.items()
        if sum((getattr(setting, name) or 0) > 0 for setting in report.settings.values()) > 1
    }
    if not there:
        return None
    wide = len(there) > 1
    figure = new_figure(12.4 if wide else 7.2, 5.2)
    axes = figure.subplots(1, len(there), squeeze=False, sharey=True)[0]
    for place, (panel, (name, label)) in enumerate(zip(axes, there.items(), strict=True)):
        panel.set_xscale("log")
        panel.margins(x=0.09)
        panel.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        panel.xaxis.set_major_formatter("{x:g}")
        panel.xaxis.set_minor_locator(NullLocator())
        panel.set_xlabel(label)
        _cost_lines(panel, report, name)
        panel.grid(alpha=0.3)
        if not place:
            panel.set_ylabel("F1, percent")
            panel.set_ylim(BOTTOM, max(TOP, panel.get_ylim()[1]))
            handles, labels = panel.get_legend_handles_labels()
    figure.suptitle(f"Quality against cost: {_on(report)}")
    counts = [count for family in FAMILIES for count, _ in _family(report, family)]
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=3 if wide else 2,
        fontsize="small",
        title=f"lines: {min(counts)} to {max(counts)} passages retrieved (K)" if counts else None,
        title_fontsize="small",
    )
    return figure


def _cost_lines(axes: Axes, report: Report, cost: str) -> None:
    for family, (label, color, marker) in FAMILIES.items():
        points = [
            (count, getattr(setting, cost), setting.f1.mean)
            for count, setting in _family(report, family)
            if (getattr(setting, cost) or 0) > 0
        ]
        if points:
            counts, xs, ys = zip(*points, strict=True)
            axes.plot(xs, ys, color=color, marker=marker, markersize=5, label=label)
            axes.annotate(
                f"K={counts[-1]}",
                (xs[-1], ys[-1]),
                (7, -3),
                textcoords="offset points",
                fontsize="x-small",
                color=color,
            )
    for key, (label, color, marker) in GOLD.items():
        setting = report.settings.get(key)
        if setting is not None and (getattr(setting, cost) or 0) > 0:
            axes.plot(
                [getattr(setting, cost)],
                [setting.f1.mean],
                color=color,
                marker=marker,
                markersize=11,
                markeredgecolor="white",
                linestyle="",
                label=label,
            )


def draw_passages(report: Report) -> Figure | None:
    """Draw F1 against the number of passages retrieved, with 95% intervals; None without two."""
    counts = sorted({count for family in FAMILIES for count, _ in _family(report, family)})
    if len(counts) < 2:
        return None
    figure = new_figure(7.2, 5.0)
    axes = figure.add_subplot()
    for family, (label, color, marker) in FAMILIES.items():
        settings = _family(report, family)
        if not settings:
            continue
        xs = [count for count, _ in settings]
        axes.plot(
            xs,
            [setting.f1.mean for _, setting in settings],
            color=color,
            marker=marker,
            label=label,
        )
        if all(
            setting.f1.low is not None and setting.f1.high is not None for _, setting in settings
        ):
            lows = [setting.f1.low or 0.0 for _, setting in settings]
            highs = [setting.f1.high or 0.0 for _, setting in settings]
            axes.fill_between(xs, lows, highs, color=color, alpha=0.12, linewidth=0)
    for key, label, style in (
        ("gold", "its own passage alone, vectors", "--"),
        ("no_passage", "no passage", ":"),
    ):
        level = report.f1(key)
        if level is not None:
            axes.axhline(level, color=GREY, linestyle=style, linewidth=1, label=label)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(counts))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("passages retrieved (K)")
    axes.set_ylabel("F1, percent; bands: 95% intervals")
    axes.set_ylim(BOTTOM, max(TOP, axes.get_ylim()[1]))
    axes.grid(alpha=0.3)
    figure.suptitle(f"Quality against passages: {_on(report)}")
    figure.legend(loc="outside lower center", ncols=3, fontsize="small")
    return figure


def draw_training(rows: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Draw what validation said while it trained, a panel each figure; None without two rows."""
    measured = [row for row in rows if isinstance(row.get("step"), int)]
    panels = series([{"step": row["step"], "validation": _figures(row)} for row in measured])
    panels = {title: lines for title, lines in panels.items() if _longest(lines) > 1}
    if not panels:
        return None
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure = new_figure(5.0 * columns, 0.5 + 3.3 * lines)
    items = {row["step"]: row["items"] for row in measured if isinstance(row.get("items"), int)}
    for place, (title, curves) in enumerate(panels.items()):
        axes = figure.add_subplot(lines, columns, place + 1)
        for label, points in curves.items():
            steps, values = zip(*points, strict=True)
            xs = [items[step] for step in steps] if set(steps) <= set(items) else steps
            axes.plot(xs, values, label=label.replace("_", " "), marker="." if len(xs) < 40 else "")
        axes.set_title(title.removeprefix("validation: ").replace("_", " "))
        axes.set_xlabel("examples seen" if items else "step")
        axes.grid(alpha=0.3)
        if len(curves) > 1:
            axes.legend(loc="upper right", fontsize="small")
    figure.suptitle("Quality against training, on validation questions")
    return figure


def _figures(row: Mapping[str, Any]) -> dict[str, Any]:
    own = {name: value for name, value in row.items() if name not in ("step", "items")}
    inner = own.get("validation")
    return dict(inner) if isinstance(inner, Mapping) else own


def _longest(lines: Mapping[str, Sequence[Any]]) -> int:
    return max((len(points) for points in lines.values()), default=0)


def draw_abstention(report: Report, min_relevance: float | None) -> Figure | None:
    """Draw what a threshold on the best score keeps and stops; None without a curve."""
    if report.abstention is None or len(report.abstention.curve) < 2:
        return None
    curve = sorted(report.abstention.curve, key=lambda point: point.min_relevance)
    figure = new_figure(7.2, 4.8)
    axes = figure.add_subplot()
    lines: tuple[tuple[str, str, str, Callable[[Any], float | None]], ...] = (
        ("questions answered", "#0072B2", "o", lambda point: point.answered),
        ("F1 of what is answered", "#009E73", "s", lambda point: point.f1_answered),
        (
            "answered though no passage holds it",
            "#D55E00",
            "^",
            lambda point: point.wrong_without_gold,
        ),
    )
    for label, color, marker, value in lines:
        points = [(p.min_relevance, v) for p in curve if (v := value(p)) is not None]
        if points:
            xs, ys = zip(*points, strict=True)
            few = marker if len(points) < 40 else ""
            axes.plot(xs, ys, color=color, marker=few, markersize=4, label=label)
    if min_relevance is not None:
        axes.axvline(min_relevance, color=GREY, linestyle="--", linewidth=1, label="the default")
    axes.set_xlabel("least relevance of the best passage (min_relevance)")
    axes.set_ylabel("percent")
    axes.set_ylim(-3, 103)
    axes.grid(alpha=0.3)
    figure.suptitle(f"Abstaining: {_on(report)}")
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    return figure


def _family(report: Report, family: str) -> list[tuple[int, Setting]]:
    """Return a family's settings by their number of passages, rising."""
    settings = [
        (int(key.rpartition("_")[2]), setting)
        for key, setting in report.settings.items()
        if key_of(key) == family and key != family
    ]
    return sorted(settings, key=lambda pair: pair[0])


def _on(report: Report) -> str:
    on = report.measured_on
    name = Path(on.file).name
    return f"{on.questions} questions of {name}" if name else f"{on.questions} questions"
