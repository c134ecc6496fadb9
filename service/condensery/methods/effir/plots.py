"""Pictures: the order in which layers are dropped (EffiR, figure 5), and what that comes to."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from condensery.methods.effir.importance import GROUPS, Importance

COLOURS = ListedColormap(["#E8E8E8", "#0072B2"])
TITLES = {"attention": "attention", "mlp": "MLP", "block": "whole layers"}
DPI = 110


def draw_order(importance: Importance, path: Path) -> None:
    """Draw which layers are gone when so many are dropped, a panel each of the groups.

    A row is a number dropped, a column a layer; above, each layer's importance.
    """
    figure = Figure(figsize=(4.2 * len(GROUPS), 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, len(GROUPS), squeeze=False, height_ratios=(1, 2.6), sharex="col")
    for column, group in enumerate(GROUPS):
        order = importance.order(group)
        layers = len(order)
        bars, grid = panels[0][column], panels[1][column]
        bars.bar(range(layers), getattr(importance, group), color="#0072B2")
        bars.set_title(TITLES[group])
        dropped = np.zeros((layers, layers))
        for count, layer in enumerate(order):
            dropped[count:, layer] = 1
        grid.imshow(dropped, cmap=COLOURS, vmin=0, vmax=1, aspect="auto", origin="lower",
                    extent=(-0.5, layers - 0.5, 0.5, layers + 0.5))  # fmt: skip
        grid.set_xlabel("layer")
        for axis in (grid.xaxis, grid.yaxis):
            axis.set_major_locator(MaxNLocator(8, integer=True))
    panels[0][0].set_ylabel("importance, 1 - cos")
    panels[1][0].set_ylabel("dropped")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", dpi=DPI)


def draw_trade_off(
    cost: Mapping[str, Mapping[str, int]],
    quality: Mapping[str, Any],
    speed: Mapping[str, Any],
    path: Path,
) -> None:
    """Draw nDCG@10 of parent and model, a line a set, against parameters and against speed.

    Args:
        cost: ``parameters`` of ``parent`` and ``model``.
        quality: By set, ``ndcg@10`` of both, and the model's ``interval``.
        speed: By kind of text, ``seconds`` of both and ``tokens``.
        path: Of the picture.
    """
    axes_of: list[tuple[str, dict[str, float]]] = [
        ("parameters, millions", {name: one["parameters"] / 1e6 for name, one in cost.items()})
    ]
    axes_of += [
        (f"{kind}: tokens a second", {n: one["tokens"] / t for n, t in one["seconds"].items()})
        for kind, one in speed.items()
    ]
    figure = Figure(figsize=(4.2 * len(axes_of), 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    (panels,) = figure.subplots(1, len(axes_of), squeeze=False, sharey=True)
    for axes, (title, places) in zip(panels, axes_of, strict=True):
        for name, one in quality.items():
            x = [places["parent"], places["model"]]
            y = [one["parent"]["ndcg@10"], one["model"]["ndcg@10"]]
            (line,) = axes.plot(x, y, label=name)
            axes.plot(x[:1], y[:1], "o", color=line.get_color(), mfc="white")
            low, high = (y[0] + bound for bound in one["model"]["interval"])
            axes.errorbar(
                x[1:], y[1:], [[y[1] - low], [high - y[1]]], fmt="o", color=line.get_color()
            )
        axes.set_xlabel(title)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.grid(visible=True, alpha=0.3)
    panels[0].set_ylabel("nDCG@10 (open: parent; bars: 95% of the difference)")
    panels[0].legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", dpi=DPI)
