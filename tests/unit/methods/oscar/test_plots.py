from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from tiny_report import COUNTS, tiny_report

from condensery.methods.oscar.measured import check_report
from condensery.methods.oscar.plots import (
    draw_abstention,
    draw_cost,
    draw_passages,
    draw_plots,
    draw_training,
)

BARE = {"format": 2, "model": "pair", "measured_on": {"questions": 3}}


def lines(figure: Figure | None, panel: int = 0) -> dict[str, Any]:
    """Return a panel's lines by their label: x and y."""
    assert figure is not None
    return {
        str(line.get_label()): np.asarray(line.get_xydata()) for line in figure.axes[panel].lines
    }


def test_every_plot_is_a_picture_worth_looking_at(tmp_path: Path) -> None:
    names = draw_plots(check_report(tiny_report()), tmp_path / "plots", 0.4)
    assert names == ["cost", "passages", "training", "abstention"]
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == sorted(
        f"{name}.png" for name in names
    )
    for name in names:
        picture = imread(tmp_path / "plots" / f"{name}.png")
        assert picture.shape[1] > 700
        assert picture[..., :3].std() > 0.02, "it is blank"


def test_what_was_not_measured_is_not_drawn(tmp_path: Path) -> None:
    report = check_report({**BARE, "settings": {"gold": {"em": 1, "f1": 2}}})
    assert draw_plots(report, tmp_path / "plots") == []
    assert not (tmp_path / "plots").exists()


def test_cost_is_drawn_as_measured() -> None:
    report = tiny_report()
    figure = draw_cost(check_report(report))
    assert figure is not None
    assert len(figure.axes) == 2
    for panel, name in enumerate(("tflops", "seconds")):
        drawn = lines(figure, panel)
        wanted = [
            (report["settings"][f"plain_{count}"][name], report["settings"][f"plain_{count}"]["f1"])
            for count in COUNTS
        ]
        assert drawn["text, all read"].tolist() == [[x, y["mean"]] for x, y in wanted]
        assert drawn["own passage, vectors"].shape == (1, 2)
    for setting in report["settings"].values():
        del setting["tflops"]
    figure = draw_cost(check_report(report))
    assert figure is not None
    assert len(figure.axes) == 1


def test_passages_are_drawn_as_measured() -> None:
    report = tiny_report()
    drawn = lines(draw_passages(check_report(report)))
    wanted = [[count, report["settings"][f"reranked_{count}"]["f1"]["mean"]] for count in COUNTS]
    assert drawn["vectors, the best scored read"].tolist() == wanted
    assert drawn["its own passage alone, vectors"][0][1] == 49.6
    few = {key: report["settings"][key] for key in ("plain_1", "compressed_1", "gold")}
    assert draw_passages(check_report(tiny_report(settings=few))) is None


@pytest.mark.parametrize("nested", [False, True])
def test_training_is_drawn_by_figure_over_what_was_seen(nested: bool) -> None:
    rows = [
        {"step": 5, "items": 50, "gold": {"f1": 1.0}, "plain": {"f1": 2.0}, "loss": 9.0},
        {"step": 9, "items": 90, "gold": {"f1": 3.0}, "plain": {"f1": 4.0}, "loss": 8.0},
    ]
    if nested:
        rows = [
            {
                "step": row["step"],
                "items": row["items"],
                "validation": {k: v for k, v in row.items() if k not in ("step", "items")},
            }
            for row in rows
        ]
    figure = draw_training(rows)
    drawn = lines(figure)
    assert drawn["gold"].tolist() == [[50, 1], [90, 3]]
    assert drawn["plain"].tolist() == [[50, 2], [90, 4]]
    assert figure is not None
    assert [axes.get_title() for axes in figure.axes] == ["f1", "loss"]
    assert draw_training(rows[:1]) is None
    assert draw_training([]) is None


def test_training_without_counts_is_over_steps() -> None:
    rows: list[dict[str, Any]] = [{"step": 5, "f1": 1.0}, {"step": 9, "f1": 3.0}]
    assert lines(draw_training(rows))["f1"].tolist() == [[5, 1], [9, 3]]


def test_the_abstention_curve_is_drawn_with_the_default() -> None:
    report = tiny_report()
    drawn = lines(draw_abstention(check_report(report), 0.4))
    curve = report["abstention"]["curve"]
    wanted = [[point["min_relevance"], point["answered"]] for point in curve]
    assert drawn["questions answered"].tolist() == wanted
    assert drawn["the default"][:, 0].tolist() == [0.4, 0.4]
    assert "the default" not in lines(draw_abstention(check_report(report), None))
