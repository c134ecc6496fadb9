"""Layers become experts in order, are balanced as the formula says, counted, and pruned."""

import pytest
import torch
from tiny_pair import tiny_config
from transformers import AutoModel, PreTrainedModel

from condensery.errors import InputError
from condensery.methods.shrp.conversion import (
    Conversion,
    balance_loss,
    choose_layers,
    counted,
    prune_experts,
    used_experts,
)

HEADS = 2


def model() -> PreTrainedModel:
    torch.manual_seed(0)
    made: PreTrainedModel = AutoModel.from_config(
        tiny_config(num_hidden_layers=4), add_pooling_layer=False
    )
    return made.eval()


def read(network: PreTrainedModel, rows: int = 6) -> torch.Tensor:
    ids = torch.randint(5, 40, (rows, 7), generator=torch.Generator().manual_seed(rows))
    hidden: torch.Tensor = network(input_ids=ids).last_hidden_state
    return hidden


@pytest.mark.parametrize(
    ("order", "count", "layers"),
    [
        ("last", 3, (5, 4, 3)),
        ("first", 3, (0, 1, 2)),
        ("spread", 3, (5, 3, 1)),
        ("spread", 6, (5, 4, 3, 2, 1, 0)),
        ("spread", 1, (5,)),
        ("spread", 4, (5, 4, 2, 1)),
    ],
)
def test_layers_are_chosen_as_the_order_says(
    order: str, count: int, layers: tuple[int, ...]
) -> None:
    assert choose_layers(count, 6, order) == layers  # type: ignore[arg-type]


@pytest.mark.parametrize(("count", "order"), [(0, "last"), (7, "last"), (2, "middle")])
def test_layers_that_are_not_there_are_refused_by_name(count: int, order: str) -> None:
    with pytest.raises(InputError) as caught:
        choose_layers(count, 6, order)  # type: ignore[arg-type]
    assert caught.value.field == ("order" if order == "middle" else "convert")


def test_one_layer_more_runs_converted_and_begins_with_what_the_plain_one_has_learnt() -> None:
    network = model()
    plain = read(network)
    conversion = Conversion(network, (3, 1))
    conversion.convert(0)
    assert torch.equal(read(network), plain)
    conversion.convert(1)
    first = read(network)
    assert not torch.allclose(first, plain)
    assert list(conversion.running) == [3]
    own = conversion.layers[1].plain.attention.self
    with torch.no_grad():
        own.query.weight.mul_(2)  # the plain layer learns before its turn
    conversion.convert(2)
    assert conversion.running[1].attention.query.weight is own.query.weight
    assert not torch.allclose(read(network), first)


def test_a_finished_conversion_leaves_experts_alone_and_the_same_numbers() -> None:
    network = model()
    conversion = Conversion(network, (2,))
    conversion.convert(1)
    before = read(network)
    conversion.finish()
    assert torch.equal(read(network), before)
    assert not any("plain" in name for name in network.state_dict())


def test_an_expanders_norm_begins_at_the_scale() -> None:
    conversion = Conversion(model(), (2,), scale=0.25)
    weight = conversion.layers[2].expert.expander.norm.weight
    assert torch.equal(weight, torch.full_like(weight, 0.25))


def test_balance_is_the_two_divergences_of_the_mean_gate_from_even_use() -> None:
    network = model()
    conversion = Conversion(network, (3, 2))
    conversion.convert(2)
    layers = [*conversion.running.values()]
    read(network)
    expected = []
    for layer in layers:
        assert layer.logits is not None
        p = torch.softmax(layer.logits, -1).mean(0) + 1e-7
        u = torch.full_like(p, 1 / HEADS) + 1e-7
        expected.append((u * (u.log() - p.log())).sum() / 2 + (p * (p.log() - u.log())).sum() / 2)
    loss = balance_loss(layers)
    assert loss.item() == pytest.approx(sum(expected).item() / 2, rel=1e-5)  # type: ignore[union-attr]
    loss.backward()
    gate = layers[0].gate
    assert gate is not None
    assert gate.weight.grad is not None
    assert gate.weight.grad.abs().sum() > 0


def test_experts_are_counted_by_what_they_attend_for_and_the_most_used_stay() -> None:
    network = model()
    conversion = Conversion(network, (3,))
    conversion.convert(1)
    layers = conversion.running
    with torch.no_grad():
        layers[3].gate.bias.copy_(torch.tensor([0.0, 50.0]))  # type: ignore[union-attr]
    with counted(layers) as usage:
        read(network, 6)
        read(network, 5)
    assert usage[3].tolist() == [0, 11]
    assert used_experts(usage[3]) == pytest.approx(1)
    assert used_experts(torch.tensor([7, 7])) == pytest.approx(2)
    routed = read(network)
    conversion.finish()
    left = prune_experts(layers, usage, 1, 4)
    assert left.heads == (None, None, None, (1,))
    assert layers[3].gate is None
    assert torch.allclose(read(network), routed, atol=1e-6)  # all went to the one that stays


def test_of_equally_used_experts_the_lowest_stays_and_an_unused_one_goes_first() -> None:
    network = model()
    conversion = Conversion(network, (3,))
    conversion.convert(1)
    conversion.finish()
    left = prune_experts(conversion.running, {3: torch.tensor([4, 4])}, 1, 4)
    assert left.heads[3] == (0,)


@pytest.mark.parametrize(
    ("keep", "counts", "field"), [(3, [1, 2], "keep"), (1, [0, 0], "validation")]
)
def test_what_can_not_be_pruned_is_refused(keep: int, counts: list[int], field: str) -> None:
    conversion = Conversion(model(), (3,))
    conversion.convert(1)
    with pytest.raises(InputError) as caught:
        prune_experts(conversion.running, {3: torch.tensor(counts)}, keep, 4)
    assert caught.value.field == field


def test_several_experts_attend_and_their_mean_is_widened() -> None:
    network = model()
    conversion = Conversion(network, (0,), top_k=HEADS)
    conversion.convert(1)
    layer = conversion.running[0]
    hidden = torch.randn(3, 5, 32)
    both = layer(hidden)
    attended = []
    for expert in range(HEADS):
        rows = slice(expert * layer.head_size, (expert + 1) * layer.head_size)
        query, key, value = (
            hidden @ linear.weight[rows].T + linear.bias[rows]
            for linear in (layer.attention.query, layer.attention.key, layer.attention.value)
        )
        scores = query @ key.transpose(1, 2) / layer.head_size**0.5
        attended.append(scores.softmax(-1) @ value)
    wanted = layer.norm(hidden + layer.expander(torch.stack(attended).mean(0)))
    assert torch.allclose(both, wanted, atol=1e-5)
