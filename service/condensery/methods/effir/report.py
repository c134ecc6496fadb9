"""What a pruned retriever's making and measuring came to: its report and its card."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.ticker import MaxNLocator

from condensery.methods.effir.importance import GROUPS, Importance
from condensery.methods.effir.measuring import Measured
from condensery.methods.retriever.timing import CHILD, PARENT
from condensery.methods.trainer.reports import making_section, new_figure, save_figure, table
from condensery.networks.effir_shape import Pruning

FORMAT = 1


COLOURS = ListedColormap(["#E8E8E8", "#0072B2"])
TITLES = {"attention": "attention", "mlp": "MLP", "block": "whole layers"}


def draw_order(importance: Importance, path: Path) -> None:
    """Draw which layers are gone when so many are dropped, a panel each of the groups.

    A row is a number dropped, a column a layer; above, each layer's importance.
    """
    figure = new_figure(4.2 * len(GROUPS), 5.2)
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
    save_figure(figure, path)


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
        (
            "parameters, millions",
            {name: figures["parameters"] / 1e6 for name, figures in cost.items()},
        )
    ]
    axes_of += [
        (
            f"{kind}: tokens a second",
            {n: figures["tokens"] / t for n, t in figures["seconds"].items()},
        )
        for kind, figures in speed.items()
    ]
    figure = new_figure(4.2 * len(axes_of), 3.8)
    (panels,) = figure.subplots(1, len(axes_of), squeeze=False, sharey=True)
    for axes, (title, places) in zip(panels, axes_of, strict=True):
        for name, figures in quality.items():
            x = [places["parent"], places["model"]]
            y = [figures["parent"]["ndcg@10"], figures["model"]["ndcg@10"]]
            (line,) = axes.plot(x, y, label=name)
            axes.plot(x[:1], y[:1], "o", color=line.get_color(), mfc="white")
            low, high = (y[0] + bound for bound in figures["model"]["interval"])
            axes.errorbar(
                x[1:], y[1:], [[y[1] - low], [high - y[1]]], fmt="o", color=line.get_color()
            )
        axes.set_xlabel(title)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.grid(visible=True, alpha=0.3)
    panels[0].set_ylabel("nDCG@10 (open: parent; bars: 95% of the difference)")
    panels[0].legend(loc="lower right", fontsize="small")
    save_figure(figure, path)


def figures(pruning: Pruning, neurons: int, measured: Measured) -> dict[str, Any]:
    """Return the report: what is gone, and what was measured."""
    widths = [pruning.size(layer, neurons) for layer in range(pruning.layers)]
    return {
        "format": FORMAT,
        "dropped": {"attention": list(pruning.attention), "mlp": list(pruning.mlp)},
        "neurons": {"before": neurons, "left": widths},
        "cost": measured.costs,
        "retrieval": measured.quality,
        "speed": measured.speed,
    }


def card(name: str, parent: str, about: Mapping[str, Any], report: Mapping[str, Any]) -> str:
    """Return a card, Markdown.

    Args:
        name: The model's.
        parent: What it was made from.
        about: ``licence``, ``data``, ``command``, ``versions``, ``recipe``, ``device``.
        report: ``figures``'s.
    """
    dropped, neurons = report["dropped"], report["neurons"]
    sizes = report["cost"]
    share = sizes[CHILD]["parameters"] / sizes[PARENT]["parameters"]
    what = (
        f"A retriever made from `{parent}` by dropping and slimming layers (EffiR). Of its "
        f"{len(neurons['left'])} layers' attentions {_listed(dropped['attention'])} are gone, of "
        f"their MLPs {_listed(dropped['mlp'])}; neurons of each MLP: "
        f"{', '.join(map(str, neurons['left']))} (before: {neurons['before']})."
    )
    lines = [
        f"# {name}",
        "",
        what,
        "",
        "## Size and work",
        "",
        *_sizes(sizes),
        f"It has {share:.1%} of its parent's parameters.",
        "",
    ]
    if report["retrieval"]:
        lines += ["## Finding passages, nDCG@10 over the whole corpus", ""]
        lines += _quality(report["retrieval"])
    if report["speed"]:
        lines += [f"## Speed, in process, {about['device']}", "", *_speed(report["speed"])]
        lines += [
            "Predicted is what the parent's own profile says: its time without that of the parts",
            "that are gone.",
            "",
        ]
    if about["trade_off"]:
        lines += ["![Quality against size and speed](plots/trade-off.png)", ""]
    if about["drop_order"]:
        lines += ["## Which go first", "", "![Drop order](plots/drop-order.png)", ""]
    return "\n".join(lines + making_section(about))


def _sizes(sizes: Mapping[str, Mapping[str, int]]) -> list[str]:
    head = ["", *(key.replace("_", " ") for key in sizes[PARENT])]
    return table(
        head, [[name, *(f"{value:,}" for value in size.values())] for name, size in sizes.items()]
    )


def _quality(quality: Mapping[str, Any]) -> list[str]:
    rows = []
    for name, figures in quality.items():
        parent, child = figures[PARENT], figures[CHILD]
        low, high = child["interval"]
        rows.append(
            [
                name,
                str(parent["queries"]),
                f"{parent['ndcg@10']:.3f}",
                f"{child['ndcg@10']:.3f}",
                f"{child['minus_parent']:+.3f} ({low:+.3f} to {high:+.3f})",
            ]
        )
    return table(["set", "queries", "parent", "model", "difference (95%)"], rows)


def _speed(speed: Mapping[str, Any]) -> list[str]:
    rows = [
        [
            kind,
            f"{figures['tokens']:,}",
            f"{figures['seconds'][PARENT]:.3f}",
            f"{figures['seconds'][CHILD]:.3f}",
            f"{figures['speed_up']:.2f}x",
            f"{figures['predicted']:.2f}x",
        ]
        for kind, figures in speed.items()
    ]
    head = ["texts", "tokens", "parent, s", "model, s", "speed-up", "predicted"]
    return table(head, rows)


def _listed(numbers: Sequence[int]) -> str:
    return f"number {', '.join(map(str, numbers))}" if numbers else "none"
