"""How much each sub-layer changes what passes through it (EffiR, 4.1, equation 3); which go."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from condensery.errors import InputError
from condensery.networks.effir_shape import Pruning
from condensery.networks.sublayers import family_of, layers_of

GROUPS = ("attention", "mlp", "block")


@dataclass(frozen=True, slots=True)
class Importance:
    """``1 - cos(x, y)`` of each sub-layer, a mean over tokens; y is x once the sub-layer has run.

    x is what would be read in the place of y were the sub-layer dropped: the residual stream,
    before any norm. Where norms stand last (BERT), both are behind the norm.

    Attributes:
        attention: Of each layer's attention.
        mlp: Of each layer's MLP.
        block: Of each layer as a whole.
        tokens: How many were read.
    """

    attention: tuple[float, ...]
    mlp: tuple[float, ...]
    block: tuple[float, ...]
    tokens: int

    def order(self, group: str) -> list[int]:
        """Return the layers in the order in which they are dropped, the least important first.

        Of equal ones the lower comes first.
        """
        scores: tuple[float, ...] = getattr(self, group)
        return sorted(range(len(scores)), key=lambda layer: scores[layer])


@torch.inference_mode()
def measure(model: nn.Module, texts: Iterable[Tensor]) -> Importance:
    """Read texts with the whole model and compare what goes into each sub-layer with what leaves.

    All sub-layers are scored in one go, none being dropped meanwhile. Cosines are fp32, whatever
    the model computes in.

    Args:
        model: A base model of a known family.
        texts: Token ids (texts, length), without padding.

    Raises:
        ValueError: Its family is not known.
        InputError: There is no text, or a value is not finite; the layer is named.
    """
    layers = layers_of(model)
    sums = torch.zeros(len(GROUPS), len(layers), dtype=torch.float64)
    tokens = 0
    with _watched(model, sums):
        for ids in texts:
            model(input_ids=ids)
            tokens += ids.numel()
    if not tokens:
        raise InputError("text: there is nothing to measure with", field="text")
    for layer, column in enumerate(sums.T.tolist()):
        if not all(map(torch.isfinite, torch.tensor(column))):
            raise InputError(
                f"layer {layer}: gives values that are not finite: NaN in its weights?",
                field="model",
            )
    attention, mlp, block = (tuple(row) for row in (1 - sums / tokens).tolist())
    return Importance(attention, mlp, block, tokens)


@contextmanager
def _watched(model: nn.Module, sums: Tensor) -> Iterator[None]:
    """Add the cosines of what the model reads meanwhile to ``sums`` (groups, layers)."""
    family = family_of(model)
    handles = []
    for number, layer in enumerate(layers_of(model, family)):
        seen: dict[str, Tensor] = {}
        norms = [
            nn.Identity() if family.norm_first else layer.get_submodule(name)
            for name in (family.attention_norm, family.mlp_norm)
        ]

        def enters(_: nn.Module, inputs: tuple[Any, ...], seen: dict[str, Tensor] = seen) -> None:
            seen["before"] = inputs[0]

        def between(_: nn.Module, inputs: tuple[Any, ...], seen: dict[str, Tensor] = seen) -> None:
            seen["between"] = inputs[0]

        def leaves(
            _: nn.Module,
            __: tuple[Any, ...],
            after: Tensor,
            seen: dict[str, Tensor] = seen,
            number: int = number,
            norms: list[nn.Module] = norms,
        ) -> None:
            attention_norm, mlp_norm = norms
            without = attention_norm(seen["before"])
            sums[0, number] += _cosines(without, seen["between"])
            sums[1, number] += _cosines(mlp_norm(seen["between"]), after)
            sums[2, number] += _cosines(mlp_norm(without), after)

        handles += [
            layer.register_forward_pre_hook(enters),
            layer.get_submodule(family.between).register_forward_pre_hook(between),
            layer.register_forward_hook(leaves),
        ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _cosines(x: Tensor, y: Tensor) -> Tensor:
    """Return the sum of the tokens' cosines, float64, on the CPU."""
    return F.cosine_similarity(x.float(), y.float(), dim=-1).double().sum().cpu()


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
