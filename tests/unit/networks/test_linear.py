from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from condensery.networks import linear, native
from condensery.networks.linear import Dense, can_prepack, prepack_linears

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16]


def close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    """Within one rounding of ``got``'s type of the fp32 result."""
    tolerance = 1e-5 if got.dtype == torch.float32 else 1e-2
    torch.testing.assert_close(got.float(), wanted, atol=tolerance, rtol=tolerance)


def linear_of(dtype: torch.dtype, bias: bool = True) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(48, 32, bias=bias).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 7, 64])
def test_a_dense_layer_equals_the_linear_layer(dtype: torch.dtype, bias: bool, rows: int) -> None:
    linear = linear_of(dtype, bias)
    inputs = torch.randn(rows, 48).to(dtype)
    offset = None if linear.bias is None else linear.bias.float()
    with torch.inference_mode():
        got = Dense.of(linear)(inputs)
        assert got.dtype == dtype
        close(got, F.linear(inputs.float(), linear.weight.float(), offset))


@pytest.mark.parametrize("dtype", DTYPES)
def test_gelu_and_residual_equal_their_formulas(dtype: torch.dtype) -> None:
    linear = linear_of(dtype)
    inputs, residual = torch.randn(5, 48).to(dtype), torch.randn(5, 32).to(dtype)
    with torch.inference_mode():
        plain = F.linear(inputs.float(), linear.weight.float(), linear.bias.float())
        close(Dense.of(linear, activation="gelu")(inputs), F.gelu(plain))
        kept = residual.clone()
        close(Dense.of(linear)(inputs, residual=residual), plain + residual.float())
        assert torch.equal(residual, kept)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [True, False])
def test_stacked_layers_give_their_outputs_side_by_side(dtype: torch.dtype, bias: bool) -> None:
    first, second = linear_of(dtype, bias), nn.Linear(48, 16, bias=bias).to(dtype)
    inputs = torch.randn(9, 48).to(dtype)
    with torch.inference_mode():
        wanted = torch.cat([Dense.of(first)(inputs), Dense.of(second)(inputs)], dim=-1)
        close(Dense.of(first, second)(inputs), wanted.float())


@pytest.mark.parametrize("dtype", DTYPES)
def test_layers_are_replaced_and_the_network_gives_the_same(dtype: torch.dtype) -> None:
    if not can_prepack(CPU, dtype, fp32=True):
        pytest.skip(f"no {dtype} in this CPU's oneDNN")
    network = nn.Sequential(nn.Linear(48, 48), nn.ReLU(), nn.Sequential(nn.Linear(48, 8))).to(dtype)
    inputs = torch.randn(3, 10, 48).to(dtype)
    with torch.inference_mode():
        before = network(inputs)
        assert prepack_linears(network, fp32=True) == 2
        assert isinstance(network[0], Dense)
        assert network[0].form != "torch"
        close(network(inputs), before.float())


def test_fp32_layers_are_left_as_they_are_unless_it_gains_or_is_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = nn.Sequential(nn.Linear(4, 4))
    monkeypatch.setattr(native, "has_panels", lambda _: False)
    monkeypatch.setattr(linear, "fp32_gains", lambda: False)
    assert prepack_linears(network) == 0
    assert type(network[0]) is nn.Linear
    assert prepack_linears(network.double(), fp32=True) == 0
    network.float()
    monkeypatch.setattr(linear, "fp32_gains", lambda: True)
    assert prepack_linears(network) == 1


def test_the_kernel_of_ours_is_for_the_dtypes_that_it_is_best_in_on_a_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def form(dtype: torch.dtype, inputs: int = 4, device: str = "cpu") -> str:
        return linear.form_of(torch.empty(3, inputs, dtype=dtype, device=device))

    monkeypatch.setattr(linear, "fp32_gains", lambda: False)
    half = "onednn" if can_prepack(CPU, torch.bfloat16) else "torch"
    for best in (torch.float32, torch.bfloat16):
        monkeypatch.setattr(native, "has_panels", lambda dtype, best=best: dtype == best)
        assert form(best) == "panels"
        assert form(torch.float32, inputs=5) == ("panels" if best == torch.float32 else "torch")
        assert form(torch.bfloat16, inputs=5) == half, "pairs of inputs"
        assert form(torch.float64) == "torch"
        assert form(best, device="meta") == "torch"
    monkeypatch.setattr(native, "has_panels", lambda _: False)
    assert form(torch.bfloat16) == half


@pytest.mark.parametrize(("seconds", "wanted"), [((1.1, 1.0), False), ((1.5, 1.0), True)])
def test_fp32_gains_where_a_prepacked_product_is_clearly_sooner_done(
    monkeypatch: pytest.MonkeyPatch, seconds: tuple[float, float], wanted: bool
) -> None:
    def timed(*products: Callable[[], torch.Tensor]) -> tuple[float, float]:
        first, second = (product() for product in products)
        torch.testing.assert_close(first, second)
        assert first.dtype == torch.float32
        return seconds  # torch's own, prepacked

    monkeypatch.setattr(linear, "_least", timed)
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert linear.fp32_gains.__wrapped__() is wanted
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_subclass_of_linear_is_not_replaced() -> None:
    class Doubling(nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(inputs)

    network = nn.Sequential(Doubling(4, 4)).bfloat16()
    assert prepack_linears(network) == 0
