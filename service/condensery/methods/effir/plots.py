"""The order in which layers are dropped, as a picture (EffiR, figure 5)."""

from pathlib import Path

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
