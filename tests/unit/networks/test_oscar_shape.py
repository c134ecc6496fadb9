import json
from typing import Any

import pytest
import torch
from tiny_causal import MEMORY, causal_shape, generator_shape, tiny_causal
from tiny_pair import tiny_shape

from condensery.networks.oscar_causal import CausalPair
from condensery.networks.oscar_causal_shape import CausalShape, CompressorShape
from condensery.networks.oscar_interface import PassageWindow
from condensery.networks.oscar_shape import OscarShape

# What the first pair's manifest said, before there were rates.
FIRST: dict[str, Any] = {
    "memory_tokens": 8,
    "query_tokens": 64,
    "passage_tokens": 128,
    "mapping_size": 768,
    "copy": True,
    "generator_layers": 4,
    "generator_heads": 6,
    "generator_mlp_size": 1024,
    "generator_positions": 2048,
}


def test_a_shape_survives_the_manifest_and_refuses_unknown_names() -> None:
    for shape in (
        tiny_shape(copy=False),
        tiny_shape(fewer=(2, 1)),
        tiny_shape(walk=True, sharp=True),
        tiny_shape(bounds=True, sharp=True),
        tiny_shape(ask_first=True, quote=True),
        tiny_shape(two_way=True),
    ):
        assert OscarShape.from_dict(json.loads(json.dumps(shape.to_dict()))) == shape
    with pytest.raises(TypeError, match="colour"):
        OscarShape.from_dict({"colour": 1})


def test_a_manifest_from_before_there_were_rates_stays_as_it_was() -> None:
    assert OscarShape.from_dict(FIRST).to_dict() == FIRST
    before = causal_shape().to_dict()
    assert "fewer" not in before["compressor"]
    assert CausalShape.from_dict(before).compressor.fewer == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("memory_tokens", 0),
        ("memory_tokens", [8]),
        ("generator_layers", -1),
        ("passage_tokens", "128"),
        ("query_tokens", 1.5),
        ("mapping_size", True),
        ("copy", 1),
        ("walk", 1),
        ("bounds", 1),
        ("sharp", 1),
        ("two_way", 1),
        ("fewer", 4),
        ("fewer", [4.0]),
        ("fewer", [True]),
        ("fewer", [8]),
        ("fewer", [0]),
        ("fewer", [2, 4]),
        ("fewer", [4, 4]),
    ],
)
def test_a_shape_refuses_what_is_no_size(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        OscarShape.from_dict({name: value})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"fewer": [4, 4]}, r"fewer must fall from below memory_tokens \(8\).* not \[4, 4\]"),
        ({"fewer": ["4"]}, "fewer must be a list of int"),
        ({"fewer": [0]}, "fewer must fall"),
        ({"fewer": [1], "memory_rate": 4, "memory_rows": 1}, "fewer needs memory_rate 0"),
    ],
)
def test_a_causal_pairs_rates_are_checked_too(changes: dict[str, Any], says: str) -> None:
    values = causal_shape().to_dict()
    values["compressor"] |= changes
    if changes.get("memory_rows"):
        values["generator"]["memory"] = ["<MEM>"]
    with pytest.raises(ValueError, match=says):
        CausalShape.from_dict(values)


def test_who_sees_all_of_a_prompt_needs_no_question_first() -> None:
    with pytest.raises(ValueError, match="ask_first and two_way are true"):
        tiny_shape(ask_first=True, two_way=True)


def test_rates_are_tokens_of_a_full_window_a_vector() -> None:
    shape = OscarShape(fewer=(4, 2, 1))
    assert (shape.vectors, shape.rates) == ((8, 4, 2, 1), (16, 32, 64, 128))
    # As the published layouts have it: 128 tokens of a passage beside 64 of a question.
    for layout, tokens, question in (
        ("pair", 195, True),
        ("joined", 200, True),
        ("enclosed", 200, True),
        ("pair", 130, False),
        ("joined", 130, False),
        ("enclosed", 131, False),
    ):
        compressor = CompressorShape(layout, tokens, question=question, fewer=(4, 1))
        assert (compressor.vectors, compressor.rates) == ((8, 4, 1), (16, 32, 128))
    by_rate = CompressorShape("lines", 200, memory_tokens=1, memory_rows=1, memory_rate=16)
    assert (by_rate.vectors, by_rate.rates) == ((13,), (16,))


def test_the_first_vectors_are_those_of_a_compressor_that_has_no_others() -> None:
    pair, state = tiny_causal(layers=2, rerank=True, fewer=(4, 1))
    configs = pair.compressor.backbone.config, pair.generator.network.config
    tokens = list(range(10, 31))
    with torch.inference_mode():
        vectors = pair.compressor.compress([PassageWindow(tokens, 0, 0, 8, 0, 0)]).vectors
        for count in pair.shape.compressor.fewer:
            compressor = CompressorShape("pair", 64, memory_tokens=count, memory_rows=count)
            shape = CausalShape(compressor, generator_shape(memory=MEMORY[:count]))
            rows = {"compressor.slots.weight": state["compressor.slots.weight"][:count]}
            rest = {name: value for name, value in state.items() if "rerank" not in name}
            alone = CausalPair(shape, *configs).load((rest | rows).items())
            wanted = alone.compressor.compress([PassageWindow(tokens, 0, 0, count, 0, 0)]).vectors
            assert torch.allclose(vectors[:count], wanted, rtol=0, atol=5e-5)


def test_a_walk_and_bounds_need_a_pointer_which_is_one_of_them() -> None:
    with pytest.raises(ValueError, match="walk is true, but copy is false"):
        OscarShape(copy=False, walk=True)
    with pytest.raises(ValueError, match="bounds is true, but copy is false"):
        OscarShape(copy=False, bounds=True)
    with pytest.raises(ValueError, match="bounds and walk are true"):
        OscarShape(walk=True, bounds=True)
    with pytest.raises(ValueError, match="sharp is true, but walk and bounds are false"):
        OscarShape(sharp=True)
