import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModel

from condensery.errors import InputError
from condensery.methods.effir.slimming import Gates
from condensery.networks.effir import prune, slice_mlps
from condensery.networks.effir_shape import Pruning
from condensery.networks.sublayers import family_of, layers_of, linears

NEURONS = 48
IDS = torch.randint(4, 80, (2, 11), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model(model_folder: Path) -> nn.Module:
    loaded: nn.Module = AutoModel.from_pretrained(model_folder).eval()
    return loaded


def read(model: nn.Module) -> Tensor:
    hidden: Tensor = model(input_ids=IDS).last_hidden_state
    return hidden


def set_gates(gates: Gates, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for gate in gates.values.values():
            gate.copy_(torch.randn(len(gate), generator=generator))


def test_open_gates_change_nothing_and_gates_scale_their_neurons(model: nn.Module) -> None:
    gates = Gates(model, Pruning(4))
    with torch.inference_mode():
        before = read(model)
        with gates.on(model):
            assert torch.equal(read(model), before)
        set_gates(gates)
        with gates.on(model):
            gated = read(model)
        assert torch.equal(read(model), before)
        family = family_of(model)
        for number, layer in enumerate(layers_of(model, family)):
            (down,) = linears(layer, [family.down])
            down.weight.mul_(gates.values[str(number)].clamp(min=0))
        assert (read(model) - gated).abs().max() < 1e-5
    assert (before - gated).abs().max() > 1e-2


def test_the_sparsity_term_is_the_papers_surrogate(model: nn.Module) -> None:
    gates = Gates(model, Pruning(4, mlp=(1,)))
    assert gates.sparsity().item() == pytest.approx(3 * NEURONS / (1 + math.exp(-5)), rel=1e-6)
    set_gates(gates)
    values = [max(v, 0.0) for gate in gates.values.values() for v in gate.tolist()]
    wanted = sum(1 / (1 + math.exp(-5 * value)) for value in values)
    assert gates.sparsity().item() == pytest.approx(wanted, rel=1e-5)
    # 16 MLPs of Mistral-7B: what a reading of the paper comes to.
    assert 229_376 / (1 + math.exp(-5)) == pytest.approx(227_841, abs=1)


def test_gradients_reach_the_gates_alone(model: nn.Module) -> None:
    model.requires_grad_(False)
    gates = Gates(model, Pruning(4))
    with gates.on(model):
        (read(model).pow(2).mean() + 1e-8 * gates.sparsity()).backward()
    for gate in gates.values.values():
        assert gate.grad is not None
        assert (gate.grad != 0).all()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_neurons_are_ranked_over_all_layers_and_the_sliced_model_equals_the_masked(
    model: nn.Module,
) -> None:
    pruning = Pruning(4, attention=(2,), mlp=(1,))
    prune(model, pruning)
    gates = Gates(model, pruning)
    set_gates(gates)
    left, kept = gates.kept(0.3, pruning)
    assert left.mlp == (1,)
    assert left.attention == (2,)
    assert left.sizes is not None
    assert sum(left.sizes) == 3 * NEURONS - int(0.3 * 3 * NEURONS)
    values = {n: gate.clamp(min=0) for n, gate in gates.values.items()}
    lowest_kept = min(values[str(n)][some].min() for n, some in enumerate(kept) if some is not None)
    masks = {n: torch.zeros(NEURONS) for n in values}
    for n, some in enumerate(kept):
        if some is not None:
            masks[str(n)][some] = 1
            gone = values[str(n)][masks[str(n)] == 0]
            assert not len(gone) or gone.max() <= lowest_kept
    with torch.no_grad():
        for n, gate in gates.values.items():
            gate.copy_(masks[n])
    with torch.inference_mode():
        with gates.on(model):
            masked = read(model)
        slice_mlps(model, kept)
        assert (read(model) - masked).abs().max() < 1e-5


def test_of_closed_gates_the_first_go_and_an_empty_layer_loses_its_mlp(model: nn.Module) -> None:
    gates = Gates(model, Pruning(4))
    with torch.no_grad():
        for number in (0, 1):
            gates.values[str(number)].fill_(-1.0)
    left, kept = gates.kept(0.375, Pruning(4))  # all of layer 0, half of layer 1
    assert left == Pruning(4, (), (0,), (0, 24, 48, 48))
    assert kept[0] is None
    assert kept[1] is not None
    assert kept[1].tolist() == list(range(24, 48))


def test_a_share_of_no_use_and_gates_that_are_not_finite_are_refused(model: nn.Module) -> None:
    gates = Gates(model, Pruning(4))
    for share in (-0.1, 1.0, math.nan):
        with pytest.raises(InputError, match=r"width=.*: must be from 0 to below 1"):
            gates.kept(share, Pruning(4))
    with torch.no_grad():
        gates.values["2"][5] = torch.nan
    with pytest.raises(InputError, match="a gate is not finite"):
        gates.kept(0.3, Pruning(4))
