"""LoRA adapters (arXiv:2106.09685), merged into the weights they adapt."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from condensery.networks.decoders import get_linear

DOWN, UP = ".lora_A", ".lora_B"  # (rank, in) and (out, rank)


@dataclass(slots=True)
class Adapters:
    """Adapters as they are read, by the name of the layer that each adapts."""

    down: dict[str, Tensor] = field(default_factory=dict)
    up: dict[str, Tensor] = field(default_factory=dict)

    def take(self, name: str, tensor: Tensor) -> bool:
        """Keep a tensor if its name is an adapter's; returns whether it is."""
        for end, factors in ((DOWN, self.down), (UP, self.up)):
            if name.endswith(end):
                factors[name.removesuffix(end)] = tensor
                return True
        return False

    @property
    def layers(self) -> frozenset[str]:
        """The layers adapted."""
        return frozenset(self.down) | frozenset(self.up)

    def problems(self, module: nn.Module) -> list[str]:
        """Say what keeps these from being merged into ``module``, a line a layer."""
        return [
            f"{layer}: {problem}"
            for layer in sorted(self.layers)
            if (problem := self._problem(layer, module))
        ]

    def _problem(self, layer: str, module: nn.Module) -> str | None:
        down, up, linear = self.down.get(layer), self.up.get(layer), get_linear(module, layer)
        if linear is None:
            return "there is no such linear layer"
        if down is None or up is None:
            return f"{DOWN if down is None else UP} is missing"
        out, into = linear.weight.shape
        rank = down.shape[0]
        if tuple(down.shape) != (rank, into) or tuple(up.shape) != (out, rank):
            return f"{tuple(down.shape)} and {tuple(up.shape)} don't adapt {(out, into)}"
        return None

    @torch.no_grad()
    def merge(self, module: nn.Module, scale: float) -> None:
        """Add ``scale * up @ down`` to each layer's weight in place, worked out in fp32."""
        for layer in self.layers:
            linear = get_linear(module, layer)
            assert linear is not None  # ``problems`` said so
            linear.weight.data.copy_(self.merged(layer, linear.weight, scale))

    def merged(self, layer: str, weight: Tensor, scale: float) -> Tensor:
        """Return ``weight + scale * up @ down`` of an adapted layer, in the weight's dtype."""
        up, down = (t.to(weight.device, torch.float32) for t in (self.up[layer], self.down[layer]))
        return (weight.float() + scale * (up @ down)).to(weight.dtype)
