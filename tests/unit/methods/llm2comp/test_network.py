"""Networks in training, beside transformers and beside what is stored of them."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_comp import K, plain_encoder, plain_memory, tiny_network, token_rows
from torch import Tensor
from transformers import AutoModel

from condensery.errors import InputError
from condensery.methods.llm2comp.network import new_memory
from condensery.methods.llm2comp.recipe import NetworkShape

SHAPE = NetworkShape(memory_tokens=K, lora_rank=2, lora_alpha=4, lora_dropout=0.0)


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2"])
def test_vectors_are_the_mean_memory_states_that_transformers_computes(
    kind: str, tmp_path: Path
) -> None:
    network = tiny_network(tmp_path, kind, embeddings="memory")
    rows = token_rows((7, 19, 1))
    encoder = plain_encoder(tmp_path, network.trained())
    wanted = torch.stack([plain_memory(encoder, row).mean(0) for row in rows])
    torch.testing.assert_close(network(rows), wanted, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(network.embed(rows), wanted, atol=1e-5, rtol=1e-5)


def plain_pooled(folder: Path, row: list[int], pooling: str) -> Tensor:
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    read = [*row, *row[1:]] if pooling == "echo" else row
    length = len(read)
    mask = torch.zeros(1, 1, length, length)
    states = model(
        input_ids=torch.tensor([read]), attention_mask=mask if pooling == "mean" else None
    ).last_hidden_state[0]
    if pooling == "last":
        return states[-1]
    if pooling == "weighted":
        places = torch.arange(1.0, length + 1)
        return (states * places[:, None]).sum(0) / places.sum()
    return states[len(row) :].mean(0) if pooling == "echo" else states.mean(0)


@pytest.mark.parametrize("pooling", ["last", "weighted", "mean", "echo"])
def test_the_poolings_that_memory_tokens_are_compared_with(pooling: str, tmp_path: Path) -> None:
    network = tiny_network(tmp_path, moved=False, shape=replace(SHAPE, pooling=pooling))
    rows = token_rows((7, 19, 3))
    wanted = torch.stack([plain_pooled(tmp_path, row, pooling) for row in rows])
    torch.testing.assert_close(network(rows), wanted, atol=1e-5, rtol=1e-5)
    assert network.memory.numel() == 0


def test_adapters_of_two_stages_are_one_of_both_ranks(tmp_path: Path) -> None:
    first = tiny_network(tmp_path, embeddings="all")
    shape = replace(SHAPE, lora_rank=1, lora_alpha=1)
    second = tiny_network(tmp_path, shape=shape, weights=(first.trained(), 2.0))
    rows = token_rows((7, 19))
    weights = second.trained()
    assert {len(factor) for factor in weights.adapters.down.values()} == {3}
    encoder = plain_encoder(tmp_path, weights, scale=shape.scale)
    wanted = torch.stack([plain_memory(encoder, row).mean(0) for row in rows])
    torch.testing.assert_close(second(rows), wanted, atol=1e-5, rtol=1e-5)
    begun = tiny_network(tmp_path, shape=shape, weights=(first.trained(), 2.0), moved=False)
    torch.testing.assert_close(begun(rows), first(rows), atol=1e-5, rtol=1e-5)
    learns = {n for n, p in second.named_parameters() if p.requires_grad}
    assert all(".lora_" in name for name in learns)


def test_continued_adapters_keep_their_rank_and_begin_where_the_stage_before_ended(
    tmp_path: Path,
) -> None:
    first = tiny_network(tmp_path, embeddings="memory")
    how = {"weights": (first.trained(), 2.0), "adapters": "continued", "moved": False}
    second = tiny_network(tmp_path, **how)
    rows = token_rows((7, 19))
    torch.testing.assert_close(second(rows), first(rows), atol=1e-5, rtol=1e-5)
    assert {len(factor) for factor in second.trained().adapters.down.values()} == {2}
    with pytest.raises(InputError, match="lora_rank=3: the stage before has 2"):
        tiny_network(tmp_path, shape=replace(SHAPE, lora_rank=3), **how)
    with pytest.raises(InputError, match="memory_tokens=2: the stage before has"):
        tiny_network(tmp_path, shape=replace(SHAPE, memory_tokens=2), **how)


def test_a_layer_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="lora_layers: 'c_fc' is no linear layer: down_proj, "):
        tiny_network(tmp_path, shape=replace(SHAPE, lora_layers="q_proj, c_fc"))


def test_the_paper_adapts_all_projections_but_the_keys(tmp_path: Path) -> None:
    layers = tiny_network(tmp_path, shape=NetworkShape()).trained().adapters.layers
    assert {name.rpartition(".")[2] for name in layers} == {
        "q_proj", "v_proj", "o_proj", "up_proj", "down_proj", "gate_proj",
    }  # fmt: skip
    assert NetworkShape().scale == 2


def test_dropout_makes_two_views_and_none_in_evaluation(tmp_path: Path) -> None:
    network = tiny_network(tmp_path, embeddings="none")
    network.drop_attention(0.2)
    rows = token_rows((12,)) * 2
    one, other = network(rows)
    torch.testing.assert_close(one, other)
    network.train()
    one, other = network(rows)
    assert (one - other).abs().max() > 1e-3


def test_new_memory_tokens_are_drawn_like_words() -> None:
    torch.manual_seed(0)
    table = torch.randn(500, 6) * torch.arange(1.0, 7) + torch.arange(6.0)
    memory = new_memory(table, 2000)
    torch.testing.assert_close(memory.mean(0), table.mean(0), atol=0.4, rtol=0.1)
    torch.testing.assert_close(memory.std(0), table.std(0), atol=0.1, rtol=0.1)
