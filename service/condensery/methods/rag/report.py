"""A report of replies, as Markdown and as a picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from condensery.methods.rag.figures import Judged, risk_coverage
from condensery.methods.trainer.reports import new_figure, save_figure, table

# Colours that the colour-blind tell apart (Okabe and Ito).
BLUE, GREEN, RED, PURPLE, GREY = "#0072B2", "#009E73", "#D55E00", "#CC79A7", "#666666"
SHOWN = 12  # wrong answers in the page
SHORTEST = 60  # characters of a question or an answer in the page
LEAST = 1e-4  # of a relevance on the axis, whose ends are never reached
TICKS = (0.0001, 0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999)
NAMES: Mapping[str, str] = {
    "answered": "answered",
    "right": "right",
    "em": "exact match",
    "f1": "F1",
    "right_of_answered": "right, of what is answered",
    "wrong_but_answered": "wrong but answered",
    "not_found_but_answerable": "not found but answerable",
    "right_and_verbatim": "right and in the source's letters",
    "verbatim_of_right": "in the source's letters, of what is right",
    "grounded": "its words stand in a passage read, of what is answered",
    "grounded_of_right": "its words stand in a passage read, of what is right",
    "citation_first": "the right document first",
    "citation_among": "the right document among those read",
    "citation_by_offsets": "by its offsets in the right document, of what is answered",
    "unanswerable_but_answered": "unanswerable but answered",
}
SETTING_NAMES = {"as_it_is": "as it is", "without_passage": "without its passage"}
LINES = (
    ("answered", "answered", BLUE, "-"),
    ("right", "right", GREEN, "-"),
    ("unanswerable_answered", "unanswerable but answered", RED, "--"),
    ("without_passage_answered", "without its passage but answered", PURPLE, ":"),
)


def write_page(about: Mapping[str, Any], report: Mapping[str, Any], rows: Sequence[Judged]) -> str:
    """Return the report as Markdown: figures, the threshold that keeps most, what went wrong.

    Args:
        about: ``title``, ``asked`` (a sentence of what was asked, and of whom), ``command``.
        report: From ``figures``.
        rows: Replies, for examples.
    """
    settings = report["settings"]
    head = ["percent, with 95% intervals", *(SETTING_NAMES[name] for name in settings)]
    cells = [
        [label, *(_cell(figures.get(name)) for figures in settings.values())]
        for name, label in NAMES.items()
    ]
    cells += [
        ["questions", *(str(figures["questions"]) for figures in settings.values())],
        ["of them failed", *(str(figures["failed"]) for figures in settings.values())],
        *(
            [
                f"milliseconds, {name}",
                *(f"{f['ms'][name]:.0f}" if "ms" in f else "" for f in settings.values()),
            ]
            for name in ("p50", "p95")
        ),
    ]
    lines = [f"# {about['title']}", "", about["asked"], ""]
    lines += table(head, [row for row in cells if any(row[1:])])
    lines += _threshold_lines(report["abstention"])
    lines += _failures(rows) + _examples(rows)
    return "\n".join([*lines, "```", about["command"], "```", ""])


def _cell(figure: Mapping[str, float] | None) -> str:
    if figure is None:
        return ""
    return f"{figure['mean']:.1f} ({figure['low']:.1f} to {figure['high']:.1f}) of {figure['of']}"


def _threshold_lines(abstention: Mapping[str, Any]) -> list[str]:
    """Say at which threshold nearly all of the F1 is kept, and what is answered there."""
    if not abstention:
        return [
            "No curve: passages were not scored, or what was not found was not asked again.",
            "",
        ]
    point = abstention["kept_95"]
    answered = [
        f"{point[name]:.1f}% of questions {label} are answered"
        for name, label in (
            ("unanswerable_answered", "that are unanswerable"),
            ("without_passage_answered", "without their passage"),
        )
        if name in point
    ]
    return [
        "Chosen afterwards on these very questions, `min_relevance`"
        f" {point['min_relevance']:.4g} keeps 95% of the F1 that there is without a threshold"
        + (f"; there {' and '.join(answered)}" if answered else "")
        + f". Area under the risk-coverage curve: {abstention['aurc']:.3f}.",
        "",
    ]


def _failures(rows: Sequence[Judged]) -> list[str]:
    failed = [row for row in rows if row.reply.error is not None]
    lines = table(
        ("failed", "question", "error"),
        [
            [str(row.question.row.get("id", row.question.place + 1)), _short(row.question.question),
             str(row.reply.error)]
            for row in failed[:SHOWN]
        ],
        left=3,
    )  # fmt: skip
    return lines + ([f"and {len(failed) - SHOWN} more failed", ""] if len(failed) > SHOWN else [])


def _examples(rows: Sequence[Judged]) -> list[str]:
    """Show the answers that are wrong though the service was surest of them."""
    wrong = [row for row in rows if row.reply.setting == "as_it_is" and row.reply.answered]
    wrong = [row for row in wrong if not row.right]
    wrong.sort(key=lambda row: -(row.reply.relevance or 0.0))
    cells = [
        [
            _short(row.question.question),
            _short(row.reply.answer),
            _short(row.question.answers[0]) if row.question.answerable else "(none)",
            "" if row.reply.relevance is None else f"{row.reply.relevance:.3f}",
        ]
        for row in wrong[:SHOWN]
    ]
    return table(("wrong, most relevant first", "answered", "right", "relevance"), cells, left=3)


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= SHORTEST else flat[: SHORTEST - 1] + "…"


def draw_plot(
    path: Path, title: str, report: Mapping[str, Any], rows: Sequence[Judged], asked: float | None
) -> Path:
    """Draw shares by threshold, risk against coverage, and times; returns the PNG's path.

    Args:
        path: To write.
        title: Over the picture.
        report: From ``figures``.
        rows: Replies.
        asked: The ``min_relevance`` that questions were asked with, which is marked; None is none.
    """
    curve = report["abstention"].get("curve")
    figure = new_figure(15.0 if curve else 6.0, 4.8)
    panels = figure.subplots(1, 3 if curve else 1, squeeze=False)[0]
    if curve:
        _draw_thresholds(panels[0], curve, asked)
        _draw_risk(panels[1], rows)
    _draw_times(panels[-1], rows)
    figure.suptitle(title)
    return save_figure(figure, path)


def _draw_thresholds(axes: Axes, curve: Sequence[Mapping[str, float]], asked: float | None) -> None:
    at = np.clip([point["min_relevance"] for point in curve], LEAST, 1 - LEAST)
    for name, label, color, style in LINES:
        if name in curve[0]:
            axes.plot(at, [p[name] for p in curve], color=color, linestyle=style, label=label)
    if asked is not None:
        near = min(max(asked, LEAST), 1 - LEAST)
        axes.axvline(near, color=GREY, linewidth=1, label="as it was asked")
    axes.set_xscale("logit")
    axes.xaxis.set_major_locator(FixedLocator(TICKS))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: f"{at:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("min_relevance (drawn by its log-odds)")
    axes.set_ylabel("percent of the questions of each kind")
    axes.set_ylim(-3, 103)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def _draw_risk(axes: Axes, rows: Sequence[Judged]) -> None:
    asked = [row for row in rows if row.reply.setting == "as_it_is" and row.reply.error is None]
    coverage, risk = zip(*risk_coverage(asked), strict=True)
    axes.plot(100 * np.array(coverage), 100 * np.array(risk), color=RED)
    axes.set_xlabel("coverage: percent of questions answered, most relevant first")
    axes.set_ylabel("risk: percent of answers that are wrong")
    axes.set_xlim(-3, 103)
    axes.set_ylim(-3, 103)
    axes.grid(alpha=0.3)


def _draw_times(axes: Axes, rows: Sequence[Judged]) -> None:
    times = [row.reply.ms for row in rows if row.reply.error is None]
    if times:
        axes.hist(times, bins=40, range=(0.0, float(np.percentile(times, 99)) * 1.05), color=BLUE)
        for name, at in zip(("p50", "p95"), np.percentile(times, [50, 95]), strict=True):
            style = "-" if name == "p50" else "--"
            axes.axvline(float(at), color=GREY, linestyle=style, label=f"{name}: {at:.0f} ms")
        axes.legend(fontsize="small")
    axes.set_xlabel("milliseconds a question, as the caller saw them")
    axes.set_ylabel("questions")
    axes.grid(alpha=0.3)
