"""Self-slimming: a gate on every MLP neuron says which neurons go (EffiR, section 5.1).

``MLP(x) = W_down (ReLU(z) * Act(W_gate x) * (W_up x))`` (equation 7), z starting as ones. Training
z with the retrieval loss and a sparsity term ranks all neurons of all layers together.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from condensery.errors import InputError
from condensery.networks.effir_shape import Pruning
from condensery.networks.sublayers import family_of, layers_of, linears

BETA = 5.0  # sharpness of the surrogate (appendix A.1)


class Gates(nn.Module):
    """A gate for every neuron of the MLPs that a model still has.

    Args:
        model: A base model of a known family; not changed.
        pruning: What it has left.

    Raises:
        ValueError: Its family is not known.
    """

    def __init__(self, model: nn.Module, pruning: Pruning) -> None:
        super().__init__()
        family = family_of(model)
        self.values = nn.ParameterDict()
        for number, layer in enumerate(layers_of(model, family)):
            if number not in pruning.mlp:
                (down,) = linears(layer, [family.down])
                ones = torch.ones(down.in_features, device=down.weight.device)
                self.values[str(number)] = nn.Parameter(ones)

    @contextmanager
    def on(self, model: nn.Module) -> Iterator[None]:
        """Multiply the neurons of ``model`` by their gates meanwhile; fp32, then its own dtype."""
        family = family_of(model)
        layers = layers_of(model, family)
        handles = []
        for number, gate in self.values.items():
            (down,) = linears(layers[int(number)], [family.down])

            def gated(_: nn.Module, given: tuple[Any, ...], gate: Tensor = gate) -> tuple[Tensor]:
                return (given[0] * torch.relu(gate).to(given[0].dtype),)

            handles.append(down.register_forward_pre_hook(gated))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def sparsity(self) -> Tensor:
        """Return the surrogate of how many gates are open: the sum of ``sigmoid(beta ReLU(z))``."""
        parts = [torch.sigmoid(BETA * torch.relu(gate)).sum() for gate in self.values.values()]
        return torch.stack(parts).sum()

    def kept(self, share: float, pruning: Pruning) -> tuple[Pruning, list[Tensor | None]]:
        """Choose which neurons stay when the share of lowest gates goes, over all layers at once.

        Of equal gates, as at 0, those of the lower layer and the lower number go first. A layer
        that loses all of its neurons loses its MLP.

        Args:
            share: Of all neurons, from 0 to below 1.
            pruning: What the model has left.

        Returns:
            What is then left, and each layer's neurons (kept,), ascending; None where the MLP is
            gone.

        Raises:
            InputError: The share is of no use, or a gate is not finite.
        """
        if not 0 <= share < 1:
            raise InputError(
                f"width={share}: must be from 0 to below 1", field="width", value=share
            )
        names = sorted(self.values, key=int)
        gates = [torch.relu(self.values[name].detach()).float().cpu() for name in names]
        flat = torch.cat(gates)
        if not torch.isfinite(flat).all():
            raise InputError("width: a gate is not finite: the slimming went wrong", field="width")
        gone = flat.argsort(stable=True)[: int(share * len(flat))]
        stays = torch.ones(len(flat), dtype=torch.bool)
        stays[gone] = False
        kept: list[Tensor | None] = [None] * pruning.layers
        for name, mask in zip(names, stays.split([len(gate) for gate in gates]), strict=True):
            neurons = mask.nonzero().flatten()
            kept[int(name)] = neurons if len(neurons) else None
        sizes = tuple(0 if neurons is None else len(neurons) for neurons in kept)
        mlp = tuple(layer for layer, size in enumerate(sizes) if not size)
        return Pruning(pruning.layers, pruning.attention, mlp, sizes), kept
