"""Linear layers that hold their weights in the layout the CPU's matrix unit reads.

oneDNN otherwise reorders a weight at every call: prepacking takes 8 to 13 % off MiniLM's forward
in bf16, and the activation and residual then cost no pass over memory of their own. In fp32 torch
multiplies by MKL, which is as fast on an Intel and takes 2.3 times as long on an AMD EPYC: which it
is here is tried. What reads few rows at a time gains anywhere.

Where a CPU has AVX2 or AVX512, fp32 is multiplied by a kernel of ours: few rows in 0.35 to 0.75 of
the time that MKL takes and half to 0.75 of oneDNN's, long lists in 0.75 to 0.9 and 0.8 to 1 (of
AMDs; no Intel was tried); and where it has AVX512 with bf16 but no AMX, bf16 is: few rows in half
to 0.7 of oneDNN's time, long lists in the same (docs/experiments.md).
"""

import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from condensery.networks import native

Activation = Literal["none", "gelu"]
# As torch has it, prepacked for oneDNN, or in panels for the kernel of ours.
Form = Literal["torch", "onednn", "panels"]
# Of a trial product: rows, inputs, outputs; how often; how much longer torch's own must take.
TRIAL, TRIALS, CLEARLY = (256, 384, 1536), 7, 1.2


def can_prepack(device: torch.device, dtype: torch.dtype, *, fp32: bool = False) -> bool:
    """Tell whether to prepack weights of this device and type.

    Args:
        device: Theirs.
        dtype: Theirs.
        fp32: Whether fp32 in any case, and not where ``fp32_gains`` says so.
    """
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32 and (fp32 or fp32_gains())


def form_of(weight: Tensor, *, fp32: bool = False) -> Form:
    """Return how to hold a weight, (out, in); ``fp32`` is as for ``can_prepack``."""
    device, dtype = weight.device, weight.dtype
    paired = dtype != torch.bfloat16 or weight.shape[1] % 2 == 0
    if device.type == "cpu" and paired and native.has_panels(dtype):
        return "panels"
    return "onednn" if can_prepack(device, dtype, fp32=fp32) else "torch"


@cache
def fp32_gains() -> bool:
    """Tell whether prepacked products in fp32 are clearly faster here than torch's own.

    Tried once a process, 10 to 40 ms. They cost that weights are copies, and no longer mapped from
    their file.
    """
    rows, inputs, outputs = TRIAL
    with torch.inference_mode(), torch.device("cpu"):
        some = torch.ones(rows, inputs, dtype=torch.float32)
        weight = torch.ones(outputs, inputs, dtype=torch.float32)
        packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        ops = torch.ops.mkldnn._linear_pointwise
        plain, prepacked = _least(
            lambda: F.linear(some, weight),
            lambda: ops.default(some, packed, None, "none", [], ""),
        )
    return plain > CLEARLY * prepacked


def _least(*products: Callable[[], Tensor]) -> list[float]:
    """Return the least seconds that each took, by turns: what others do makes some longer."""
    seconds: list[list[float]] = [[] for _ in products]
    for _ in range(TRIALS):
        for product, taken in zip(products, seconds, strict=True):
            began = time.perf_counter()
            product()
            taken.append(time.perf_counter() - began)
    return list(map(min, seconds))


@runtime_checkable
class Prepacking(Protocol):
    """A module that multiplies by a matrix which is no linear layer of its own."""

    def prepack(self, *, fp32: bool = False) -> None:
        """Prepack it, where there is such a form."""
        ...


def prepack_linears(module: nn.Module, *, fp32: bool = False) -> int:
    """Replace each ``nn.Linear`` under ``module`` by its prepacked form, where there is one.

    A ``prepack`` of a module's own is called as well. The whole can only infer afterwards:
    packed weights are no parameters.

    Args:
        module: Its parts are replaced.
        fp32: Whether those in fp32 are in any case (``can_prepack``).

    Returns:
        How many linear layers were replaced.
    """
    replaced = 0
    for parent in list(module.modules()):
        if isinstance(parent, Prepacking):
            parent.prepack(fp32=fp32)
        for name, child in list(parent.named_children()):
            # Not subclasses: they may compute something else.
            if type(child) is not nn.Linear:
                continue
            if form_of(child.weight, fp32=fp32) != "torch":
                setattr(parent, name, Dense.of(child, fp32=fp32))
                replaced += 1
    return replaced


class Products(Protocol):
    """What makes the products of a network's layers; ``Dense`` itself makes exact ones."""

    def of(
        self, *linears: nn.Linear, activation: Activation = "none", fp32: bool = False
    ) -> nn.Module:
        """Take over linear layers of one input, outputs side by side."""
        ...


def joined(linears: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """Return the weight and bias of linear layers side by side; all have a bias, or none."""
    if len(linears) == 1:
        return linears[0].weight, linears[0].bias
    weight = torch.cat([linear.weight for linear in linears])
    if linears[0].bias is None:
        return weight, None
    return weight, torch.cat([linear.bias for linear in linears])


class Dense(nn.Module):
    """``activation(x Wᵀ + b)``, or ``x Wᵀ + b + residual``; for inference only.

    Prepacked where ``form_of`` says so, plain torch elsewhere.

    Args:
        weight: (out, in).
        bias: (out,), or None.
        activation: What follows; "gelu" is the exact one (erf).
        fp32: Whether to prepack fp32 in any case (``can_prepack``).
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        activation: Activation = "none",
        *,
        fp32: bool = False,
    ) -> None:
        super().__init__()
        self.activation: Activation = activation
        self.out_features, self.in_features = weight.shape
        self.form = form_of(weight, fp32=fp32)
        weight = weight.detach()
        # Plain attributes where packed: an opaque tensor has no state dict and can't be moved.
        if self.form == "torch":
            self.weight = nn.Buffer(weight)
            self.bias = None if bias is None else nn.Buffer(bias.detach())
            return
        self.offset = None if bias is None else bias.detach().contiguous()
        if self.form == "onednn":
            self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
            return
        self.packed = native.pack_panels(weight)
        self.offset = None if self.offset is None else self.offset.float()

    @classmethod
    def of(
        cls, *linears: nn.Linear, activation: Activation = "none", fp32: bool = False
    ) -> "Dense":
        """Take over linear layers of one input, outputs side by side."""
        return cls(*joined(linears), activation, fp32=fp32)

    def forward(self, inputs: Tensor, residual: Tensor | None = None) -> Tensor:
        """Map ``inputs`` (..., in) to (..., out).

        Args:
            inputs: In the weights' dtype.
            residual: Added to the result, (..., out); only where the activation is "none".
        """
        assert residual is None or self.activation == "none"
        if self.form == "panels":
            gelu = self.activation == "gelu"
            return native.multiply(
                inputs, self.packed, self.offset, self.out_features, gelu=gelu, residual=residual
            )
        if self.form == "onednn":
            ops = torch.ops.mkldnn._linear_pointwise
            if residual is not None:
                output: Tensor = ops.binary(inputs, residual, self.packed, self.offset, "add")
            elif self.activation == "gelu":
                output = ops.default(inputs, self.packed, self.offset, "gelu", [], "none")
            else:
                output = ops.default(inputs, self.packed, self.offset, "none", [], "")
            return output
        output = F.linear(inputs, self.weight, self.bias)
        if self.activation == "gelu":
            return F.gelu(output)
        return output if residual is None else output + residual

    def extra_repr(self) -> str:
        """Show the sizes, as ``nn.Linear`` does."""
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, activation={self.activation}, form={self.form}"
