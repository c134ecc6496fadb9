"""Kernels of our own (``native.c``), where they were built (``native_build``)."""

import ctypes
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from condensery.networks import native_build

if TYPE_CHECKING:
    from condensery.networks.caching import CachePositions

# As in the source: of a head, for single rows; keys and numbers, or outputs by AVX512, side by
# side; rows at a time; outputs side by side by AVX2.
MOST_SIZE, SPAN, TILE, PANEL = 512, 32, 6, 16
NARROW, PAIRS, FLOATS = range(3)  # kinds of products, as there
WORTH_THREADS = 1 << 18  # products of numbers; of fewer, waking a thread takes as long
FEW_THREADS = 2  # of torch, up to which one thread of ours is done sooner


class Kernels:
    """The library's functions; numbers and addresses in.

    Attributes:
        has_dots: Whether this machine has what ``attend_packed`` and ``multiply`` are written in,
            in bf16 (AVX512 with it).
        parallel: Where torch's OpenMP runs a function on several threads; None: nowhere.
        has_panels: Whether it has what they and ``multiply_words`` are written in, in fp32 (AVX2),
            and nothing wider.
        has_floats: Whether it has what ``multiply`` is written in, in fp32, for AVX512.
        has_ints: Whether it has what ``multiply_codes`` is written in (AVX512 with VNNI).

    Raises:
        OSError: It is for another machine.
    """

    def __init__(self, path: Path) -> None:
        loaded = ctypes.CDLL(str(path))
        whole, pointer = ctypes.c_int64, ctypes.c_void_p
        self.attend = loaded.condensery_attend
        self.attend.argtypes = (whole, *[pointer] * 6, *[whole] * 4, ctypes.c_float, pointer)
        self.round = loaded.condensery_round
        self.round.argtypes = (whole, *[pointer] * 4, *[whole] * 2)
        self.scale = loaded.condensery_scale
        self.scale.argtypes = (whole, *[pointer] * 4, *[whole] * 2)
        self.attend_packed = loaded.condensery_attend_packed
        self.attend_packed.argtypes = (
            *([whole] + [pointer] * 5 + [whole] * 5),
            *(pointer, ctypes.c_float, whole, pointer, whole),
        )
        self.rms_norm = loaded.condensery_rms_norm
        self.rms_norm.argtypes = (whole, *[pointer] * 3, *[whole] * 2, ctypes.c_float)
        self.rotate = loaded.condensery_rotate
        self.rotate.argtypes = (whole, *[pointer] * 8, *[whole] * 4)
        self.multiply = loaded.condensery_multiply
        self.multiply.argtypes = (whole, *[pointer] * 5, *[whole] * 5, pointer)
        self.multiply_words = loaded.condensery_multiply_words
        self.multiply_words.argtypes = (
            *([pointer] * 2 + [whole] + [pointer] * 4),
            *([whole] * 6 + [pointer] * 2),
        )
        self.multiply_codes = loaded.condensery_multiply_codes
        self.multiply_codes.argtypes = (whole, *[pointer] * 8, *[whole] * 5, *[pointer] * 2)
        for function in (
            *(self.attend, self.round, self.scale, self.attend_packed),
            *(self.rms_norm, self.rotate, self.multiply),
            *(self.multiply_codes, self.multiply_words),
        ):
            function.restype = None
        names = ("dots", "panels", "floats", "ints")
        told = [getattr(loaded, f"condensery_has_{name}") for name in names]
        for function in told:
            function.restype = whole
        self.has_dots, self.has_panels, self.has_floats, self.has_ints = (
            bool(function()) for function in told
        )
        # torch, once imported, makes it known to all.

        try:
            of_torch = ctypes.CDLL(None).GOMP_parallel
        except (AttributeError, OSError, TypeError):
            self.parallel = None
        else:
            self.parallel = ctypes.cast(of_torch, pointer).value


@cache
def kernels() -> Kernels | None:
    """Return the kernels; None where they were not built, or are for another machine."""
    path = native_build.library()
    if not path.exists():
        return None
    try:
        return Kernels(path)
    except OSError:
        return None


def takes(rows: Tensor) -> bool:
    """Tell whether the kernels are there and take such rows."""
    known = rows.dtype in (torch.float32, torch.bfloat16)
    return known and rows.device.type == "cpu" and kernels() is not None


def _in_parallel() -> Kernels | None:
    """Return the kernels if they have torch's threads: on one, products would lose to torch's."""
    loaded = kernels()
    return None if loaded is None or loaded.parallel is None else loaded


def has_panels(dtype: torch.dtype) -> bool:
    """Tell whether ``multiply`` is there, and the fastest that this CPU has in a dtype.

    Args:
        dtype: fp32 or bf16, of the inputs.
    """
    loaded = _in_parallel()
    if loaded is None:
        return False
    if dtype == torch.bfloat16:
        return loaded.has_dots and not torch.cpu._is_amx_tile_supported()
    return (loaded.has_panels or loaded.has_floats) and dtype == torch.float32


def has_words() -> bool:
    """Tell whether ``multiply_words`` is there, and faster than floats: with AVX2 alone."""
    loaded = _in_parallel()
    return loaded is not None and loaded.has_panels


def has_ints() -> bool:
    """Tell whether ``multiply_codes`` is there, and the fastest that this CPU has."""
    loaded = _in_parallel()
    return loaded is not None and loaded.has_ints and not torch.cpu._is_amx_tile_supported()


def pack_panels(weight: Tensor, side: int | None = None) -> Tensor:
    """Return a weight, (out, in), as ``multiply`` reads it, filled up with 0.

    Args:
        weight: fp32: (out / side, in, side). Or bf16, with an even number of inputs:
            (out / 32, in / 2, 32, 2).
        side: Of fp32: 32 outputs for AVX512, 16 for AVX2; None: what this CPU has.
    """
    half = weight.dtype == torch.bfloat16
    (outputs, inputs), loaded = weight.shape, kernels()
    if side is None:
        side = SPAN if half or (loaded is not None and loaded.has_floats) else PANEL
    missing = -outputs % side
    filled = F.pad(weight, (0, 0, 0, missing)) if missing else weight  # it would copy anyway
    if half:
        return filled.view(-1, side, inputs // 2, 2).transpose(1, 2).contiguous()
    return filled.view(-1, side, inputs).transpose(1, 2).contiguous()


def multiply(
    inputs: Tensor,
    panels: Tensor,
    bias: Tensor | None,
    outputs: int,
    *,
    gelu: bool = False,
    residual: Tensor | None = None,
) -> Tensor:
    """Return ``gelu(inputs weightᵀ + bias)``, or ``inputs weightᵀ + bias + residual``.

    As many threads compute it as torch's own; a row's numbers don't hang on what other rows there
    are.

    Args:
        inputs: (..., in), fp32 or bf16.
        panels: The weight, as ``pack_panels`` has it; bf16 for inputs that are.
        bias: (outputs,), fp32.
        outputs: So many.
        gelu: Whether the exact one (erf) follows; then there is no residual.
        residual: (..., outputs), as the inputs.
    """
    width = inputs.shape[-1]
    half = inputs.dtype == torch.bfloat16
    assert half or inputs.dtype == torch.float32
    assert inputs.device.type == "cpu"
    assert min(width, outputs) > 0
    assert panels.is_contiguous()
    assert bias is None or (bias.dtype == torch.float32 and bias.is_contiguous())
    assert bias is None or len(bias) == outputs
    side = panels.shape[2]
    assert side in (PANEL, SPAN)
    of_weight = (width // 2, SPAN, 2) if half else (width, side)
    assert panels.shape == (-(-outputs // side), *of_weight)
    assert panels.dtype == inputs.dtype
    assert not (half and width % 2)
    inputs = inputs.contiguous()
    output = inputs.new_empty((*inputs.shape[:-1], outputs))
    residual = _added(residual, output, gelu=gelu)
    loaded = kernels()
    assert loaded is not None
    rows = output.numel() // outputs
    threads = torch.get_num_threads() if rows * width * outputs > WORTH_THREADS else 1
    kind = PAIRS if half else FLOATS if side == SPAN else NARROW
    loaded.multiply(
        *(kind, inputs.data_ptr(), panels.data_ptr()),
        *(None if part is None else part.data_ptr() for part in (bias, residual)),
        *(output.data_ptr(), rows, width, outputs, gelu, threads, loaded.parallel),
    )
    return output


def _added(residual: Tensor | None, output: Tensor, *, gelu: bool) -> Tensor | None:
    """Check what is to be added to an output, which nothing can be after GELU."""
    if residual is None:
        return None
    assert not gelu
    assert residual.dtype == output.dtype
    assert residual.shape == output.shape
    return residual.contiguous()


def pack_words(codes: Tensor) -> Tensor:
    """Return a weight's signed codes, (out, in), as ``multiply_words`` reads them.

    Args:
        codes: Of 8 or 16 bits.

    Returns:
        (out / 16, in / 2, 16, 2), filled up with 0.
    """
    outputs, inputs = codes.shape
    filled = F.pad(codes, (0, inputs % 2, 0, -outputs % PANEL))
    return filled.view(-1, PANEL, (inputs + 1) // 2, 2).transpose(1, 2).contiguous()


def multiply_words(
    inputs: Tensor,
    words: Tensor,
    scales: Tensor,
    bias: Tensor | None,
    outputs: int,
    *,
    steps: int,
    gelu: bool = False,
    residual: Tensor | None = None,
) -> Tensor:
    """Do what ``multiply`` does, both rounded: inputs by row, weights by output.

    A row that holds a NaN or an infinity gets NaN.

    Args:
        inputs: (..., in), fp32.
        words: The weight's codes, as ``pack_words`` has them.
        scales: What a code of each output is worth, fp32, filled up with 0 as the words.
        bias: (outputs,), fp32, or None.
        outputs: So many.
        steps: The largest code of a row's inputs, on either side of 0, up to 2^15 - 1; times the
            sizes of any output's codes together it is less than 2^31.
        gelu: As there.
        residual: (..., outputs), fp32.
    """
    width = inputs.shape[-1]
    assert inputs.dtype == torch.float32
    assert inputs.device.type == "cpu"
    assert min(width, outputs) > 0
    assert words.shape == (-(-outputs // PANEL), (width + 1) // 2, PANEL, 2)
    assert words.dtype in (torch.int8, torch.int16)
    assert words.is_contiguous()
    for part, length in ((scales, len(words) * PANEL), (bias, outputs)):
        assert part is None or (part.dtype == torch.float32 and part.is_contiguous())
        assert part is None or len(part) == length
    assert 0 < steps < 1 << 15
    inputs = inputs.contiguous()
    output = inputs.new_empty((*inputs.shape[:-1], outputs))
    residual = _added(residual, output, gelu=gelu)
    rows = output.numel() // outputs
    room = torch.empty(rows * (1 + words.shape[1]), dtype=torch.int32)
    loaded = kernels()
    assert loaded is not None
    threads = torch.get_num_threads() if rows * width * outputs > WORTH_THREADS else 1
    loaded.multiply_words(
        *(inputs.data_ptr(), words.data_ptr(), words.element_size(), scales.data_ptr()),
        *(None if part is None else part.data_ptr() for part in (bias, residual)),
        *(output.data_ptr(), rows, width, outputs, gelu, steps, threads, loaded.parallel),
        room.data_ptr(),
    )
    return output


def pack_quads(codes: Tensor) -> Tensor:
    """Return a weight's signed codes of 8 bits, (out, in), as ``multiply_codes`` reads them.

    Args:
        codes: A multiple of four inputs.

    Returns:
        (out / 32, in / 4, 32, 4), filled up with 0.
    """
    outputs, inputs = codes.shape
    filled = F.pad(codes, (0, 0, 0, -outputs % SPAN))
    return filled.view(-1, SPAN, inputs // 4, 4).transpose(1, 2).contiguous()


def multiply_codes(
    rows: Tensor,
    quads: Tensor,
    scales: Tensor,
    zeros: Tensor,
    bias: Tensor | None,
    outputs: int,
    *,
    factors: Tensor | None = None,
    gelu: bool = False,
    residual: Tensor | None = None,
) -> Tensor:
    """Do what ``multiply`` does, both rounded to 8 bits: inputs by row, weights by output.

    A row that holds a NaN or an infinity gets NaN.

    Args:
        rows: (rows, in), fp32 or bf16.
        quads: The weight's codes, as ``pack_quads`` has them.
        scales: What a code of each output is worth, over 127, fp32, filled up with 0 as the quads.
        zeros: 128 times the sum of each output's codes, int32, filled up.
        bias: (outputs,), fp32, or None.
        outputs: So many.
        factors: As ``round_rows`` has them.
        gelu: As there.
        residual: (rows, outputs), as ``rows``.

    Returns:
        (rows, outputs), in the inputs' dtype.
    """
    count, width = rows.shape
    assert rows.dtype in (torch.float32, torch.bfloat16)
    assert rows.device.type == "cpu"
    assert min(width, outputs) > 0
    assert not width % 4
    assert quads.shape == (-(-outputs // SPAN), width // 4, SPAN, 4)
    assert quads.dtype == torch.int8
    assert quads.is_contiguous()
    assert len(scales) == len(zeros) == len(quads) * SPAN
    assert scales.dtype == torch.float32
    assert zeros.dtype == torch.int32
    assert scales.is_contiguous()
    assert zeros.is_contiguous()
    assert bias is None or (bias.dtype == torch.float32 and len(bias) == outputs)
    assert bias is None or bias.is_contiguous()
    rows = rows.contiguous()
    output = rows.new_empty(count, outputs)
    residual = _added(residual, output, gelu=gelu)
    room = torch.empty(count * (width + 4), dtype=torch.uint8)
    loaded = kernels()
    assert loaded is not None
    threads = torch.get_num_threads() if count * width * outputs > WORTH_THREADS else 1
    loaded.multiply_codes(
        *(rows.dtype == torch.bfloat16, rows.data_ptr(), _factors_at(factors, width)),
        *(quads.data_ptr(), scales.data_ptr()),
        *(
            zeros.data_ptr(),
            *(None if part is None else part.data_ptr() for part in (bias, residual)),
        ),
        *(output.data_ptr(), count, width, outputs, gelu, threads, loaded.parallel),
        room.data_ptr(),
    )
    return output


def can_attend(query: Tensor) -> bool:
    """Tell whether the kernel takes such rows, (rows, heads, size)."""
    return takes(query) and query.shape[2] <= MOST_SIZE


def can_attend_packed(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Tell whether ``attend_packed`` takes these."""
    loaded, (_, heads, size) = kernels(), query.shape
    shared = key.shape[1]
    if loaded is None:
        return False
    # By AVX2 where there is AVX512 too: of 120 tokens in 0.75 of torch's time, of 256 in the same.
    floats = loaded.has_panels or loaded.has_floats
    there = {torch.bfloat16: loaded.has_dots, torch.float32: floats}
    return (
        there.get(query.dtype, False)
        and size % SPAN == 0
        and heads % shared == 0
        and all(
            part.dtype == query.dtype
            and part.device.type == "cpu"
            and part.shape[1:] == (of, size)
            and part.stride()[1:] == (size, 1)
            for part, of in ((query, heads), (key, shared), (value, shared))
        )
        and not (torch.is_grad_enabled() and any(p.requires_grad for p in (query, key, value)))
        and torch.get_num_threads() <= FEW_THREADS
    )


def attend_packed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    ends: "CachePositions",
    *,
    scale: float,
    causal: bool,
    before: int = 0,
) -> Tensor:
    """Attend within sequences that lie end to end; returns (rows, heads, size), 0 at filler.

    Args:
        query: (rows, heads, size), as ``can_attend_packed`` has them.
        key: (rows, key heads, size); query head ``i`` reads key head ``i // (heads / key heads)``.
        value: As ``key``.
        ends: Row after each sequence's last, in order; what is behind the last is filler.
        scale: Of the scores.
        causal: Whether a row sees none behind it.
        before: Of one sequence alone: so many of its keys are before its first query.
    """
    rows, heads, size = query.shape
    assert len(key) == len(value) == before + rows
    assert not before or len(ends) == 1
    assert ends.dtype == np.int64
    assert ends.flags.c_contiguous
    # Once a layer: for one short query these lines took as long as a tenth of the layer.
    last = int(ends[-1])
    assert last <= rows
    output = query.new_empty(rows, heads, size)
    if last < rows:
        output[last:] = 0.0
    longest = last if len(ends) == 1 else max(int(ends[0]), int((ends[1:] - ends[:-1]).max()))
    longest = -(-(before + longest) // SPAN) * SPAN
    room = np.empty(longest * (size + TILE + TILE // 2), dtype=np.int32)
    strides = (ctypes.c_int64 * 3)(query.stride(0), key.stride(0), value.stride(0))
    loaded = kernels()
    assert loaded is not None
    loaded.attend_packed(
        *(
            query.dtype == torch.bfloat16,
            query.data_ptr(),
            key.data_ptr(),
            value.data_ptr(),
            output.data_ptr(),
        ),
        *(ends.ctypes.data, len(ends), before, heads, key.shape[1], size),
        *(ctypes.addressof(strides), scale, causal, room.ctypes.data, longest),
    )
    return output


def rms_norm(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return ``hidden / sqrt(mean(hidden²) + eps) · weight``.

    Args:
        hidden: (..., width), fp32 or bf16.
        weight: (width,), in the same dtype.
        eps: Added to the mean.
    """
    hidden = hidden.contiguous()
    output, width = torch.empty_like(hidden), hidden.shape[-1]
    loaded = kernels()
    assert loaded is not None
    assert weight.dtype == hidden.dtype
    assert weight.shape == (width,)
    assert weight.is_contiguous()
    loaded.rms_norm(
        *(hidden.dtype == torch.bfloat16, hidden.data_ptr(), weight.data_ptr()),
        *(output.data_ptr(), hidden.numel() // width, width, eps),
    )
    return output


def rotate(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cosine: Tensor,
    sine: Tensor,
    keys: Tensor,
    values: Tensor,
    places: Tensor,
) -> None:
    """Turn queries and keys by their positions, in place; put keys and values in a cache.

    Pairs of numbers that are turned together are half a head apart, as Llama has them. All are
    contiguous, in fp32 or all in bf16.

    Args:
        query: (rows, heads, size).
        key: (rows, key heads, size).
        value: As ``key``.
        cosine: Of each row's angles, (rows, size).
        sine: As ``cosine``.
        keys: The cache's, (positions, key heads, size).
        values: As ``keys``.
        places: Where each row belongs, (rows,), int64.
    """
    parts = (query, key, value, cosine, sine, keys, values)
    assert all(part.dtype == query.dtype and part.is_contiguous() for part in parts)
    rows, heads, size = query.shape
    assert cosine.shape == sine.shape == (rows, size)
    assert key.shape == value.shape == (rows, *keys.shape[1:])
    assert keys.shape == values.shape
    assert places.dtype == torch.int64
    assert places.shape == (rows,)
    assert places.is_contiguous()
    loaded = kernels()
    assert loaded is not None
    loaded.rotate(
        *(query.dtype == torch.bfloat16, *(part.data_ptr() for part in parts)),
        *(places.data_ptr(), rows, heads, key.shape[1], size),
    )


def _factors_at(factors: Tensor | None, width: int) -> int | None:

    if factors is None:
        return None
    assert factors.dtype == torch.float32
    assert factors.shape == (width,)
    assert factors.is_contiguous()
    return factors.data_ptr()


def round_rows(rows: Tensor, factors: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Round each row to 8 bits.

    Args:
        rows: (rows, width).
        factors: Of each input, before it is rounded, fp32, (width,).

    Returns:
        Codes of 1 to 255, 128 for 0, (rows, width), and the size of each row's largest, fp32,
        (rows, 1): NaN for a row that holds a NaN or an infinity.
    """
    count, width = rows.shape
    rows = rows.contiguous()
    codes = torch.empty(rows.shape, dtype=torch.uint8)
    sizes = torch.empty(count, 1, dtype=torch.float32)
    loaded = kernels()
    assert loaded is not None
    half = rows.dtype == torch.bfloat16
    loaded.round(
        *(half, rows.data_ptr(), _factors_at(factors, width)),
        *(codes.data_ptr(), sizes.data_ptr(), count, width),
    )
    return codes, sizes


def scale_rows(product: Tensor, sizes: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return ``product * sizes + bias`` in a dtype.

    Args:
        product: fp32, contiguous, (rows, width).
        sizes: fp32, (rows, 1).
        bias: fp32, (width,), or None.
        dtype: fp32 or bf16.
    """
    for part in (product, sizes, bias):
        assert part is None or (part.dtype == torch.float32 and part.is_contiguous())
    output = torch.empty(product.shape, dtype=dtype)
    loaded = kernels()
    assert loaded is not None
    loaded.scale(
        *(dtype == torch.bfloat16, product.data_ptr(), sizes.data_ptr()),
        *(None if bias is None else bias.data_ptr(), output.data_ptr(), *product.shape),
    )
    return output


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    places: "CachePositions",
    ends: "CachePositions",
    scale: float,
) -> Tensor:
    """Attend from each row to keys of its own; returns (rows, heads, size).

    Args:
        query: (rows, heads, size), fp32 or bf16.
        keys: Of the cache, contiguous, (positions, key heads, size), in the same dtype; query head
            ``i`` reads key head ``i // (heads / key heads)``.
        values: As ``keys``.
        places: Of each row's keys in the cache, row after row; no row is without.
        ends: Where in ``places`` each row's begin, and the end, (rows + 1,).
        scale: Of the scores.
    """
    rows, heads, size = query.shape
    query, output = query.contiguous(), torch.empty(query.shape, dtype=query.dtype)
    room = np.empty(heads * int(np.diff(ends).max()) + 2 * heads * size, dtype=np.float32)
    loaded = kernels()
    assert loaded is not None
    for part in (keys, values):
        assert part.dtype == query.dtype
        assert part.is_contiguous()
    for numbers in (places, ends):
        assert numbers.dtype == np.int64
        assert numbers.flags.c_contiguous
    loaded.attend(
        *(query.dtype == torch.bfloat16, query.data_ptr(), keys.data_ptr(), values.data_ptr()),
        *(output.data_ptr(), places.ctypes.data, ends.ctypes.data, rows, heads, keys.shape[1]),
        *(size, scale, room.ctypes.data),
    )
    return output
