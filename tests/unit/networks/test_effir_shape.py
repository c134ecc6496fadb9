from typing import Any

import pytest
from transformers import LlamaConfig, LlamaModel

from condensery.networks.effir import prune
from condensery.networks.effir_paper import BILLION, LLAMA2_7B, Count, counts, retriever_parameters
from condensery.networks.effir_shape import Pruning
from condensery.networks.oscar_paper import MISTRAL_7B

CONFIG = {"num_hidden_layers": 4, "intermediate_size": 10}


def of(**keys: Any) -> Pruning:
    return Pruning.from_config({**CONFIG, **keys})


def test_lists_are_null_numbers_or_booleans() -> None:
    assert of() == of(drop_mlp_list=None, drop_attn_list=None) == of(drop_mlp_list=[])
    assert of().dense
    wanted = Pruning(4, attention=(0, 3), mlp=(2,))
    assert of(drop_attn_list=[3, 0], drop_mlp_list=[2]) == wanted
    booleans = [True, False, False, True]
    assert of(drop_attn_list=booleans, drop_mlp_list=[False, False, True, False]) == wanted
    assert not wanted.dense


def test_widths_say_which_mlps_are_gone() -> None:
    pruning = of(mlp_intermediate_sizes=[10, 0, 3, 1])
    assert pruning == Pruning(4, mlp=(1,), sizes=(10, 0, 3, 1))
    assert [pruning.size(layer, 10) for layer in range(4)] == [10, 0, 3, 1]
    assert [of(drop_mlp_list=[3]).size(layer, 10) for layer in range(4)] == [10, 10, 10, 0]


@pytest.mark.parametrize(
    "pruning",
    [Pruning(4), Pruning(4, (1,), (0, 2)), Pruning(4, (), (3,), (5, 10, 2, 0))],
)
def test_what_is_written_is_read_back(pruning: Pruning) -> None:
    assert of(**pruning.to_config()) == pruning


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"drop_mlp_list": [4]}, "drop_mlp_list: 4 is no layer of 4"),
        ({"drop_attn_list": [-1]}, "drop_attn_list: -1 is no layer of 4"),
        ({"drop_attn_list": ["1"]}, "drop_attn_list: '1' is no layer"),
        ({"drop_attn_list": [1, True]}, "drop_attn_list: True is no layer"),
        ({"drop_attn_list": [1, 1]}, "drop_attn_list: names a layer twice"),
        ({"drop_mlp_list": [True, False]}, "drop_mlp_list: has 2 booleans for 4 layers"),
        ({"drop_mlp_list": "1"}, "drop_mlp_list: '1' is no list"),
        ({"drop_mlp_list": [0, 1, 2, 3]}, "drop_mlp_list: every MLP is dropped, all 4"),
        ({"drop_attn_list": [True] * 4}, "drop_attn_list: every attention is dropped"),
        ({"mlp_intermediate_sizes": [0] * 4}, "drop_mlp_list: every MLP is dropped"),
        ({"mlp_intermediate_sizes": [1, 2, 3]}, "mlp_intermediate_sizes: .* no list of 4 widths"),
        ({"mlp_intermediate_sizes": [1, 2, 3, 11]}, "layer 3 has 11 neurons, of 10"),
        ({"mlp_intermediate_sizes": [1, 2, 3, -1]}, "layer 3 has -1 neurons"),
        ({"mlp_intermediate_sizes": [1, 2, 3, True]}, "layer 3 has True neurons"),
        (
            {"mlp_intermediate_sizes": [0, 2, 3, 4], "drop_mlp_list": [1]},
            r"mlp_intermediate_sizes: is 0 in the layers \[0\], but drop_mlp_list names \[1\]",
        ),
        ({"num_hidden_layers": 0}, "num_hidden_layers: 0 is no positive integer"),
    ],
)
def test_what_is_wrong_names_the_key(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        of(**keys)


@pytest.mark.parametrize("row", list(counts()), ids=lambda row: f"{row.backbone}, {row.variant}")
def test_counts_are_the_papers_when_rounded(row: Count) -> None:
    assert round(row.parameters / BILLION, 1) == row.paper


def test_counts_are_those_of_a_real_module() -> None:
    # Exact figures worked out apart from this code.
    exact = {f"{row.backbone}, {row.variant}": row.parameters / BILLION for row in counts()}
    assert exact["Mistral-7B, full"] == pytest.approx(7.1107, abs=1e-4)
    assert exact["Mistral-7B, drop 16 MLP, 8 attention"] == pytest.approx(3.9564, abs=1e-4)
    assert exact["Mistral-7B, drop 16 MLP, width -30%"] == pytest.approx(3.4465, abs=1e-4)
    assert MISTRAL_7B.layers == LLAMA2_7B.layers == 32
    model = LlamaModel(
        LlamaConfig(
            hidden_size=16, intermediate_size=10, num_hidden_layers=4, vocab_size=30,
            num_attention_heads=4, num_key_value_heads=2,
        )
    )  # fmt: skip
    shape = type(MISTRAL_7B)(16, 4, 4, 2, 4, 10, 30)
    pruning = Pruning(4, (1,), (3,), (10, 4, 1, 0))
    prune(model, pruning)
    assert retriever_parameters(shape, pruning) == sum(p.numel() for p in model.parameters())
