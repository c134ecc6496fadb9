"""What a conversion came to: its plots and its card."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from condensery.methods.retriever.timing import CHILD, PARENT, speed_table
from condensery.methods.trainer.reports import making_section, new_figure, save_figure, table

FORMAT = 1
KINDS = {"encoder": "An encoder", "classifier": "A classifier", "reranker": "A reranker"}


def draw_usage(usage: Mapping[str, Sequence[int]], kept: Sequence[Any], path: Path) -> Path:
    """Draw which share of the validation rows each expert attended for, a row a layer.

    Args:
        usage: By layer's number, counts of its heads.
        kept: By layer, the heads that stay; None where it is plain.
        path: Of the picture.
    """
    layers = sorted(map(int, usage))
    shares = np.array([usage[str(layer)] for layer in layers], dtype=float)
    shares /= np.maximum(1, shares.sum(1, keepdims=True))
    heads = shares.shape[1]
    figure = new_figure(1.2 + 0.62 * heads, 1.4 + 0.5 * len(layers))
    axes = figure.subplots()
    picture = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for row, layer in enumerate(layers):
        for head in range(heads):
            stays = head in kept[layer]
            axes.text(
                head, row, f"{shares[row, head]:.0%}", ha="center", va="center",
                weight="bold" if stays else "normal",
                color="white" if shares[row, head] > 0.6 else "black",
            )  # fmt: skip
    axes.set_xticks(range(heads))
    axes.set_yticks(range(len(layers)), [str(layer) for layer in layers])
    axes.set_xlabel("head (bold: kept)")
    axes.set_ylabel("layer")
    axes.set_title("Share of validation rows by expert")
    figure.colorbar(picture, ax=axes)
    path.parent.mkdir(parents=True, exist_ok=True)
    return save_figure(figure, path)


def make_card(name: str, parent: str, report: Mapping[str, Any], plots: Sequence[str]) -> str:
    """Return a card, Markdown.

    Args:
        name: The model's.
        parent: What it was made from.
        report: As it is published.
        plots: Names of its pictures.
    """
    about, experts = report["about"], report["experts"]
    layers = [number for number, heads in enumerate(experts["heads"]) if heads is not None]
    count = len(experts["heads"])
    heads = "; ".join(f"layer {n}: head {', '.join(map(str, experts['heads'][n]))}" for n in layers)
    what = (
        f"{KINDS[report['task']]} made from `{parent}` by SHRP (arXiv:2512.20635): {len(layers)} "
        f"of its {count} layers are one small attention head and an expander each ({heads}). No "
        "gate is left where a layer keeps one head."
    )
    lines = [
        f"# {name}",
        "",
        what,
        "",
        "## Size and work",
        "",
        *_costs(report["cost"]),
        "",
        "## Quality, as stored and served",
        "",
        *_quality(report["quality"]),
    ]
    if report["stages"]:
        lines += ["## On validation rows, before and after experts went", ""]
        lines += _stages(report["stages"])
    if report["speed"]:
        lines += [f"## Speed, in process, {about['device']}", "", *speed_table(report["speed"])]
    titles = {
        "usage": "Experts' use",
        "tuning": "Tuning of the parent",
        "conversion": "Conversion",
        "settling": "Settling",
    }
    for plot in plots:
        lines += [f"![{titles.get(plot, plot)}](plots/{plot}.png)", ""]
    return "\n".join(lines + making_section(about))


def _costs(costs: Mapping[str, Any]) -> list[str]:
    head = ["", *(key.replace("_", " ") for key in costs[PARENT])]
    rows = [
        [label, *(f"{value:,}" for value in costs[name].values())]
        for name, label in ((PARENT, "parent"), (CHILD, "model"))
    ]
    lines = table(head, rows)
    left = f"True work left: {costs['flops_left_percent']:.2f} %."
    if paper := costs.get("as_the_paper_counts"):
        left += (
            f" As the paper counts: {paper['flops_left_percent']:.2f} % of FLOPs left, "
            f"{paper['parameters_gone_percent']:.1f} % of parameters gone (embeddings left out)."
        )
    return [*lines, left]


def _quality(quality: Mapping[str, Any]) -> list[str]:
    rows = []
    for name, figures in quality.items():
        parent, child = figures[PARENT], figures[CHILD]
        measured = [m for m in parent if m in child and isinstance(parent[m], float)]
        low, high = child["interval"]
        for place, measure in enumerate(measured):
            of_it = f"{child['minus_parent']:+.3f} ({low:+.3f} to {high:+.3f})"
            rows.append(
                [
                    name,
                    measure,
                    f"{parent[measure]:.3f}",
                    f"{child[measure]:.3f}",
                    "" if place else of_it,
                ]
            )
    return table(["set", "measure", "parent", "model", "difference (95%)"], rows, left=2)


def _stages(stages: Mapping[str, Mapping[str, float]]) -> list[str]:
    measures = list(next(iter(stages.values())))
    rows = [
        [name, *(f"{figures[measure]:.4f}" for measure in measures)]
        for name, figures in stages.items()
    ]
    return table(["", *measures], rows)
