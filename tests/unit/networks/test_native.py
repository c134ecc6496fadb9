import math
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from condensery.networks import native, native_build

built = pytest.mark.skipif(native.kernels() is None, reason="no compiler when it was installed")
DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in a worker."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@built
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [8, 64, 80, 128, 512])
@pytest.mark.parametrize(("heads", "shared"), [(6, 6), (8, 2), (7, 1)])
def test_attention_is_that_of_torch(dtype: torch.dtype, size: int, heads: int, shared: int) -> None:
    source = torch.Generator().manual_seed(size + heads)
    draws = np.random.default_rng(size)
    keys, values = (torch.randn(600, shared, size, generator=source).to(dtype) for _ in range(2))
    query = torch.randn(5, heads, size, generator=source).to(dtype)
    counts = [1, 2, 15, 100, 300]
    order = draws.permutation(600)
    # Anywhere in the cache; what is not theirs would show.
    mine = np.split(order[: sum(counts)], np.cumsum(counts)[:-1])
    keys[order[sum(counts) :]] = torch.nan
    ends = np.cumsum([0, *counts])
    got = native.attend(query, keys, values, np.concatenate(mine), ends, 0.2)
    assert got.dtype == dtype
    for row, places in enumerate(mine):
        wanted = F.scaled_dot_product_attention(
            query[row].float()[None, :, None],
            *(table[places].float().transpose(0, 1)[None] for table in (keys, values)),
            scale=0.2,
            enable_gqa=True,
        )[0, :, 0]
        atol, rtol = (1e-5, 2e-5) if dtype == torch.float32 else (1e-4, 2**-8)
        torch.testing.assert_close(got[row].float(), wanted, atol=atol, rtol=rtol)


@built
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_does_not_hang_on_others_and_one_with_a_nan_fails_alone(dtype: torch.dtype) -> None:
    keys, values = (torch.randn(64, 2, 16).to(dtype) for _ in range(2))
    query = torch.randn(3, 4, 16).to(dtype)
    keys[9] = torch.nan
    places, ends = np.array([0, 1, 2, 8, 9, 30]), np.array([0, 3, 5, 6])
    whole = native.attend(query, keys, values, places, ends, 1.0)
    alone = native.attend(query[:1], keys, values, places[:3], ends[:2], 1.0)
    assert torch.equal(whole[0], alone[0])
    assert whole[1].isnan().all()
    assert whole[2].isfinite().all()
    # Of one key alone its value, whatever the score; a score of any size overflows nothing.
    assert torch.equal(whole[2], values[30].repeat_interleave(2, dim=0))
    large = native.attend(1e4 * query[:1], keys, values, places[:3], ends[:2], 1.0)
    assert large.isfinite().all()


loaded = native.kernels()
narrow = loaded is not None and (loaded.has_panels or loaded.has_floats)  # AVX512 has AVX2 too
narrow_only = pytest.mark.skipif(not narrow, reason="no compiler when it was installed, or no AVX2")
wide = loaded is not None and loaded.has_floats
dots = loaded is not None and loaded.has_dots


def here(there: bool, needed: str, *values: object) -> Any:
    reason = f"no compiler when it was installed, or no {needed}"
    return pytest.param(*values, marks=pytest.mark.skipif(not there, reason=reason))


kinds = pytest.mark.parametrize(
    "dtype",
    [here(narrow, "AVX2", torch.float32), here(dots, "AVX512 with bf16", torch.bfloat16)],
)
products = pytest.mark.parametrize(
    ("dtype", "side"),
    [
        here(narrow, "AVX2", torch.float32, native.PANEL),
        here(wide, "AVX512", torch.float32, native.SPAN),
        here(dots, "AVX512 with bf16", torch.bfloat16, native.SPAN),
    ],
)
LENGTHS = [1, 5, 6, 7, 31, 32, 33, 64, 100, 130]


@kinds
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [32, 64, 96])
@pytest.mark.parametrize(("heads", "shared"), [(6, 6), (4, 2), (3, 1)])
def test_attention_of_packed_sequences_is_that_of_torch(
    dtype: torch.dtype, size: int, heads: int, shared: int, causal: bool
) -> None:
    source = torch.Generator().manual_seed(size + heads)
    whole = torch.randn(sum(LENGTHS) + 7, heads + 2 * shared, size, generator=source).to(dtype)
    whole[sum(LENGTHS) :] = torch.nan  # filler
    query, key, value = whole.split([heads, shared, shared], dim=1)
    assert native.can_attend_packed(query, key, value)
    got = native.attend_packed(query, key, value, np.cumsum(LENGTHS), scale=0.2, causal=causal)
    assert not got[sum(LENGTHS) :].any()
    parts = [part[: sum(LENGTHS)].float().split(LENGTHS) for part in (query, key, value)]
    for out, *rows in zip(got[: sum(LENGTHS)].float().split(LENGTHS), *parts, strict=True):
        wanted = F.scaled_dot_product_attention(
            *(part.transpose(0, 1)[None] for part in rows),
            scale=0.2,
            is_causal=causal,
            enable_gqa=True,
        )[0].transpose(0, 1)
        # Weights and outputs are rounded to bf16, each by at most 2^-9 of itself.
        rounding = 2**-8 if dtype == torch.bfloat16 else 1e-6
        reach = rows[2].abs().max() * rounding
        torch.testing.assert_close(out, wanted, atol=float(reach), rtol=10 * rounding)


@kinds
@pytest.mark.parametrize("before", [0, 1, 31, 200])
@pytest.mark.parametrize("count", [1, 6, 40])
def test_pieces_of_a_sequence_see_what_is_before_them(
    dtype: torch.dtype, before: int, count: int
) -> None:
    source = torch.Generator().manual_seed(before)
    query, key, value = (
        torch.randn(before + count, heads, 64, generator=source).to(dtype) for heads in (4, 2, 2)
    )
    ends = np.array([before + count])
    whole = native.attend_packed(query, key, value, ends, scale=0.1, causal=True)
    piece = native.attend_packed(
        query[before:], key, value, np.array([count]), scale=0.1, causal=True, before=before
    )
    assert torch.equal(piece, whole[before:])


@kinds
def test_a_sequence_with_a_nan_fails_alone_and_large_scores_overflow_nothing(
    dtype: torch.dtype,
) -> None:
    query, key, value = (torch.randn(90, 2, 32).to(dtype) for _ in range(3))
    key[35, 0, 3] = torch.nan
    query[:15] *= 1e4
    query[15:30] *= 1e9  # where a rounding of their product with the scale is no small number
    got = native.attend_packed(query, key, value, np.array([30, 60, 90]), scale=1.0, causal=False)
    assert got[:30].isfinite().all()
    assert got[30:60, 0].isnan().all()
    assert got[30:60, 1].isfinite().all()
    alone = native.attend_packed(
        query[60:], key[60:], value[60:], np.array([30]), scale=1.0, causal=False
    )
    assert torch.equal(got[60:], alone), "none hangs on its neighbours"


@kinds
def test_what_packed_attention_does_not_take_is_said(dtype: torch.dtype) -> None:
    good = torch.randn(8, 2, 32).to(dtype)
    assert native.can_attend_packed(good, good, good)
    for bad in (
        good.half(),
        torch.randn(8, 2, 16).to(dtype),
        good.transpose(1, 2).contiguous().transpose(1, 2),
        good.clone().requires_grad_(),
    ):
        assert not native.can_attend_packed(bad, good, bad)
    with torch.inference_mode():
        learnt = good.clone().requires_grad_()
        assert native.can_attend_packed(learnt, good, good)


@products
@pytest.mark.parametrize("width", [1, 2, 24, 384, 1536])
@pytest.mark.parametrize("outputs", [3, 16, 40, 384])
@pytest.mark.parametrize("rows", [0, 1, 4, 5, 6, 7, 8, 9, 12, 13, 25, 150])
def test_products_are_those_of_torch(
    dtype: torch.dtype, side: int, rows: int, outputs: int, width: int
) -> None:
    half = dtype == torch.bfloat16
    if half and width % 2:
        pytest.skip("pairs of inputs")
    source = torch.Generator().manual_seed(rows + outputs)
    inputs, weight, more = (
        torch.randn(*shape, generator=source).to(dtype)
        for shape in ((rows, width), (outputs, width), (rows, outputs))
    )
    bias = torch.randn(outputs, generator=source)
    # The order of sums differs, each to half a rounding of what was added up; bf16 is rounded to
    # 2^-9 of itself at the end, once, and its GELU is a shorter polynomial, to 4e-5.
    atol, rtol = 1e-6 + 4e-7 * width, 2**-8 if half else 1e-6
    packed = native.pack_panels(weight, side)
    plain = F.linear(inputs.double(), weight.double())
    for bent, offset, residual in (
        *((False, None, None), (False, bias, None), (False, bias, more)),
        *((True, bias, None), (True, None, None)),
    ):
        got = native.multiply(inputs, packed, offset, outputs, gelu=bent, residual=residual)
        assert got.dtype == dtype
        wanted = plain if offset is None else plain + offset
        wanted = F.gelu(wanted) if bent else wanted
        wanted = wanted if residual is None else wanted + residual
        nearly = atol + 4e-5 if half and bent else atol
        torch.testing.assert_close(got.double(), wanted, atol=nearly, rtol=rtol)


def words_of(
    weight: torch.Tensor, most: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """Return a weight's codes packed, a code's worth, the codes themselves, and inputs' steps."""
    worth = weight.abs().amax(1) / most
    codes = (weight / worth[:, None]).round()
    packed = native.pack_words(codes.to(torch.int8 if most < 128 else torch.int16))
    steps = min((2**31 - 1) // (most * weight.shape[1]), 2**15 - 1)
    filled = F.pad(worth, (0, -len(weight) % native.PANEL))
    return packed, filled, codes.double() * worth.double()[:, None], steps


@narrow_only
@pytest.mark.parametrize("most", [127, 1100])
@pytest.mark.parametrize("width", [1, 2, 33, 384, 1536])
@pytest.mark.parametrize("outputs", [3, 16, 40, 384])
@pytest.mark.parametrize("rows", [0, 1, 4, 5, 6, 7, 13, 25, 150])
def test_products_of_words_are_those_of_the_rounded_numbers(
    rows: int, outputs: int, width: int, most: int
) -> None:
    source = torch.Generator().manual_seed(rows + outputs)
    inputs, weight, more = (
        torch.randn(*shape, generator=source)
        for shape in ((rows, width), (outputs, width), (rows, outputs))
    )
    bias = torch.randn(outputs, generator=source)
    packed, scales, restored, steps = words_of(weight, most)
    worth = (inputs.abs().amax(1, keepdim=True) / steps) if rows else inputs
    plain = F.linear(torch.round(inputs.double() / worth) * worth.double(), restored)
    # A code on the edge may fall to either side in fp32: that is one step of one input.
    atol = 1e-6 * width + (worth.max().item() * weight.abs().max().item() if rows else 0)
    for bent, offset, residual in (
        *((False, None, None), (False, bias, None), (False, bias, more)),
        *((True, bias, None), (True, None, None)),
    ):
        got = native.multiply_words(
            *(inputs, packed, scales, offset, outputs),
            steps=steps,
            gelu=bent,
            residual=residual,
        )
        wanted = plain if offset is None else plain + offset
        wanted = F.gelu(wanted) if bent else wanted
        wanted = wanted if residual is None else wanted + residual
        torch.testing.assert_close(got.double(), wanted, atol=atol, rtol=1e-5)


@narrow_only
@pytest.mark.parametrize("width", [1, 384, 1536, 8960])
@pytest.mark.parametrize("most", [127, None])
def test_sums_of_words_overflow_nothing_where_all_are_the_largest(
    width: int, most: int | None
) -> None:
    most = most or min(math.isqrt((2**31 - 1) // width), 2**15 - 1)
    signs = torch.tensor([[1.0], [-1.0]])
    packed, scales, _, steps = words_of(signs.expand(2, width), most)
    got = native.multiply_words(signs.expand(2, width), packed, scales, None, 2, steps=steps)
    torch.testing.assert_close(got, width * signs * signs.T, rtol=1e-5, atol=0)


@narrow_only
@pytest.mark.parametrize("most", [127, 1100])
def test_a_row_of_words_does_not_hang_on_others_and_one_with_a_nan_fails_alone(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = torch.randn(1000, 384)
    inputs = torch.randn(200, 384) * torch.logspace(-3, 3, 200)[:, None]
    packed, scales, _, steps = words_of(weight, most)

    def product(some: torch.Tensor) -> torch.Tensor:
        return native.multiply_words(some, packed, scales, None, 1000, steps=steps)

    whole = product(inputs)
    for first, last in ((0, 1), (17, 22), (50, 200)):
        assert torch.equal(product(inputs[first:last]), whole[first:last])
    assert torch.equal(product(inputs.T.contiguous().T), whole), "of any layout"
    monkeypatch.setattr(native, "WORTH_THREADS", 0)
    for threads in (2, 3, 5):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        for rows in (13, 200):
            assert all(torch.equal(product(inputs[:rows]), whole[:rows]) for _ in range(10))
    inputs[3, 7], inputs[5, 0], inputs[8] = torch.nan, torch.inf, 0.0
    bad = product(inputs)
    assert bad[3].isnan().all()
    assert bad[5].isnan().all()
    assert not bad[8].any()
    assert torch.equal(bad[9:], whole[9:])


def test_weights_are_packed_for_what_the_cpu_has(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(40, 6)
    for floats, side in ((True, native.SPAN), (False, native.PANEL)):
        there = SimpleNamespace(has_floats=floats, has_panels=not floats, parallel=1)
        monkeypatch.setattr(native, "kernels", lambda there=there: there)
        packed = native.pack_panels(weight)
        assert packed.shape[1:] == (6, side)
        restored = packed.transpose(1, 2).reshape(-1, 6)
        assert torch.equal(restored[:40], weight)
        assert not restored[40:].any()
        assert native.has_panels(torch.float32)
        assert native.has_words() is not floats, "AVX2 and nothing wider"


@products
def test_a_product_takes_rows_of_any_layout_and_none_hangs_on_its_neighbours(
    dtype: torch.dtype,
    side: int,
) -> None:
    weight, bias = torch.randn(48, 32).to(dtype), torch.randn(48)
    packed = native.pack_panels(weight, side)
    inputs = torch.randn(32, 4, 5).to(dtype).transpose(0, 2)
    whole = native.multiply(inputs, packed, bias, 48, gelu=True)
    wanted = F.gelu(F.linear(inputs.float(), weight.float(), bias))
    # Both are rounded, perhaps to either side of a number in bf16.
    rtol = 2**-7 if dtype == torch.bfloat16 else 1e-5
    atol = 4e-5 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(whole, wanted.to(dtype), atol=atol, rtol=rtol)
    for place in range(5):
        alone = native.multiply(inputs[place, 1], packed, bias, 48, gelu=True)
        assert torch.equal(alone, whole[place, 1])
    inputs[2, 3, 7], inputs[4, 0, 0] = torch.nan, torch.inf
    bad = native.multiply(inputs, packed, bias, 48)
    assert bad[2, 3].isnan().all()
    assert bad[4, 0].isinf().all()
    assert torch.equal(native.multiply(inputs[:2], packed, bias, 48), bad[:2])


@products
@pytest.mark.parametrize(
    ("rows", "width", "outputs"), [(13, 384, 1000), (200, 384, 1000), (6, 2, 7)]
)
@pytest.mark.parametrize("threads", [2, 3, 5])
def test_products_of_several_threads_are_those_of_one(
    dtype: torch.dtype,
    side: int,
    rows: int,
    width: int,
    outputs: int,
    threads: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(native, "WORTH_THREADS", 0)
    inputs, weight, more = (
        torch.randn(shape).to(dtype) for shape in ((rows, width), (outputs, width), (rows, outputs))
    )
    packed = native.pack_panels(weight, side)
    alone = native.multiply(inputs, packed, None, outputs, residual=more)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    for _ in range(20):
        got = native.multiply(inputs, packed, None, outputs, residual=more)
        assert torch.equal(got, alone)


@products
def test_gelu_is_torchs_where_it_bends_and_far_from_there(dtype: torch.dtype, side: int) -> None:
    half = dtype == torch.bfloat16
    inputs = torch.cat([torch.linspace(-12, 12, 24_001), torch.tensor([-1e30, 1e30, torch.nan])])
    inputs = inputs.to(dtype)
    one = native.pack_panels(torch.tensor([[1.0, 0.0]]).to(dtype), side)
    got = native.multiply(F.pad(inputs[:, None], (0, 1)), one, None, 1, gelu=True)[:, 0]
    wanted = F.gelu(inputs.double())
    atol, rtol = (4e-5, 2**-8) if half else (1.2e-6, 1e-6)
    torch.testing.assert_close(got.double(), wanted, atol=atol, rtol=rtol, equal_nan=True)
    assert got[-3] == 0, "far out nothing is left"


@built
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [8, 20, 384])
def test_norms_are_those_of_torch(dtype: torch.dtype, width: int) -> None:
    source = torch.Generator().manual_seed(width)
    hidden = (5 * torch.randn(2, 7, width, generator=source)).to(dtype)
    hidden[0, 1], hidden[1, 2, 3] = 0.0, torch.nan
    weight = torch.randn(width, generator=source).to(dtype)
    got = native.rms_norm(hidden, weight, 1e-5)
    wanted = F.rms_norm(hidden.float(), (width,), weight.float(), 1e-5)
    assert got.dtype == dtype
    rtol = 1e-5 if dtype == torch.float32 else 2**-8
    torch.testing.assert_close(got.float(), wanted, atol=1e-6, rtol=rtol, equal_nan=True)
    assert got[1, 2].isnan().all()
    assert int(got.isnan().any(-1).sum()) == 1


@built
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [8, 64, 80])
def test_queries_and_keys_are_turned_as_transformers_does_and_cached(
    dtype: torch.dtype, size: int
) -> None:
    source = torch.Generator().manual_seed(size)
    query, key, value = (
        torch.randn(5, heads, size, generator=source).to(dtype) for heads in (4, 2, 2)
    )
    angles = torch.randn(5, size, generator=source)
    cosine, sine = angles.cos().to(dtype), angles.sin().to(dtype)
    wanted = apply_rotary_pos_emb(
        *(part.float() for part in (query, key, cosine, sine)), unsqueeze_dim=1
    )
    keys, values = (torch.full((32, 2, size), torch.nan, dtype=dtype) for _ in range(2))
    places = torch.tensor([30, 2, 9, 8, 0])
    before = value.clone()
    native.rotate(query, key, value, cosine, sine, keys, values, places)
    atol = 1e-5 if dtype == torch.float32 else 2**-6
    for got, right in zip((query, key), wanted, strict=True):
        torch.testing.assert_close(got.float(), right, atol=atol, rtol=2**-8)
    assert torch.equal(keys[places], key)
    assert torch.equal(values[places], before)
    left = torch.ones(32, dtype=torch.bool)
    left[places] = False
    assert keys[left].isnan().all(), "no other place is touched"


@built
def test_rows_are_rounded_and_scaled_by_their_largest() -> None:
    for dtype in DTYPES:
        rows = torch.tensor([[1.0, -2.0, 0.5, 2.0], [0.0, 0.0, 0.0, 0.0], [1.0, torch.inf, 0, 0]])
        codes, sizes = native.round_rows(rows.to(dtype))
        assert codes[0].tolist() == [128 + 64, 1, 128 + 32, 255]
        assert codes[1].tolist() == [128] * 4
        assert sizes[0].item() == 2
        assert sizes[2].isnan().all()
        product = torch.arange(8.0).reshape(2, 4)
        scaled = native.scale_rows(product, torch.tensor([[2.0], [0.5]]), torch.ones(4), dtype)
        assert scaled.dtype == dtype
        assert scaled.tolist() == [[1, 3, 5, 7], [3, 3.5, 4, 4.5]]
        assert (
            native.scale_rows(product, torch.ones(2, 1), None, dtype).tolist() == product.tolist()
        )


def copied(tmp_path: Path) -> Path:
    for path in (native_build.SOURCE, Path(native_build.__file__)):
        shutil.copy(path, tmp_path)
    return tmp_path / "native_build.py"


def run(script: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, str(script)],
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout.strip()


def test_it_is_built_once_and_anew_for_another_source(tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no compiler")
    script, source = copied(tmp_path), tmp_path / "native.c"
    source.write_text("int one(void) { return 1; }\n")  # the kernels themselves take 20 s
    assert run(script).endswith("was built by cc")
    (first,) = tmp_path.glob("native-*.so")
    assert run(script) == f"{first.name} is there"
    source.write_text("int two(void) { return 2; }\n")
    assert "was built" in run(script)
    (second,) = tmp_path.glob("native-*.so")
    assert second.name != first.name


def test_without_a_compiler_or_with_a_broken_one_it_says_so_and_goes_on(tmp_path: Path) -> None:
    script = copied(tmp_path)
    assert run(script, PATH=str(tmp_path)).startswith("no C compiler")
    assert run(script, CC="false").startswith("false failed, so no kernels were built")
    assert run(script, CC="/no/such/compiler").startswith("no kernels were built: ")
    assert not list(tmp_path.glob("native-*.so"))


def test_what_is_for_another_machine_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "native-0.so"
    broken.write_bytes(b"\x7fELF, but of nobody's")
    monkeypatch.setattr(native_build, "library", lambda: broken)
    native.kernels.cache_clear()
    try:
        assert native.kernels() is None
        assert not native.takes(torch.zeros(1, 1))
    finally:
        native.kernels.cache_clear()
