"""What the building of a memory encoder came to: its plots and its card."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from condensery.methods.retriever.timing import speed_table
from condensery.methods.trainer.progress import read_log
from condensery.methods.trainer.reports import DPI, making_section, new_figure, save_figure, table

FORMAT = 1
PUBLISHED = "as stored and served"
LOSSES, SPECTRA, TOKENS = "losses.png", "spectrum.png", "memory-tokens.png"
TITLES = {
    "losses": "Losses",
    "spectrum": "Singular values of held-out texts' embeddings, stage by stage",
    "memory-tokens": "How alike memory tokens are, stage by stage",
}


def draw_losses(runs: Mapping[str, Path], path: Path, *, dpi: int = DPI) -> Path:
    """Draw the loss of each stage, a panel each, with that on held-out texts if there is one.

    Args:
        runs: By stage, the run's folder.
        path: Of the picture.
        dpi: Dots an inch.
    """
    figure = new_figure(4.4 * len(runs), 3.2)
    (panels,) = figure.subplots(1, len(runs), squeeze=False)
    for axes, (stage, run) in zip(panels, runs.items(), strict=True):
        rows = read_log(run)
        held = [row for row in rows if "loss" in row.get("validation", {})]
        lines = (
            ("training", [(row["step"], row["loss"]) for row in rows if "loss" in row]),
            ("held-out", [(row["step"], row["validation"]["loss"]) for row in held]),
        )
        for label, points in lines:
            if points:
                marker = "." if len(points) < 30 else ""
                axes.plot(*zip(*points, strict=True), label=label, marker=marker)
        axes.set_title(stage)
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
        if held:
            axes.legend(loc="upper right", fontsize="small")
    panels[0].set_ylabel("loss")
    return save_figure(figure, path, dpi=dpi)


def make_card(name: str, base: str, report: Mapping[str, Any], plots: Sequence[str]) -> str:
    """Return a card, Markdown.

    Args:
        name: The model's.
        base: Its language model's.
        report: As it is published.
        plots: Names of its pictures.
    """
    about, shape = report["about"], report["shape"]
    what = (
        f"An encoder made of the language model `{base}` by LLM2Comp: it reads both ways, and "
        f"{shape['memory_tokens']} memory tokens after a text hold it; its vector is their mean. "
        f"Stages: {', '.join(report['stages'])}."
    )
    lines = [f"# {name}", "", what, "", "## Size and work", "", *_costs(report["cost"])]
    if report["quality"]:
        lines += ["## Quality", "", *_quality(report["quality"]), *_minus(report["quality"])]
        lines += [
            "The language model's rows are what it gives without training, causal. Queries of",
            "retrieval are read with the prompt after the supervised stage, and without before.",
            "",
        ]
    if report["embeddings"]:
        lines += ["## Embeddings of held-out texts", "", *_embeddings(report["embeddings"])]
    if report["speed"]:
        lines += [
            f"## Speed, in process, {about['device']}",
            "",
            *speed_table(report["speed"], "language model", "this encoder"),
        ]
        lines += [
            "The language model reads the same texts causally; its last state is the vector.",
            "",
        ]
    for plot in plots:
        lines += [f"![{TITLES.get(plot, plot)}](plots/{plot}.png)", ""]
    return "\n".join(lines + making_section(about))


def _costs(costs: Mapping[str, Any]) -> list[str]:
    lines = [
        f"{costs['parameters']:,} parameters, of which {costs['bytes']:,} bytes are stored here.",
        "",
    ]
    rows = [
        [
            str(row["tokens"]),
            f"{row['flops'] / 1e9:,.3f}",
            f"{row['flops_without_memory'] / 1e9:,.3f}",
            f"{row['flops'] / row['flops_without_memory'] - 1:+.1%}",
        ]
        for row in costs["by_length"]
    ]
    head = ["text, tokens", "GFLOPs", "without memory tokens", "more"]
    return lines + table(head, rows, left=0)


def _quality(quality: Mapping[str, Any]) -> list[str]:
    models = list(next(iter(quality.values()))["models"])
    head = ["", *(f"{name}, {figures['measure']}" for name, figures in quality.items())]
    rows = [
        [model, *(f"{figures['models'][model]:.3f}" for figures in quality.values())]
        for model in models
    ]
    return table(head, rows)


def _minus(quality: Mapping[str, Any]) -> list[str]:
    others = list(next(iter(quality.values()))["minus"])
    rows = []
    for other in others:
        cells = [figures["minus"][other] for figures in quality.values()]
        rows.append([other, *(f"{m:+.3f} ({low:+.3f} to {high:+.3f})" for m, low, high in cells)])
    return table([f"{PUBLISHED}, minus (95%)", *quality], rows)


def _embeddings(embeddings: Mapping[str, Any]) -> list[str]:
    names = {name: None for looked in embeddings.values() for name in looked["figures"]}
    rows = [
        [
            model,
            *(f"{looked['figures'][n]:.3g}" if n in looked["figures"] else "" for n in names),
        ]
        for model, looked in embeddings.items()
    ]
    return table(["", *names], rows)
