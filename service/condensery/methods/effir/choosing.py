"""Which sub-layers go: the least important ones, or the last."""

from collections.abc import Sequence
from dataclasses import dataclass

from condensery.errors import InputError
from condensery.methods.effir.importance import Importance
from condensery.networks.effir_shape import Pruning


@dataclass(frozen=True, slots=True)
class Depth:
    """How many sub-layers to drop.

    Attributes:
        attention: Attentions, the least important ones.
        mlp: MLPs, the least important ones.
        blocks: Whole layers, the least important ones.
        last: Whole layers from the end, whatever their importance.
    """

    attention: int = 0
    mlp: int = 0
    blocks: int = 0
    last: int = 0


def choose(importance: Importance, depth: Depth) -> Pruning:
    """Drop sub-layers by their importance in the whole model; groups are ranked apart.

    Attention and MLPs may be dropped together (the paper's 16M8A); layers only by themselves.

    Raises:
        InputError: A number is below 0 or leaves nothing of its kind, or numbers don't go
            together; it is named.
    """
    layers = len(importance.mlp)
    check(depth, layers)
    if depth.last:
        gone = tuple(range(layers - depth.last, layers))
        return Pruning(layers, gone, gone)
    if depth.blocks:
        gone = _first(importance.order("block"), depth.blocks)
        return Pruning(layers, gone, gone)
    return Pruning(
        layers,
        _first(importance.order("attention"), depth.attention),
        _first(importance.order("mlp"), depth.mlp),
    )


def check(depth: Depth, layers: int) -> None:
    """Check that so much can be dropped of a model of so many layers; raises as ``choose``."""
    for name in ("attention", "mlp", "blocks", "last"):
        value = getattr(depth, name)
        if not 0 <= value < layers:
            raise InputError(
                f"{name}={value}: must be from 0 to {layers - 1}, for {layers} layers",
                field=name,
                value=value,
            )
    kinds = [bool(depth.attention or depth.mlp), bool(depth.blocks), bool(depth.last)]
    if sum(kinds) > 1:
        raise InputError(
            f"attention={depth.attention}, mlp={depth.mlp}, blocks={depth.blocks}, "
            f"last={depth.last}: sub-layers, blocks and last blocks can't be dropped together",
            field="blocks",
        )


def _first(order: Sequence[int], count: int) -> tuple[int, ...]:
    return tuple(sorted(order[:count]))
