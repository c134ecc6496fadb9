"""What is dropped or narrowed against transformers' own dense models."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    AutoModel,
    BertConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    ModernBertConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from condensery.networks.effir import prune, slice_mlps
from condensery.networks.effir_shape import Pruning
from condensery.networks.sublayers import family_of, layers_of, linears

LAYERS, WIDTH, NEURONS, WORDS = 4, 32, 24, 60
SIZES: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "intermediate_size": NEURONS,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
CONFIGS: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**GROUPED),
    "mistral": MistralConfig(**GROUPED, head_dim=8),
    "qwen2": Qwen2Config(**GROUPED),
    "qwen3": Qwen3Config(**GROUPED, head_dim=8),
    "modernbert": ModernBertConfig(
        **SIZES, local_attention=8, cls_token_id=1, sep_token_id=2, bos_token_id=1, eos_token_id=2
    ),
    "bert": BertConfig(**SIZES),
}
IDS = torch.randint(3, WORDS, (2, 13), generator=torch.Generator().manual_seed(0))


def model_of(kind: str) -> nn.Module:
    """Return a random base model whose every weight matters."""
    torch.manual_seed(0)
    model: nn.Module = AutoModel.from_config(CONFIGS[kind], attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@torch.inference_mode()
def read(model: nn.Module) -> Tensor:
    hidden: Tensor = model(input_ids=IDS).last_hidden_state
    return hidden


def silence(
    model: nn.Module, *, attention: tuple[int, ...] = (), mlp: tuple[int, ...] = ()
) -> None:
    family, layers = family_of(model), layers_of(model)
    names = [(layer, family.attention_output) for layer in attention]
    names += [(layer, family.down) for layer in mlp]
    for layer, name in names:
        for parameter in layers[layer].get_submodule(name).parameters():
            nn.init.zeros_(parameter)


@pytest.mark.parametrize("kind", CONFIGS)
def test_what_is_dropped_is_the_dense_model_with_its_output_projection_zeroed(kind: str) -> None:
    dense, pruned = model_of(kind), model_of(kind)
    whole = read(dense)
    attention, mlp = (1, 2), (0, 2)
    silence(dense, attention=attention, mlp=mlp)
    prune(pruned, Pruning(LAYERS, attention, mlp))
    assert (read(pruned) - read(dense)).abs().max() < 1e-5
    assert (read(pruned) - whole).abs().max() > 1e-2


@pytest.mark.parametrize("kind", CONFIGS)
def test_what_is_dropped_is_gone_from_memory_and_the_names_stay(kind: str) -> None:
    dense, pruned = model_of(kind), model_of(kind)
    pruning = Pruning(LAYERS, attention=(0, 3), mlp=(1, 3))
    prune(pruned, pruning)
    before, after = dense.state_dict(), pruned.state_dict()
    assert all(torch.equal(value, before[name]) for name, value in after.items())
    family = family_of(dense)
    dropped = [f"{family.layers}.{i}.{part}." for i in (0, 3) for part in family.attention_parts]
    dropped += [f"{family.layers}.{i}.{part}." for i in (1, 3) for part in family.mlp_parts]
    gone = {name for name in before if name.startswith(tuple(dropped))}
    assert gone
    assert after.keys() == before.keys() - gone
    assert any(f"{family.layers}.3" in name for name in gone)
    left = {name for name in after if f"{family.layers}.3." in name}  # both of its halves are gone
    assert all("LayerNorm" in name for name in left)
    assert bool(left) == (kind == "bert")  # what stands after a sub-layer stays


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_sliced_mlp_equals_the_masked_one(kind: str) -> None:
    dense, sliced = model_of(kind), model_of(kind)
    family = family_of(dense)
    generator = torch.Generator().manual_seed(1)
    kept: list[Tensor | None] = [
        torch.randperm(NEURONS, generator=generator)[:size].sort().values for size in (5, 24, 1)
    ]
    for layer, neurons in zip(layers_of(dense), kept, strict=False):
        assert neurons is not None
        (down,) = linears(layer, [family.down])
        mask = torch.zeros(NEURONS).index_fill(0, neurons, 1.0)
        with torch.no_grad():
            down.weight.mul_(mask)
    slice_mlps(sliced, [*kept, None])
    assert (read(sliced) - read(dense)).abs().max() < 1e-5
    (down,) = linears(layers_of(sliced)[0], [family.down])
    assert down.weight.shape == (WIDTH, 5)


@pytest.mark.parametrize("kind", CONFIGS)
def test_narrow_weights_load_into_a_model_built_as_narrow(kind: str) -> None:
    sliced = model_of(kind)
    sizes = (7, NEURONS, 3, 0)
    prune(sliced, Pruning(LAYERS, mlp=(3,)))
    slice_mlps(sliced, [torch.arange(7), None, torch.tensor([2, 9, 20]), None])
    with torch.device("meta"):
        built = AutoModel.from_config(CONFIGS[kind])
    prune(built, Pruning(LAYERS, mlp=(3,), sizes=sizes))
    shapes = {name: value.shape for name, value in sliced.state_dict().items()}
    assert {name: value.shape for name, value in built.state_dict().items()} == shapes
    assert all(value.is_meta for value in built.state_dict().values())


def test_what_is_no_known_layer_is_refused() -> None:
    with pytest.raises(ValueError, match="model_type: the layers of 'gpt2' are not known"):
        prune(AutoModel.from_config(GPT2Config(n_layer=1, n_embd=8, n_head=2)), Pruning(1))
    with pytest.raises(ValueError, match="num_hidden_layers: 5, but the model has 4"):
        prune(model_of("llama"), Pruning(5))
    with pytest.raises(ValueError, match="layer 1: no neuron"):
        slice_mlps(model_of("llama"), [None, torch.zeros(0, dtype=torch.long), None, None])
