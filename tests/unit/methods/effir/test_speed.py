from pathlib import Path

import pytest
from tests.unit.methods.conftest import Stored

from condensery.methods.effir.speed import Profile, batches, profile, times
from condensery.methods.retriever.measuring import cost, flops
from condensery.networks.backbone import load_backbone, load_transformer
from condensery.networks.effir import prune
from condensery.networks.effir_shape import Pruning

TEXTS = [[2, *range(30, 30 + length), 3] for length in (3, 30, 9, 40, 5)]


def test_batches_hold_all_texts_by_length_within_the_limit() -> None:
    batched = batches(TEXTS, most=20)
    assert sorted(map(len, (ids for batch in batched for ids in batch))) == sorted(map(len, TEXTS))
    assert all(sum(map(len, batch)) <= 20 or len(batch) == 1 for batch in batched)


@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_a_profile_is_the_time_of_each_sub_layer_and_less_than_the_whole(
    kind: str, stored: Stored
) -> None:
    backbone = load_backbone(stored(kind).path)
    measured = profile(backbone, TEXTS, rounds=3)
    assert len(measured.attention) == len(measured.mlp) == 4
    assert all(seconds > 0 for seconds in (*measured.attention, *measured.mlp))
    taken = times({"a": backbone, "b": backbone}, TEXTS, rounds=2)
    assert [len(seconds) for seconds in taken.values()] == [2, 2]


def test_what_is_gone_is_subtracted_and_a_narrow_mlp_in_its_share() -> None:
    measured = Profile(10.0, (1.0, 2.0), (3.0, 3.5))
    assert measured.without(Pruning(2, (1,), (0,)), 48) == pytest.approx(5.0)
    assert measured.without(Pruning(2, (), (), (48, 12)), 48) == pytest.approx(10 - 3.5 * 0.75)


@pytest.mark.parametrize(("kind", "products"), [("llama", 3), ("bert", 2)])
def test_work_is_two_operations_a_weight_and_attention(
    kind: str, products: int, stored: Stored
) -> None:
    model = load_transformer(stored(kind).path)
    tokens, hidden, neurons = 10, model.config.hidden_size, model.config.intermediate_size
    attention = 2 * tokens * 4 * hidden * hidden + 4 * tokens**2 * hidden
    mlp = 2 * tokens * products * hidden * neurons
    assert flops(model, tokens) == 4 * (attention + mlp)
    prune(model, Pruning(4, (0,), (1,)))
    assert flops(model, tokens) == 3 * (attention + mlp)


def test_cost_counts_every_parameter(stored: Stored, tmp_path: Path) -> None:
    encoder = stored("bert")
    wanted = sum(p.numel() for p in load_transformer(encoder.path).parameters())
    assert cost(encoder)["parameters"] == wanted
