"""What a trimmed last layer gives against transformers' own, and what it computes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tests.unit.networks.test_effir import CONFIGS, LAYERS, WORDS, model_of
from torch import Tensor, nn
from transformers import AutoModel, GemmaConfig, RobertaConfig

from condensery.networks.attention import PACKED
from condensery.networks.backbone import Backbone, run_packed
from condensery.networks.bert import FusedLayer
from condensery.networks.effir import prune
from condensery.networks.effir_shape import Pruning
from condensery.networks.last_layer import LastLayer, trim_last, trims
from condensery.networks.pooling import Pooling, pool
from condensery.networks.sublayers import family_of, layers_of

DRAW = torch.Generator().manual_seed(3)
SEQUENCES = [torch.randint(3, WORDS, (n,), generator=DRAW).tolist() for n in (7, 33, 1, 16)]
LAST = LAYERS - 1
GONE = {
    "whole": Pruning(LAYERS),
    "no last attention": Pruning(LAYERS, attention=frozenset({LAST})),
    "no last MLP": Pruning(LAYERS, mlp=frozenset({LAST})),
    "nothing last": Pruning(LAYERS, attention=frozenset({LAST}), mlp=frozenset({LAST})),
}


def alone(model: Any, place: int) -> Tensor:
    """Return the state at one place of each sequence, read by itself, (sequences, width)."""
    with torch.inference_mode():
        rows = [model(input_ids=torch.tensor([ids])).last_hidden_state for ids in SEQUENCES]
    return torch.stack([row[0, place] for row in rows])


@contextmanager
def seen(model: Any) -> Iterator[list[int]]:
    """Record how many rows the last layer's first MLP product reads."""
    layer = layers_of(model)[-1]
    family = family_of(model)
    name = "mlp.up" if isinstance(layer, FusedLayer) else family.inner[0]
    rows: list[int] = []
    hook = layer.get_submodule(name).register_forward_pre_hook(
        lambda _, inputs: rows.append(inputs[0].flatten(0, -2).shape[0])
    )
    yield rows
    hook.remove()


@pytest.mark.parametrize("gone", GONE)
@pytest.mark.parametrize("kind", CONFIGS)
def test_the_states_that_are_read_are_those_of_the_whole_model(kind: str, gone: str) -> None:
    model: Any = model_of(kind)
    prune(model, GONE[gone])
    first, last = alone(model, 0), alone(model, -1)
    backbone = run_packed(model)
    expected: dict[Pooling, Tensor] = {"last": last, "cls": first}
    for pooling, wanted in expected.items():
        hidden, packing = backbone.read(SEQUENCES, pooling=pooling)
        pooled = pool(hidden, packing, pooling)
        torch.testing.assert_close(pooled, wanted, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", CONFIGS)
def test_the_last_mlp_reads_the_rows_that_are_wanted_alone(kind: str) -> None:
    model: Any = model_of(kind)
    backbone = run_packed(model)
    with seen(backbone.model) as rows:
        backbone.read(SEQUENCES, pooling="last")
        backbone.read(SEQUENCES, pooling="mean")
    every = backbone.pack([len(ids) for ids in SEQUENCES]).total  # with filler, if it has any
    assert rows == [4, every]
    assert every >= 57


def test_all_is_computed_where_nothing_says_what_is_wanted() -> None:
    torch.manual_seed(0)
    config = RobertaConfig(**CONFIGS["bert"].to_dict() | {"model_type": "roberta"})
    model = AutoModel.from_config(config, add_pooling_layer=False).eval()
    with torch.inference_mode():
        wanted = [model(input_ids=torch.tensor([ids])).last_hidden_state[0] for ids in SEQUENCES]
    hidden, _ = run_packed(model).read(SEQUENCES)
    torch.testing.assert_close(hidden[:57], torch.cat(wanted), atol=2e-5, rtol=1e-5)


def test_a_layer_of_no_known_family_stays_as_it_is() -> None:
    assert not trims("gemma")
    assert not trims(None)
    config = GemmaConfig(
        vocab_size=WORDS,
        hidden_size=32,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
    )
    model = AutoModel.from_config(config).eval()
    wanted = alone(model, -1)
    kinds = [type(layer) for layer in model.layers]
    backbone = run_packed(model)
    assert [type(layer) for layer in model.layers] == kinds
    hidden, packing = backbone.read(SEQUENCES, pooling="last")
    torch.testing.assert_close(pool(hidden, packing, "last"), wanted, atol=2e-5, rtol=1e-5)


def test_weights_keep_their_names() -> None:
    model: Any = model_of("llama")
    before = {name: value.data_ptr() for name, value in model.named_parameters()}
    model.set_attn_implementation(PACKED)
    trim_last(model)
    assert isinstance(model.layers[-1], LastLayer)
    assert {name: value.data_ptr() for name, value in model.named_parameters()} == before


def test_no_row_at_all_may_be_wanted() -> None:
    model: Any = model_of("qwen2")
    model.set_attn_implementation(PACKED)
    trim_last(model)
    backbone = Backbone(model)
    packing = backbone.pack([5])
    packing.wanted = torch.zeros(0, dtype=torch.int64)
    with seen(model) as rows, torch.inference_mode():
        hidden = backbone(packing.row([*range(3, 8)]), packing)
    assert hidden.shape == (packing.total, 32)
    assert not rows


def test_a_model_without_its_last_mlp_is_left_alone() -> None:
    model: Any = model_of("mistral")
    prune(model, GONE["no last MLP"])
    last: nn.Module = model.layers[-1]
    trim_last(model)
    assert model.layers[-1] is last
