"""Transformers without some of their sub-layers, and with narrower MLPs (EffiR, sections 4 and 5).

What is dropped is gone: from memory, from the file, from the forward pass. Layers keep their
numbers, so that the names of weights stay.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from condensery.networks.effir_shape import Pruning
from condensery.networks.sublayers import Family, family_of, layers_of, linears


class PrunedLayer(nn.Module):
    """A layer with its norms first, of which attention, MLP or both are gone.

    What is left keeps its module and its name, and so its weights theirs.

    Args:
        layer: transformers' layer.
        family: Its names.
        attention: Whether it keeps its attention.
        mlp: Whether it keeps its MLP.
    """

    def __init__(self, layer: nn.Module, family: Family, *, attention: bool, mlp: bool) -> None:
        super().__init__()
        kept = (*family.attention_parts * attention, *family.mlp_parts * mlp)
        for name in kept:
            self.add_module(name, layer.get_submodule(name))
        self._attention = (family.attention_norm, family.attention) if attention else None
        self._mlp = (family.mlp_norm, *family.mlp) if mlp else None
        if (kind := getattr(layer, "attention_type", None)) is not None:
            self.attention_type = kind  # ModernBERT chooses the layer's mask by it

    def forward(self, hidden_states: Tensor, **options: Any) -> Tensor:
        """Pass (batch, length, hidden) through what is left; the signature is the family's."""
        if self._attention is not None:
            norm, attention = map(self.get_submodule, self._attention)
            hidden_states = hidden_states + attention(norm(hidden_states), **options)[0]
        return hidden_states if self._mlp is None else self.feed(hidden_states, **options)

    def feed(self, hidden_states: Tensor, **options: Any) -> Tensor:
        """Add the MLP's part to (batch, length, hidden)."""
        assert self._mlp is not None
        norm, mlp = map(self.get_submodule, self._mlp)
        out: Tensor = hidden_states + mlp(norm(hidden_states))
        return out


class PrunedBertLayer(nn.Module):
    """A layer with its norms last, of which attention, MLP or both are gone; their norms stay.

    ``norm(x + F(x))`` becomes ``norm(x)``: the next sub-layer was trained to read what the norm's
    weights scale (docs/experiments.md has what taking them along costs).

    Args:
        layer: transformers' ``BertLayer``.
        family: Its names.
        attention: Whether it keeps its attention.
        mlp: Whether it keeps its MLP.
    """

    def __init__(self, layer: nn.Module, family: Family, *, attention: bool, mlp: bool) -> None:
        super().__init__()
        kept = (family.attention,) if attention else (family.attention_norm,)
        for name in (*kept, *(family.mlp if mlp else (family.mlp_norm,))):
            _hold(self, name, layer.get_submodule(name))
        self._norms = None if attention else family.attention_norm, None if mlp else family.mlp_norm

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        *unused: Any,
        **options: Any,
    ) -> Tensor:
        """Pass (batch, length, hidden) through what is left; the signature is ``BertLayer``'s."""
        attention_norm, mlp_norm = self._norms
        if attention_norm is None:
            attention = self.get_submodule("attention")
            hidden_states = attention(hidden_states, attention_mask, **options)[0]
        else:
            hidden_states = self.get_submodule(attention_norm)(hidden_states)
        if mlp_norm is None:
            inner = self.get_submodule("intermediate")(hidden_states)
            hidden_states = self.get_submodule("output")(inner, hidden_states)
        else:
            hidden_states = self.get_submodule(mlp_norm)(hidden_states)
        return hidden_states


def _hold(parent: nn.Module, name: str, module: nn.Module) -> None:
    """Add a module under a dotted name, with modules that only hold it in between."""
    *path, last = name.split(".")
    for step in path:
        if not hasattr(parent, step):
            parent.add_module(step, nn.Module())
        parent = parent.get_submodule(step)
    parent.add_module(last, module)


def prune(model: nn.Module, pruning: Pruning) -> None:
    """Drop a base model's sub-layers and narrow its MLPs, in place.

    Where widths differ from the modules', new modules without values stand in their place: for a
    model that is on ``meta`` still, or whose weights are loaded afterwards. ``slice_mlps`` keeps
    values.

    Raises:
        ValueError: The model is of no known family, or has other layers; named.
    """
    family = family_of(model)
    layers = layers_of(model, family)
    if len(layers) != pruning.layers:
        raise ValueError(f"num_hidden_layers: {pruning.layers}, but the model has {len(layers)}")
    kind = PrunedLayer if family.norm_first else PrunedBertLayer
    for number, layer in enumerate(layers):
        attention, mlp = number not in pruning.attention, number not in pruning.mlp
        if not (attention and mlp):
            layers[number] = kind(layer, family, attention=attention, mlp=mlp)
        if mlp and pruning.sizes is not None:
            _resize(layers[number], family, pruning.sizes[number])


def slice_mlps(model: nn.Module, kept: Sequence[Tensor | None]) -> None:
    """Keep only these neurons of each layer's MLP, in place.

    Args:
        model: A base model.
        kept: For each layer the neurons' numbers, (kept,), ascending; None keeps all of them.

    Raises:
        ValueError: A layer would have no neuron left, or has no MLP.
    """
    family = family_of(model)
    layers = layers_of(model, family)
    for number, (layer, neurons) in enumerate(zip(layers, kept, strict=True)):
        if neurons is None:
            continue
        if not len(neurons):
            raise ValueError(f"layer {number}: no neuron of its MLP is left; drop the MLP instead")
        (down,) = linears(layer, [family.down])
        whole = down.in_features
        rows = torch.cat([neurons + part * whole for part in range(family.halves)])
        for name, linear in zip(family.inner, linears(layer, family.inner), strict=True):
            bias = _bias(linear)
            _put(layer, name, linear.weight[rows], None if bias is None else bias[rows])
        _put(layer, family.down, down.weight[:, neurons], _bias(down))


def _resize(layer: nn.Module, family: Family, size: int) -> None:
    (down,) = linears(layer, [family.down])
    if down.in_features == size:
        return
    for name, linear in zip(family.inner, linears(layer, family.inner), strict=True):
        weight = linear.weight.new_empty(size * family.halves, linear.in_features)
        bias = _bias(linear)
        _put(layer, name, weight, None if bias is None else bias.new_empty(size * family.halves))
    _put(layer, family.down, down.weight.new_empty(down.out_features, size), _bias(down))


def _bias(linear: nn.Linear) -> Tensor | None:
    return cast("Tensor | None", linear.bias)


def _put(layer: nn.Module, name: str, weight: Tensor, bias: Tensor | None) -> None:
    """Put a linear module with these values in the place of another."""
    with torch.device("meta"):
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    linear.weight = nn.Parameter(weight.detach().contiguous(), requires_grad=weight.requires_grad)
    if bias is not None:
        linear.bias = nn.Parameter(bias.detach().contiguous(), requires_grad=bias.requires_grad)
    parent, _, own = name.rpartition(".")
    setattr(layer.get_submodule(parent), own, linear)
