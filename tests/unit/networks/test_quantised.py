from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import nn

from condensery.networks import native, quantised
from condensery.networks.linear import Dense, form_of
from condensery.networks.quantised import (
    FEW,
    GROUP,
    Int4,
    Int8,
    Int16,
    WideInt8,
    can_quantise,
    product_of,
    quantise_linears,
)

CPU = torch.device("cpu")
OUT, IN = 1032, 1024  # no multiple of what torch packs together
eight_bits: Any = product_of("int8")  # what holds them on this CPU
int8 = pytest.mark.usefixtures("fast_int8")
int16 = pytest.mark.skipif(not can_quantise("int16", CPU), reason="no products of words")
int4 = pytest.mark.skipif(not can_quantise("int4", CPU), reason="no AVX512")
DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture
def fast_int8(kernels: str) -> None:
    if not can_quantise("int8", CPU):
        pytest.skip(f"no VNNI or AMX; AVX2 needs kernels of ours, and these are of {kernels}")


def linear(bias: bool = True, dtype: torch.dtype = torch.float32) -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(IN, OUT, bias=bias).to(dtype)


def rows(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    source = torch.Generator().manual_seed(count)
    # Rows of other sizes, as hidden states have them.
    return (torch.randn(count, IN, generator=source) * torch.logspace(-2, 2, count)[:, None]).to(
        dtype
    )


def rounded_product(layer: nn.Linear, inputs: torch.Tensor, steps: int = 127) -> np.ndarray:
    """By the formula, in double precision: a scale an output and a row.

    Codes are -127 to 127, those of inputs -steps to steps.
    """
    weight, rows = layer.weight.double().detach().numpy(), inputs.double().numpy()
    by_output = np.abs(weight).max(1, keepdims=True) / 127
    by_row = np.abs(rows).max(1, keepdims=True) / steps
    rows = np.floor(rows / by_row + 0.5) * by_row
    bias = 0 if layer.bias is None else layer.bias.double().detach().numpy()
    return (rows @ np.rint(weight / by_output).T) * by_output.T + bias


@int8
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("count", [1, 2, 16, 100])
def test_8_bits_give_what_the_formula_gives(count: int, bias: bool) -> None:
    layer, inputs = linear(bias), rows(count)
    with torch.inference_mode():
        product = eight_bits(layer.weight, layer.bias)
        got = product(inputs).double().numpy()
        exact = layer(inputs).double().numpy()
    wanted = rounded_product(layer, inputs, getattr(product, "steps", 127))
    size = np.abs(wanted).max(1, keepdims=True)
    # A code on the edge may fall to either side in fp32: one of 127 steps of one input.
    assert (np.abs(got - wanted) / size).max() < 2e-3
    assert np.median(np.abs(got - wanted) / size) < 1e-6
    assert (np.linalg.norm(got - exact, axis=1) / np.linalg.norm(exact, axis=1)).max() < 0.02


@int8
@pytest.mark.parametrize("dtype", DTYPES)
def test_8_bits_of_a_row_do_not_hang_on_what_stands_beside_it(dtype: torch.dtype) -> None:
    layer = linear(dtype=dtype)
    product, inputs = eight_bits(layer.weight, layer.bias), rows(40, dtype)
    with torch.inference_mode():
        whole = product(inputs)
        assert whole.dtype == dtype
        for row in (0, 17, 39):
            assert torch.equal(product(inputs[row : row + 1])[0], whole[row])
        assert torch.equal(product(inputs[None])[0], whole)


@int8
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 12, 13, 30])
def test_8_bits_are_followed_by_a_sum_or_by_gelu(dtype: torch.dtype, count: int) -> None:
    layer = linear(dtype=dtype)
    product, inputs = eight_bits(layer.weight, layer.bias), rows(count, dtype)
    more = torch.randn(count, OUT).to(dtype)
    half = dtype == torch.bfloat16
    rounding = {"atol": 1e-3 if half else 1e-5, "rtol": 2**-6 if half else 1e-5}
    with torch.inference_mode():
        plain = product(inputs).float()
        got = product(inputs[None], more[None])[0].float()
        assert (
            (got - plain - more.float()).abs() <= 2**-7 * (plain.abs() + more.abs()) + 1e-4
        ).all()
        bent = eight_bits(layer.weight, layer.bias, "gelu")(inputs)
        assert bent.dtype == dtype
        torch.testing.assert_close(bent.float(), nn.functional.gelu(plain), **rounding)


@int8
@pytest.mark.parametrize("outputs", [1, 16, 31, 33, 64, 100])
@pytest.mark.parametrize("inputs", [4, 36, 37])
def test_8_bits_of_any_shape(outputs: int, inputs: int) -> None:
    layer = nn.Linear(inputs, outputs)
    some = torch.randn(14, inputs)
    with torch.inference_mode():
        got, wanted = eight_bits(layer.weight, layer.bias)(some), layer(some)
        assert eight_bits(layer.weight, None)(some).shape == wanted.shape
    torch.testing.assert_close(got, wanted, atol=0.05, rtol=0.05)


@int8
@pytest.mark.parametrize("count", [1, 40])
def test_8_bits_by_several_threads_are_those_of_one(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "WORTH_THREADS", 0)
    layer, inputs = linear(), rows(count)
    product = eight_bits(layer.weight, layer.bias)
    with torch.inference_mode():
        alone = product(inputs)
        monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
        assert all(torch.equal(product(inputs), alone) for _ in range(20))


@int8
def test_a_row_of_nan_fails_alone_and_one_of_zeros_is_the_bias() -> None:
    layer, inputs = linear(), rows(4)
    inputs[1], inputs[2], inputs[3] = torch.nan, torch.inf, 0
    with torch.inference_mode():
        got = eight_bits(layer.weight, layer.bias)(inputs)
    assert got[0].isfinite().all()
    assert not got[1].isfinite().any()
    assert not got[2].isfinite().any()
    torch.testing.assert_close(got[3], layer.bias.detach())


@int16
@pytest.mark.parametrize("inputs", [8, 384, 1536, 14336])
def test_16_bits_lose_less_than_bf16_does(inputs: int) -> None:
    """Of rows that hold numbers twenty times as large as the others, as behind MiniLM's norms."""
    torch.manual_seed(inputs)
    layer, some = nn.Linear(inputs, 96), torch.randn(50, inputs)
    some[:, 3] *= 20
    with torch.inference_mode():
        layer.weight.normal_(std=0.05)
        exact = layer(some)
        rounded = Int16(layer.weight, layer.bias)(some)
        halved = nn.functional.linear(
            some.bfloat16().float(), layer.weight.bfloat16().float(), layer.bias
        )
        assert Int16(layer.weight, None)(some.bfloat16()).dtype == torch.bfloat16
    # A step is a share of the largest, and not of each number: of many inputs there are fewer.
    assert (rounded - exact).norm() < (1 if inputs < 2000 else 4) * (halved - exact).norm()
    assert not torch.equal(rounded, exact)


@int16
@pytest.mark.parametrize("kind", [Int16, WideInt8])
@pytest.mark.parametrize("inputs", [100, 384, 1536])
def test_there_are_as_many_steps_as_sums_of_32_bits_have_room_for(
    inputs: int, kind: type[Int16]
) -> None:
    torch.manual_seed(inputs)
    weight = torch.randn(64, inputs)
    product = kind(weight, None)
    codes = product.packed.transpose(1, 2).reshape(64, -1).long()
    largest = codes.abs().sum(1).max().item() * product.steps
    assert largest < 2**31
    assert product.steps == 2**15 - 1 or largest > 0.97 * 2**31
    wanted = 127 if kind is WideInt8 else pytest.approx(product.steps, rel=0.01)
    assert codes.abs().max() == wanted
    assert product.packed.dtype == (torch.int8 if kind is WideInt8 else torch.int16)


@int16
def test_weights_that_were_rounded_to_8_bits_before_are_held_in_those_exactly() -> None:
    torch.manual_seed(3)
    codes = torch.randint(-127, 128, (96, 384)).float()
    codes[:, 5] = 127
    weight, some = codes * torch.rand(96, 1), torch.randn(40, 384)
    with torch.inference_mode():
        product = Int16(weight, None)
        got, wanted = product(some).double(), nn.functional.linear(some.double(), weight.double())
        assert product.packed.dtype == torch.int8
        assert (got - wanted).norm() < 1e-4 * wanted.norm()
        weight[50, 7] += 0.3 * weight[50, 5] / 127
        assert Int16(weight, None).packed.dtype == torch.int16


@int16
@pytest.mark.parametrize("kind", [Int16, WideInt8])
@pytest.mark.parametrize("inputs", [1, 7, 384, 8960])
def test_sums_overflow_nothing_where_all_numbers_are_the_largest(
    kind: type[Int16], inputs: int
) -> None:
    signs = torch.tensor([[1.0], [-1.0]])
    layer = nn.Linear(inputs, 3, bias=False)
    with torch.inference_mode():
        layer.weight[:2] = signs
        for most in (1.0, 1e-6, 1e20):
            got = kind(layer.weight, None)(most * signs.expand(2, inputs))[:, :2]
            torch.testing.assert_close(got, most * inputs * signs * signs.T, rtol=1e-4, atol=0)
        layer.weight.zero_()
        assert not kind(layer.weight, None)(signs.expand(2, inputs)).any()


@int16
def test_16_bits_are_followed_by_a_sum_or_by_gelu() -> None:
    layer, inputs, more = linear(), rows(13), torch.randn(13, OUT)
    with torch.inference_mode():
        plain = Int16(layer.weight, layer.bias)(inputs)
        got = Int16(layer.weight, layer.bias)(inputs[None], more[None])[0]
        bent = Int16(layer.weight, layer.bias, "gelu")(inputs)
    torch.testing.assert_close(got, plain + more, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(bent, nn.functional.gelu(plain), rtol=1e-5, atol=1e-5)


@int4
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [True, False])
def test_4_bits_are_the_same_weights_for_few_rows_and_for_many(
    dtype: torch.dtype, bias: bool
) -> None:
    layer, inputs = linear(bias, dtype), rows(FEW + 1, dtype)
    product = Int4(layer.weight, layer.bias)
    with torch.inference_mode():
        many, few = product(inputs).float(), product(inputs[:FEW]).float()
        exact = nn.functional.linear(inputs.float(), layer.weight.float())
    assert product(inputs[:FEW]).dtype == dtype
    assert few.shape == (FEW, OUT)
    size = exact.abs().amax(1, keepdim=True)
    assert ((few - many[:FEW]).abs() / size[:FEW]).max() < 0.02, "rounding to bf16"
    lost = (many - exact - (layer.bias.float() if bias else 0)).norm(dim=1) / exact.norm(dim=1)
    assert 0.02 < lost.max() < 0.15, "16 steps a group"


@int4
def test_4_bits_round_each_group_to_16_steps_between_its_bounds() -> None:
    layer = linear(False)
    whole = Int4(layer.weight, None).many
    with torch.inference_mode():
        restored = whole(torch.eye(IN)).T  # (out, in)
    groups = restored.reshape(OUT, -1, GROUP)
    assert max(len(group.unique()) for group in groups[:20].reshape(-1, GROUP)) <= 16
    wanted = layer.weight.detach().view_as(groups)
    step = (wanted.amax(2) - wanted.amin(2)) / 15
    assert ((groups - wanted).abs().amax(2) <= 0.6 * step + 1e-4).all(), "bf16 scales and middles"


@pytest.mark.parametrize(
    ("weights", "kind"), [("int16", Int16), ("int8", eight_bits), ("int4", Int4)]
)
def test_large_layers_are_replaced_and_others_stay(
    weights: Literal["int16", "int8", "int4"], kind: type[nn.Module]
) -> None:
    if not can_quantise(weights, CPU):
        pytest.skip("not on this CPU")

    class Headed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.large, self.small = nn.Linear(IN, OUT), nn.Linear(32, 32)
            self.table = torch.randn(OUT, IN)
            self.head: nn.Module | None = None

        def quantise(self, product: quantised.Product) -> None:
            if product.takes(self.table):
                self.head = product(self.table, None)

    module = nn.ModuleDict({"inner": Headed()})
    assert quantise_linears(module, weights) == 1
    inner = module["inner"]
    assert isinstance(inner, Headed)
    assert isinstance(inner.large, kind)
    assert isinstance(inner.head, kind)
    assert type(inner.small) is nn.Linear
    assert quantise_linears(module, "float") == 0


@int4
def test_rows_that_cannot_be_grouped_stay_floats() -> None:
    module = nn.Sequential(nn.Linear(IN + 1, OUT + 1))
    assert quantise_linears(module, "int4") == 0
    assert isinstance(module[0], nn.Linear)


def test_what_a_device_is_not_for_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda")
    assert can_quantise("float", cuda)
    assert not can_quantise("int8", cuda)
    assert not can_quantise("int4", cuda)
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    monkeypatch.setattr(native, "has_words", lambda: False)
    assert not can_quantise("int8", CPU)
    assert not can_quantise("int16", CPU)
    monkeypatch.setattr(torch.cpu, "_is_avx512_supported", lambda: False)
    assert not can_quantise("int4", CPU)


def test_dense_of_4_bits_is_packed_where_others_are() -> None:
    if not can_quantise("int4", CPU):
        pytest.skip("no AVX512")
    many = Int4(linear().weight, None).many
    assert isinstance(many, Dense)
    assert many.form == form_of(linear().weight, fp32=True)


@int8
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ours", [True, False])
def test_inputs_that_reach_far_leave_the_others_their_steps(
    ours: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if native.has_words():
        pytest.skip("inputs have steps enough there")
    if not ours:  # as with AMX
        monkeypatch.setattr(native, "has_ints", lambda: False)
    layer, inputs = linear(), torch.randn(20, IN)
    inputs[:, 5] *= 100
    with torch.no_grad():
        layer.weight[:, 5] *= 0.01
    inputs = inputs.to(dtype)
    with torch.inference_mode():
        exact = layer(inputs.float())
        plain, scaled = (
            Int8(layer.weight, layer.bias, reach=reach)(inputs).float() - exact
            for reach in (None, inputs.float().abs().amax(0))
        )
        assert scaled.norm() < 0.3 * plain.norm()
        inputs[3, 7] = torch.nan
        again = Int8(layer.weight, layer.bias, reach=torch.ones(IN))(inputs)
    assert again[3].isnan().all()
    assert again[[0, 1, 2, 4]].isfinite().all()
