"""AdamW over fp32 copies of bf16 weights.

Pure bf16 forward and backward passes were as good here as autocast, and faster; the update
itself needs more than bf16's 8 bits, so it happens on fp32 copies. So do the sums of gradients
over several batches, and over several processes.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

MOMENTS = ("step", "exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True)
class Group:
    """Parameters with a learning rate of their own."""

    parameters: Sequence[nn.Parameter]
    learning_rate: float
    weight_decay: float


def split_groups(
    module: nn.Module, rate: float | Callable[[str], float], weight_decay: float
) -> list[Group]:
    """Group the parameters that learn by learning rate; of each, matrices decay and the rest not.

    Args:
        module: Parameters that need no gradient are left out; tied ones count once.
        rate: One for all, or that of the parameter of a name.
        weight_decay: Of the matrices.
    """
    chosen: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            learning_rate = rate(name) if callable(rate) else rate
            chosen.setdefault((learning_rate, parameter.ndim > 1), []).append(parameter)
    return [
        Group(parameters, learning_rate, weight_decay if matrix else 0.0)
        for (learning_rate, matrix), parameters in chosen.items()
    ]


class MasterAdamW:
    """AdamW on fp32 masters of parameters in any precision.

    Each batch: ``gather``, after its backward pass. Each step: ``step``.
    """

    def __init__(self, groups: Iterable[Group], betas: tuple[float, float] = (0.9, 0.98)) -> None:
        self._pairs: list[tuple[nn.Parameter, Tensor]] = []
        settings = []
        for group in groups:
            masters = [p.detach().float().clone() for p in group.parameters]
            self._pairs.extend(zip(group.parameters, masters, strict=True))
            settings.append(
                {"params": masters, "lr": group.learning_rate, "weight_decay": group.weight_decay}
            )
        # Fused: one pass over weights and moments; a sixth of the time on a CPU.
        self._adam = torch.optim.AdamW(settings, betas=betas, eps=1e-8, fused=True)
        self._base = [group["lr"] for group in self._adam.param_groups]

    def gather(self) -> None:
        """Add the parameters' gradients to their masters', in fp32, and clear them."""
        for parameter, master in self._pairs:
            if parameter.grad is not None:
                if master.grad is None:
                    master.grad = parameter.grad.float()
                else:
                    master.grad += parameter.grad
            parameter.grad = None

    def step(self, scale: float, clip: float) -> float:
        """Update at ``scale`` times the learning rates; gradients are clipped and cleared.

        Nothing is updated when the gradient is not finite.

        Returns:
            The gradient's norm before clipping.
        """
        self.gather()
        norm = float(nn.utils.clip_grad_norm_(self.masters(), clip))
        if math.isfinite(norm):
            for group, base in zip(self._adam.param_groups, self._base, strict=True):
                group["lr"] = base * scale
            self._adam.step()
        with torch.no_grad():
            for parameter, master in self._pairs:
                master.grad = None
                parameter.copy_(master)
        return norm

    def masters(self) -> list[Tensor]:
        """Return the fp32 weights, in the order of the groups' parameters."""
        return [master for _, master in self._pairs]

    def rates(self) -> list[float]:
        """Return each group's learning rate at scale 1."""
        return list(self._base)

    def state(self) -> dict[str, Tensor]:
        """Return all state as flat tensors, for a checkpoint."""
        flat = {}
        for i, master in enumerate(self.masters()):
            flat[f"{i}.master"] = master
            for name, value in self._adam.state.get(master, {}).items():
                flat[f"{i}.{name}"] = value
        return flat

    def load_state(self, flat: dict[str, Tensor]) -> None:
        """Restore what ``state`` gave; parameters follow their masters.

        Raises:
            ValueError: It is the state of other parameters: more, fewer, or of other sizes.
        """
        sizes = [(f"{i}.master", m.shape) for i, m in enumerate(self.masters())]
        for name, shape in sizes:
            saved = tuple(flat[name].shape) if name in flat else None
            if saved != tuple(shape):
                raise ValueError(f"{name}: size {saved} where {tuple(shape)} is trained")
        if f"{len(sizes)}.master" in flat:
            raise ValueError(f"{len(sizes)}.master: more weights than are trained")
        with torch.no_grad():
            for i, (parameter, master) in enumerate(self._pairs):
                master.copy_(flat[f"{i}.master"])
                parameter.copy_(master)
                state = {n: flat[f"{i}.{n}"].clone() for n in MOMENTS if f"{i}.{n}" in flat}
                if state:
                    self._adam.state[master] = {n: t.to(master.device) for n, t in state.items()}
