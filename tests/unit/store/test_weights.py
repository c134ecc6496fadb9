from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from condensery.errors import CorruptModel, StoreError
from condensery.networks.weight_files import dequantise, quantise
from condensery.store.manifest import Manifest, StoredModel
from condensery.store.store import ModelStore
from condensery.store.weights import load_state, save_state


def make_tensors() -> dict[str, Tensor]:
    make = torch.Generator().manual_seed(0)
    return {
        "encoder.weight": torch.randn(48, 32, generator=make),
        "encoder.bias": torch.randn(48, generator=make),
        "decoder.weight": torch.randn(16, 64, generator=make).bfloat16(),
        "decoder.scale": torch.tensor(2.5),
        "steps": torch.tensor([1, 2, 3]),
    }


@pytest.fixture
def keep(tmp_path: Path, manifest: Callable[..., Manifest]) -> Callable[..., StoredModel]:
    """Save tensors, publish them, and open the model."""

    def run(
        tensors: dict[str, Tensor], int8: tuple[str, ...] = (), size: int = 2**20
    ) -> StoredModel:
        work = tmp_path / "work"
        work.mkdir(exist_ok=True)
        save_state(work, tensors, int8_names=int8, max_shard_bytes=size)
        store = ModelStore(None, tmp_path / "own")
        store.publish(work, manifest())
        return store.open("tiny")

    return run


Keep = Callable[..., StoredModel]


def assert_same(state: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert sorted(state) == sorted(expected)
    for name, tensor in expected.items():
        assert state[name].dtype == tensor.dtype
        assert torch.equal(state[name], tensor), name


@pytest.mark.parametrize("size", [2**20, 8000, 7000])
def test_tensors_come_back_bit_for_bit_from_any_number_of_shards(keep: Keep, size: int) -> None:
    model = keep(make_tensors(), size=size)
    assert_same(load_state(model), make_tensors())
    assert all(path.stat().st_size <= size for path in model.weights)


def test_shards_are_numbered_and_a_new_save_replaces_the_old_ones(tmp_path: Path) -> None:
    tensors = {f"t{n}": torch.ones(16, 64) for n in range(5)}
    paths = save_state(tmp_path, tensors, max_shard_bytes=10_000)
    names = [f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]
    assert [path.name for path in paths] == names
    [path] = save_state(tmp_path, tensors)
    assert list(tmp_path.iterdir()) == [path]
    assert path.name == "model-00001-of-00001.safetensors"


def test_no_shard_is_over_its_limit_even_with_many_long_names(tmp_path: Path) -> None:
    tensors = {f"block.{'é' * 40}.{n}": torch.ones(1, 1, 1, 1) for n in range(400)}
    paths = save_state(tmp_path, tensors, max_shard_bytes=4096)
    assert max(path.stat().st_size for path in paths) <= 4096


@pytest.mark.parametrize("dtype", [None, torch.float32, torch.bfloat16])
def test_an_int8_weight_comes_back_within_half_a_scale(
    keep: Keep, dtype: torch.dtype | None
) -> None:
    tensors = make_tensors()
    model = keep(tensors, ("encoder.weight",))
    state = load_state(model, dtype=dtype)
    assert sorted(state) == sorted(tensors)
    weight, back = tensors["encoder.weight"], state["encoder.weight"]
    assert back.dtype == (dtype or torch.float32)
    scale = weight.abs().amax(dim=1, keepdim=True) / 127
    # float32 rounds scale and product (127 steps of 2**-24 each way); bf16 rounds once more.
    bound = scale * (0.5 + 127 * 2**-23)
    if dtype is torch.bfloat16:
        bound = bound + weight.abs() * 2**-8 + scale * 2**-8
    error = (weight.double() - back.double()).abs()
    assert bool((error <= bound).all())
    assert float(error.max()) > float(scale.min()) / 8  # it was rounded at all


@given(
    st.lists(
        st.lists(st.floats(-(2.0**127), 2.0**127, width=32), min_size=3, max_size=3),
        min_size=1,
        max_size=4,
    )
)
def test_quantising_holds_its_bound_for_any_finite_row(rows: list[list[float]]) -> None:
    weight = torch.tensor(rows)
    rounded, scale = quantise(weight)
    back = dequantise(rounded, scale)
    assert rounded.dtype == torch.int8
    assert bool(torch.isfinite(back).all())
    # A scale so small that float32 holds it coarsely (subnormal) is off by up to 2**-150.
    slack = 127 * 2.0**-149
    error = (weight.double() - back.double()).abs()
    assert bool((error <= scale.double()[:, None] * (0.5 + 1e-4) + slack).all())


def test_a_row_of_zeros_stays_zero() -> None:
    weight = torch.zeros(2, 4)
    assert torch.equal(dequantise(*quantise(weight)), weight)


def test_dtype_casts_floats_and_leaves_integers(keep: Keep) -> None:
    state = load_state(keep(make_tensors()), dtype=torch.bfloat16)
    assert {name: t.dtype for name, t in state.items() if t.dtype != torch.bfloat16} == {
        "steps": torch.int64
    }


def test_a_parameter_called_scale_is_no_companion_unless_its_owner_is_int8(keep: Keep) -> None:
    tensors = {"norm.scale": torch.ones(4), "norm": torch.ones(4), "alone.scale": torch.ones(1)}
    assert_same(load_state(keep(tensors)), tensors)


def test_int8_without_a_scale_stays_int8(keep: Keep) -> None:
    tensors = {"codes": torch.arange(6, dtype=torch.int8)}
    assert_same(load_state(keep(tensors), dtype=torch.float32), tensors)


def test_names_and_prefix_choose_and_scales_follow_across_shards(keep: Keep) -> None:
    model = keep(make_tensors(), ("encoder.weight", "decoder.weight"), 3000)
    assert len(model.weights) > 1
    whole = load_state(model)
    assert_same(
        load_state(model, names=["encoder.weight", "steps"]),
        {name: whole[name] for name in ("encoder.weight", "steps")},
    )
    assert_same(
        load_state(model, prefix="decoder."),
        {"weight": whole["decoder.weight"], "scale": whole["decoder.scale"]},
    )
    assert load_state(model, prefix="nothing.") == {}


def test_a_name_that_is_not_there_is_named(keep: Keep) -> None:
    with pytest.raises(CorruptModel, match="tiny: no weights named missing"):
        load_state(keep(make_tensors()), names=["steps", "missing"])


def test_tied_and_strided_tensors_are_stored(keep: Keep) -> None:
    table = torch.arange(12.0).reshape(3, 4)
    tensors = {"embed": table, "head": table, "turned": table.T}
    assert_same(load_state(keep(tensors)), tensors)


def test_what_is_loaded_can_be_written_to_without_touching_the_file(keep: Keep) -> None:
    model = keep(make_tensors())
    load_state(model)["encoder.bias"].zero_()
    assert_same(load_state(model), make_tensors())


def test_unquantised_tensors_are_mapped_not_read(keep: Keep) -> None:
    model = keep(make_tensors())
    state = load_state(model)
    assert state
    assert str(model.weights[0].resolve()) in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize(
    ("tensors", "int8", "reason"),
    [
        ({"w": torch.tensor([[1.0, torch.nan]])}, (), "w: holds values that are not finite"),
        ({"w": torch.tensor([[torch.inf]])}, ("w",), "w: holds values that are not finite"),
        ({"w": torch.ones(3)}, ("w",), r"w: only 2-D weights become int8, not float32 \(3,\)"),
        ({"w": torch.ones(2, 2, dtype=torch.int64)}, ("w",), "w: only 2-D"),
        ({"w": torch.ones(2, 2), "w.scale": torch.ones(1)}, ("w",), "w.scale: is the name"),
        ({"w": torch.ones(2, 2)}, ("v",), "no tensor is named v"),
        ({"w": torch.ones(400, 400)}, (), r"w: float32 \(400, 400\) does not fit a shard"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_name(
    tmp_path: Path, tensors: dict[str, Tensor], int8: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(StoreError, match=reason):
        save_state(tmp_path, tensors, int8_names=int8, max_shard_bytes=100_000)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("scale", [torch.ones(2), torch.ones(()), torch.ones(3, 1)])
def test_a_scale_that_does_not_fit_is_refused(
    store: ModelStore, tmp_path: Path, manifest: Callable[..., Manifest], scale: Tensor
) -> None:
    (tmp_path / "work").mkdir()
    content = {"w": torch.ones(3, 2, dtype=torch.int8), "w.scale": scale}
    save_file(content, tmp_path / "work" / "model.safetensors")
    with pytest.raises(CorruptModel, match=r"w\.scale: .* is no scale for int8 \(3, 2\)"):
        load_state(store.publish(tmp_path / "work", manifest()))


def test_a_tensor_in_two_shards_is_refused(
    store: ModelStore, tmp_path: Path, manifest: Callable[..., Manifest]
) -> None:
    (tmp_path / "work").mkdir()
    for name in ("a", "b"):
        save_file({"w": torch.ones(2)}, tmp_path / "work" / f"{name}.safetensors")
    with pytest.raises(CorruptModel, match=r"b\.safetensors: w is there twice"):
        load_state(store.publish(tmp_path / "work", manifest()))
