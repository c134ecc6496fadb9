"""What a pruned retriever's making and measuring came to: its report and its card."""

from collections.abc import Mapping, Sequence
from typing import Any

from condensery.methods.effir.measuring import CHILD, PARENT, Measured
from condensery.methods.oscar.tables import table
from condensery.networks.effir_shape import Pruning

FORMAT = 1


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
    lines += [
        "## Making",
        "",
        f"- Licence: {about['licence']}",
        f"- Data: {', '.join(about['data']) or 'none'}",
        f"- Recipe: {', '.join(f'{k} {v}' for k, v in about['recipe'].items())}",
        f"- Versions: {', '.join(f'{k} {v}' for k, v in about['versions'].items())}",
        "",
        "```",
        about["command"],
        "```",
        "",
    ]
    return "\n".join(lines)


def _sizes(sizes: Mapping[str, Mapping[str, int]]) -> list[str]:
    head = ["", *(key.replace("_", " ") for key in sizes[PARENT])]
    return table(
        head, [[name, *(f"{value:,}" for value in one.values())] for name, one in sizes.items()]
    )


def _quality(quality: Mapping[str, Any]) -> list[str]:
    rows = []
    for name, one in quality.items():
        parent, child = one[PARENT], one[CHILD]
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
            f"{one['tokens']:,}",
            f"{one['seconds'][PARENT]:.3f}",
            f"{one['seconds'][CHILD]:.3f}",
            f"{one['speed_up']:.2f}x",
            f"{one['predicted']:.2f}x",
        ]
        for kind, one in speed.items()
    ]
    head = ["texts", "tokens", "parent, s", "model, s", "speed-up", "predicted"]
    return table(head, rows)


def _listed(numbers: Sequence[int]) -> str:
    return f"number {', '.join(map(str, numbers))}" if numbers else "none"
