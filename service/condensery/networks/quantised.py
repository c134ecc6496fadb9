"""Linear layers whose weights have 16, 8 or 4 bits, on a CPU, where a token waits for its weights.

Of torch's kernels the fastest are taken, measured beside prepacked floats (docs/experiments.md).
In 8 bits that is oneDNN's product of integers, the inputs rounded to 8 bits as well, each row by
itself, so that no row depends on what else is in a step; where a CPU has AVX2 alone, a kernel of
ours, whose inputs have 16 bits. That one takes weights of 16 bits too, for who wants what floats
give, as bf16 is on other CPUs. In 4 bits it is a product of bf16 inputs, for few rows only; of more
it is slower than floats, and the same weights stand beside it as floats.

Source of rounding groups of weights: Dettmers and Zettlemoyer, arXiv:2212.09720, section 3; of
inputs row by row: Yao et al., arXiv:2206.01861, section 3.2.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from condensery.networks import native
from condensery.networks.linear import Activation, Dense, joined

Weights = Literal["float", "int8", "int4"]
# Of what reads many rows at a time.
EncoderWeights = Literal["float", "int16", "int8"]

# Of smaller matrices, reading less gains less than rounding inputs costs; and of bf16 there is less
# to gain, by torch's products.
SMALLEST = 1 << 18  # weights
SMALLEST_HALF = 1 << 20  # of bf16, to 8 bits
TINY = 1e-12  # least scale: rows of zeros have one too
SHORTEST = 1e-3  # least reach that is made use of: what hardly moved in a few texts may in others
GROUP = 32  # weights along a row that share a scale, in 4 bits
FEW = 4  # rows up to which 4 bits are faster than floats
ROWS = 16  # of weights, that torch packs together in 4 bits
PART = 512  # outputs rounded at a time
LARGEST = (1 << 31) - 1  # sum of products of codes
MOST_STEPS = (1 << 15) - 1  # of a code of 16 bits


def can_quantise(weights: Weights | EncoderWeights, device: torch.device) -> bool:
    """Tell whether weights of so few bits are fast on a device, and right.

    Without VNNI or AMX, torch adds products of 8 bits in 16, where sums may not fit: then they are
    multiplied by a kernel of ours, which is the only one for weights of 16.
    """
    if weights == "float":
        return True
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if weights == "int4":
        return torch.cpu._is_avx512_supported()
    integers = torch.cpu._is_vnni_supported() or torch.cpu._is_amx_tile_supported()
    return native.has_words() or (integers and weights == "int8")


def smallest(dtype: torch.dtype) -> int:
    """Return how many weights a matrix of a dtype has at least that is rounded to 8 bits here."""
    return SMALLEST_HALF if dtype == torch.bfloat16 and not native.has_ints() else SMALLEST


class Product(Protocol):
    """A kind of product with fewer bits a weight: ``Int16``, ``Int8`` or ``Int4``."""

    def __call__(self, weight: Tensor, bias: Tensor | None) -> nn.Module:
        """Make it of a matrix (out, in), and a bias (out,)."""
        ...

    def takes(self, weight: Tensor) -> bool:
        """Tell whether a matrix gains by it, and can be held so."""
        ...


@runtime_checkable
class Quantising(Protocol):
    """A module that multiplies by a matrix which is no linear layer of its own."""

    def quantise(self, product: Product) -> None:
        """Hold it as ``product(weight, bias)``, if it takes it."""
        ...


def quantise_linears(module: nn.Module, weights: Weights | EncoderWeights) -> int:
    """Replace the larger linear layers under ``module``; it can only infer afterwards.

    A ``quantise`` of a module's own is called as well.

    Args:
        module: On a CPU; its parts are replaced.
        weights: In "float" nothing is.

    Returns:
        How many linear layers were replaced.
    """
    if weights == "float":
        return 0
    product = product_of(weights)
    replaced = 0
    for parent in list(module.modules()):
        if isinstance(parent, Quantising):
            parent.quantise(product)
        for name, child in list(parent.named_children()):
            # Not subclasses: they may compute something else.
            if type(child) is nn.Linear and product.takes(child.weight):
                setattr(parent, name, product(child.weight, child.bias))
                replaced += 1
    return replaced


def product_of(
    weights: Literal["int16", "int8", "int4"],
) -> "type[Int16] | type[Int8] | type[Int4]":
    """Return the kind of product that holds such weights here; of 8 bits there are two."""
    if weights == "int4":
        return Int4
    if weights == "int16":
        return Int16
    return WideInt8 if native.has_words() else Int8


class RoundedProducts:
    """Makes an encoder's products in 8 or 16 bits.

    Args:
        weights: "int8" or "int16".
        reach: Of the inputs of linear layers, as ``watching`` noted it, or of some.
    """

    def __init__(
        self, weights: Literal["int16", "int8"], reach: Mapping[nn.Module, Tensor]
    ) -> None:
        self._weights = weights
        self._reach = reach

    def of(
        self, *linears: nn.Linear, activation: Activation = "none", fp32: bool = False
    ) -> nn.Module:
        """Round linear layers of one input, outputs side by side, whatever ``fp32`` says."""
        kind = product_of(self._weights)
        if issubclass(kind, Int16):
            return kind(*joined(linears), activation)
        return Int8(*joined(linears), activation, self._reach.get(linears[0]))


@contextmanager
def watching(reading: Mapping[nn.Module, nn.Linear]) -> Iterator[Mapping[nn.Module, Tensor]]:
    """Note how far the inputs of linear layers reach while this is open.

    Args:
        reading: The layers, each by a module whose first input is theirs.

    Yields:
        By layer, the largest size of each input so far, fp32, (in,).
    """
    reach: dict[nn.Module, Tensor] = {}

    def note(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        linear = reading[module]
        own = inputs[0].detach().float().flatten(0, -2).abs().amax(dim=0)
        reach[linear] = torch.maximum(reach[linear], own) if linear in reach else own

    with ExitStack() as stack:
        for module in reading:
            stack.callback(module.register_forward_pre_hook(note).remove)
        yield reach


class Int8(nn.Module):
    """``x Wᵀ + b``, both rounded to 8 bits: weights by output, inputs by row; for inference only.

    Args:
        weight: (out, in).
        bias: (out,), or None.
        activation: As ``Dense`` has it.
        reach: Of each input, its largest size as far as is known, (in,). Inputs that reach far lose
            some of it to their weights before both are rounded, so that the others of a row keep
            more steps (SmoothQuant, arXiv:2211.10438, equation 4).
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        activation: Activation = "none",
        reach: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.activation: Activation = activation
        self.form = "torch"
        if native.has_ints() and self.in_features % 4 == 0:
            self.form = "quads"
        exact, factors = weight.detach().float(), None
        if reach is not None:
            factors = (exact.abs().amax(dim=0).clamp_min(TINY) / reach.clamp_min(SHORTEST)).sqrt()
            exact = exact / factors
        self.factors = None if factors is None else nn.Buffer(factors)
        codes, scales = _round_outputs(exact)
        self.bias = None if bias is None else nn.Buffer(bias.detach().float())
        # A plain attribute: an opaque tensor has no state dict and can't be moved.
        if self.form == "quads":
            self.packed = native.pack_quads(codes)
            filler = -self.out_features % native.SPAN
            sums = 128 * codes.sum(dim=1, dtype=torch.int32)
            self.zeros = nn.Buffer(nn.functional.pad(sums, (0, filler)))
            self.scales = nn.Buffer(nn.functional.pad(scales / 127, (0, filler)))
            return
        self.packed = torch.ops.onednn.qlinear_prepack(codes, None)
        self.scales = nn.Buffer(scales)
        self.zeros = nn.Buffer(torch.zeros(self.out_features, dtype=torch.int32))

    @staticmethod
    def takes(weight: Tensor) -> bool:
        """Tell whether a matrix gains by it."""
        return weight.numel() >= smallest(weight.dtype)

    def forward(self, inputs: Tensor, residual: Tensor | None = None) -> Tensor:
        """Map ``inputs`` (..., in) to (..., out), in their dtype, as ``Dense`` does."""
        if self.form == "quads":
            rows = inputs.reshape(-1, self.in_features)
            more = None if residual is None else residual.reshape(-1, self.out_features)
            product = native.multiply_codes(
                *(rows, self.packed, self.scales, self.zeros, self.bias, self.out_features),
                factors=self.factors,
                gelu=self.activation == "gelu",
                residual=more,
            )
            return product.view(*inputs.shape[:-1], self.out_features)
        output = self._product(inputs)
        if self.activation == "gelu":
            return nn.functional.gelu(output)
        return output if residual is None else output + residual

    def _product(self, inputs: Tensor) -> Tensor:
        rows = inputs.reshape(-1, self.in_features)
        ours = native.takes(rows)
        if ours:
            codes, sizes = native.round_rows(rows, self.factors)
        else:
            whole = rows.float()
            codes, sizes = _round_rows(whole if self.factors is None else whole * self.factors)
        product = torch.ops.onednn.qlinear_pointwise(
            *(codes, 1 / 127, 128, self.packed, self.scales, self.zeros, None),
            *(1.0, 0, torch.float32, "none", [], ""),
        )
        if ours:
            output = native.scale_rows(product, sizes, self.bias, inputs.dtype)
        else:
            product *= sizes
            output = (product if self.bias is None else product + self.bias).to(inputs.dtype)
        return output.view(*inputs.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        """Show the sizes, as ``nn.Linear`` does."""
        return f"in_features={self.in_features}, out_features={self.out_features}"


class Int16(nn.Module):
    """``x Wᵀ + b``, both rounded to 16 bits at most: weights by output, inputs by row.

    For inference, where the CPU has AVX2 alone (``native.has_words``): there products of 16 bits,
    added up in pairs, take 0.7 of the time of floats. Sums have 32 bits, so that weights and inputs
    have as many steps as never overflow those, whatever the inputs are: of MiniLM's matrices with
    384 inputs some 5,000 on either side of 0, with 1,536 some 2,500. Weights that were rounded to 8
    bits before, as small models are stored, are held in those, and exactly.

    Args:
        weight: (out, in).
        bias: (out,), or None.
        activation: As ``Dense`` has it.

    Attributes:
        steps: Of inputs, on either side of 0; weights have as many, or 127.
    """

    form = "words"
    eight_bits = False  # whatever the weights are

    def __init__(
        self, weight: Tensor, bias: Tensor | None, activation: Activation = "none"
    ) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.activation: Activation = activation
        exact = weight.detach().float()
        # A sum is at most the steps of inputs times the sizes of an output's codes together, which
        # are those of its weights over its largest, times the steps of weights, and half a step
        # each for rounding.
        norm = torch.linalg.vector_norm
        together = norm(exact, 1, dim=1) / norm(exact, torch.inf, dim=1).clamp_min(TINY)
        spread = 1.001 * together.nan_to_num(self.in_features).max().item() + 1  # sums in fp32
        steps = 127
        if not self.eight_bits and not _was_rounded(exact):
            steps = min(math.isqrt(int(LARGEST / spread)), MOST_STEPS)
        codes, scales = _round_outputs(exact, steps)
        self.steps = min(int(LARGEST / (steps * spread + self.in_features / 2)), MOST_STEPS)
        self.bias = None if bias is None else nn.Buffer(bias.detach().float())
        self.packed = native.pack_words(codes)
        filler = -self.out_features % native.PANEL
        self.scales = nn.Buffer(nn.functional.pad(scales, (0, filler)))

    @staticmethod
    def takes(weight: Tensor) -> bool:
        """Tell whether a matrix gains by it."""
        return weight.numel() >= smallest(weight.dtype)

    def forward(self, inputs: Tensor, residual: Tensor | None = None) -> Tensor:
        """Map ``inputs`` (..., in) to (..., out), in their dtype, as ``Dense`` does."""
        product = native.multiply_words(
            *(inputs.float(), self.packed, self.scales, self.bias, self.out_features),
            steps=self.steps,
            gelu=self.activation == "gelu",
            residual=None if residual is None else residual.float(),
        )
        return product.to(inputs.dtype)

    def extra_repr(self) -> str:
        """Show the sizes, as ``nn.Linear`` does."""
        return f"in_features={self.in_features}, out_features={self.out_features}"


class WideInt8(Int16):
    """``Int16`` whose weights have 8 bits; what those leave of a sum's 32 is for inputs.

    In the place of ``Int8`` where the CPU has AVX2 alone.
    """

    eight_bits = True


def _round_outputs(weight: Tensor, steps: int = 127) -> tuple[Tensor, Tensor]:
    """Round a weight, (out, in), to codes of -steps to steps.

    By parts that stay in a core's cache: a word table as a whole would take fresh memory four
    times.

    Returns:
        The codes, in 8 bits if those do, else in 16, and what a code is worth, (out,).
    """
    dtype = torch.int8 if steps <= 127 else torch.int16
    codes = torch.empty(weight.shape, dtype=dtype, device=weight.device)
    scales = weight.new_empty(len(weight))
    parts = zip(weight.split(PART), codes.split(PART), scales.split(PART), strict=True)
    for part, own, scale in parts:
        scale.copy_(part.abs().amax(dim=1).clamp_min_(TINY).div_(steps))
        own.copy_((part / scale[:, None]).round_())
    return codes, scales


def _was_rounded(weight: Tensor) -> bool:
    """Tell whether codes of 8 bits are all there is to a weight: to a hundredth of a step."""
    for part in weight.split(PART):  # of most the first says it
        codes, scales = _round_outputs(part)
        if not bool(((part / scales[:, None] - codes).abs() <= 0.01).all()):
            return False
    return True


def _round_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Do what ``native.round_rows`` does, by torch; rows that hold a NaN have their size NaN."""
    sizes = rows.abs().amax(dim=1, keepdim=True).clamp_min_(TINY)
    # Unsigned, 128 for 0: oneDNN has no fast product of signed inputs.
    codes = (rows * (127 / sizes)).add_(128.5).to(torch.uint8)
    return codes, sizes.where(sizes.isfinite(), torch.nan)


class Int4(nn.Module):
    """``x Wᵀ + b``, weights rounded to 4 bits in groups along a row; for inference only.

    Args:
        weight: (out, in), where ``in`` is a multiple of ``GROUP``.
        bias: (out,), or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        exact = nn.functional.pad(weight.detach().float(), (0, 0, 0, -self.out_features % ROWS))
        groups = exact.view(len(exact), -1, GROUP)
        low, high = groups.amin(dim=2), groups.amax(dim=2)
        scales = ((high - low) / 15).clamp_min(TINY).bfloat16()
        middles = (low + 8 * scales.float()).bfloat16()
        steps = (groups - middles.float()[..., None]) / scales.float()[..., None]
        codes = (steps.round_() + 8).clamp_(0, 15).to(torch.int32)
        self.packed = nn.Buffer(
            torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.view_as(exact), 1)
        )
        self.scales = nn.Buffer(torch.stack([scales, middles], dim=2).transpose(0, 1).contiguous())
        self.bias = None if bias is None else nn.Buffer(bias.detach())
        restored = (codes - 8) * scales.float()[..., None] + middles.float()[..., None]
        whole = restored.view_as(exact)[: self.out_features].to(weight.dtype)
        self.many = Dense(whole, bias, fp32=True)

    @staticmethod
    def takes(weight: Tensor) -> bool:
        """Tell whether a matrix gains by it, and can be grouped."""
        return weight.numel() >= SMALLEST and weight.shape[1] % GROUP == 0

    def forward(self, inputs: Tensor) -> Tensor:
        """Map ``inputs`` (..., in) to (..., out), in their dtype."""
        rows = inputs.reshape(-1, self.in_features)
        if len(rows) > FEW:
            product: Tensor = self.many(inputs)
            return product
        product = torch.ops.aten._weight_int4pack_mm_for_cpu(
            rows.bfloat16(), self.packed, GROUP, self.scales
        )
        product = product[:, : self.out_features].to(inputs.dtype)
        if self.bias is not None:
            product = product + self.bias
        return product.reshape(*inputs.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        """Show the sizes, as ``nn.Linear`` does."""
        return f"in_features={self.in_features}, out_features={self.out_features}"
