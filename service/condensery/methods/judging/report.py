"""The comparison of judged encoders as Markdown and as pictures."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from condensery.methods.judging.encoders import COSTED_TOKENS
from condensery.methods.judging.figures import kind_of
from condensery.methods.judging.sets import Kind
from condensery.methods.trainer.reports import new_figure, number, save_figure, table

Place = Callable[[Mapping[str, Any]], float | None]
FLOPS = f"flops_{COSTED_TOKENS}_tokens"
MEASURES: Mapping[Kind, str] = {
    "sts": "Spearman",
    "classification": "accuracy",
    "pairs": "AP",
    "clustering": "V-measure",
    "retrieval": "nDCG@10",
    "reranking": "MAP",
}
KINDS: Mapping[Kind, str] = {
    "sts": "STS",
    "classification": "classification",
    "pairs": "pairs",
    "clustering": "clustering",
    "retrieval": "retrieval",
    "reranking": "reranking",
}
# Colours that the colour-blind tell apart (Okabe and Ito), and forms for more models than these.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKS = ("o", "s", "^", "D", "v", "P", "X")


def write_page(report: Mapping[str, Any]) -> str:
    """Return the comparison as Markdown.

    Args:
        report: From ``figures.make_report``, with date, command, machine, versions and recipe.
    """
    models = report["models"]
    first = next(iter(models))
    about = (
        f"{len(models)} encoders on {len(report['sets'])} sets, by the tasks and measures of mteb"
        f" {report['versions']['mteb']} over local rows; {report['date']}, {report['machine']}."
        " Percent, with 95% intervals (resampled rows or queries)."
    )
    lines = [
        "# Encoders, judged",
        "",
        about,
        "",
        *_table(report, "sets", "means"),
    ]
    if others := [name for name in models if "minus_first" in models[name]]:
        lines += [f"Differences from `{first}`, over the same resamples:", ""]
        lines += _differences(report, others)
    lines += ["What each set is:", "", *_sets(report)]
    lines += [
        "![Mean quality against size, work and speed](quality.png)",
        "",
        "![Each set](sets.png)",
        "",
        "```",
        report["command"],
        "```",
        "",
    ]
    return "\n".join(lines)


def label_of(key: str) -> str:
    """Return what a set, or a mean, is called in a table."""
    if key == "mean":
        return "mean of all sets"
    kind, _, name = key.partition("/")
    measure = MEASURES[kind_of(key)]
    return f"{name}: {measure}" if name else f"mean of {KINDS[kind_of(kind)]}"


def _table(report: Mapping[str, Any], sets: str, means: str) -> list[str]:
    models = report["models"]
    rows = [
        [label_of(key), *(_cell(row[sets][key]) for row in models.values())]
        for key in report["sets"]
    ]
    keys = _means_shown(report)
    rows += [[label_of(key), *(_cell(row[means][key]) for row in models.values())] for key in keys]
    rows += [
        [
            "parameters, millions",
            *(number(_scaled(row.get("parameters"), 1e6)) for row in models.values()),
        ],
        [
            f"GFLOPs of a text of {COSTED_TOKENS} tokens",
            *(number(_scaled(row.get(FLOPS), 1e9)) for row in models.values()),
        ],
        ["texts a second", *(_speed(row) for row in models.values())],
    ]
    return table(["", *models], [row for row in rows if any(row[1:])])


def _means_shown(report: Mapping[str, Any]) -> list[str]:
    """Return the means that are no set's own figure."""
    kinds = [kind_of(key) for key in report["sets"]]
    several = [kind for kind in dict.fromkeys(kinds) if kinds.count(kind) > 1]
    return [*several, "mean"] if len(kinds) > 1 else []


def _differences(report: Mapping[str, Any], others: Sequence[str]) -> list[str]:
    rows = []
    for part, keys in (("sets", [*report["sets"]]), ("means", _means_shown(report))):
        for key in keys:
            cells = [report["models"][name]["minus_first"][part][key] for name in others]
            rows.append([label_of(key), *(_cell(cell, signed=True) for cell in cells)])
    return table(["", *others], rows)


def _sets(report: Mapping[str, Any]) -> list[str]:
    rows = [
        [key, str(about["count"]), MEASURES[kind_of(key)], about["content"][7:19]]
        for key, about in report["sets"].items()
    ]
    return table(["set", "rows or queries", "measure", "content, sha256"], rows)


def _cell(figure: Mapping[str, float], *, signed: bool = False) -> str:
    sign = "+" if signed else ""
    return "{:{s}.1f} ({:{s}.1f} to {:{s}.1f})".format(
        *(100 * figure[name] for name in ("value", "low", "high")), s=sign
    )


def _speed(row: Mapping[str, Any]) -> str:
    if "speed" not in row:
        return ""
    speed = row["speed"]
    return "{texts_a_second:.0f} ({least:.0f} to {most:.0f})".format(**speed)


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else value / scale


def draw_quality(report: Mapping[str, Any], path: Path) -> None:
    """Draw the mean over all sets against parameters, FLOPs and measured texts a second."""
    models = report["models"]
    panels: tuple[tuple[str, Place], ...] = (
        ("parameters, millions", lambda row: _scaled(row.get("parameters"), 1e6)),
        (f"GFLOPs, {COSTED_TOKENS} tokens", lambda row: _scaled(row.get(FLOPS), 1e9)),
        ("texts a second, measured", lambda row: row.get("speed", {}).get("texts_a_second")),
    )
    figure = new_figure(11.0, 4.2)
    (all_axes,) = figure.subplots(1, len(panels), squeeze=False, sharey=True)
    handles: list[Any] = []
    for axes, (title, place) in zip(all_axes, panels, strict=True):
        # One that has no place keeps its name in the legend.
        handles = [
            _point(axes, at, name, place(row), row["means"]["mean"])
            for at, (name, row) in enumerate(models.items())
        ]
        places = [x for row in models.values() if (x := place(row)) is not None]
        axes.set_xlabel(title)
        axes.set_xlim(0, 1.08 * max(places, default=1.0))
        axes.grid(visible=True, alpha=0.3)
        if not places:
            axes.text(0.5, 0.5, "not known", transform=axes.transAxes, ha="center")
    all_axes[0].set_ylabel(f"mean of {len(report['sets'])} sets, percent; bars: 95%")
    figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(models)))
    save_figure(figure, path)


def draw_sets(report: Mapping[str, Any], path: Path) -> None:
    """Draw each model's figure on each set, with its interval."""
    models, keys = report["models"], [*report["sets"]]
    figure = new_figure(8.0, 1.4 + 0.24 * len(keys) * (1 + len(models)))
    axes = figure.subplots()
    for at, (name, row) in enumerate(models.items()):
        for line, key in enumerate(keys):
            cell = row["sets"][key]
            low, value, high = (100 * cell[part] for part in ("low", "value", "high"))
            axes.errorbar(
                [value],
                [line + (at + 0.5) / (1 + len(models)) - 0.5 + 0.5 / (1 + len(models))],
                xerr=[[max(0.0, value - low)], [max(0.0, high - value)]],
                label=name if line == 0 else None,
                **_look(at),
            )
    axes.set_yticks(range(len(keys)), [label_of(key) for key in keys])
    axes.set_ylim(len(keys) - 0.5, -0.5)
    for line in range(1, len(keys)):
        axes.axhline(line - 0.5, color="#CCCCCC", linewidth=0.8)
    axes.grid(visible=True, axis="x", alpha=0.3)
    axes.set_xlabel("percent, with 95% intervals")
    figure.legend(loc="outside lower center", ncols=min(4, len(models)))
    save_figure(figure, path)


def _point(axes: Axes, place: int, name: str, x: float | None, mean: Mapping[str, float]) -> Any:
    low, value, high = (100 * mean[part] for part in ("low", "value", "high"))
    return axes.errorbar(
        [] if x is None else [x],
        [] if x is None else [value],
        yerr=[[], []] if x is None else [[value - low], [high - value]],
        label=name,
        **_look(place),
    )


def _look(place: int) -> dict[str, Any]:
    turn = place // len(COLOURS)
    return {
        "color": COLOURS[place % len(COLOURS)],
        "fmt": MARKS[(place + turn) % len(MARKS)],
        "markersize": 6,
        "capsize": 3,
    }
