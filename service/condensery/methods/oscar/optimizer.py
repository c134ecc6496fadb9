"""AdamW over fp32 copies of bf16 weights.

Pure bf16 forward and backward passes were as good here as autocast, and faster; the update
itself needs more than bf16's 8 bits, so it happens on fp32 copies.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Group:
    """Parameters with a learning rate of their own."""

    parameters: Sequence[nn.Parameter]
    learning_rate: float
    weight_decay: float


class MasterAdamW:
    """AdamW on fp32 masters; ``step`` reads the gradients of the low-precision parameters."""

    def __init__(self, groups: Iterable[Group], betas: tuple[float, float] = (0.9, 0.98)) -> None:
        self._pairs: list[tuple[nn.Parameter, Tensor]] = []
        settings = []
        for group in groups:
            masters = [p.detach().float().clone() for p in group.parameters]
            self._pairs.extend(zip(group.parameters, masters, strict=True))
            settings.append(
                {"params": masters, "lr": group.learning_rate, "weight_decay": group.weight_decay}
            )
        self._adam = torch.optim.AdamW(settings, betas=betas, eps=1e-8)
        self._base = [group["lr"] for group in self._adam.param_groups]

    def step(self, scale: float, clip: float) -> float:
        """Update at ``scale`` times the learning rates; gradients are clipped and cleared.

        Returns:
            The gradient's norm before clipping.
        """
        for parameter, master in self._pairs:
            master.grad = None if parameter.grad is None else parameter.grad.float()
            parameter.grad = None
        norm = float(nn.utils.clip_grad_norm_([m for _, m in self._pairs], clip))
        for group, base in zip(self._adam.param_groups, self._base, strict=True):
            group["lr"] = base * scale
        self._adam.step()
        with torch.no_grad():
            for parameter, master in self._pairs:
                parameter.copy_(master)
        return norm

    def masters(self) -> list[Tensor]:
        """Return the fp32 weights, in the order of the groups' parameters."""
        return [master for _, master in self._pairs]

    def state(self) -> dict[str, Tensor]:
        """Return all state as flat tensors, for a checkpoint."""
        flat = {}
        for i, master in enumerate(self.masters()):
            flat[f"{i}.master"] = master
            for name, value in self._adam.state.get(master, {}).items():
                flat[f"{i}.{name}"] = value
        return flat

    def load_state(self, flat: dict[str, Tensor]) -> None:
        """Restore what ``state`` gave; parameters follow their masters."""
        with torch.no_grad():
            for i, (parameter, master) in enumerate(self._pairs):
                master.copy_(flat[f"{i}.master"])
                parameter.copy_(master)
                kept = {
                    name: flat[f"{i}.{name}"].clone()
                    for name in ("step", "exp_avg", "exp_avg_sq")
                    if f"{i}.{name}" in flat
                }
                if kept:
                    self._adam.state[master] = kept
