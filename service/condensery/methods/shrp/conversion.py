"""Layers that become experts one after the other, what balances them, and which are kept.

Source: SHRP, arXiv:2512.20635, sections 3.2 and 3.3.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from condensery.errors import InputError
from condensery.methods.shrp.recipe import Order
from condensery.networks.shrp import ExpertLayer, Experts, convert_layer, expert_family

EPSILON = 1e-7  # the paper's, added to both distributions


def choose_layers(count: int, layers: int, order: Order) -> tuple[int, ...]:
    """Choose which layers are converted, in the order in which they are.

    Args:
        count: How many.
        layers: How many there are.
        order: ``last``: from the last one back; ``first``: from the first one on; ``spread``:
            at even distances, the last of them first.

    Raises:
        InputError: There are not so many, or the order is none of those.
    """
    if not 1 <= count <= layers:
        raise InputError(
            f"convert: {count}: must be from 1 to the model's {layers} layers",
            field="convert",
            value=count,
        )
    if order not in get_args(Order):
        known = ", ".join(get_args(Order))
        raise InputError(f"order: {order!r} is none of {known}", field="order", value=order)
    if order == "first":
        return tuple(range(count))
    if order == "last":
        return tuple(range(layers - 1, layers - 1 - count, -1))
    return tuple(layers - 1 - number * layers // count for number in range(count))


class ConvertingLayer(nn.Module):
    """A plain layer, and the expert layer that takes its place.

    Both have the same queries, keys, values and outer norm, so that the experts begin with what
    the plain layer has learnt until then.

    Args:
        plain: transformers' layer.
        expert: As ``convert_layer`` makes it of the plain one.

    Attributes:
        converted: Which of the two runs.
    """

    def __init__(self, plain: Any, expert: ExpertLayer) -> None:
        super().__init__()
        own = plain.attention.self
        expert.attention.query, expert.attention.key = own.query, own.key
        expert.attention.value, expert.norm = own.value, plain.output.LayerNorm
        self.plain, self.expert = plain, expert
        self.converted = False

    def forward(self, hidden_states: Tensor, *args: Any, **options: Any) -> Any:
        """Pass (sequences, length, hidden) through the one that runs."""
        layer = self.expert if self.converted else self.plain
        return layer(hidden_states, *args, **options)


class Conversion:
    """The conversion of some layers of a model, in place.

    Args:
        model: A base model of the BERT family, plain.
        order: Layers, in the order in which they are converted.
        top_k: Experts that attend for a sequence while it is trained.
        straight_through: See ``ExpertLayer``.
        scale: Weight of an expander's norm when it is new.
        seed: Of the new weights.

    Attributes:
        order: As given.
        layers: Those layers, by their numbers.

    Raises:
        InputError: The model can't be converted so.
    """

    def __init__(
        self,
        model: nn.Module,
        order: Sequence[int],
        *,
        top_k: int = 1,
        straight_through: bool = True,
        scale: float = 1.0,
        seed: int = 0,
    ) -> None:
        self.order = tuple(order)
        self.layers: dict[int, ConvertingLayer] = {}
        heads = int(model.config.num_attention_heads)  # type: ignore[union-attr, arg-type]
        if not 1 <= top_k <= heads:
            raise InputError(
                f"top_k: {top_k}: must be from 1 to the model's {heads} heads",
                field="top_k",
                value=top_k,
            )
        torch.manual_seed(seed)
        try:
            self._list = expert_family(model)
            for number in order:
                plain = self._list[number]
                expert = convert_layer(model, number)
                expert.top_k, expert.straight_through = top_k, straight_through
                nn.init.constant_(expert.expander.norm.weight, scale)
                self.layers[number] = ConvertingLayer(plain, expert)
                self._list[number] = self.layers[number]
        except (ValueError, IndexError) as error:
            raise InputError(f"model: {error}", field="model") from error

    def convert(self, count: int) -> None:
        """Let the first ``count`` layers of the order run as experts, and the others plain."""
        for place, number in enumerate(self.order):
            self.layers[number].converted = place < count

    @property
    def running(self) -> dict[int, ExpertLayer]:
        """The expert layers that run, by their numbers."""
        return {n: layer.expert for n, layer in sorted(self.layers.items()) if layer.converted}

    def finish(self) -> None:
        """Leave the expert layers alone in the model."""
        for number, layer in self.layers.items():
            self._list[number] = layer.expert


def balance_loss(layers: Sequence[ExpertLayer]) -> Tensor:
    """Return how far from even the experts' use in a batch is, the mean over layers.

    ``KL(u || p) / 2 + KL(p || u) / 2`` summed over experts, where u is even and p the batch's mean
    of the gate's softmax; the mean rather than the choices, so that it has a gradient.

    Args:
        layers: Which have just run, with a gate each.
    """
    losses = []
    for layer in layers:
        assert layer.logits is not None
        used = layer.logits.float().softmax(-1).mean(0) + EPSILON
        even = torch.full_like(used, 1 / layer.experts) + EPSILON
        losses.append(
            F.kl_div(used.log(), even, reduction="sum") / 2
            + F.kl_div(even.log(), used, reduction="sum") / 2
        )
    return torch.stack(losses).mean()


@contextmanager
def counted(layers: Mapping[int, ExpertLayer]) -> Iterator[dict[int, Tensor]]:
    """Count which experts sequences are sent to meanwhile.

    Yields:
        By layer, how many sequences each expert attended for, (experts,), whole numbers.
    """
    counts = {number: torch.zeros(layer.experts).long() for number, layer in layers.items()}
    handles = []
    for number, layer in layers.items():

        def count(
            module: nn.Module, *_: Any, layer: ExpertLayer = layer, own: Tensor = counts[number]
        ) -> None:
            if layer.logits is not None:
                best = layer.logits.topk(layer.top_k).indices.flatten().cpu()
                own += torch.bincount(best, minlength=layer.experts)

        handles.append(layer.register_forward_hook(count))
    try:
        yield counts
    finally:
        for handle in handles:
            handle.remove()


def prune_experts(
    layers: Mapping[int, ExpertLayer], usage: Mapping[int, Tensor], keep: int, total: int
) -> Experts:
    """Keep each layer's most used experts, in place; of equally used ones the lowest number.

    Args:
        layers: All converted ones, with all their experts.
        usage: As ``counted`` has it.
        keep: How many stay of each.
        total: Layers of the model.

    Returns:
        What is left.

    Raises:
        InputError: There are not so many, or nothing was counted.
    """
    heads: list[tuple[int, ...] | None] = [None] * total
    for number, layer in layers.items():
        counts = usage[number]
        if not 1 <= keep <= layer.experts:
            raise InputError(
                f"keep: {keep}: must be from 1 to the layer's {layer.experts} experts",
                field="keep",
                value=keep,
            )
        if layer.gate is not None and not int(counts.sum()):
            raise InputError(f"validation: no text reached layer {number}", field="validation")
        ranked = counts.sort(descending=True, stable=True).indices[:keep]
        heads[number] = tuple(sorted(ranked.tolist()))
        layer.keep(heads[number])  # type: ignore[arg-type]  # just set
    return Experts(tuple(heads))


def used_experts(counts: Tensor) -> float:
    """Return how many experts are used in effect: exp of the entropy of their shares."""
    shares = counts.double() / counts.sum().clamp(min=1)
    return float(torch.special.entr(shares).sum().exp())
